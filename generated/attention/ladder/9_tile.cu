// =============================================================================================================================
//  attention_forward_sm_80_f16_d64_128x128_w4
//
//    O = softmax(scale q.k) V for each batch and head      Q, O (M,D) f16      K, V (N,D) f16
//    M = seqlen_q, N = seqlen_k, D = head_dim = 64; scores, softmax and sums in f32; any lengths, batch, heads
//
//    block tile (128,128)      4 warps of 32 rows      Q stays in shared memory      shared memory 49152 B
//    grid: one block for each tile of queries of each head and batch, the tiles with most keys first
//    rows aligned to elements: Q to 8, K to 8, V to 8, O to 8; head_dim is contiguous; scale > 0
//
//  Layouts are resolved: each tensor starts at its thread's first element, and a literal layout says which elements are the
//  thread's own. `make_tiled_copy`, `make_tiled_mma` and `partition_*` would compute the same.
//
//  Written by cutegen 0.1.0 from this spec; `cutegen emit` writes it again, `cutegen run` checks it:
//
//      kernel: attention_forward
//      arch: sm_80
//      description: "ladder 9: the tile that was fastest"
//      problem: {batch: 8, heads: 12, seqlen_q: 1024, seqlen_k: 1024, head_dim: 64}
//      dtypes: {q: f16, k: f16, v: f16, o: f16}
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
using T    = half_t;
using Pair = __half2;                                                                                 // two values in one register
using HEAD_DIM = _64;
using BLK_M = _128;                                                                                   // queries of a block
using BLK_N = _128;                                                                                   // keys that it takes at a time
using BLK_D = _64;                                                                                    // head_dim
constexpr float RESCALE_ABOVE = 8.0f;                                                                 // in powers of two

// Operands lie in shared memory one tile at a time: PIPE is 1.
// Q: (BLK_M,BLK_D) of half_t, D-major. The swizzle XORs row bits into the index of each 16-byte chunk: no bank conflicts
using SmemQ = Layout<Shape<_128,_64,_1>, Stride<_64,_1,_0>>;                                          // (BLK_M,BLK_D,PIPE) before the swizzle
using SwizzleQ = Swizzle<3,3,3>;
using G2S_Q = Copy_Traits<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;                                // gmem -> smem, 8 values at once
using G2S_Q_M = Layout<Shape<_8,_16>, Stride<_0,_1>>;                                                 // tid -> its first m
using G2S_Q_D = Layout<Shape<_8,_16>, Stride<_8,_0>>;                                                 // tid -> its first d
using G2S_Q_S = Layout<Shape<_8,_8,_1,_1>, Stride<_1,_1024,_0,_0>>;                                   // (CPY,CPY_M,CPY_D,PIPE)
using STEP_Q_M = _16;                                                                                 // from one CPY_M to the next
using STEP_Q_D = _64;
using S2R_Q = Copy_Traits<SM75_U32x4_LDSM_N>;                                                         // smem -> registers
using S2R_Q_M = Layout<Shape<_16,_2,_4>, Stride<_1,_0,_32>>;                                          // tid -> its first m
using S2R_Q_D = Layout<Shape<_16,_2,_4>, Stride<_0,_8,_0>>;                                           // tid -> its first d
using S2R_Q_S = Layout<Shape<_8,_2,_4,_1>, Stride<_1,_1024,_0,_0>>;                                   // (CPY,CPY_M,MMA_K,PIPE)
using XOR_Q = Layout<Shape<_2,_4>, Stride<_0,_16>>;                                                   // (CPY_M,MMA_K) -> offset bits that the swizzle has flipped
using S2R_Q_R = Layout<Shape<_8,_2,_4>, Stride<_1,_8,_16>>;                                           // (CPY,CPY_M,MMA_K)
using FragQ = Layout<Shape<_8,_2,_4>, Stride<_1,_8,_16>>;                                             // (MMA,MMA_M,MMA_K)

