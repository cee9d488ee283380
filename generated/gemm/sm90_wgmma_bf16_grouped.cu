// =============================================================================================================================
//  gemm_sm_90a_tn_bf16_128x160x64_p6_grouped_pp
//
//    C = alpha A B^T + beta C      A (M,K) bf16 K-major      B (N,K) bf16 K-major      C (M,N) bf16 N-major
//    accumulated in f32; any M, N, K and batch; C is read only if beta is not 0
//    rows up to ends[g] that no earlier group has are multiplied with B[g] (groups,N,K)
//
//    block tile (128,160,64)      stages 6      ping-pong      shared memory 230400 B
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
//      description: "bf16, 8 experts of 4096 tokens on average"
//      problem: {m: 32768, n: 7168, k: 4096, groups: 8}
//      dtypes: {a: bf16, b: bf16, c: bf16}
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
using TA = bfloat16_t;
using TB = bfloat16_t;
using TC = bfloat16_t;
using BLK_M   = _128;                                                                                 // two consumer warpgroups take whole tiles in turn
using BLK_N   = _160;
using BLK_K   = _64;
using PIPE    = _6;                                                                                   // tiles of A and of B in shared memory
using GROUP_M = _8;                                                                                   // rows of tiles that are taken together, so that their columns meet in L2

// Shared memory: boxes of 128-byte rows under the 128-byte swizzle of TMA and WGMMA.
using ROW   = _64;                                                                                    // elements of a row
using SmemA = Layout<Shape<_128,Shape<_64,_1>,_6>, Stride<_64,Stride<_1,_8192>,_8192>>;               // (BLK_M,BLK_K,PIPE) before the swizzle
using SmemB = Layout<Shape<_160,Shape<_64,_1>,_6>, Stride<_64,Stride<_1,Int<10240>>,Int<10240>>>;     // (BLK_N,BLK_K,PIPE) before the swizzle

// Math: a WGMMA multiplies 64 rows of A with the tile of B, 32 bytes of K at a time.
struct Mma { GMMA::ScaleOut accumulate_; };

// D = A B + D, or A B. CuTe has this width in mma_sm90_gmma_ext.hpp, which takes three times as long to compile as the rest.
CUTE_DEVICE void wgmma(Mma const& mma, float* D, uint64_t desc_A, uint64_t desc_B) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %82, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 "
      "{"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
      "}, %80, %81, p, 1, 1, 0, 0;\n"
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
using MMA_M   = _2;                                                                                   // times 64 rows of a warpgroup
using K_STEPS = _4;
using DescA = Layout<Shape<_1,_2,Shape<_4,_1>,_6>, Stride<_0,_512,Stride<_2,_1024>,_1024>>;           // (MMA,MMA_M,MMA_K,PIPE) in 16 B
using DescB = Layout<Shape<_1,Shape<_4,_1>,_6>, Stride<_0,Stride<_2,Int<1280>>,Int<1280>>>;           // (MMA,MMA_K,PIPE) in 16 B
using FragC = Layout<Shape<_2,_2,Int<20>,_2>, Stride<_1,_2,_4,_80>>;                                  // (2 columns,rows r and r + 8,every 8 columns,MMA_M)
constexpr uint64_t DESCRIPTOR_A = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(16 >> 4) << 16;  // 128-byte swizzle, 8 rows are 1024 B
constexpr uint64_t DESCRIPTOR_B = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(16 >> 4) << 16;  // 128-byte swizzle, 8 rows are 1024 B

// Store: boxes of 64 rows of 64 B, swizzled; 1 for each warpgroup
using ROW_C   = _32;
using BOXES_C = _5;                                                                                   // boxes along N
using SwizzleC = Swizzle<2,3,3>;
using SmemC = Layout<Shape<_64,_32,_1,_2>, Stride<_32,_1,_2048,_2048>>;                               // (64,ROW_C,buffers,warpgroups) before the swizzle

struct SharedStorage {
  alignas(1024) TA A[49152];
  alignas(1024) TB B[61440];
  alignas(1024) TC C[4096];
  uint64_t full[6], empty[6];                                                                         // TMA has filled the stage; its readers are done with it
  uint64_t turn[2];                                                                                   // the tensor cores are this warpgroup's
};
static_assert(sizeof(SharedStorage) == 230400, "spec.smem");
static_assert(cosize_v<SmemA> * sizeof(TA) == sizeof(SharedStorage::A) && cosize_v<SmemB> * sizeof(TB) == sizeof(SharedStorage::B), "spec.smem");
static_assert(cosize_v<SmemC> * sizeof(TC) == sizeof(SharedStorage::C) && size(FragC{}) == 160, "spec.tile");

