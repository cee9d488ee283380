// =============================================================================================================================
//  gemm_sm_90a_tn_e4m3_bf16_128x160x128_p5_sab_every128
//
//    C = alpha * scale_a * scale_b A B^T + beta C      A (M,K) e4m3 K-major      B (N,K) e4m3 K-major      C (M,N) bf16 N-major
//    accumulated in f32, the sums of 128 elements of K at a time; any M, N, K and batch; C is read only if beta is not 0
//
//    block tile (128,160,128)      stages 5      cooperative      shared memory 201728 B
//    threads 384: 2 consumer warpgroups of 232 registers a thread and a producer of 40
//    grid: persistent, tiles in groups of 8 rows of tiles
//    addresses and row strides of A and B aligned to 16 B, C to 16 B, C's contiguous extent too
//
//  Layouts are resolved: each tensor starts at its thread's first element, and a literal layout says which elements are the
//  thread's own. `make_tiled_copy`, `make_tiled_mma` and `partition_*` would compute the same.
//
//  Written by cutegen 0.1.0 from this spec; `cutegen emit` writes it again, `cutegen run` checks it:
//
//      kernel: gemm
//      arch: sm_90a
//      description: "e4m3 in, bf16 out, row scales, sums promoted to f32"
//      problem: {m: 4096, n: 7168, k: 4096}
//      dtypes: {a: e4m3, b: e4m3, c: bf16, promote: 128}
//      scales: {a: row, b: row}
// =============================================================================================================================
#include <cute/tensor_impl.hpp>
#include <cute/swizzle.hpp>
#include <cute/swizzle_layout.hpp>
#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/atom/copy_traits_sm90.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

using namespace cute;

// -----------------------------------------------------------------------------------------------------------------------------
//  Static description: every number of this file
// -----------------------------------------------------------------------------------------------------------------------------
using TA = float_e4m3_t;
using TB = float_e4m3_t;
using TC = bfloat16_t;
using BLK_M   = _128;                                                                                 // 2 consumer warpgroups of 64 rows
using BLK_N   = _160;
using BLK_K   = _128;
using PIPE    = _5;                                                                                   // tiles of A and of B in shared memory
using GROUP_M = _8;                                                                                   // rows of tiles that are taken together, so that their columns meet in L2
using PROMOTE = _1;                                                                                   // stages whose products the tensor cores sum before f32 additions take over

// Shared memory: boxes of 128-byte rows under the 128-byte swizzle of TMA and WGMMA.
using ROW   = _128;                                                                                   // elements of a row
using SmemA = Layout<Shape<_128,Shape<_128,_1>,_5>, Stride<_128,Stride<_1,_16384>,_16384>>;           // (BLK_M,BLK_K,PIPE) before the swizzle
using SmemB = Layout<Shape<_160,Shape<_128,_1>,_5>, Stride<_128,Stride<_1,Int<20480>>,Int<20480>>>;   // (BLK_N,BLK_K,PIPE) before the swizzle

// Math: a WGMMA multiplies 64 rows of A with the tile of B, 32 bytes of K at a time.
struct Mma { GMMA::ScaleOut accumulate_; };

