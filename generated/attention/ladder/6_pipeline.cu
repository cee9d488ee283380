// =============================================================================================================================
//  attention_scores_sm_80_f16_f16_d64_128x128x64_p2
//
//    S = scale Q K^T for each batch and head      Q (M,K) f16      K (N,K) f16      S (M,N) f16
//    M = seqlen_q, N = seqlen_k, K = head_dim = 64; accumulated in f32; any lengths, batch, heads
//
//    block tile (128,128,64)      stages 2      threads 128      shared memory 65536 B
//    grid: one block for each tile of each batch, in groups of 8 rows of tiles
//    rows of Q aligned to 8 elements, of K to 8, of S to 8; head_dim is contiguous
//
//  Layouts are resolved: each tensor starts at its thread's first element, and a literal layout says which elements are the
//  thread's own. `make_tiled_copy`, `make_tiled_mma` and `partition_*` would compute the same.
//
//  Written by cutegen 0.1.0 from this spec; `cutegen emit` writes it again, `cutegen run` checks it:
//
//      kernel: attention_scores
//      arch: sm_80
//      description: "ladder 6: pipelining and a staged epilogue"
//      problem: {batch: 8, heads: 12, seqlen_q: 1024, seqlen_k: 1024, head_dim: 64}
//      dtypes: {q: f16, k: f16, scores: f16}
// =============================================================================================================================
#include <cute/tensor_impl.hpp>
#include <cute/swizzle.hpp>
#include <cute/swizzle_layout.hpp>
#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/copy_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm80.hpp>

using namespace cute;

// -----------------------------------------------------------------------------------------------------------------------------
//  Static description: every number of this file
// -----------------------------------------------------------------------------------------------------------------------------
using HEAD_DIM = _64;
using BLK_M = _128;
using BLK_N = _128;
using BLK_K = _64;
using PIPE  = _2;                                                                                     // tiles of Q and K in flight
using GROUP_M = _8;                                                                                   // rows of tiles that walk along N together, to meet in L2

// Q: (BLK_M,BLK_K) of half_t, K-major. The swizzle XORs row bits into the index of each 16-byte chunk: no bank conflicts
using SmemQ = Layout<Shape<_128,_64,_2>, Stride<_64,_1,_8192>>;                                       // (BLK_M,BLK_K,PIPE) before the swizzle
using SwizzleQ = Swizzle<3,3,3>;
using G2S_Q = Copy_Traits<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;                                // gmem -> smem, 8 values at once
using G2S_Q_M = Layout<Shape<_8,_16>, Stride<_0,_1>>;                                                 // tid -> its first m
using G2S_Q_K = Layout<Shape<_8,_16>, Stride<_8,_0>>;                                                 // tid -> its first k
using G2S_Q_S = Layout<Shape<_8,_8,_1,_2>, Stride<_1,_1024,_0,_8192>>;                                // (CPY,CPY_M,CPY_K,PIPE)
using STEP_Q_M = _16;                                                                                 // from one CPY_M to the next
using STEP_Q_K = _64;
using S2R_Q = Copy_Traits<SM75_U32x4_LDSM_N>;                                                         // smem -> registers
using S2R_Q_M = Layout<Shape<_16,_2,_2,_2>, Stride<_1,_0,_64,_0>>;                                    // tid -> its first m
using S2R_Q_K = Layout<Shape<_16,_2,_4>, Stride<_0,_8,_0>>;                                           // tid -> its first k
using S2R_Q_S = Layout<Shape<_8,_4,_4,_2>, Stride<_1,_1024,_16,_8192>>;                               // (CPY,CPY_M,MMA_K,PIPE)
using S2R_Q_R = Layout<Shape<_8,_4,_4>, Stride<_1,_8,_32>>;                                           // (CPY,CPY_M,MMA_K)
using FragQ = Layout<Shape<_8,_4,_4>, Stride<_1,_8,_32>>;                                             // (MMA,MMA_M,MMA_K)

