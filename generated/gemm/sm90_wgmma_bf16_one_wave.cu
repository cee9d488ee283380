// =============================================================================================================================
//  gemm_sm_90a_nn_bf16_128x72x64_p8_4x2
//
//    C = alpha A B^T + beta C      A (M,K) bf16 M-major      B (N,K) bf16 K-major      C (M,N) bf16 N-major
//    accumulated in f32; any M, N, K and batch; C is read only if beta is not 0
//
//    block tile (128,72,64)      stages 8      cooperative      shared memory 224256 B
//    threads 384: 2 consumer warpgroups of 232 registers a thread and a producer of 40
//    grid: persistent, tiles in groups of 2 rows of tiles      clusters of 4x2 blocks
//    addresses and row strides of A and B aligned to 16 B, C to 16 B, C's contiguous extent too
//
//  Layouts are resolved: each tensor starts at its thread's first element, and a literal layout says which elements are the
//  thread's own. `make_tiled_copy`, `make_tiled_mma` and `partition_*` would compute the same.
//
//  Written by cutegen 0.1.0 from this spec; `cutegen emit` writes it again, `cutegen run` checks it:
//
//      kernel: gemm
//      arch: sm_90a
//      description: "bf16, 1000^3 in one wave, clusters of eight"
//      problem: {m: 1000, n: 1000, k: 1000}
//      dtypes: {a: bf16, b: bf16, c: bf16}
//      majors: NN
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
using BLK_M   = _128;                                                                                 // 2 consumer warpgroups of 64 rows
using BLK_N   = _72;
using BLK_K   = _64;
using PIPE    = _8;                                                                                   // tiles of A and of B in shared memory
using GROUP_M = _2;                                                                                   // rows of tiles that are taken together, so that their columns meet in L2
using CLUSTER   = _8;                                                                                 // blocks: CLUSTER_M neighbours along M share the loads of B, CLUSTER_N along N those of A
using CLUSTER_M = _4;
using CLUSTER_N = _2;
constexpr int SHARE_A = 0x11, SHARE_B = 0xf;                                                          // who shares with block 0, a bit for each rank; ranks run down M first

// Shared memory: boxes of 128-byte rows under the 128-byte swizzle of TMA and WGMMA.
using ROW   = _64;                                                                                    // elements of a row
using SmemA = Layout<Shape<Shape<_64,_2>,_64,_8>, Stride<Stride<_1,_4096>,_64,_8192>>;                // (BLK_M,BLK_K,PIPE) before the swizzle
using SmemB = Layout<Shape<_72,Shape<_64,_1>,_8>, Stride<_64,Stride<_1,Int<4608>>,Int<4608>>>;        // (BLK_N,BLK_K,PIPE) before the swizzle

// Math: a WGMMA multiplies 64 rows of A with the tile of B, 32 bytes of K at a time.
struct Mma { GMMA::ScaleOut accumulate_; };

