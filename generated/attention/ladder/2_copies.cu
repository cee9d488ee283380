// =============================================================================================================================
//  attention_scores_sm_80_f32_f32_d64_128x128x32_p1
//
//    S = scale Q K^T for each batch and head      Q (M,K) f32      K (N,K) f32      S (M,N) f32
//    M = seqlen_q, N = seqlen_k, K = head_dim = 64; accumulated in f32; any lengths, batch, heads
//
//    block tile (128,128,32)      stages 1      threads 256      shared memory 32768 B
//    grid: one block for each tile of each batch, in groups of 8 rows of tiles
//    rows of Q aligned to 4 elements, of K to 4, of S to 4; head_dim is contiguous
//
//  Layouts are resolved: each tensor starts at its thread's first element, and a literal layout says which elements are the
//  thread's own. `make_tiled_copy`, `make_tiled_mma` and `partition_*` would compute the same.
//
//  Written by cutegen 0.1.0 from this spec; `cutegen emit` writes it again, `cutegen run` checks it:
//
//      kernel: attention_scores
//      arch: sm_80
//      description: "ladder 2: vectorised, coalesced cp.async"
//      problem: {batch: 8, heads: 12, seqlen_q: 1024, seqlen_k: 1024, head_dim: 64}
//      dtypes: {q: f32, k: f32, scores: f32}
//      tile: {k: 32}
//      mma: {atom: UniversalFMA}
//      smem: {q: {atom: "(128,32):(32,1)", swizzle: none}, k: {atom: "(128,32):(32,1)", swizzle: none}}
//      pipeline: {stages: 1}
//      epilogue: {staged: false}
// =============================================================================================================================
#include <cute/tensor_impl.hpp>
#include <cute/atom/copy_traits_sm80.hpp>
#include <cute/arch/mma.hpp>

using namespace cute;

// -----------------------------------------------------------------------------------------------------------------------------
//  Static description: every number of this file
// -----------------------------------------------------------------------------------------------------------------------------
using HEAD_DIM = _64;
using BLK_M = _128;
using BLK_N = _128;
using BLK_K = _32;
using PIPE  = _1;                                                                                     // tiles of Q and K in flight
using GROUP_M = _8;                                                                                   // rows of tiles that walk along N together, to meet in L2

// Q: (BLK_M,BLK_K) of float, K-major
using SmemQ = Layout<Shape<_128,_32,_1>, Stride<_32,_1,_0>>;                                          // (BLK_M,BLK_K,PIPE)
using G2S_Q = Copy_Traits<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;                                // gmem -> smem, 4 values at once
using G2S_Q_M = Layout<Shape<_8,_32>, Stride<_0,_1>>;                                                 // tid -> its first m
using G2S_Q_K = Layout<Shape<_8,_32>, Stride<_4,_0>>;                                                 // tid -> its first k
using G2S_Q_S = Layout<Shape<_4,_4,_1,_1>, Stride<_1,_1024,_0,_0>>;                                   // (CPY,CPY_M,CPY_K,PIPE)
using STEP_Q_M = _32;                                                                                 // from one CPY_M to the next
using STEP_Q_K = _32;
using S2R_Q = Copy_Traits<UniversalCopy<uint32_t>>;                                                   // smem -> registers
using S2R_Q_M = Layout<Shape<_8,_16,_2>, Stride<_0,_4,_0>>;                                           // tid -> its first m
using S2R_Q_K = Layout<Shape<_256>, Stride<_0>>;                                                      // tid -> its first k
using S2R_Q_S = Layout<Shape<_1,Shape<_4,_2>,_32,_1>, Stride<_0,Stride<_32,_2048>,_1,_0>>;            // (CPY,CPY_M,MMA_K,PIPE)
using S2R_Q_R = Layout<Shape<_1,_8,_2>, Stride<_1,_1,_8>>;                                            // (CPY,CPY_M,2)
using FragQ = Layout<Shape<_1,_8,_2>, Stride<_1,_1,_8>>;                                              // (MMA,MMA_M,2)

