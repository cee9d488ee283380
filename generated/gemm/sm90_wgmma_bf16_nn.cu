// =============================================================================================================================
//  gemm_sm_90a_nn_bf16_128x256x64_p4
//
//    C = alpha A B^T + beta C      A (M,K) bf16 M-major      B (N,K) bf16 K-major      C (M,N) bf16 N-major
//    accumulated in f32; any M, N, K and batch; C is read only if beta is not 0
//
//    block tile (128,256,64)      stages 4      cooperative      shared memory 230400 B
//    threads 384: 2 consumer warpgroups of 232 registers a thread and a producer of 40
//    grid: persistent, tiles in groups of 16 rows of tiles
//    addresses and row strides of A and B aligned to 16 B, C to 16 B, C's contiguous extent too
//
//  Layouts are resolved: each tensor starts at its thread's first element, and a literal layout says which elements are the
//  thread's own. `make_tiled_copy`, `make_tiled_mma` and `partition_*` would compute the same.
//
//  Written by cutegen 0.1.0 from this spec; `cutegen emit` writes it again, `cutegen run` checks it:
//
//      kernel: gemm
//      arch: sm_90a
//      description: "bf16, A M-major, TMA and WGMMA"
//      problem: {m: 4096, n: 4096, k: 4096}
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
using BLK_N   = _256;
using BLK_K   = _64;
using PIPE    = _4;                                                                                   // tiles of A and of B in shared memory
using GROUP_M = _16;                                                                                  // rows of tiles that are taken together, so that their columns meet in L2

// Shared memory: boxes of 128-byte rows under the 128-byte swizzle of TMA and WGMMA.
using ROW   = _64;                                                                                    // elements of a row
using SmemA = Layout<Shape<Shape<_64,_2>,_64,_4>, Stride<Stride<_1,_4096>,_64,_8192>>;                // (BLK_M,BLK_K,PIPE) before the swizzle
using SmemB = Layout<Shape<_256,Shape<_64,_1>,_4>, Stride<_64,Stride<_1,_16384>,_16384>>;             // (BLK_N,BLK_K,PIPE) before the swizzle

// Math: a WGMMA multiplies 64 rows of A with the tile of B, 32 bytes of K at a time.
using Mma     = MMA_Traits<SM90_64x256x16_F32BF16BF16_SS<GMMA::Major::MN, GMMA::Major::K>>;
using MMA_M   = _1;                                                                                   // times 64 rows of a warpgroup
using K_STEPS = _4;
using DescA = Layout<Shape<_1,_1,_4,_4>, Stride<_0,_512,_128,_1024>>;                                 // (MMA,MMA_M,MMA_K,PIPE) in 16 B
using DescB = Layout<Shape<_1,Shape<_4,_1>,_4>, Stride<_0,Stride<_2,_2048>,_2048>>;                   // (MMA,MMA_K,PIPE) in 16 B
using FragC = Layout<Shape<_2,_2,_32,_1>, Stride<_1,_2,_4,_128>>;                                     // (2 columns,rows r and r + 8,every 8 columns,MMA_M)
constexpr uint64_t DESCRIPTOR_A = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(8192 >> 4) << 16;  // 128-byte swizzle, 8 rows are 1024 B, boxes 8192 B apart
constexpr uint64_t DESCRIPTOR_B = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(16 >> 4) << 16;  // 128-byte swizzle, 8 rows are 1024 B

// Store: boxes of 64 rows of 128 B, swizzled; 2 for each warpgroup
using ROW_C   = _64;
using BOXES_C = _4;                                                                                   // boxes along N
using SwizzleC = Swizzle<3,3,3>;
using SmemC = Layout<Shape<_64,_64,_2,_2>, Stride<_64,_1,_4096,_8192>>;                               // (64,ROW_C,buffers,warpgroups) before the swizzle

struct SharedStorage {
  alignas(1024) TA A[32768];
  alignas(1024) TB B[65536];
  alignas(1024) TC C[16384];
  uint64_t full[4], empty[4];                                                                         // TMA has filled the stage; its readers are done with it
};
static_assert(sizeof(SharedStorage) == 230400, "spec.smem");
static_assert(cosize_v<SmemA> * sizeof(TA) == sizeof(SharedStorage::A) && cosize_v<SmemB> * sizeof(TB) == sizeof(SharedStorage::B), "spec.smem");
static_assert(cosize_v<SmemC> * sizeof(TC) == sizeof(SharedStorage::C) && size(FragC{}) == 128, "spec.tile");

// -----------------------------------------------------------------------------------------------------------------------------
//  Kernel
// -----------------------------------------------------------------------------------------------------------------------------
extern "C" __global__ __launch_bounds__(384, 1)
void gemm_sm_90a_nn_bf16_128x256x64_p4(
    __grid_constant__ TmaDescriptor const tma_A, __grid_constant__ TmaDescriptor const tma_B,
    __grid_constant__ TmaDescriptor const tma_C, bfloat16_t* C, int64_t ldC, int64_t batch_C, int32_t M, int32_t N,
    int32_t K, int32_t batches, float alpha, float beta) {
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
          set_barrier_transaction_bytes(smem.full[stage], 49152);
          for (int mn = 0; mn < 128; mn += ROW{}) {
            SM90_TMA_LOAD_3D::copy(&tma_A, &smem.full[stage], uint64_t(TMA::CacheHintSm90::EVICT_NORMAL), smem.A + SmemA{}(mn, 0, stage), m0 + mn, k * BLK_K{}, batch);
          }
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
    Tensor sC = make_tensor(make_smem_ptr(smem.C), composition(SwizzleC{}, SmemC{}));                 // (64,ROW_C,buffers,warpgroups)
    int buffer = 0;
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
            mma_unpack(mma, sums, tCrA(_,m,j,stage), tCrB(_,j,stage), sums);
          }
          mma.accumulate_ = GMMA::ScaleOut::One;
        }
        warpgroup_commit_batch();
        warpgroup_wait<1>();
        if (k > 0 && tid == 0) { arrive_barrier(smem.empty[last]); }
        last = stage;
        if (++stage == PIPE{}) { stage = 0; phase ^= 1; }
      }
      auto const [m_tile, n0, batch] = origin(i);                                                     // while the last products run
      int const m0 = m_tile + 64 * MMA_M{} * warpgroup;                                               // first row of this warpgroup
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