// D = A B + D, or A B. CuTe has this width in mma_sm90_gmma_ext.hpp, which takes three times as long to compile as the rest.
CUTE_DEVICE void wgmma(Mma const& mma, float* D, uint64_t desc_A, uint64_t desc_B) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %38, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 "
      "{"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
      "%32, %33, %34, %35"
      "}, %36, %37, p, 1, 1, 1, 0;\n"
      "}\n"
      : "+f"(D[0]), "+f"(D[1]), "+f"(D[2]), "+f"(D[3]), "+f"(D[4]), "+f"(D[5]), "+f"(D[6]), "+f"(D[7]),
        "+f"(D[8]), "+f"(D[9]), "+f"(D[10]), "+f"(D[11]), "+f"(D[12]), "+f"(D[13]), "+f"(D[14]), "+f"(D[15]),
        "+f"(D[16]), "+f"(D[17]), "+f"(D[18]), "+f"(D[19]), "+f"(D[20]), "+f"(D[21]), "+f"(D[22]), "+f"(D[23]),
        "+f"(D[24]), "+f"(D[25]), "+f"(D[26]), "+f"(D[27]), "+f"(D[28]), "+f"(D[29]), "+f"(D[30]), "+f"(D[31]),
        "+f"(D[32]), "+f"(D[33]), "+f"(D[34]), "+f"(D[35])
      : "l"(desc_A), "l"(desc_B), "r"(int32_t(mma.accumulate_)));
}
using MMA_M   = _1;                                                                                   // times 64 rows of a warpgroup
using K_STEPS = _4;
using DescA = Layout<Shape<_1,_1,_4,_8>, Stride<_0,_512,_128,_1024>>;                                 // (MMA,MMA_M,MMA_K,PIPE) in 16 B
using DescB = Layout<Shape<_1,Shape<_4,_1>,_8>, Stride<_0,Stride<_2,Int<576>>,Int<576>>>;             // (MMA,MMA_K,PIPE) in 16 B
using FragC = Layout<Shape<_2,_2,_9,_1>, Stride<_1,_2,_4,Int<36>>>;                                   // (2 columns,rows r and r + 8,every 8 columns,MMA_M)
constexpr uint64_t DESCRIPTOR_A = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(8192 >> 4) << 16;  // 128-byte swizzle, 8 rows are 1024 B, boxes 8192 B apart
constexpr uint64_t DESCRIPTOR_B = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(16 >> 4) << 16;  // 128-byte swizzle, 8 rows are 1024 B

// Store: boxes of 64 rows of 144 B; 1 for each warpgroup
using ROW_C   = _72;
using BOXES_C = _1;                                                                                   // boxes along N
using SwizzleC = Swizzle<0,3,3>;
using SmemC = Layout<Shape<_64,_72,_1,_2>, Stride<_72,_1,Int<4608>,Int<4608>>>;                       // (64,ROW_C,buffers,warpgroups) before the swizzle

struct SharedStorage {
  alignas(1024) TA A[65536];
  alignas(1024) TB B[36864];
  alignas(1024) TC C[9216];
  uint64_t full[8], empty[8];                                                                         // TMA has filled the stage; its readers are done with it
};
static_assert(sizeof(SharedStorage) == 224256, "spec.smem");
static_assert(cosize_v<SmemA> * sizeof(TA) == sizeof(SharedStorage::A) && cosize_v<SmemB> * sizeof(TB) == sizeof(SharedStorage::B), "spec.smem");
static_assert(cosize_v<SmemC> * sizeof(TC) == sizeof(SharedStorage::C) && size(FragC{}) == 36, "spec.tile");

