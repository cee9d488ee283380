// =============================================================================================================================
//  gemm_sm_90a_ntm_f16_128x128x64_p6_pp_2x1
//
//    C = alpha A B^T + beta C      A (M,K) f16 M-major      B (N,K) f16 N-major      C (M,N) f16 N-major
//    accumulated in f32; any M, N, K and batch; C is read only if beta is not 0
//    C is M-major: this is C^T = alpha B A^T + beta C^T; the kernel's A, M and B, N are the caller's B, N and A, M
//
//    block tile (128,128,64)      stages 6      ping-pong      shared memory 230400 B
//    threads 384: 2 consumer warpgroups of 232 registers a thread and a producer of 40
//    grid: persistent, tiles in groups of 4 rows of tiles      clusters of 2x1 blocks
//    addresses and row strides of A and B aligned to 16 B, C to 16 B, C's contiguous extent too
//
//  Layouts are resolved: each tensor starts at its thread's first element, and a literal layout says which elements are the
//  thread's own. `make_tiled_copy`, `make_tiled_mma` and `partition_*` would compute the same.
//
//  Written by cutegen 0.1.0 from this spec; `cutegen emit` writes it again, `cutegen run` checks it:
//
//      kernel: gemm
//      arch: sm_90a
//      description: "f16, C M-major, TMA and WGMMA"
//      problem: {m: 4096, n: 4096, k: 4096}
//      dtypes: {a: f16, b: f16, c: f16}
//      majors: NT
//      c_major: M
//      tile: {m: 128, n: 128}
//      schedule: {kind: ping_pong}
//      cluster: [2, 1]
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
using TA = half_t;
using TB = half_t;
using TC = half_t;
using BLK_M   = _128;                                                                                 // two consumer warpgroups take whole tiles in turn
using BLK_N   = _128;
using BLK_K   = _64;
using PIPE    = _6;                                                                                   // tiles of A and of B in shared memory
using GROUP_M = _4;                                                                                   // rows of tiles that are taken together, so that their columns meet in L2
using CLUSTER = _2;                                                                                   // blocks that share the loads of B, neighbours along M

// Shared memory: boxes of 128-byte rows under the 128-byte swizzle of TMA and WGMMA.
using ROW   = _64;                                                                                    // elements of a row
using SmemA = Layout<Shape<Shape<_64,_2>,_64,_6>, Stride<Stride<_1,_4096>,_64,_8192>>;                // (BLK_M,BLK_K,PIPE) before the swizzle
using SmemB = Layout<Shape<Shape<_64,_2>,_64,_6>, Stride<Stride<_1,_4096>,_64,_8192>>;                // (BLK_N,BLK_K,PIPE) before the swizzle

// Math: a WGMMA multiplies 64 rows of A with the tile of B, 32 bytes of K at a time.
using Mma     = MMA_Traits<SM90_64x128x16_F32F16F16_SS<GMMA::Major::MN, GMMA::Major::MN>>;
using MMA_M   = _2;                                                                                   // times 64 rows of a warpgroup
using K_STEPS = _4;
using DescA = Layout<Shape<_1,_2,_4,_6>, Stride<_0,_512,_128,_1024>>;                                 // (MMA,MMA_M,MMA_K,PIPE) in 16 B
using DescB = Layout<Shape<_1,_4,_6>, Stride<_0,_128,_1024>>;                                         // (MMA,MMA_K,PIPE) in 16 B
using FragC = Layout<Shape<_2,_2,_16,_2>, Stride<_1,_2,_4,_64>>;                                      // (2 columns,rows r and r + 8,every 8 columns,MMA_M)
constexpr uint64_t DESCRIPTOR_A = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(8192 >> 4) << 16;  // 128-byte swizzle, 8 rows are 1024 B, boxes 8192 B apart
constexpr uint64_t DESCRIPTOR_B = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(8192 >> 4) << 16;  // 128-byte swizzle, 8 rows are 1024 B, boxes 8192 B apart

// Store: boxes of 64 rows of 128 B, swizzled; 2 for each warpgroup
using ROW_C   = _64;
using BOXES_C = _2;                                                                                   // boxes along N
using SwizzleC = Swizzle<3,3,3>;
using SmemC = Layout<Shape<_64,_64,_2,_2>, Stride<_64,_1,_4096,_8192>>;                               // (64,ROW_C,buffers,warpgroups) before the swizzle

struct SharedStorage {
  alignas(1024) TA A[49152];
  alignas(1024) TB B[49152];
  alignas(1024) TC C[16384];
  uint64_t full[6], empty[6];                                                                         // TMA has filled the stage; its readers are done with it
  uint64_t turn[2];                                                                                   // the tensor cores are this warpgroup's
};
static_assert(sizeof(SharedStorage) == 230400, "spec.smem");
static_assert(cosize_v<SmemA> * sizeof(TA) == sizeof(SharedStorage::A) && cosize_v<SmemB> * sizeof(TB) == sizeof(SharedStorage::B), "spec.smem");
static_assert(cosize_v<SmemC> * sizeof(TC) == sizeof(SharedStorage::C) && size(FragC{}) == 128, "spec.tile");

