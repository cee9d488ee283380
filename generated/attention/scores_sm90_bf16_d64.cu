// =============================================================================================================================
//  attention_scores_sm_90a_bf16_d64_128x128_p8
//
//    S = scale Q K^T for each batch and head      Q (M,K) bf16      K (N,K) bf16      S (M,N) bf16
//    M = seqlen_q, N = seqlen_k, K = head_dim = 64; accumulated in f32; any lengths, batch, heads
//
//    block tile (128,128,64)      stages Q 2, K 8      threads 288 = 2 warpgroups and a producer warp
//    shared memory 199680 B      grid: persistent, a block takes 4 tiles along N at a time
//    rows of Q and K aligned to 16 B, of S to 16 B; head_dim is contiguous
//
//  Layouts are resolved: each tensor starts at its thread's first element, and a literal layout says which elements are the
//  thread's own. `make_tiled_copy`, `make_tiled_mma` and `partition_*` would compute the same.
//
//  Written by cutegen 0.1.0 from this spec; `cutegen emit` writes it again, `cutegen run` checks it:
//
//      kernel: attention_scores
//      arch: sm_90a
//      description: "Q K^T at llm.c's size, bf16, TMA and WGMMA"
//      problem: {batch: 8, heads: 12, seqlen_q: 1024, seqlen_k: 1024, head_dim: 64}
//      dtypes: {q: bf16, k: bf16, scores: bf16}
// =============================================================================================================================
#include <cute/tensor_impl.hpp>
#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/atom/copy_traits_sm90.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cutlass/arch/barrier.h>

using namespace cute;

// -----------------------------------------------------------------------------------------------------------------------------
//  Static description: every number of this file
// -----------------------------------------------------------------------------------------------------------------------------
using T  = bfloat16_t;
using TS = bfloat16_t;
using HEAD_DIM = _64;
using BLK_M  = _128;                                                                                  // 2 consumer warpgroups of 64 rows
using BLK_N  = _128;
using PIPE_Q = _2;                                                                                    // tiles of Q in shared memory
using PIPE_K = _8;                                                                                    // tiles of K
using RUN_N  = _4;                                                                                    // tiles along N that a block takes in a row

// Shared memory: boxes of 128-byte rows, one after the other along head_dim, under the 128-byte swizzle of TMA and WGMMA.
using ROW   = _64;                                                                                    // elements of a row
using BOXES = _1;
using SmemQ = Layout<Shape<_128,Shape<_64,_1>,_2>, Stride<_64,Stride<_1,_8192>,_8192>>;               // (BLK_M,(ROW,BOXES),PIPE_Q) before the swizzle
using SmemK = Layout<Shape<_128,Shape<_64,_1>,_8>, Stride<_64,Stride<_1,_8192>,_8192>>;               // (BLK_N,(ROW,BOXES),PIPE_K) before the swizzle

// Math: a warpgroup multiplies 64 rows of Q with the tile of K, 32 bytes along head_dim at a time.
using Mma   = MMA_Traits<SM90_64x128x16_F32BF16BF16_SS<GMMA::Major::K, GMMA::Major::K>>;
using K_STEPS = _4;
using DescQ = Layout<Shape<_1,Shape<_4,_1>,_2>, Stride<_0,Stride<_2,_1024>,_1024>>;                   // (MMA,MMA_K,PIPE_Q) in 16 B
using DescK = Layout<Shape<_1,Shape<_4,_1>,_8>, Stride<_0,Stride<_2,_1024>,_1024>>;                   // (MMA,MMA_K,PIPE_K) in 16 B
using FragS = Layout<Shape<_2,_2,_16>, Stride<_1,_2,_4>>;                                             // (2 columns,rows r and r + 8,every 8 columns)
constexpr uint64_t DESCRIPTOR = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 16;    // 128-byte swizzle, 8 rows are 1024 B

// Store: a warp's 16 rows, padded by 16 B against bank conflicts, then vectors of 8
using SmemS = Layout<Shape<_16, BLK_N, _8>, Stride<_136, _1, Int<2176>>>;                             // (16,BLK_N,warps)