// -----------------------------------------------------------------------------------------------------------------------------
//  Kernel
// -----------------------------------------------------------------------------------------------------------------------------
extern "C" __global__ __launch_bounds__(384, 1)
void gemm_sm_90a_nn_bf16_128x72x64_p8_4x2(
    __grid_constant__ TmaDescriptor const tma_A, __grid_constant__ TmaDescriptor const tma_B, bfloat16_t* C, int64_t ldC,
    int64_t batch_C, int32_t M, int32_t N, int32_t K, int32_t batches, float alpha, float beta) {
  extern __shared__ __align__(1024) unsigned char smem_raw[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(smem_raw);
  int const warpgroup = threadIdx.x / 128;
  int const rank = cute::block_rank_in_cluster();
  int const rank_m = rank % CLUSTER_M{}, rank_n = rank / CLUSTER_M{};

  // 1. Barriers: a full one waits for one arrival and the bytes of a stage, an empty one for each reader in each block that it loads into
  if (threadIdx.x == 0) {
    for (int i = 0; i < PIPE{}; ++i) { initialize_barrier(smem.full[i], 1); initialize_barrier(smem.empty[i], 10); }
    cutlass::arch::fence_barrier_init();
  } else if (threadIdx.x == 256) { // descriptors come while barriers are made
    if (K > 0) { prefetch_tma_descriptor(&tma_A); prefetch_tma_descriptor(&tma_B); }
  }
  cute::cluster_arrive_relaxed();                                                                     // the first tile is found before the wait

  // 2. Work: tiles down GROUP_M rows of tiles, then the next column of them; every cluster takes each stride-th
  int const k_tiles = ceil_div(K, BLK_K{});
  int const tiles_m = ceil_div(M, CLUSTER_M{} * BLK_M{});
  int const tiles_n = ceil_div(N, CLUSTER_N{} * BLK_N{});
  int const work    = tiles_m * tiles_n * batches;
  int const first   = blockIdx.x / CLUSTER{};
  int const stride  = gridDim.x / CLUSTER{};
  struct Origin { int m, n, batch; };
  auto origin = [&](int i) { // first row and column of tile i, and its batch
    int const batch = batches > 1 ? i / (tiles_m * tiles_n) : 0;
    int const tile  = i - batch * tiles_m * tiles_n;
    int const group = tiles_m > GROUP_M{} ? tile / (GROUP_M{} * tiles_n) : 0;
    int const rows  = min(GROUP_M{}, tiles_m - group * GROUP_M{});                                    // the last group may be shorter
    int const place = tile - group * GROUP_M{} * tiles_n;
    int const n = rows == GROUP_M{} ? place / GROUP_M{} : place / rows;
    int const m = group * GROUP_M{} + place - n * rows;
    int const m0 = (m * CLUSTER_M{} + rank_m) * BLK_M{};
    int const n0 = (n * CLUSTER_N{} + rank_n) * BLK_N{};
    return Origin{m0, n0, batch};
  };
  Origin const first_origin = origin(first);
  cute::cluster_wait();                                                                               // no block signals another before its barriers exist

  if (warpgroup == 2) {
    // 3. Producer: one thread keeps the stages full, tile after tile, however far the consumers are
    cutlass::arch::warpgroup_reg_dealloc<40>();
    if (threadIdx.x / 32 == 8 && cute::elect_one_sync()) {
      int stage = 0, phase = 1;                                                                       // an empty stage lets the first wait pass
      for (int i = first; i < work; i += stride) {
        auto const [m0, n0, batch] = i == first ? first_origin : origin(i);
        for (int k = 0; k < k_tiles; ++k) {
          wait_barrier(smem.empty[stage], phase);
          set_barrier_transaction_bytes(smem.full[stage], 25600);
          for (int mn = rank_n * 64; mn < rank_n * 64 + 64; mn += ROW{}) {
            SM90_TMA_LOAD_MULTICAST_3D::copy(&tma_A, &smem.full[stage], uint16_t(SHARE_A << rank_m), uint64_t(TMA::CacheHintSm90::EVICT_NORMAL), smem.A + SmemA{}(mn, 0, stage), m0 + mn, k * BLK_K{}, batch);
          }
          if (k % 4 == rank_m) { // in turn: 72 rows are not 4 times whole groups of eight
            SM90_TMA_LOAD_MULTICAST_3D::copy(&tma_B, &smem.full[stage], uint16_t(SHARE_B << rank_n * CLUSTER_M{}), uint64_t(TMA::CacheHintSm90::EVICT_NORMAL), smem.B + SmemB{}(0, 0, stage), k * BLK_K{}, n0, batch);
          }
          if (++stage == PIPE{}) { stage = 0; phase ^= 1; }
        }
      }
      for (int s = 0; s < PIPE{}; ++s) { // a neighbour signals this block's barriers until it too is done with every stage
        wait_barrier(smem.empty[stage], phase);
        if (++stage == PIPE{}) { stage = 0; phase ^= 1; }
      }
    }
  } else {
    // 4. Consumers: each warpgroup owns 64 rows of the tile
    cutlass::arch::warpgroup_reg_alloc<232>();
    int const tid  = threadIdx.x % 128;
    int const lane = threadIdx.x % 32;
    int const row  = tid / 32 * 16;                                                                   // first of this warp's 16 rows, in each 64
    bool const speaks = tid < CLUSTER{} && (tid % CLUSTER_M{} == rank_m || tid / CLUSTER_M{} == rank_n);  // to one of those that share a load with this block
    Tensor tCrA = make_tensor(GMMA::DescriptorIterator{DESCRIPTOR_A | (cast_smem_ptr_to_uint(smem.A + SmemA{}(64 * MMA_M{} * warpgroup, 0, 0)) & 0x3FFFF) >> 4}, DescA{});  // (MMA,MMA_M,MMA_K,PIPE)
    Tensor tCrB = make_tensor(GMMA::DescriptorIterator{DESCRIPTOR_B | (cast_smem_ptr_to_uint(smem.B) & 0x3FFFF) >> 4}, DescB{});  // (MMA,MMA_K,PIPE)
    Tensor tCrC = make_tensor<float>(FragC{});                                                        // (2,2,BLK_N/8,MMA_M)
    Tensor sC = make_tensor(make_smem_ptr(smem.C), composition(SwizzleC{}, SmemC{}));                 // (64,ROW_C,buffers,warpgroups)
    int stage = 0, phase = 0;
    for (int i = first; i < work; i += stride) {
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
        if (k > 0 && speaks) { cutlass::arch::ClusterBarrier::arrive(&smem.empty[last], tid, true); } // in each block that loads into it
        last = stage;
        if (++stage == PIPE{}) { stage = 0; phase ^= 1; }
      }
      auto const [m_tile, n0, batch] = i == first ? first_origin : origin(i);                         // while the last products run
      int const m0 = m_tile + 64 * MMA_M{} * warpgroup;                                               // first row of this warpgroup
      warpgroup_wait<0>();
      warpgroup_fence_operand(tCrC);
      if (k_tiles > 0 && speaks) { cutlass::arch::ClusterBarrier::arrive(&smem.empty[last], tid, true); } // in each block that loads into it
      if (k_tiles == 0) { // no product: C = beta C
        CUTE_UNROLL
        for (int v = 0; v < size(tCrC); ++v) { tCrC(v) = 0; }
      }

      // 5. Epilogue: C = alpha * acc + beta * C, in f32
      CUTE_UNROLL
      for (int v = 0; v < size(tCrC); ++v) { tCrC(v) *= alpha; }

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
          { // 16 x 8 are left
            int const j = ROW_C{} / 8 - 1;
            Tensor out = make_tensor<TC>(Layout<_4>{});
            CUTE_UNROLL
            for (int v = 0; v < 4; ++v) { out(v) = TC(tCrC(v % 2, v / 2, box * ROW_C{} / 8 + j, m)); }
            copy_unpack(Copy_Traits<SM90_U32x2_STSM_N>{}, out, make_tensor(make_smem_ptr(&sC(row + lane % 16, 8 * j, 0, warpgroup)), Layout<_4>{}));
          }

          __syncwarp();
          #pragma unroll 4 // 5 addresses at once would spill
          for (int i = 0; i < 5; ++i) { // rows of 144 B leave in vectors of 8
            int const r = row + (32 * i + lane) / 9;
            int const c = (32 * i + lane) % 9 * 8;
            if (r < row + 16 && m0 + 64 * m + r < M && n0 + box * ROW_C{} + c < N) {
              TC* place = C + batch * batch_C + (m0 + 64 * m + r) * ldC + n0 + box * ROW_C{} + c;
              copy_unpack(Copy_Traits<UniversalCopy<uint128_t>>{}, make_tensor(make_smem_ptr(&sC(r, c, 0, warpgroup)), Layout<_8>{}), make_tensor(make_gmem_ptr(place), Layout<_8>{}));
            }
          }
        }
      }
    }
  }
}