// K: (BLK_N,BLK_K) of half_t, K-major. The swizzle XORs row bits into the index of each 16-byte chunk: no bank conflicts
using SmemK = Layout<Shape<_128,_64,_2>, Stride<_64,_1,_8192>>;                                       // (BLK_N,BLK_K,PIPE) before the swizzle
using SwizzleK = Swizzle<3,3,3>;
using G2S_K = Copy_Traits<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;                                // gmem -> smem, 8 values at once
using G2S_K_N = Layout<Shape<_8,_16>, Stride<_0,_1>>;                                                 // tid -> its first n
using G2S_K_K = Layout<Shape<_8,_16>, Stride<_8,_0>>;                                                 // tid -> its first k
using G2S_K_S = Layout<Shape<_8,_8,_1,_2>, Stride<_1,_1024,_0,_8192>>;                                // (CPY,CPY_N,CPY_K,PIPE)
using STEP_K_N = _16;                                                                                 // from one CPY_N to the next
using STEP_K_K = _64;
using S2R_K = Copy_Traits<SM75_U32x4_LDSM_N>;                                                         // smem -> registers
using S2R_K_N = Layout<Shape<_8,_2,_2,_2,_2>, Stride<_1,_0,_8,_0,_64>>;                               // tid -> its first n
using S2R_K_K = Layout<Shape<_8,_2,_8>, Stride<_0,_8,_0>>;                                            // tid -> its first k
using S2R_K_S = Layout<Shape<_8,_4,_4,_2>, Stride<_1,_1024,_16,_8192>>;                               // (CPY,CPY_N,MMA_K,PIPE)
using S2R_K_R = Layout<Shape<_8,_4,_4>, Stride<_1,_8,_32>>;                                           // (CPY,CPY_N,MMA_K)
using FragK = Layout<Shape<_4,_8,_4>, Stride<_1,_4,_32>>;                                             // (MMA,MMA_N,MMA_K)

// Math: 2 x 2 warps of 64 x 64, each 4 x 8 atoms of m16n8k16
using Mma   = MMA_Traits<SM80_16x8x16_F32F16F16F32_TN>;
using FragC = Layout<Shape<_4,_4,_8>, Stride<_1,_4,_16>>;                                             // (MMA,MMA_M,MMA_N)
using Acc_M = Layout<Shape<_4,_8,_2,_2>, Stride<_0,_1,_64,_0>>;                                       // tid -> its first row of S
using Acc_N = Layout<Shape<_4,_16,_2>, Stride<_2,_0,_64>>;                                            // tid -> its first column
using AccR  = Layout<Shape<_2,_8,_8>, Stride<_1,_16,_2>>;                                             // (VEC,INNER,OUTER) -> accumulator
using Inner = Layout<Shape<_8>, Stride<_8>>;                                                          // INNER -> n, from the first
using Outer = Layout<Shape<_8>, Stride<_8>>;                                                          // OUTER -> m, from the first
using SmemC = Layout<Shape<_128,_128>, Stride<_136,_1>>;                                              // (BLK_M,BLK_N), rows padded by 16 B against bank conflicts
using S2G   = uint128_t;                                                                              // 8 values of S at once

union SharedStorage {
  struct {
    alignas(128) half_t Q[16384];
    alignas(128) half_t K[16384];
  };
  alignas(128) half_t S[17408];                                                                       // once the main loop is over
};
static_assert(sizeof(SharedStorage) == 65536, "spec.smem");
static_assert(cosize_v<SmemQ> <= 16384 && cosize_v<SmemK> <= 16384, "spec.smem");
static_assert(cosize_v<FragC> == 128 && size(AccR{}) == 128, "spec.mma");