// K: (BLK_N,BLK_D) of half_t, D-major. The swizzle XORs row bits into the index of each 16-byte chunk: no bank conflicts
using SmemK = Layout<Shape<_128,_64,_1>, Stride<_64,_1,_0>>;                                          // (BLK_N,BLK_D,PIPE) before the swizzle
using SwizzleK = Swizzle<3,3,3>;
using G2S_K = Copy_Traits<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;                                // gmem -> smem, 8 values at once
using G2S_K_N = Layout<Shape<_8,_16>, Stride<_0,_1>>;                                                 // tid -> its first n
using G2S_K_D = Layout<Shape<_8,_16>, Stride<_8,_0>>;                                                 // tid -> its first d
using G2S_K_S = Layout<Shape<_8,_8,_1,_1>, Stride<_1,_1024,_0,_0>>;                                   // (CPY,CPY_N,CPY_D,PIPE)
using STEP_K_N = _16;                                                                                 // from one CPY_N to the next
using STEP_K_D = _64;
using S2R_K = Copy_Traits<SM75_U32x4_LDSM_N>;                                                         // smem -> registers
using S2R_K_N = Layout<Shape<_8,_2,_2,_4>, Stride<_1,_0,_8,_0>>;                                      // tid -> its first n
using S2R_K_D = Layout<Shape<_8,_2,_8>, Stride<_0,_8,_0>>;                                            // tid -> its first d
using S2R_K_S = Layout<Shape<_8,_8,_4,_1>, Stride<_1,_1024,_0,_0>>;                                   // (CPY,CPY_N,MMA_K,PIPE)
using XOR_K = Layout<Shape<_8,_4>, Stride<_0,_16>>;                                                   // (CPY_N,MMA_K) -> offset bits that the swizzle has flipped
using S2R_K_R = Layout<Shape<_8,_8,_4>, Stride<_1,_8,_64>>;                                           // (CPY,CPY_N,MMA_K)
using FragK = Layout<Shape<_4,_16,_4>, Stride<_1,_4,_64>>;                                            // (MMA,MMA_N,MMA_K)

// V: (BLK_D,BLK_N) of half_t, D-major. The swizzle XORs row bits into the index of each 16-byte chunk: no bank conflicts
using SmemV = Layout<Shape<_64,_128,_1>, Stride<_1,_64,_0>>;                                          // (BLK_D,BLK_N,PIPE) before the swizzle
using SwizzleV = Swizzle<3,3,3>;
using G2S_V = Copy_Traits<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;                                // gmem -> smem, 8 values at once
using G2S_V_D = Layout<Shape<_8,_16>, Stride<_8,_0>>;                                                 // tid -> its first d
using G2S_V_N = Layout<Shape<_8,_16>, Stride<_0,_1>>;                                                 // tid -> its first n
using G2S_V_S = Layout<Shape<_8,_1,_8,_1>, Stride<_1,_0,_1024,_0>>;                                   // (CPY,CPY_D,CPY_N,PIPE)
using STEP_V_D = _64;                                                                                 // from one CPY_D to the next
using STEP_V_N = _16;
using S2R_V = Copy_Traits<SM75_U16x8_LDSM_T>;                                                         // smem -> registers
using S2R_V_D = Layout<Shape<_16,_2,_4>, Stride<_0,_8,_0>>;                                           // tid -> its first d
using S2R_V_N = Layout<Shape<_16,_8>, Stride<_1,_0>>;                                                 // tid -> its first n
using S2R_V_S = Layout<Shape<_8,_4,_8,_1>, Stride<_1,_0,_1024,_0>>;                                   // (CPY,CPY_D,MMA_K,PIPE)
using XOR_V = Layout<Shape<_4,_8>, Stride<_16,_0>>;                                                   // (CPY_D,MMA_K) -> offset bits that the swizzle has flipped
using S2R_V_R = Layout<Shape<_8,_4,_8>, Stride<_1,_8,_32>>;                                           // (CPY,CPY_D,MMA_K)
using FragV = Layout<Shape<_4,_8,_8>, Stride<_1,_4,_32>>;                                             // (MMA,MMA_D,MMA_K)