// D = A B + D, or A B. CuTe has this width in mma_sm90_gmma_ext.hpp, which takes three times as long to compile as the rest.
CUTE_DEVICE void wgmma(Mma const& mma, float* D, uint64_t desc_A, uint64_t desc_B) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %82, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n160k32.f32.e4m3.e4m3 "
      "{"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
      "}, %80, %81, p, 1, 1;\n"
      "}\n"
      : "+f"(D[0]), "+f"(D[1]), "+f"(D[2]), "+f"(D[3]), "+f"(D[4]), "+f"(D[5]), "+f"(D[6]), "+f"(D[7]),
        "+f"(D[8]), "+f"(D[9]), "+f"(D[10]), "+f"(D[11]), "+f"(D[12]), "+f"(D[13]), "+f"(D[14]), "+f"(D[15]),
        "+f"(D[16]), "+f"(D[17]), "+f"(D[18]), "+f"(D[19]), "+f"(D[20]), "+f"(D[21]), "+f"(D[22]), "+f"(D[23]),
        "+f"(D[24]), "+f"(D[25]), "+f"(D[26]), "+f"(D[27]), "+f"(D[28]), "+f"(D[29]), "+f"(D[30]), "+f"(D[31]),
        "+f"(D[32]), "+f"(D[33]), "+f"(D[34]), "+f"(D[35]), "+f"(D[36]), "+f"(D[37]), "+f"(D[38]), "+f"(D[39]),
        "+f"(D[40]), "+f"(D[41]), "+f"(D[42]), "+f"(D[43]), "+f"(D[44]), "+f"(D[45]), "+f"(D[46]), "+f"(D[47]),
        "+f"(D[48]), "+f"(D[49]), "+f"(D[50]), "+f"(D[51]), "+f"(D[52]), "+f"(D[53]), "+f"(D[54]), "+f"(D[55]),
        "+f"(D[56]), "+f"(D[57]), "+f"(D[58]), "+f"(D[59]), "+f"(D[60]), "+f"(D[61]), "+f"(D[62]), "+f"(D[63]),
        "+f"(D[64]), "+f"(D[65]), "+f"(D[66]), "+f"(D[67]), "+f"(D[68]), "+f"(D[69]), "+f"(D[70]), "+f"(D[71]),
        "+f"(D[72]), "+f"(D[73]), "+f"(D[74]), "+f"(D[75]), "+f"(D[76]), "+f"(D[77]), "+f"(D[78]), "+f"(D[79])
      : "l"(desc_A), "l"(desc_B), "r"(int32_t(mma.accumulate_)));
}
using MMA_M   = _1;                                                                                   // times 64 rows of a warpgroup
using K_STEPS = _4;
using DescA = Layout<Shape<_1,_1,Shape<_4,_1>,_5>, Stride<_0,_512,Stride<_2,_1024>,_1024>>;           // (MMA,MMA_M,MMA_K,PIPE) in 16 B
using DescB = Layout<Shape<_1,Shape<_4,_1>,_5>, Stride<_0,Stride<_2,Int<1280>>,Int<1280>>>;           // (MMA,MMA_K,PIPE) in 16 B
using FragC = Layout<Shape<_2,_2,Int<20>,_1>, Stride<_1,_2,_4,_80>>;                                  // (2 columns,rows r and r + 8,every 8 columns,MMA_M)
constexpr uint64_t DESCRIPTOR_A = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(16 >> 4) << 16;  // 128-byte swizzle, 8 rows are 1024 B
constexpr uint64_t DESCRIPTOR_B = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(16 >> 4) << 16;  // 128-byte swizzle, 8 rows are 1024 B

// Store: boxes of 64 rows of 64 B, swizzled; 2 for each warpgroup
using ROW_C   = _32;
using BOXES_C = _5;                                                                                   // boxes along N
using SwizzleC = Swizzle<2,3,3>;
using SmemC = Layout<Shape<_64,_32,_2,_2>, Stride<_32,_1,_2048,_4096>>;                               // (64,ROW_C,buffers,warpgroups) before the swizzle

struct SharedStorage {
  alignas(1024) TA A[81920];
  alignas(1024) TB B[102400];
  alignas(1024) TC C[8192];
  uint64_t full[5], empty[5];                                                                         // TMA has filled the stage; its readers are done with it
};
static_assert(sizeof(SharedStorage) == 201728, "spec.smem");
static_assert(cosize_v<SmemA> * sizeof(TA) == sizeof(SharedStorage::A) && cosize_v<SmemB> * sizeof(TB) == sizeof(SharedStorage::B), "spec.smem");
static_assert(cosize_v<SmemC> * sizeof(TC) == sizeof(SharedStorage::C) && size(FragC{}) == 80, "spec.tile");