// -----------------------------------------------------------------------------------------------------------------------------
//  Kernel
// -----------------------------------------------------------------------------------------------------------------------------
extern "C" __global__ __launch_bounds__(384, 1)
void gemm_sm_90a_tn_bf16_128x160x64_p6_grouped_pp(
    __grid_constant__ TmaDescriptor const tma_A, __grid_constant__ TmaDescriptor const tma_B, int32_t const* ends,
    bfloat16_t* C, int64_t ldC, int32_t N, int32_t K, int32_t groups, float alpha, float beta) {
  extern __shared__ __align__(1024) unsigned char smem_raw[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(smem_raw);
  int const warpgroup = threadIdx.x / 128;

  // 1. Barriers: a full one waits for one arrival and the bytes of a stage, an empty one for each reader
  if (threadIdx.x == 0) {
    for (int i = 0; i < PIPE{}; ++i) { initialize_barrier(smem.full[i], 1); initialize_barrier(smem.empty[i], 1); }
    for (int i = 0; i < 2; ++i) { initialize_barrier(smem.turn[i], 1); }
    cutlass::arch::fence_barrier_init();
  } else if (threadIdx.x == 256) { // descriptors come while barriers are made
    if (K > 0) { prefetch_tma_descriptor(&tma_A); prefetch_tma_descriptor(&tma_B); }
  }
  __syncthreads();

  // 2. Work: the tiles of one group after those of another; every block takes each stride-th
  int const k_tiles = ceil_div(K, BLK_K{});
  int const tiles_n = ceil_div(N, BLK_N{});
  int work = 0;
  for (int g = 0; g < groups; ++g) { work += ceil_div(ends[g] - (g > 0 ? ends[g - 1] : 0), BLK_M{}) * tiles_n; }
  int const first  = blockIdx.x;
  int const stride = gridDim.x;
  struct Origin { int m, n, batch, end; };
  // Tiles are asked for in rising order: the search for a tile's group goes on from the last one's.
  auto origin = [&, batch = 0, begin = 0, before = 0](int i) mutable { // first row and column of tile i, its group, the group's end
    while (i >= before + ceil_div(ends[batch] - begin, BLK_M{}) * tiles_n) {
      before += ceil_div(ends[batch] - begin, BLK_M{}) * tiles_n;
      begin = ends[batch++];
    }
    int const tiles_m = ceil_div(ends[batch] - begin, BLK_M{});
    int const tile  = i - before;
    int const group = tiles_m > GROUP_M{} ? tile / (GROUP_M{} * tiles_n) : 0;
    int const rows  = min(GROUP_M{}, tiles_m - group * GROUP_M{});                                    // the last rows of tiles may be fewer
    int const place = tile - group * GROUP_M{} * tiles_n;
    int const n = rows == GROUP_M{} ? place / GROUP_M{} : place / rows;
    int const m = group * GROUP_M{} + place - n * rows;
    int const m0 = begin + m * BLK_M{};
    int const n0 = n * BLK_N{};
    return Origin{m0, n0, batch, ends[batch]};
  };

  if (warpgroup == 2) {
    // 3. Producer: one thread keeps the stages full, tile after tile, however far the consumers are
    cutlass::arch::warpgroup_reg_dealloc<40>();
    if (threadIdx.x / 32 == 8 && cute::elect_one_sync()) {
      int stage = 0, phase = 1;                                                                       // an empty stage lets the first wait pass
      for (int i = first; i < work; i += stride) {
        auto const [m0, n0, batch, end] = origin(i);
        for (int k = 0; k < k_tiles; ++k) {
          wait_barrier(smem.empty[stage], phase);
          set_barrier_transaction_bytes(smem.full[stage], 36864);
          SM90_TMA_LOAD_2D::copy(&tma_A, &smem.full[stage], uint64_t(TMA::CacheHintSm90::EVICT_NORMAL), smem.A + SmemA{}(0, 0, stage), k * BLK_K{}, m0);
          SM90_TMA_LOAD_3D::copy(&tma_B, &smem.full[stage], uint64_t(TMA::CacheHintSm90::EVICT_NORMAL), smem.B + SmemB{}(0, 0, stage), k * BLK_K{}, n0, batch);
          if (++stage == PIPE{}) { stage = 0; phase ^= 1; }
        }
      }
    }
  } else {
    // 4. Consumers: one warpgroup multiplies its tile while the other stores the one before
    cutlass::arch::warpgroup_reg_alloc<232>();
    int const tid  = threadIdx.x % 128;
    int const lane = threadIdx.x % 32;
    int const row  = tid / 32 * 16;                                                                   // first of this warp's 16 rows, in each 64
    Tensor tCrA = make_tensor(GMMA::DescriptorIterator{DESCRIPTOR_A | (cast_smem_ptr_to_uint(smem.A) & 0x3FFFF) >> 4}, DescA{});  // (MMA,MMA_M,MMA_K,PIPE)
    Tensor tCrB = make_tensor(GMMA::DescriptorIterator{DESCRIPTOR_B | (cast_smem_ptr_to_uint(smem.B) & 0x3FFFF) >> 4}, DescB{});  // (MMA,MMA_K,PIPE)
    Tensor tCrC = make_tensor<float>(FragC{});                                                        // (2,2,BLK_N/8,MMA_M)
    Tensor sC = make_tensor(make_smem_ptr(smem.C), composition(SwizzleC{}, SmemC{}));                 // (64,ROW_C,buffers,warpgroups)
    int step = warpgroup * k_tiles;                                                                   // stages that the block has filled before this warpgroup's next tile
    int turn = 1 - warpgroup;       // warpgroup 0 begins: its first wait passes
    for (int i = first + warpgroup * stride; i < work; i += 2 * stride) {
      int stage = step % PIPE{}, phase = step / PIPE{} & 1;
      step += 2 * k_tiles;
      wait_barrier(smem.turn[warpgroup], turn);
      turn ^= 1;
      Mma mma;
      mma.accumulate_ = GMMA::ScaleOut::Zero;                                                         // the first step overwrites the accumulator
      int last = 0;
      // While the products of step k run, those of step k - 1 have finished, and only then is their stage given back.
      for (int k = 0; k < k_tiles; ++k) {
        wait_barrier(smem.full[stage], phase);
        warpgroup_fence_operand(tCrC);
        warpgroup_arrive();
        CUTE_UNROLL
        for (int j = 0; j < K_STEPS{}; ++j) {
          CUTE_UNROLL
          for (int m = 0; m < MMA_M{}; ++m) {
            Tensor sums = tCrC(_,_,_,m);
            wgmma(mma, sums.data(), tCrA(0,m,j,stage), tCrB(0,j,stage));
          }
          mma.accumulate_ = GMMA::ScaleOut::One;
        }
        warpgroup_commit_batch();
        warpgroup_wait<1>();
        if (k > 0 && tid == 0) { arrive_barrier(smem.empty[last]); }
        last = stage;
        if (++stage == PIPE{}) { stage = 0; phase ^= 1; }
      }
      if (tid == 0) { arrive_barrier(smem.turn[1 - warpgroup]); } // the other's products follow while this one stores
      auto const [m0, n0, batch, end] = origin(i);                                                    // while the last products run
      warpgroup_wait<0>();
      warpgroup_fence_operand(tCrC);
      if (k_tiles > 0 && tid == 0) { arrive_barrier(smem.empty[last]); }
      if (k_tiles == 0) { // no product: C = beta C
        CUTE_UNROLL
        for (int v = 0; v < size(tCrC); ++v) { tCrC(v) = 0; }
      }

      // 5. Epilogue: C = alpha * acc + beta * C, in f32
      CUTE_UNROLL
      for (int v = 0; v < size(tCrC); ++v) { tCrC(v) *= alpha; }

      if (beta != 0) { // otherwise C is not read: it may hold anything, NaN too
        bool const inside = m0 + 64 * MMA_M{} <= end && n0 + BLK_N{} <= N;                            // then nothing branches, and loads are issued together
        CUTE_UNROLL
        for (int m = 0; m < MMA_M{}; ++m) {
          CUTE_UNROLL
          for (int i = 0; i < 2; ++i) {
            int const r = m0 + 64 * m + row + lane / 4 + 8 * i;
            int const c = n0 + lane % 4 * 2;
            TC const* old = C + r * ldC + c;
            if (inside) {
              CUTE_UNROLL
              for (int j = 0; j < BLK_N{} / 8; ++j) {
                Tensor pair = make_tensor<TC>(Layout<_2>{});
                copy_unpack(Copy_Traits<UniversalCopy<uint32_t>>{}, make_tensor(make_gmem_ptr(old + 8 * j), Layout<_2>{}), pair);
                tCrC(0,i,j,m) += beta * float(pair(0));
                tCrC(1,i,j,m) += beta * float(pair(1));
              }
            } else if (r < end) {
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

      // 6. Store: box by box through shared memory, each warp its 16 rows
      CUTE_UNROLL
      for (int box = 0; box < BOXES_C{}; ++box) {
        CUTE_UNROLL
        for (int m = 0; m < MMA_M{}; ++m) {
          __syncwarp();                                                                               // the box before has left
          CUTE_UNROLL
          for (int j = 0; j < ROW_C{} / 16; ++j) { // 16 x 16 values of a warp at once
            Tensor out = make_tensor<TC>(Layout<_8>{});
            CUTE_UNROLL
            for (int v = 0; v < 8; ++v) { out(v) = TC(tCrC(v % 2, v / 2 % 2, box * ROW_C{} / 8 + 2 * j + v / 4, m)); }
            copy_unpack(Copy_Traits<SM90_U32x4_STSM_N>{}, out, make_tensor(make_smem_ptr(&sC(row + lane % 16, 16 * j + lane / 16 * 8, 0, warpgroup)), Layout<_8>{}));
          }

          __syncwarp();
          CUTE_UNROLL
          for (int i = 0; i < 2; ++i) { // rows of 64 B leave in vectors of 8
            int const r = row + (32 * i + lane) / 4;
            int const c = (32 * i + lane) % 4 * 8;
            if (m0 + 64 * m + r < end && n0 + box * ROW_C{} + c < N) {
              TC* place = C + (m0 + 64 * m + r) * ldC + n0 + box * ROW_C{} + c;
              copy_unpack(Copy_Traits<UniversalCopy<uint128_t>>{}, make_tensor(make_smem_ptr(&sC(r, c, 0, warpgroup)), Layout<_8>{}), make_tensor(make_gmem_ptr(place), Layout<_8>{}));
            }
          }
        }
      }
    }
  }
}