// S = Q K^T: 4 x 1 warps of 32 x 128, each 2 x 16 atoms of m16n8k16
// O = P V:   4 x 1 warps of 32 x 64, each 2 x 8 atoms of m16n8k16
using Mma   = MMA_Traits<SM80_16x8x16_F32F16F16F32_TN>;
using FragS = Layout<Shape<_4,_2,_16>, Stride<_1,_4,_8>>;                                             // (MMA,MMA_M,MMA_N)
using FragO = Layout<Shape<_4,_2,_8>, Stride<_1,_4,_8>>;                                              // (MMA,MMA_M,MMA_D)
using FragP = Layout<Shape<Shape<_4,_2>,_2,_8>, Stride<Stride<_1,_8>,_4,_16>>;                        // (MMA,MMA_M,MMA_K) of P as operand A -> where S has it
using RowsS = Layout<Shape<Shape<_2,_16>,_4>, Stride<Stride<_1,_8>,_2>>;                              // ((VEC,COLUMN),ROW) -> register of S
using RowsO = Layout<Shape<Shape<_2,_8>,_4>, Stride<Stride<_1,_8>,_2>>;                               // ((VEC,COLUMN),ROW) -> register of O
using ROWS  = _4;                                                                                     // rows of a thread; each lies in the four lanes of a quad
using RowM  = Layout<Shape<_4>, Stride<_8>>;                                                          // ROW -> m, from the thread's first
using ColN  = Layout<Shape<_2,_16>, Stride<_1,_8>>;                                                   // (VEC,COLUMN) -> n, from the thread's first
using ColD  = Layout<Shape<_2,_8>, Stride<_1,_8>>;                                                    // (VEC,COLUMN) -> d, from the thread's first
using Acc_M = Layout<Shape<_4,_8,_4>, Stride<_0,_1,_32>>;                                             // tid -> its first row of S and O
using Acc_N = Layout<Shape<_4,_32>, Stride<_2,_0>>;                                                   // tid -> its first column of S and O

// O on its way out, where Q was: pairs of columns are written, vectors of 8 read, 8 lanes along a row
using R2S_O_X = Layout<Shape<_8,_4>, Stride<_8,_0>>;                                                  // (COLUMN,ROW) -> offset bits that the swizzle has flipped
using R2S_O_S = Layout<Shape<_8,_4>, Stride<_0,_512>>;                                                // (COLUMN,ROW)
using S2G_O_X = Layout<Shape<_1,Shape<_2,_4>>, Stride<_0,Stride<_32,_0>>>;                            // (COLUMN,ROW)
using S2G_O_S = Layout<Shape<_1,_8>, Stride<_0,_256>>;                                                // (COLUMN,ROW)

struct SharedStorage {
  alignas(128) T Q[8192];                                                                             // O in the end
  alignas(128) T K[8192];
  alignas(128) T V[8192];
};
static_assert(sizeof(SharedStorage) == 49152, "spec.smem");
static_assert(cosize_v<SmemQ> <= 8192 && cosize_v<SmemK> <= 8192 && cosize_v<SmemV> <= 8192, "spec.smem");
static_assert(cosize_v<FragS> == size(RowsS{}) && size(FragP{}) == size(FragS{}) && cosize_v<FragO> == size(RowsO{}), "spec.tile");