struct SharedStorage {
  alignas(1024) T Q[16384];
  alignas(1024) T K[65536];
  alignas(1024) TS S[17408];
  uint64_t full_Q[2], empty_Q[2];                                                                     // TMA has filled the stage; every warpgroup is done with it
  uint64_t full_K[8], empty_K[8];
};
static_assert(sizeof(SharedStorage) == 199680, "spec.smem");
static_assert(cosize_v<SmemQ> * sizeof(T) == sizeof(SharedStorage::Q) && cosize_v<SmemK> * sizeof(T) == sizeof(SharedStorage::K), "spec.smem");

// -----------------------------------------------------------------------------------------------------------------------------
//  Kernel
// -----------------------------------------------------------------------------------------------------------------------------
extern "C" __global__ __launch_bounds__(288)
void attention_scores_sm_90a_bf16_d64_128x128_p8(
    __grid_constant__ TmaDescriptor const tma_Q, __grid_constant__ TmaDescriptor const tma_K, bfloat16_t* S, int64_t row_S,
    int64_t head_S, int64_t batch_S, int32_t batches, int32_t heads, int32_t heads_kv, int32_t seqlen_q, int32_t seqlen_k,
    float scale) {
  extern __shared__ __align__(1024) unsigned char smem_raw[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(smem_raw);
  int const warp = threadIdx.x / 32;

  // 1. Barriers: a full one waits for one arrival and the bytes of a tile, an empty one for each warpgroup
  if (threadIdx.x == 0) {
    for (int i = 0; i < PIPE_Q{}; ++i) { initialize_barrier(smem.full_Q[i], 1); initialize_barrier(smem.empty_Q[i], 2); }
    for (int i = 0; i < PIPE_K{}; ++i) { initialize_barrier(smem.full_K[i], 1); initialize_barrier(smem.empty_K[i], 2); }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();

  // 2. Work: a run of RUN_N tiles of one row of tiles. Neighbouring blocks take neighbouring runs.
  int const tiles_m = ceil_div(seqlen_q, BLK_M{});
  int const tiles_n = ceil_div(seqlen_k, BLK_N{});
  int const runs    = ceil_div(tiles_n, RUN_N{});
  int const work    = runs * tiles_m * heads * batches;

  if (warp == 8) {
    // 3. Producer: one thread keeps the stages full
    if (cute::elect_one_sync()) {
      int q = 0, q_phase = 1;                                                                         // an empty stage lets the first wait pass
      int k = 0, k_phase = 1;
      for (int run = blockIdx.x; run < work; run += gridDim.x) {
        int const m0     = run / runs % tiles_m * BLK_M{};
        int const head   = run / runs / tiles_m % heads;
        int const batch  = run / runs / tiles_m / heads;
        int const head_k = head / (heads / heads_kv);                                                 // grouped queries share a head of K
        int const begin  = run % runs * RUN_N{};
        int const end    = min(tiles_n, begin + RUN_N{});
        wait_barrier(smem.empty_Q[q], q_phase);
        set_barrier_transaction_bytes(smem.full_Q[q], 16384);
        for (int box = 0; box < BOXES{}; ++box) {
          SM90_TMA_LOAD_4D::copy(&tma_Q, &smem.full_Q[q], uint64_t(TMA::CacheHintSm90::EVICT_FIRST), smem.Q + SmemQ{}(0, box * ROW{}, q), box * ROW{}, m0, head, batch);
        }
        if (++q == PIPE_Q{}) { q = 0; q_phase ^= 1; }
        for (int n = begin; n < end; ++n) {
          wait_barrier(smem.empty_K[k], k_phase);
          set_barrier_transaction_bytes(smem.full_K[k], 16384);
          for (int box = 0; box < BOXES{}; ++box) {
            SM90_TMA_LOAD_4D::copy(&tma_K, &smem.full_K[k], uint64_t(TMA::CacheHintSm90::EVICT_LAST), smem.K + SmemK{}(0, box * ROW{}, k), box * ROW{}, n * BLK_N{}, head_k, batch);
          }
          if (++k == PIPE_K{}) { k = 0; k_phase ^= 1; }
        }
      }
    }
  } else {
    // 4. Consumers: each warpgroup owns 64 rows of the tile
    int const warpgroup = warp / 4;
    int const tid  = threadIdx.x % 128;
    int const lane = threadIdx.x % 32;
    int const row  = tid / 32 * 16;                                                                   // first of this warp's 16 rows, in the warpgroup's 64
    Tensor tSrQ = make_tensor(GMMA::DescriptorIterator{DESCRIPTOR | (cast_smem_ptr_to_uint(smem.Q + SmemQ{}(64 * warpgroup, 0, 0)) & 0x3FFFF) >> 4}, DescQ{});  // (MMA,MMA_K,PIPE_Q)
    Tensor tSrK = make_tensor(GMMA::DescriptorIterator{DESCRIPTOR | (cast_smem_ptr_to_uint(smem.K) & 0x3FFFF) >> 4}, DescK{});  // (MMA,MMA_K,PIPE_K)
    Tensor tSrS = make_tensor<float>(FragS{});                                                        // (2,2,BLK_N/8)
    Tensor tSrO = make_tensor<TS>(FragS{});                                                           // converted
    Tensor sS = make_tensor(make_smem_ptr(smem.S), SmemS{});                                          // (16,BLK_N,warps)
    struct Place { int n, m0, head, batch; };                                                         // of a tile: along N, its first row
    Place done{-1, 0, 0, 0};                                                                          // of the tile in tSrO
    auto leave = [&] { // 6. Store
      auto const [n, m0, head, batch] = done;
      CUTE_UNROLL
      for (int j = 0; j < BLK_N{} / 16; ++j) { // 16 x 16 values of a warp at once
        Tensor out = make_tensor<TS>(Layout<_8>{});
        CUTE_UNROLL
        for (int v = 0; v < 8; ++v) { out(v) = tSrO(8 * j + v); }
        copy_unpack(Copy_Traits<SM90_U32x4_STSM_N>{}, out, make_tensor(make_smem_ptr(&sS(lane % 16, 16 * j + lane / 16 * 8, warp)), Layout<_8>{}));
      }
      __syncwarp();
      CUTE_UNROLL
      for (int i = 0; i < 8; ++i) {
        int const r = (32 * i + lane) / 16;
        int const c = (32 * i + lane) % 16 * 8;
        if (m0 + 64 * warpgroup + row + r < seqlen_q && n * BLK_N{} + c < seqlen_k) {
          TS* place = S + batch * batch_S + head * head_S + (m0 + 64 * warpgroup + row + r) * row_S + n * BLK_N{} + c;
          __stcs(reinterpret_cast<int4*>(place), *reinterpret_cast<int4*>(&sS(r, c, warp)));          // S is read by nobody here: let L2 give its lines up first
        }
      }
      __syncwarp();
    };
    int q = 0, q_phase = 0;
    int k = 0, k_phase = 0;
    for (int run = blockIdx.x; run < work; run += gridDim.x) {
      int const m0    = run / runs % tiles_m * BLK_M{};
      int const head  = run / runs / tiles_m % heads;
      int const batch = run / runs / tiles_m / heads;
      int const begin = run % runs * RUN_N{};
      int const end   = min(tiles_n, begin + RUN_N{});
      wait_barrier(smem.full_Q[q], q_phase);
      for (int n = begin; n < end; ++n) {
        wait_barrier(smem.full_K[k], k_phase);
        Mma mma;
        mma.accumulate_ = GMMA::ScaleOut::Zero;                                                       // the first step overwrites the accumulator
        warpgroup_fence_operand(tSrS);
        warpgroup_arrive();
        CUTE_UNROLL
        for (int i = 0; i < K_STEPS{}; ++i) {
          mma_unpack(mma, tSrS, tSrQ(_,i,q), tSrK(_,i,k), tSrS);
          mma.accumulate_ = GMMA::ScaleOut::One;
        }
        warpgroup_commit_batch();
        warpgroup_wait<0>();
        warpgroup_fence_operand(tSrS);
        if (tid == 0) { arrive_barrier(smem.empty_K[k]); }
        if (++k == PIPE_K{}) { k = 0; k_phase ^= 1; }
        if (n + 1 == end && tid == 0) { arrive_barrier(smem.empty_Q[q]); }

        // 5. Epilogue: S = scale * acc, in f32
        CUTE_UNROLL
        for (int i = 0; i < size(tSrS); ++i) { tSrO(i) = TS(scale * tSrS(i)); }
        done = Place{n, m0, head, batch};
        leave();
      }
      if (++q == PIPE_Q{}) { q = 0; q_phase ^= 1; }
    }

  }
}