// -----------------------------------------------------------------------------------------------------------------------------
//  Kernel
// -----------------------------------------------------------------------------------------------------------------------------
extern "C" __global__ __launch_bounds__(128, 2)
void attention_scores_sm_80_f16_f16_d64_128x128x64_p2(
    half_t const* Q, half_t const* K, half_t* S, int32_t heads, int32_t heads_kv, int32_t seqlen_q, int32_t seqlen_k,
    int64_t row_Q, int64_t row_K, int64_t row_S, int64_t head_Q, int64_t head_K, int64_t head_S, int64_t batch_Q,
    int64_t batch_K, int64_t batch_S, float scale) {
  int const tid = threadIdx.x;

  // 1. The tile of this block, and shared memory
  int const tiles_m = ceil_div(seqlen_q, BLK_M{});
  int const tiles_n = ceil_div(seqlen_k, BLK_N{});
  int const tile    = blockIdx.x % (tiles_m * tiles_n);
  int const group   = tile / (GROUP_M{} * tiles_n);
  int const rows    = min(GROUP_M{}, tiles_m - group * GROUP_M{});                                    // the last group may be shorter
  int const m0 = (group * GROUP_M{} + tile % (GROUP_M{} * tiles_n) % rows) * BLK_M{};
  int const n0 = tile % (GROUP_M{} * tiles_n) / rows * BLK_N{};
  int const head  = blockIdx.x / (tiles_m * tiles_n) % heads;
  int const batch = blockIdx.x / (tiles_m * tiles_n) / heads;
  int const head_k = head / (heads / heads_kv);                                                       // grouped queries share a head of K
  constexpr int k_tiles = ceil_div(HEAD_DIM{}, BLK_K{});

  Tensor mQ = make_tensor(make_gmem_ptr(Q + batch * batch_Q + head * head_Q), make_shape(seqlen_q, HEAD_DIM{}), make_stride(row_Q, _1{}));  // (M,K)
  Tensor mK = make_tensor(make_gmem_ptr(K + batch * batch_K + head_k * head_K), make_shape(seqlen_k, HEAD_DIM{}), make_stride(row_K, _1{}));  // (N,K)
  Tensor mS = make_tensor(make_gmem_ptr(S + batch * batch_S + head * head_S), make_shape(seqlen_q, seqlen_k), make_stride(row_S, _1{}));  // (M,N)

  extern __shared__ __align__(128) unsigned char smem_raw[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(smem_raw);
  Tensor sQ = make_tensor(make_smem_ptr(smem.Q), composition(SwizzleQ{}, SmemQ{}));                   // (BLK_M,BLK_K,PIPE)
  Tensor sK = make_tensor(make_smem_ptr(smem.K), composition(SwizzleK{}, SmemK{}));                   // (BLK_N,BLK_K,PIPE)

  // 2. gmem -> smem: where this thread reads and writes
  int const q_m = G2S_Q_M{}(tid);
  int const q_k = G2S_Q_K{}(tid);
  Tensor tQgQ = make_tensor(make_gmem_ptr(&mQ(m0 + q_m, q_k)),
                            make_layout(make_shape(_8{}, _8{}, _1{}, k_tiles),
                                        make_stride(_1{}, STEP_Q_M{} * row_Q, STEP_Q_K{} * _1{}, BLK_K{} * _1{})));  // (CPY,CPY_M,CPY_K,k)
  Tensor tQsQ = make_tensor(make_smem_ptr(&sQ(q_m, q_k, 0)), G2S_Q_S{});                              // (CPY,CPY_M,CPY_K,PIPE)
  int const k_n = G2S_K_N{}(tid);
  int const k_k = G2S_K_K{}(tid);
  Tensor tKgK = make_tensor(make_gmem_ptr(&mK(n0 + k_n, k_k)),
                            make_layout(make_shape(_8{}, _8{}, _1{}, k_tiles),
                                        make_stride(_1{}, STEP_K_N{} * row_K, STEP_K_K{} * _1{}, BLK_K{} * _1{})));  // (CPY,CPY_N,CPY_K,k)
  Tensor tKsK = make_tensor(make_smem_ptr(&sK(k_n, k_k, 0)), G2S_K_S{});                              // (CPY,CPY_N,CPY_K,PIPE)

  // 3. smem -> registers: this thread's fragments, and the accumulator
  int const q_frag_m = S2R_Q_M{}(tid);
  int const q_frag_k = S2R_Q_K{}(tid);
  Tensor tXsQ = make_tensor(make_smem_ptr(smem.Q), make_composed_layout(SwizzleQ{}, SmemQ{}(q_frag_m, q_frag_k, 0), S2R_Q_S{}));  // (CPY,CPY_M,MMA_K,PIPE)
  Tensor tCrQ = make_tensor<half_t>(FragQ{});                                                         // (MMA,MMA_M,MMA_K)
  Tensor tXrQ = make_tensor(tCrQ.data(), S2R_Q_R{});                                                  // (CPY,CPY_M,MMA_K)
  int const k_frag_n = S2R_K_N{}(tid);
  int const k_frag_k = S2R_K_K{}(tid);
  Tensor tXsK = make_tensor(make_smem_ptr(smem.K), make_composed_layout(SwizzleK{}, SmemK{}(k_frag_n, k_frag_k, 0), S2R_K_S{}));  // (CPY,CPY_N,MMA_K,PIPE)
  Tensor tCrK = make_tensor<half_t>(FragK{});                                                         // (MMA,MMA_N,MMA_K)
  Tensor tXrK = make_tensor(tCrK.data(), S2R_K_R{});                                                  // (CPY,CPY_N,MMA_K)
  Tensor tCrC = make_tensor<float>(FragC{});                                                          // (MMA,MMA_M,MMA_N)
  CUTE_UNROLL
  for (int i = 0; i < size(FragC{}); ++i) { tCrC(i) = float(0); }

  auto load_stage = [&](int k_tile, int stage) {
    int const k_left = HEAD_DIM{} - k_tile * BLK_K{};
    CUTE_UNROLL
    for (int j = 0; j < size<2>(G2S_Q_S{}); ++j) {
      CUTE_UNROLL
      for (int i = 0; i < size<1>(G2S_Q_S{}); ++i) {
        bool const inside = q_m + i * STEP_Q_M{} < seqlen_q - m0 && q_k + j * STEP_Q_K{} < k_left;
        copy_unpack(G2S_Q{}.with(inside), tQgQ(_,i,j,k_tile), tQsQ(_,i,j,stage));
      }
    }
    CUTE_UNROLL
    for (int j = 0; j < size<2>(G2S_K_S{}); ++j) {
      CUTE_UNROLL
      for (int i = 0; i < size<1>(G2S_K_S{}); ++i) {
        bool const inside = k_n + i * STEP_K_N{} < seqlen_k - n0 && k_k + j * STEP_K_K{} < k_left;
        copy_unpack(G2S_K{}.with(inside), tKgK(_,i,j,k_tile), tKsK(_,i,j,stage));
      }
    }
  };

  // 4. Prologue: start every stage but one
  CUTE_UNROLL
  for (int p = 0; p < PIPE{} - 1; ++p) {
    if (p < k_tiles) { load_stage(p, p); }
    cp_async_fence();
  }

  // 5. Main loop. At its top PIPE-1 groups of copies are in flight, and stage `read` is where k_tile arrives.
  int read = 0;
  int write = PIPE{} - 1;
  CUTE_NO_UNROLL
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    cp_async_wait<PIPE{} - 2>();   // k_tile has landed ...
    __syncthreads();               // ... for every thread, and every thread is done with stage `write`
    if (k_tile + PIPE{} - 1 < k_tiles) { load_stage(k_tile + PIPE{} - 1, write); }
    cp_async_fence();              // an empty group keeps the wait count right at the tail

    CUTE_UNROLL
    for (int k = 0; k < size<2>(FragQ{}); ++k) {
      CUTE_UNROLL
      for (int i = 0; i < size<1>(S2R_Q_S{}); ++i) { copy_unpack(S2R_Q{}, tXsQ(_,i,k,read), tXrQ(_,i,k)); }
      CUTE_UNROLL
      for (int i = 0; i < size<1>(S2R_K_S{}); ++i) { copy_unpack(S2R_K{}, tXsK(_,i,k,read), tXrK(_,i,k)); }
      CUTE_UNROLL
      for (int m = 0; m < size<1>(FragC{}); ++m) {
        CUTE_UNROLL
        for (int n = 0; n < size<2>(FragC{}); ++n) {
          Tensor acc = tCrC(_,m,n);
          mma_unpack(Mma{}, acc, tCrQ(_,m,k), tCrK(_,n,k), acc);
        }
      }
    }
    read  = read  == PIPE{} - 1 ? 0 : read + 1;
    write = write == PIPE{} - 1 ? 0 : write + 1;
  }

  // 6. Epilogue: S = scale * acc, in f32
  Tensor tDrD = make_tensor(tCrC.data(), AccR{});                                                     // (VEC,INNER,OUTER)
  int const m = m0 + Acc_M{}(tid);
  int const n = n0 + Acc_N{}(tid);
  CUTE_UNROLL
  for (int i = 0; i < size(tDrD); ++i) { tDrD(i) *= scale; }
  //    registers -> smem, where the main loop's tiles were
  __syncthreads();
  Tensor sS = make_tensor(make_smem_ptr(smem.S), SmemC{});                                            // (BLK_M,BLK_N)
  CUTE_UNROLL
  for (int i = 0; i < size<2>(AccR{}); ++i) {
    CUTE_UNROLL
    for (int j = 0; j < size<1>(AccR{}); ++j) {
      Tensor out = make_tensor<half_t>(Layout<_2>{});
      CUTE_UNROLL
      for (int v = 0; v < 2; ++v) { out(v) = half_t(tDrD(v,j,i)); }
      copy_unpack(Copy_Traits<UniversalCopy<uint32_t>>{}, out,
                  make_tensor(make_smem_ptr(&sS(Acc_M{}(tid) + Outer{}(i), Acc_N{}(tid) + Inner{}(j))), Layout<_2>{}));
    }
  }
  __syncthreads();

  //    smem -> gmem, whole rows in vectors of 8
  CUTE_UNROLL
  for (int i = 0; i < 16; ++i) {
    int const vector = tid + i * 128;
    int const outer = vector / 16;
    int const inner = vector % 16 * 8;
    if (m0 + outer < seqlen_q && n0 + inner < seqlen_k) {
      copy_unpack(Copy_Traits<UniversalCopy<S2G>>{}, make_tensor(make_smem_ptr(&sS(outer, inner)), Layout<_8>{}),
                  make_tensor(make_gmem_ptr(&mS(m0 + outer, n0 + inner)), Layout<_8>{}));
    }
  }
}