// K: (BLK_N,BLK_K) of float, K-major
using SmemK = Layout<Shape<_128,_32,_1>, Stride<_32,_1,_0>>;                                          // (BLK_N,BLK_K,PIPE)
using G2S_K = Copy_Traits<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;                                // gmem -> smem, 4 values at once
using G2S_K_N = Layout<Shape<_8,_32>, Stride<_0,_1>>;                                                 // tid -> its first n
using G2S_K_K = Layout<Shape<_8,_32>, Stride<_4,_0>>;                                                 // tid -> its first k
using G2S_K_S = Layout<Shape<_4,_4,_1,_1>, Stride<_1,_1024,_0,_0>>;                                   // (CPY,CPY_N,CPY_K,PIPE)
using STEP_K_N = _32;                                                                                 // from one CPY_N to the next
using STEP_K_K = _32;
using S2R_K = Copy_Traits<UniversalCopy<uint32_t>>;                                                   // smem -> registers
using S2R_K_N = Layout<Shape<_8,_16,_2>, Stride<_4,_0,_32>>;                                          // tid -> its first n
using S2R_K_K = Layout<Shape<_256>, Stride<_0>>;                                                      // tid -> its first k
using S2R_K_S = Layout<Shape<_1,Shape<_4,_2>,_32,_1>, Stride<_0,Stride<_32,_2048>,_1,_0>>;            // (CPY,CPY_N,MMA_K,PIPE)
using S2R_K_R = Layout<Shape<_1,_8,_2>, Stride<_1,_1,_8>>;                                            // (CPY,CPY_N,2)
using FragK = Layout<Shape<_1,_8,_2>, Stride<_1,_1,_8>>;                                              // (MMA,MMA_N,2)

// Math: 16 x 16 threads of 8 x 8 scalar FMAs
using Mma   = UniversalFMA<float,float,float,float>;
using FragC = Layout<Shape<_1,_8,_8>, Stride<_1,_1,_8>>;                                              // (MMA,MMA_M,MMA_N)
using Acc_M = Layout<Shape<_8,_16,_2>, Stride<_0,_4,_0>>;                                             // tid -> its first row of S
using Acc_N = Layout<Shape<_8,_16,_2>, Stride<_4,_0,_32>>;                                            // tid -> its first column
using AccR  = Layout<Shape<_4,_2,_8>, Stride<_8,_32,_1>>;                                             // (VEC,INNER,OUTER) -> accumulator
using Inner = Layout<Shape<_2>, Stride<_64>>;                                                         // INNER -> n, from the first
using Outer = Layout<Shape<Shape<_4,_2>>, Stride<Stride<_1,_64>>>;                                    // OUTER -> m, from the first

struct SharedStorage {
  alignas(128) float Q[4096];
  alignas(128) float K[4096];
};
static_assert(sizeof(SharedStorage) == 32768, "spec.smem");
static_assert(cosize_v<SmemQ> <= 4096 && cosize_v<SmemK> <= 4096, "spec.smem");
static_assert(cosize_v<FragC> == 64 && size(AccR{}) == 64, "spec.mma");