// -----------------------------------------------------------------------------------------------------------------------------
//  Kernel
// -----------------------------------------------------------------------------------------------------------------------------
extern "C" __global__ __launch_bounds__(384, 1)
void gemm_sm_90a_ntm_f16_128x128x64_p6_pp_2x1(
    __grid_constant__ TmaDescriptor const tma_A, __grid_constant__ TmaDescriptor const tma_B,
    __grid_constant__ TmaDescriptor const tma_C, half_t* C, int64_t ldC, int64_t batch_C, int32_t M, int32_t N, int32_t K,
    int32_t batches, float alpha, float beta) {
  extern __shared__ __align__(1024) unsigned char smem_raw[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(smem_raw);
  int const warpgroup = threadIdx.x / 128;
  int const rank = cute::block_rank_in_cluster();

  // 1. Barriers: a full one waits for one arrival and the bytes of a stage, an empty one for each reader in each block of the cluster
  if (threadIdx.x == 0) {
    for (int i = 0; i < PIPE{}; ++i) { initialize_barrier(smem.full[i], 1); initialize_barrier(smem.empty[i], 2); }
    for (int i = 0; i < 2; ++i) { initialize_barrier(smem.turn[i], 1); }
    cutlass::arch::fence_barrier_init();
  } else if (threadIdx.x == 256) { // descriptors come while barriers are made
    if (K > 0) { prefetch_tma_descriptor(&tma_A); prefetch_tma_descriptor(&tma_B); }
    prefetch_tma_descriptor(&tma_C);
  }
  cute::cluster_arrive_relaxed();                                                                     // the first tile is found before the wait

  // 2. Work: tiles down GROUP_M rows of tiles, then the next column of them; every cluster takes each stride-th
  int const k_tiles = ceil_div(K, BLK_K{});
  int const tiles_m = ceil_div(M, CLUSTER{} * BLK_M{});
  int const tiles_n = ceil_div(N, BLK_N{});
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
    int const m0 = (m * CLUSTER{} + rank) * BLK_M{};
    int const n0 = n * BLK_N{};
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
          set_barrier_transaction_bytes(smem.full[stage], 32768);
          for (int mn = 0; mn < 128; mn += ROW{}) {
            SM90_TMA_LOAD_3D::copy(&tma_A, &smem.full[stage], uint64_t(TMA::CacheHintSm90::EVICT_NORMAL), smem.A + SmemA{}(mn, 0, stage), m0 + mn, k * BLK_K{}, batch);
          }
          for (int mn = rank * 64; mn < rank * 64 + 64; mn += ROW{}) {
            SM90_TMA_LOAD_MULTICAST_3D::copy(&tma_B, &smem.full[stage], uint16_t((1 << CLUSTER{}) - 1), uint64_t(TMA::CacheHintSm90::EVICT_NORMAL), smem.B + SmemB{}(mn, 0, stage), n0 + mn, k * BLK_K{}, batch);
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
    // 4. Consumers: one warpgroup multiplies its tile while the other stores the one before
    cutlass::arch::warpgroup_reg_alloc<232>();
    int const tid  = threadIdx.x % 128;
    int const lane = threadIdx.x % 32;
    int const row  = tid / 32 * 16;                                                                   // first of this warp's 16 rows, in each 64
    Tensor tCrA = make_tensor(GMMA::DescriptorIterator{DESCRIPTOR_A | (cast_smem_ptr_to_uint(smem.A) & 0x3FFFF) >> 4}, DescA{});  // (MMA,MMA_M,MMA_K,PIPE)
    Tensor tCrB = make_tensor(GMMA::DescriptorIterator{DESCRIPTOR_B | (cast_smem_ptr_to_uint(smem.B) & 0x3FFFF) >> 4}, DescB{});  // (MMA,MMA_K,PIPE)
    Tensor tCrC = make_tensor<float>(FragC{});                                                        // (2,2,BLK_N/8,MMA_M)
    Tensor sC = make_tensor(make_smem_ptr(smem.C), composition(SwizzleC{}, SmemC{}));                 // (64,ROW_C,buffers,warpgroups)
    int buffer = 0;
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
            mma_unpack(mma, sums, tCrA(_,m,j,stage), tCrB(_,j,stage), sums);
          }
          mma.accumulate_ = GMMA::ScaleOut::One;
        }
        warpgroup_commit_batch();
        warpgroup_wait<1>();
        if (k > 0 && tid < CLUSTER{}) { cutlass::arch::ClusterBarrier::arrive(&smem.empty[last], tid, true); } // in each block that loads into it
        last = stage;
        if (++stage == PIPE{}) { stage = 0; phase ^= 1; }
      }
      if (tid == 0) { arrive_barrier(smem.turn[1 - warpgroup]); } // the other's products follow while this one stores
      auto const [m0, n0, batch] = i == first ? first_origin : origin(i);                             // while the last products run
      warpgroup_wait<0>();
      warpgroup_fence_operand(tCrC);
      if (k_tiles > 0 && tid < CLUSTER{}) { cutlass::arch::ClusterBarrier::arrive(&smem.empty[last], tid, true); } // in each block that loads into it
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