// -----------------------------------------------------------------------------------------------------------------------------
//  Kernel
// -----------------------------------------------------------------------------------------------------------------------------
extern "C" __global__ __launch_bounds__(384, 1)
void gemm_sm_90a_tn_e4m3_bf16_128x160x128_p5_sab_every128(
    __grid_constant__ TmaDescriptor const tma_A, __grid_constant__ TmaDescriptor const tma_B,
    __grid_constant__ TmaDescriptor const tma_C, bfloat16_t* C, int64_t ldC, int64_t batch_C, float const* scale_A,
    int64_t batch_scale_A, float const* scale_B, int64_t batch_scale_B, int32_t M, int32_t N, int32_t K, int32_t batches,
    float alpha, float beta) {
  extern __shared__ __align__(1024) unsigned char smem_raw[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(smem_raw);
  int const warpgroup = threadIdx.x / 128;

  // 1. Barriers: a full one waits for one arrival and the bytes of a stage, an empty one for each reader
  if (threadIdx.x == 0) {
    for (int i = 0; i < PIPE{}; ++i) { initialize_barrier(smem.full[i], 1); initialize_barrier(smem.empty[i], 2); }
    cutlass::arch::fence_barrier_init();
  } else if (threadIdx.x == 256) { // descriptors come while barriers are made
    if (K > 0) { prefetch_tma_descriptor(&tma_A); prefetch_tma_descriptor(&tma_B); }
    prefetch_tma_descriptor(&tma_C);
  }
  __syncthreads();

  // 2. Work: tiles down GROUP_M rows of tiles, then the next column of them; every block takes each stride-th
  int const k_tiles = ceil_div(K, BLK_K{});
  int const tiles_m = ceil_div(M, BLK_M{});
  int const tiles_n = ceil_div(N, BLK_N{});
  int const work    = tiles_m * tiles_n * batches;
  int const first   = blockIdx.x;
  int const stride  = gridDim.x;
  struct Origin { int m, n, batch; };
  auto origin = [&](int i) { // first row and column of tile i, and its batch
    int const batch = batches > 1 ? i / (tiles_m * tiles_n) : 0;
    int const tile  = i - batch * tiles_m * tiles_n;
    int const group = tiles_m > GROUP_M{} ? tile / (GROUP_M{} * tiles_n) : 0;
    int const rows  = min(GROUP_M{}, tiles_m - group * GROUP_M{});                                    // the last group may be shorter
    int const place = tile - group * GROUP_M{} * tiles_n;
    int const n = rows == GROUP_M{} ? place / GROUP_M{} : place / rows;
    int const m = group * GROUP_M{} + place - n * rows;
    int const m0 = m * BLK_M{};
    int const n0 = n * BLK_N{};
    return Origin{m0, n0, batch};
  };

  if (warpgroup == 2) {
    // 3. Producer: one thread keeps the stages full, tile after tile, however far the consumers are
    cutlass::arch::warpgroup_reg_dealloc<40>();
    if (threadIdx.x / 32 == 8 && cute::elect_one_sync()) {
      int stage = 0, phase = 1;                                                                       // an empty stage lets the first wait pass
      for (int i = first; i < work; i += stride) {
        auto const [m0, n0, batch] = origin(i);
        for (int k = 0; k < k_tiles; ++k) {
          wait_barrier(smem.empty[stage], phase);
          set_barrier_transaction_bytes(smem.full[stage], 36864);
          SM90_TMA_LOAD_3D::copy(&tma_A, &smem.full[stage], uint64_t(TMA::CacheHintSm90::EVICT_NORMAL), smem.A + SmemA{}(0, 0, stage), k * BLK_K{}, m0, batch);
          SM90_TMA_LOAD_3D::copy(&tma_B, &smem.full[stage], uint64_t(TMA::CacheHintSm90::EVICT_NORMAL), smem.B + SmemB{}(0, 0, stage), k * BLK_K{}, n0, batch);
          if (++stage == PIPE{}) { stage = 0; phase ^= 1; }
        }
      }
    }
  } else {
    // 4. Consumers: each warpgroup owns 64 rows of the tile
    cutlass::arch::warpgroup_reg_alloc<232>();
    int const tid  = threadIdx.x % 128;
    int const lane = threadIdx.x % 32;
    int const row  = tid / 32 * 16;                                                                   // first of this warp's 16 rows, in each 64
    Tensor tCrA = make_tensor(GMMA::DescriptorIterator{DESCRIPTOR_A | (cast_smem_ptr_to_uint(smem.A + SmemA{}(64 * MMA_M{} * warpgroup, 0, 0)) & 0x3FFFF) >> 4}, DescA{});  // (MMA,MMA_M,MMA_K,PIPE)
    Tensor tCrB = make_tensor(GMMA::DescriptorIterator{DESCRIPTOR_B | (cast_smem_ptr_to_uint(smem.B) & 0x3FFFF) >> 4}, DescB{});  // (MMA,MMA_K,PIPE)
    Tensor tCrC = make_tensor<float>(FragC{});                                                        // (2,2,BLK_N/8,MMA_M)
    Tensor tCrP = make_tensor<float>(FragC{});                                                        // partial sums, as the tensor cores keep them
    Tensor sC = make_tensor(make_smem_ptr(smem.C), composition(SwizzleC{}, SmemC{}));                 // (64,ROW_C,buffers,warpgroups)
    int buffer = 0;
    int stage = 0, phase = 0;
    for (int i = first; i < work; i += stride) {
      Mma mma;
      mma.accumulate_ = GMMA::ScaleOut::Zero;                                                         // the first step overwrites the accumulator
      CUTE_UNROLL
      for (int v = 0; v < size(tCrC); ++v) { tCrC(v) = 0; }
      int last = 0;
      // While the products of step k run, those of step k - 1 have finished, and only then is their stage given back.
      for (int k = 0; k < k_tiles; ++k) {
        wait_barrier(smem.full[stage], phase);
        warpgroup_fence_operand(tCrP);
        warpgroup_arrive();
        CUTE_UNROLL
        for (int j = 0; j < K_STEPS{}; ++j) {
          CUTE_UNROLL
          for (int m = 0; m < MMA_M{}; ++m) {
            Tensor sums = tCrP(_,_,_,m);
            wgmma(mma, sums.data(), tCrA(0,m,j,stage), tCrB(0,j,stage));
          }
          mma.accumulate_ = GMMA::ScaleOut::One;
        }
        warpgroup_commit_batch();
        if ((k + 1) % PROMOTE{} == 0 || k + 1 == k_tiles) {
          warpgroup_wait<0>();
          warpgroup_fence_operand(tCrP);
          CUTE_UNROLL
          for (int v = 0; v < size(tCrC); ++v) { tCrC(v) += tCrP(v); }
          mma.accumulate_ = GMMA::ScaleOut::Zero;
        } else {
          warpgroup_wait<1>();
        }
        if (k > 0 && tid == 0) { arrive_barrier(smem.empty[last]); }
        last = stage;
        if (++stage == PIPE{}) { stage = 0; phase ^= 1; }
      }
      auto const [m_tile, n0, batch] = origin(i);                                                     // while the last products run
      int const m0 = m_tile + 64 * MMA_M{} * warpgroup;                                               // first row of this warpgroup
      warpgroup_wait<0>();
      warpgroup_fence_operand(tCrP);
      if (k_tiles > 0 && tid == 0) { arrive_barrier(smem.empty[last]); }

      // 5. Epilogue: C = alpha * acc * scale_A * scale_B + beta * C, in f32
      CUTE_UNROLL
      for (int m = 0; m < MMA_M{}; ++m) {
        CUTE_UNROLL
        for (int i = 0; i < 2; ++i) {
          int const r = m0 + 64 * m + row + lane / 4 + 8 * i;
          float const factor = alpha * scale_A[batch * batch_scale_A + min(r, M - 1)];
          CUTE_UNROLL
          for (int j = 0; j < BLK_N{} / 8; ++j) { tCrC(0,i,j,m) *= factor; tCrC(1,i,j,m) *= factor; }
        }
      }
      CUTE_UNROLL
      for (int j = 0; j < BLK_N{} / 8; ++j) {
        CUTE_UNROLL
        for (int v = 0; v < 2; ++v) {
          int const c = n0 + 8 * j + lane % 4 * 2 + v;
          float const factor = scale_B[batch * batch_scale_B + min(c, N - 1)];
          CUTE_UNROLL
          for (int m = 0; m < MMA_M{}; ++m) { tCrC(v,0,j,m) *= factor; tCrC(v,1,j,m) *= factor; }
        }
      }

      if (beta != 0) { // otherwise C is not read: it may hold anything, NaN too
        bool const inside = m0 + 64 * MMA_M{} <= M && n0 + BLK_N{} <= N;                              // then nothing branches, and loads are issued together
        CUTE_UNROLL
        for (int m = 0; m < MMA_M{}; ++m) {
          CUTE_UNROLL
          for (int i = 0; i < 2; ++i) {
            int const r = m0 + 64 * m + row + lane / 4 + 8 * i;
            int const c = n0 + lane % 4 * 2;
            TC const* old = C + batch * batch_C + r * ldC + c;
            if (inside) {
              CUTE_UNROLL
              for (int j = 0; j < BLK_N{} / 8; ++j) {
                Tensor pair = make_tensor<TC>(Layout<_2>{});
                copy_unpack(Copy_Traits<UniversalCopy<uint32_t>>{}, make_tensor(make_gmem_ptr(old + 8 * j), Layout<_2>{}), pair);
                tCrC(0,i,j,m) += beta * float(pair(0));
                tCrC(1,i,j,m) += beta * float(pair(1));
              }
            } else if (r < M) {
              CUTE_UNROLL
              for (int j = 0; j < BLK_N{} / 8; ++j) {
                if (c + 8 * j >= N) { break; }
                Tensor pair = make_tensor<TC>(Layout<_2>{});
                copy_unpack(Copy_Traits<UniversalCopy<uint32_t>>{}, make_tensor(make_gmem_ptr(old + 8 * j), Layout<_2>{}), pair);
                tCrC(0,i,j,m) += beta * float(pair(0));
                tCrC(1,i,j,m) += beta * float(pair(1));
              }
            }
          }
        }
      }

      // 6. Store: box by box through shared memory; TMA writes them while the next tile is multiplied
      CUTE_UNROLL
      for (int box = 0; box < BOXES_C{}; ++box) {
        CUTE_UNROLL
        for (int m = 0; m < MMA_M{}; ++m) {
          if (tid == 0) { tma_store_wait<1>(); } // the store that last used this buffer has read it
          cutlass::arch::NamedBarrier::sync(128, 1 + warpgroup);
          CUTE_UNROLL
          for (int j = 0; j < ROW_C{} / 16; ++j) { // 16 x 16 values of a warp at once
            Tensor out = make_tensor<TC>(Layout<_8>{});
            CUTE_UNROLL
            for (int v = 0; v < 8; ++v) { out(v) = TC(tCrC(v % 2, v / 2 % 2, box * ROW_C{} / 8 + 2 * j + v / 4, m)); }
            copy_unpack(Copy_Traits<SM90_U32x4_STSM_N>{}, out, make_tensor(make_smem_ptr(&sC(row + lane % 16, 16 * j + lane / 16 * 8, buffer, warpgroup)), Layout<_8>{}));
          }

          tma_store_fence();                                                                          // the copy engine reads what these threads wrote
          cutlass::arch::NamedBarrier::sync(128, 1 + warpgroup);
          if (tid == 0) {
            SM90_TMA_STORE_3D::copy(&tma_C, smem.C + SmemC{}(0, 0, buffer, warpgroup), n0 + box * ROW_C{}, m0 + 64 * m, batch);
            tma_store_arrive();
          }
          if (++buffer == 2) { buffer = 0; }
        }
      }
    }
    if (tid == 0) { tma_store_wait<0>(); } // shared memory must outlive the last store
  }
}