CUTE_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// -----------------------------------------------------------------------------------------------------------------------------
//  Kernel
// -----------------------------------------------------------------------------------------------------------------------------
extern "C" __global__ __launch_bounds__(128, 2)
void attention_forward_sm_80_f16_d64_128x128_w4(
    half_t const* Q, half_t const* K, half_t const* V, half_t* O, int32_t heads, int32_t heads_kv, int32_t seqlen_q,
    int32_t seqlen_k, int64_t row_Q, int64_t row_K, int64_t row_V, int64_t row_O, int64_t head_Q, int64_t head_K,
    int64_t head_V, int64_t head_O, int64_t batch_Q, int64_t batch_K, int64_t batch_V, int64_t batch_O, float scale) {
  int const tid  = threadIdx.x;
  int const lane = tid % 32;
  int const warp = tid / 32;
  float const minus_infinity = __int_as_float(0xff800000);

  // 1. The tile of this block, and shared memory
  int const tiles_m = ceil_div(seqlen_q, BLK_M{});
  int const m0     = (tiles_m - 1 - int(blockIdx.x % tiles_m)) * BLK_M{};                             // under a causal mask the last tiles see most: they go first
  int const head   = blockIdx.x / tiles_m % heads;
  int const batch  = blockIdx.x / tiles_m / heads;
  int const head_k = head / (heads / heads_kv);                                                       // grouped queries share a head of K and V

  Tensor mQ = make_tensor(make_gmem_ptr(Q + batch * batch_Q + head * head_Q), make_shape(seqlen_q, HEAD_DIM{}), make_stride(row_Q, _1{}));  // (M,D)
  Tensor mK = make_tensor(make_gmem_ptr(K + batch * batch_K + head_k * head_K), make_shape(seqlen_k, HEAD_DIM{}), make_stride(row_K, _1{}));  // (N,D)
  Tensor mV = make_tensor(make_gmem_ptr(V + batch * batch_V + head_k * head_V), make_shape(HEAD_DIM{}, seqlen_k), make_stride(_1{}, row_V));  // (D,N), as operand B of P V
  Tensor mO = make_tensor(make_gmem_ptr(O + batch * batch_O + head * head_O), make_shape(seqlen_q, HEAD_DIM{}), make_stride(row_O, _1{}));  // (M,D)

  extern __shared__ __align__(128) unsigned char smem_raw[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(smem_raw);
  Tensor sQ = make_tensor(make_smem_ptr(smem.Q), composition(SwizzleQ{}, SmemQ{}));                   // (BLK_M,BLK_D,PIPE)
  Tensor sK = make_tensor(make_smem_ptr(smem.K), composition(SwizzleK{}, SmemK{}));                   // (BLK_N,BLK_D,PIPE)
  Tensor sV = make_tensor(make_smem_ptr(smem.V), composition(SwizzleV{}, SmemV{}));                   // (BLK_D,BLK_N,PIPE)

  // 2. Blocks of keys: some query of the tile sees [n_begin, n_end); every query sees all of [n_begin, whole_end)
  int const n_end = ceil_div(seqlen_k, BLK_N{});
  int const whole_end = seqlen_k / BLK_N{};
  int const n_begin = 0;
  int const n_last = n_end - 1;

  // 3. gmem -> smem: where this thread reads and writes
  int const q_m = G2S_Q_M{}(tid);
  int const q_d = G2S_Q_D{}(tid);
  half_t const* q_from = &mQ(m0 + q_m, q_d);                                                          // this thread's first vector
  int const q_to = sQ.layout()(q_m, q_d, 0);                                                          // offset of its place in shared memory
  int const k_n = G2S_K_N{}(tid);
  int const k_d = G2S_K_D{}(tid);
  half_t const* k_from = &mK(n_last * BLK_N{} + k_n, k_d);                                            // this thread's first vector
  int k_to = sK.layout()(k_n, k_d, 0);                                                                // offset of its place in shared memory
  int const v_d = G2S_V_D{}(tid);
  int const v_n = G2S_V_N{}(tid);
  half_t const* v_from = &mV(v_d, n_last * BLK_N{} + v_n);                                            // this thread's first vector
  int v_to = sV.layout()(v_d, v_n, 0);                                                                // offset of its place in shared memory
  auto load_K = [&] { // the block before: all of its keys exist
    k_from -= BLK_N{} * row_K;
    CUTE_UNROLL
    for (int c = 0; c < size<2>(G2S_K_S{}); ++c) {
      half_t const* from = k_from + c * STEP_K_D{};
      CUTE_UNROLL
      for (int r = 0; r < size<1>(G2S_K_S{}); ++r) {
        half_t* to = smem.K + k_to + G2S_K_S{}(0,r,c,0);
        copy_unpack(G2S_K{}.with(true), make_tensor(make_gmem_ptr(from), Layout<_8>{}), make_tensor(make_smem_ptr(to), Layout<_8>{}));
        from += STEP_K_N{} * row_K;
      }
    }
  };
  auto load_V = [&] { // likewise
    v_from -= BLK_N{} * row_V;
    CUTE_UNROLL
    for (int c = 0; c < size<1>(G2S_V_S{}); ++c) {
      half_t const* from = v_from + c * STEP_V_D{};
      CUTE_UNROLL
      for (int r = 0; r < size<2>(G2S_V_S{}); ++r) {
        half_t* to = smem.V + v_to + G2S_V_S{}(0,c,r,0);
        copy_unpack(G2S_V{}.with(true), make_tensor(make_gmem_ptr(from), Layout<_8>{}), make_tensor(make_smem_ptr(to), Layout<_8>{}));
        from += STEP_V_N{} * row_V;
      }
    }
  };

  // 4. smem -> registers: this thread's fragments, accumulators and row statistics
  int q_at = sQ.layout()(S2R_Q_M{}(tid), S2R_Q_D{}(tid), 0);                                          // offset of this thread's first row of 16 B
  Tensor tSrQ = make_tensor<half_t>(FragQ{});                                                         // (MMA,MMA_M,MMA_K)
  Tensor tXrQ = make_tensor(tSrQ.data(), S2R_Q_R{});                                                  // (CPY,CPY_M,MMA_K)
  int k_at = sK.layout()(S2R_K_N{}(tid), S2R_K_D{}(tid), 0);                                          // offset of this thread's first row of 16 B
  Tensor tSrK = make_tensor<half_t>(FragK{});                                                         // (MMA,MMA_N,MMA_K)
  Tensor tXrK = make_tensor(tSrK.data(), S2R_K_R{});                                                  // (CPY,CPY_N,MMA_K)
  int v_at = sV.layout()(S2R_V_D{}(tid), S2R_V_N{}(tid), 0);                                          // offset of this thread's first row of 16 B
  Tensor tOrV = make_tensor<half_t>(FragV{});                                                         // (MMA,MMA_D,MMA_K)
  Tensor tXrV = make_tensor(tOrV.data(), S2R_V_R{});                                                  // (CPY,CPY_D,MMA_K)
  Tensor tSrS = make_tensor<float>(FragS{});                                                          // (MMA,MMA_M,MMA_N)
  Tensor tOrO = make_tensor<float>(FragO{});                                                          // (MMA,MMA_M,MMA_D)
  Tensor tSrP = make_tensor<T>(FragS{});                                                              // (MMA,MMA_M,MMA_N)
  Tensor tSrS_row = make_tensor(tSrS.data(), RowsS{});                                                // ((VEC,COLUMN),ROW)
  Tensor tOrO_row = make_tensor(tOrO.data(), RowsO{});                                                // ((VEC,COLUMN),ROW)
  Tensor tOrP = make_tensor(tSrP.data(), FragP{});                                                    // (MMA,MMA_M,MMA_K): registers stay, only their names change
  Tensor row_top = make_tensor<float>(Layout<ROWS>{});                                                // (ROW) log2 of the reference of a row's powers
  Tensor row_sum = make_tensor<float>(Layout<ROWS>{});                                                // (ROW) this thread's part of the sum
  CUTE_UNROLL
  for (int r = 0; r < ROWS{}; ++r) { row_top(r) = -3.40282347e38f; row_sum(r) = 0; }
  CUTE_UNROLL
  for (int i = 0; i < size(FragO{}); ++i) { tOrO(i) = 0; }
  float const scale_log2 = scale * 1.44269504f;                                                       // 2^(x * scale_log2) = e^(scale * x)

  // 5. Prologue: Q and the last block of K and V, the only one that may end early. What does not exist is zero.
  if (n_begin <= n_last) {
    int const keys = seqlen_k - n_last * BLK_N{};
    CUTE_UNROLL
    for (int c = 0; c < size<2>(G2S_Q_S{}); ++c) {
      half_t const* from = q_from + c * STEP_Q_D{};
      CUTE_UNROLL
      for (int r = 0; r < size<1>(G2S_Q_S{}); ++r) {
        half_t* to = smem.Q + q_to + G2S_Q_S{}(0,r,c,0);
        copy_unpack(G2S_Q{}.with(q_m + r * STEP_Q_M{} < seqlen_q - m0), make_tensor(make_gmem_ptr(from), Layout<_8>{}), make_tensor(make_smem_ptr(to), Layout<_8>{}));
        from += STEP_Q_M{} * row_Q;
      }
    }
    CUTE_UNROLL
    for (int c = 0; c < size<2>(G2S_K_S{}); ++c) {
      half_t const* from = k_from + c * STEP_K_D{};
      CUTE_UNROLL
      for (int r = 0; r < size<1>(G2S_K_S{}); ++r) {
        half_t* to = smem.K + k_to + G2S_K_S{}(0,r,c,0);
        copy_unpack(G2S_K{}.with(k_n + r * STEP_K_N{} < keys), make_tensor(make_gmem_ptr(from), Layout<_8>{}), make_tensor(make_smem_ptr(to), Layout<_8>{}));
        from += STEP_K_N{} * row_K;
      }
    }
    cp_async_fence();
    CUTE_UNROLL
    for (int c = 0; c < size<1>(G2S_V_S{}); ++c) {
      half_t const* from = v_from + c * STEP_V_D{};
      CUTE_UNROLL
      for (int r = 0; r < size<2>(G2S_V_S{}); ++r) {
        half_t* to = smem.V + v_to + G2S_V_S{}(0,c,r,0);
        copy_unpack(G2S_V{}.with(v_n + r * STEP_V_N{} < keys), make_tensor(make_gmem_ptr(from), Layout<_8>{}), make_tensor(make_smem_ptr(to), Layout<_8>{}));
        from += STEP_V_N{} * row_V;
      }
    }
    cp_async_fence();
    cp_async_wait<1>();                      // Q and K are there
  }

  // 6. Main loop, from the last block to the first. At its top this thread's part of K(n) is there.
  CUTE_NO_UNROLL
  for (int n = n_last; n >= n_begin; --n) {
    __syncthreads();                         // K(n) is there for every thread, and every thread is done with V(n + 1)
    if (n < n_last) { load_V(); }            // while S is computed
    cp_async_fence();

    // Addresses are made anew for each block: kept through the loop, one for each step, they would crowd the registers.
    asm volatile("" : "+r"(q_at), "+r"(k_at), "+r"(v_at), "+r"(k_to), "+r"(v_to));

    //    S = Q K^T
    CUTE_UNROLL
    for (int i = 0; i < size(FragS{}); ++i) { tSrS(i) = 0; }
    CUTE_UNROLL
    for (int k = 0; k < size<2>(FragK{}); ++k) {
      CUTE_UNROLL
      for (int i = 0; i < size<1>(S2R_Q_S{}); ++i) {
        half_t* rows = smem.Q + (q_at ^ XOR_Q{}(i,k)) + S2R_Q_S{}(0,i,k,0);
        copy_unpack(S2R_Q{}, make_tensor(make_smem_ptr(rows), Layout<_8>{}), tXrQ(_,i,k));
      }
      CUTE_UNROLL
      for (int i = 0; i < size<1>(S2R_K_S{}); ++i) {
        half_t* rows = smem.K + (k_at ^ XOR_K{}(i,k)) + S2R_K_S{}(0,i,k,0);
        copy_unpack(S2R_K{}, make_tensor(make_smem_ptr(rows), Layout<_8>{}), tXrK(_,i,k));
      }
      CUTE_UNROLL
      for (int j = 0; j < size<2>(FragS{}); ++j) {
        CUTE_UNROLL
        for (int i = 0; i < size<1>(FragS{}); ++i) {
          Tensor acc = tSrS(_,i,j);
          mma_unpack(Mma{}, acc, tSrQ(_,i,k), tSrK(_,j,k), acc);
        }
      }
    }
    cp_async_wait<0>();
    __syncthreads();                         // V(n) is there, and every thread is done with K(n)
    if (n > n_begin) { load_K(); }           // while softmax and P V run
    cp_async_fence();

    //    Mask: hidden scores become -inf
    if (n >= whole_end) { // else every query of the tile sees every key of the block
      int const key = n * BLK_N{} + Acc_N{}(tid);
      CUTE_UNROLL
      for (int r = 0; r < size<1>(RowsS{}); ++r) {
        int const end = seqlen_k - key;                                                               // columns from here on are hidden
        CUTE_UNROLL
        for (int c = 0; c < size<0>(RowsS{}); ++c) {
          if (ColN{}(c) >= end) { tSrS_row(c,r) = minus_infinity; }
        }
      }
    }

    //    Online softmax
    // A row's powers are taken relative to `row_top`, which follows the row's maximum only when that has risen by more than
    // RESCALE_ABOVE: sums and O stay as they are for most blocks, and the final division makes any reference right.
    Tensor block_top = make_tensor<float>(Layout<ROWS>{});                                            // (ROW)
    bool risen = false;
    CUTE_UNROLL
    for (int r = 0; r < ROWS{}; ++r) {
      float top = tSrS_row(0,r);
      CUTE_UNROLL
      for (int c = 1; c < size<0>(RowsS{}); ++c) { top = fmaxf(top, tSrS_row(c,r)); }
      top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));                                          // four lanes share a row
      top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
      block_top(r) = top * scale_log2;
      risen |= block_top(r) > row_top(r) + RESCALE_ABOVE;
    }
    if (__any_sync(0xffffffff, risen)) {
      CUTE_UNROLL
      for (int r = 0; r < ROWS{}; ++r) {
        float const top = fmaxf(row_top(r), block_top(r));
        float const shrink = exp2_approx(row_top(r) - top);
        row_top(r) = top;
        row_sum(r) *= shrink;
        CUTE_UNROLL
        for (int c = 0; c < size<0>(RowsO{}); ++c) { tOrO_row(c,r) *= shrink; }
      }
    }
    CUTE_UNROLL
    for (int r = 0; r < ROWS{}; ++r) {
      CUTE_UNROLL
      for (int c = 0; c < size<0>(RowsS{}); ++c) {
        tSrS_row(c,r) = exp2_approx(tSrS_row(c,r) * scale_log2 - row_top(r));
        row_sum(r) += tSrS_row(c,r);
      }
    }

    //    O += P V
    Tensor pairs = recast<Pair>(tSrP);                                                                // (MMA/2,MMA_M,MMA_N)
    CUTE_UNROLL
    for (int i = 0; i < size(pairs); ++i) { pairs(i) = __floats2half2_rn(tSrS(2 * i), tSrS(2 * i + 1)); }
    CUTE_UNROLL
    for (int k = 0; k < size<2>(FragV{}); ++k) {
      CUTE_UNROLL
      for (int i = 0; i < size<1>(S2R_V_S{}); ++i) {
        half_t* rows = smem.V + (v_at ^ XOR_V{}(i,k)) + S2R_V_S{}(0,i,k,0);
        copy_unpack(S2R_V{}, make_tensor(make_smem_ptr(rows), Layout<_8>{}), tXrV(_,i,k));
      }
      CUTE_UNROLL
      for (int j = 0; j < size<2>(FragO{}); ++j) {
        CUTE_UNROLL
        for (int i = 0; i < size<1>(FragO{}); ++i) {
          Tensor acc = tOrO(_,i,j);
          mma_unpack(Mma{}, acc, tOrP(_,i,k), tOrV(_,j,k), acc);
        }
      }
    }
    cp_async_wait<0>();                      // K(n - 1) is there
  }

  // 7. Epilogue: O / sum
  CUTE_UNROLL
  for (int r = 0; r < ROWS{}; ++r) {
    float sum = row_sum(r);
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    float const inverse = sum == 0 ? 0 : __fdividef(1, sum);                                          // a query that sees no key gives 0
    CUTE_UNROLL
    for (int c = 0; c < size<0>(RowsO{}); ++c) { tOrO_row(c,r) *= inverse; }
  }
  //    registers -> smem, where Q was: a warp writes only rows that it alone has read
  Tensor sO = make_tensor(make_smem_ptr(smem.Q), sQ.layout());                                        // (BLK_M,BLK_D,PIPE)
  int const o_at = sO.layout()(Acc_M{}(tid), Acc_N{}(tid), 0);                                        // where this thread's first pair goes
  CUTE_UNROLL
  for (int r = 0; r < ROWS{}; ++r) {
    CUTE_UNROLL
    for (int c = 0; c < size<0>(R2S_O_S{}); ++c) {
      *reinterpret_cast<Pair*>(smem.Q + (o_at ^ R2S_O_X{}(c,r)) + R2S_O_S{}(c,r)) = __floats2half2_rn(tOrO_row(2 * c,r), tOrO_row(2 * c + 1,r));
    }
  }
  __syncwarp();

  //    smem -> gmem: 4 rows of the warp at a time
  int const o_m = warp * 32 + lane / 8;
  int const o_d = lane % 8 * 8;
  int const o_from = sO.layout()(o_m, o_d, 0);
  CUTE_UNROLL
  for (int c = 0; c < size<0>(S2G_O_S{}); ++c) {
    T* to = &mO(m0 + o_m, o_d + c * 64);
    CUTE_UNROLL
    for (int r = 0; r < size<1>(S2G_O_S{}); ++r) {
      if (m0 + o_m + r * 4 < seqlen_q) {
        copy_unpack(Copy_Traits<UniversalCopy<uint128_t>>{}, make_tensor(make_smem_ptr(smem.Q + (o_from ^ S2G_O_X{}(c,r)) + S2G_O_S{}(c,r)), Layout<_8>{}),
                    make_tensor(make_gmem_ptr(to), Layout<_8>{}));
      }
      to += 4 * row_O;
    }
  }
}