// -----------------------------------------------------------------------------------------------------------------------------
//  Kernel
// -----------------------------------------------------------------------------------------------------------------------------
extern "C" __global__ __launch_bounds__(256)
void attention_scores_sm_80_f32_f32_d64_128x128x32_p1(
    float const* Q, float const* K, float* S, int32_t heads, int32_t heads_kv, int32_t seqlen_q, int32_t seqlen_k,
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
  Tensor sQ = make_tensor(make_smem_ptr(smem.Q), SmemQ{});                                            // (BLK_M,BLK_K,PIPE)
  Tensor sK = make_tensor(make_smem_ptr(smem.K), SmemK{});                                            // (BLK_N,BLK_K,PIPE)

  // 2. gmem -> smem: where this thread reads and writes
  int const q_m = G2S_Q_M{}(tid);
  int const q_k = G2S_Q_K{}(tid);
  Tensor tQgQ = make_tensor(make_gmem_ptr(&mQ(m0 + q_m, q_k)),
                            make_layout(make_shape(_4{}, _4{}, _1{}, k_tiles),
                                        make_stride(_1{}, STEP_Q_M{} * row_Q, STEP_Q_K{} * _1{}, BLK_K{} * _1{})));  // (CPY,CPY_M,CPY_K,k)
  Tensor tQsQ = make_tensor(make_smem_ptr(&sQ(q_m, q_k, 0)), G2S_Q_S{});                              // (CPY,CPY_M,CPY_K,PIPE)
  int const k_n = G2S_K_N{}(tid);
  int const k_k = G2S_K_K{}(tid);
  Tensor tKgK = make_tensor(make_gmem_ptr(&mK(n0 + k_n, k_k)),
                            make_layout(make_shape(_4{}, _4{}, _1{}, k_tiles),
                                        make_stride(_1{}, STEP_K_N{} * row_K, STEP_K_K{} * _1{}, BLK_K{} * _1{})));  // (CPY,CPY_N,CPY_K,k)
  Tensor tKsK = make_tensor(make_smem_ptr(&sK(k_n, k_k, 0)), G2S_K_S{});                              // (CPY,CPY_N,CPY_K,PIPE)

  // 3. smem -> registers: this thread's fragments, and the accumulator
  int const q_frag_m = S2R_Q_M{}(tid);
  int const q_frag_k = S2R_Q_K{}(tid);
  Tensor tXsQ = make_tensor(make_smem_ptr(&sQ(q_frag_m, q_frag_k, 0)), S2R_Q_S{});                    // (CPY,CPY_M,MMA_K,PIPE)
  Tensor tCrQ = make_tensor<float>(FragQ{});                                                          // (MMA,MMA_M,2)
  Tensor tXrQ = make_tensor(tCrQ.data(), S2R_Q_R{});                                                  // (CPY,CPY_M,2)
  int const k_frag_n = S2R_K_N{}(tid);
  int const k_frag_k = S2R_K_K{}(tid);
  Tensor tXsK = make_tensor(make_smem_ptr(&sK(k_frag_n, k_frag_k, 0)), S2R_K_S{});                    // (CPY,CPY_N,MMA_K,PIPE)
  Tensor tCrK = make_tensor<float>(FragK{});                                                          // (MMA,MMA_N,2)
  Tensor tXrK = make_tensor(tCrK.data(), S2R_K_R{});                                                  // (CPY,CPY_N,2)
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

  // 4. Main loop, one stage: each tile is copied, then multiplied. Between them all threads wait.
  int const read = 0;
  CUTE_NO_UNROLL
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    load_stage(k_tile, 0);
    cp_async_fence();
    cp_async_wait<0>();
    __syncthreads();               // the tile is there for every thread

    auto load_fragments = [&](int k) {
      CUTE_UNROLL
      for (int i = 0; i < size<1>(S2R_Q_S{}); ++i) { copy_unpack(S2R_Q{}, tXsQ(_,i,k,read), tXrQ(_,i,k % 2)); }
      CUTE_UNROLL
      for (int i = 0; i < size<1>(S2R_K_S{}); ++i) { copy_unpack(S2R_K{}, tXsK(_,i,k,read), tXrK(_,i,k % 2)); }
    };
    load_fragments(0);
    CUTE_UNROLL
    for (int k = 0; k < BLK_K{}; ++k) {
      if (k + 1 < BLK_K{}) { load_fragments(k + 1); }   // while the FMAs of k run
      CUTE_UNROLL
      for (int m = 0; m < size<1>(FragC{}); ++m) {
        CUTE_UNROLL
        for (int n = 0; n < size<2>(FragC{}); ++n) {
          Mma::fma(tCrC(0,m,n), tCrQ(0,m,k % 2), tCrK(0,n,k % 2), tCrC(0,m,n));
        }
      }
    }
    __syncthreads();               // every thread is done with it
  }

  // 5. Epilogue: S = scale * acc, in f32
  Tensor tDrD = make_tensor(tCrC.data(), AccR{});                                                     // (VEC,INNER,OUTER)
  int const m = m0 + Acc_M{}(tid);
  int const n = n0 + Acc_N{}(tid);
  CUTE_UNROLL
  for (int i = 0; i < size(tDrD); ++i) { tDrD(i) *= scale; }
  CUTE_UNROLL
  for (int i = 0; i < size<2>(AccR{}); ++i) {
    if (m + Outer{}(i) < seqlen_q) {
      float* row = &mS(m + Outer{}(i), n);
      CUTE_UNROLL
      for (int j = 0; j < size<1>(AccR{}); ++j) {
        Tensor out = make_tensor<float>(Layout<_4>{});
        CUTE_UNROLL
        for (int v = 0; v < 4; ++v) { out(v) = float(tDrD(v,j,i)); }
        CUTE_UNROLL
        for (int v = 0; v < 4; v += 4) {
          if (n + Inner{}(j) + v < seqlen_k) {
            copy_unpack(Copy_Traits<UniversalCopy<uint128_t>>{}, make_tensor(out.data() + v, Layout<_4>{}),
                        make_tensor(make_gmem_ptr(row + Inner{}(j) + v), Layout<_4>{}));
          }
        }
      }
    }
  }
}
