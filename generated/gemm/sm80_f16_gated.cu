// =============================================================================================================================
//  gemm_sm_80_tn_f16_f16_128x128x64_p3_c_silu_gate_acc_scale
//
//    C = silu(acc * scale[m]) * gate[m, n] + c, acc = A B^T      A (M,K) f16 K-major      B (N,K) f16 K-major      C (M,N) f16 N-major
//    accumulated in f32; any M, N, K and batch
//
//    block tile (128,128,64)      stages 3      threads 128      shared memory 98304 B
//    grid: one block for each tile of each batch, in groups of 8 rows of tiles
//    A and its row stride aligned to 8 elements, B to 8, C to 8; so are the contiguous extents
//
//  Layouts are resolved: each tensor starts at its thread's first element, and a literal layout says which elements are the
//  thread's own. `make_tiled_copy`, `make_tiled_mma` and `partition_*` would compute the same.
//
//  Written by cutegen 0.1.0 from this spec; `cutegen emit` writes it again, `cutegen run` checks it:
//
//      kernel: gemm
//      arch: sm_80
//      description: "f16, gate and residual in the epilogue"
//      problem: {m: 2048, n: 2048, k: 2048}
//      dtypes: {a: f16, b: f16, c: f16}
//      epilogue: {out: "silu(acc * scale[m]) * gate[m, n] + c"}
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
using BLK_M = _128;
using BLK_N = _128;
using BLK_K = _64;
using PIPE  = _3;                                                                                     // tiles of A and B in flight
using GROUP_M = _8;                                                                                   // rows of tiles that walk along N together, to meet in L2

// A: (BLK_M,BLK_K) of half_t, K-major. The swizzle XORs row bits into the index of each 16-byte chunk: no bank conflicts
using SmemA = Layout<Shape<_128,_64,_3>, Stride<_64,_1,_8192>>;                                       // (BLK_M,BLK_K,PIPE) before the swizzle
using SwizzleA = Swizzle<3,3,3>;
using G2S_A = Copy_Traits<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;                                // gmem -> smem, 8 values at once
using G2S_A_M = Layout<Shape<_8,_16>, Stride<_0,_1>>;                                                 // tid -> its first m
using G2S_A_K = Layout<Shape<_8,_16>, Stride<_8,_0>>;                                                 // tid -> its first k
using G2S_A_S = Layout<Shape<_8,_8,_1,_3>, Stride<_1,_1024,_0,_8192>>;                                // (CPY,CPY_M,CPY_K,PIPE)
using STEP_A_M = _16;                                                                                 // from one CPY_M to the next
using STEP_A_K = _64;
using S2R_A = Copy_Traits<SM75_U32x4_LDSM_N>;                                                         // smem -> registers
using S2R_A_M = Layout<Shape<_16,_2,_2,_2>, Stride<_1,_0,_64,_0>>;                                    // tid -> its first m
using S2R_A_K = Layout<Shape<_16,_2,_4>, Stride<_0,_8,_0>>;                                           // tid -> its first k
using S2R_A_S = Layout<Shape<_8,_4,_4,_3>, Stride<_1,_1024,_16,_8192>>;                               // (CPY,CPY_M,MMA_K,PIPE)
using S2R_A_R = Layout<Shape<_8,_4,_4>, Stride<_1,_8,_32>>;                                           // (CPY,CPY_M,MMA_K)
using FragA = Layout<Shape<_8,_4,_4>, Stride<_1,_8,_32>>;                                             // (MMA,MMA_M,MMA_K)

// B: (BLK_N,BLK_K) of half_t, K-major. The swizzle XORs row bits into the index of each 16-byte chunk: no bank conflicts
using SmemB = Layout<Shape<_128,_64,_3>, Stride<_64,_1,_8192>>;                                       // (BLK_N,BLK_K,PIPE) before the swizzle
using SwizzleB = Swizzle<3,3,3>;
using G2S_B = Copy_Traits<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;                                // gmem -> smem, 8 values at once
using G2S_B_N = Layout<Shape<_8,_16>, Stride<_0,_1>>;                                                 // tid -> its first n
using G2S_B_K = Layout<Shape<_8,_16>, Stride<_8,_0>>;                                                 // tid -> its first k
using G2S_B_S = Layout<Shape<_8,_8,_1,_3>, Stride<_1,_1024,_0,_8192>>;                                // (CPY,CPY_N,CPY_K,PIPE)
using STEP_B_N = _16;                                                                                 // from one CPY_N to the next
using STEP_B_K = _64;
using S2R_B = Copy_Traits<SM75_U32x4_LDSM_N>;                                                         // smem -> registers
using S2R_B_N = Layout<Shape<_8,_2,_2,_2,_2>, Stride<_1,_0,_8,_0,_64>>;                               // tid -> its first n
using S2R_B_K = Layout<Shape<_8,_2,_8>, Stride<_0,_8,_0>>;                                            // tid -> its first k
using S2R_B_S = Layout<Shape<_8,_4,_4,_3>, Stride<_1,_1024,_16,_8192>>;                               // (CPY,CPY_N,MMA_K,PIPE)
using S2R_B_R = Layout<Shape<_8,_4,_4>, Stride<_1,_8,_32>>;                                           // (CPY,CPY_N,MMA_K)
using FragB = Layout<Shape<_4,_8,_4>, Stride<_1,_4,_32>>;                                             // (MMA,MMA_N,MMA_K)

// Math: 2 x 2 warps of 64 x 64, each 4 x 8 atoms of m16n8k16
using Mma   = MMA_Traits<SM80_16x8x16_F32F16F16F32_TN>;
using FragC = Layout<Shape<_4,_4,_8>, Stride<_1,_4,_16>>;                                             // (MMA,MMA_M,MMA_N)
using Acc_M = Layout<Shape<_4,_8,_2,_2>, Stride<_0,_1,_64,_0>>;                                       // tid -> its first row of C
using Acc_N = Layout<Shape<_4,_16,_2>, Stride<_2,_0,_64>>;                                            // tid -> its first column
using AccR  = Layout<Shape<_2,_8,_8>, Stride<_1,_16,_2>>;                                             // (VEC,INNER,OUTER) -> accumulator
using Inner = Layout<Shape<_8>, Stride<_8>>;                                                          // INNER -> n, from the first
using Outer = Layout<Shape<_8>, Stride<_8>>;                                                          // OUTER -> m, from the first
using SmemC = Layout<Shape<_128,_128>, Stride<_136,_1>>;                                              // (BLK_M,BLK_N), rows padded by 16 B against bank conflicts
using S2G   = uint128_t;                                                                              // 8 values of C at once

union SharedStorage {
  struct {
    alignas(128) half_t A[24576];
    alignas(128) half_t B[24576];
  };
  alignas(128) half_t C[17408];                                                                       // once the main loop is over
};
static_assert(sizeof(SharedStorage) == 98304, "spec.smem");
static_assert(cosize_v<SmemA> <= 24576 && cosize_v<SmemB> <= 24576, "spec.smem");
static_assert(cosize_v<FragC> == 128 && size(AccR{}) == 128, "spec.mma");

CUTE_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
CUTE_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
CUTE_DEVICE float silu(float x) { return x * reciprocal(1.0f + exp2_approx(-1.442695f * x)); }

// -----------------------------------------------------------------------------------------------------------------------------
//  Kernel
// -----------------------------------------------------------------------------------------------------------------------------
extern "C" __global__ __launch_bounds__(128)
void gemm_sm_80_tn_f16_f16_128x128x64_p3_c_silu_gate_acc_scale(
    half_t const* A, half_t const* B, half_t* C, int32_t M, int32_t N, int32_t K, int64_t ldA, int64_t ldB, int64_t ldC,
    int64_t batch_A, int64_t batch_B, int64_t batch_C, half_t const* scale, int64_t batch_scale, half_t const* gate,
    int64_t batch_gate, int64_t ld_gate) {
  int const tid = threadIdx.x;

  // 1. The tile of this block, and shared memory
  int const tiles_m = ceil_div(M, BLK_M{});
  int const tiles_n = ceil_div(N, BLK_N{});
  int const tile    = blockIdx.x % (tiles_m * tiles_n);
  int const group   = tile / (GROUP_M{} * tiles_n);
  int const rows    = min(GROUP_M{}, tiles_m - group * GROUP_M{});                                    // the last group may be shorter
  int const m0 = (group * GROUP_M{} + tile % (GROUP_M{} * tiles_n) % rows) * BLK_M{};
  int const n0 = tile % (GROUP_M{} * tiles_n) / rows * BLK_N{};
  int const batch = blockIdx.x / (tiles_m * tiles_n);
  int const k_tiles = ceil_div(K, BLK_K{});

  Tensor mA = make_tensor(make_gmem_ptr(A + batch * batch_A), make_shape(M, K), make_stride(ldA, _1{}));  // (M,K)
  Tensor mB = make_tensor(make_gmem_ptr(B + batch * batch_B), make_shape(N, K), make_stride(ldB, _1{}));  // (N,K)
  Tensor mC = make_tensor(make_gmem_ptr(C + batch * batch_C), make_shape(M, N), make_stride(ldC, _1{}));  // (M,N)

  extern __shared__ __align__(128) unsigned char smem_raw[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(smem_raw);
  Tensor sA = make_tensor(make_smem_ptr(smem.A), composition(SwizzleA{}, SmemA{}));                   // (BLK_M,BLK_K,PIPE)
  Tensor sB = make_tensor(make_smem_ptr(smem.B), composition(SwizzleB{}, SmemB{}));                   // (BLK_N,BLK_K,PIPE)

  // 2. gmem -> smem: where this thread reads and writes
  int const a_m = G2S_A_M{}(tid);
  int const a_k = G2S_A_K{}(tid);
  Tensor tAgA = make_tensor(make_gmem_ptr(&mA(m0 + a_m, a_k)),
                            make_layout(make_shape(_8{}, _8{}, _1{}, k_tiles),
                                        make_stride(_1{}, STEP_A_M{} * ldA, STEP_A_K{} * _1{}, BLK_K{} * _1{})));  // (CPY,CPY_M,CPY_K,k)
  Tensor tAsA = make_tensor(make_smem_ptr(&sA(a_m, a_k, 0)), G2S_A_S{});                              // (CPY,CPY_M,CPY_K,PIPE)
  int const b_n = G2S_B_N{}(tid);
  int const b_k = G2S_B_K{}(tid);
  Tensor tBgB = make_tensor(make_gmem_ptr(&mB(n0 + b_n, b_k)),
                            make_layout(make_shape(_8{}, _8{}, _1{}, k_tiles),
                                        make_stride(_1{}, STEP_B_N{} * ldB, STEP_B_K{} * _1{}, BLK_K{} * _1{})));  // (CPY,CPY_N,CPY_K,k)
  Tensor tBsB = make_tensor(make_smem_ptr(&sB(b_n, b_k, 0)), G2S_B_S{});                              // (CPY,CPY_N,CPY_K,PIPE)

  // 3. smem -> registers: this thread's fragments, and the accumulator
  int const a_frag_m = S2R_A_M{}(tid);
  int const a_frag_k = S2R_A_K{}(tid);
  Tensor tXsA = make_tensor(make_smem_ptr(smem.A), make_composed_layout(SwizzleA{}, SmemA{}(a_frag_m, a_frag_k, 0), S2R_A_S{}));  // (CPY,CPY_M,MMA_K,PIPE)
  Tensor tCrA = make_tensor<half_t>(FragA{});                                                         // (MMA,MMA_M,MMA_K)
  Tensor tXrA = make_tensor(tCrA.data(), S2R_A_R{});                                                  // (CPY,CPY_M,MMA_K)
  int const b_frag_n = S2R_B_N{}(tid);
  int const b_frag_k = S2R_B_K{}(tid);
  Tensor tXsB = make_tensor(make_smem_ptr(smem.B), make_composed_layout(SwizzleB{}, SmemB{}(b_frag_n, b_frag_k, 0), S2R_B_S{}));  // (CPY,CPY_N,MMA_K,PIPE)
  Tensor tCrB = make_tensor<half_t>(FragB{});                                                         // (MMA,MMA_N,MMA_K)
  Tensor tXrB = make_tensor(tCrB.data(), S2R_B_R{});                                                  // (CPY,CPY_N,MMA_K)
  Tensor tCrC = make_tensor<float>(FragC{});                                                          // (MMA,MMA_M,MMA_N)
  CUTE_UNROLL
  for (int i = 0; i < size(FragC{}); ++i) { tCrC(i) = float(0); }

  auto load_stage = [&](int k_tile, int stage) {
    int const k_left = K - k_tile * BLK_K{};
    CUTE_UNROLL
    for (int j = 0; j < size<2>(G2S_A_S{}); ++j) {
      CUTE_UNROLL
      for (int i = 0; i < size<1>(G2S_A_S{}); ++i) {
        bool const inside = a_m + i * STEP_A_M{} < M - m0 && a_k + j * STEP_A_K{} < k_left;
        copy_unpack(G2S_A{}.with(inside), tAgA(_,i,j,k_tile), tAsA(_,i,j,stage));
      }
    }
    CUTE_UNROLL
    for (int j = 0; j < size<2>(G2S_B_S{}); ++j) {
      CUTE_UNROLL
      for (int i = 0; i < size<1>(G2S_B_S{}); ++i) {
        bool const inside = b_n + i * STEP_B_N{} < N - n0 && b_k + j * STEP_B_K{} < k_left;
        copy_unpack(G2S_B{}.with(inside), tBgB(_,i,j,k_tile), tBsB(_,i,j,stage));
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
    for (int k = 0; k < size<2>(FragA{}); ++k) {
      CUTE_UNROLL
      for (int i = 0; i < size<1>(S2R_A_S{}); ++i) { copy_unpack(S2R_A{}, tXsA(_,i,k,read), tXrA(_,i,k)); }
      CUTE_UNROLL
      for (int i = 0; i < size<1>(S2R_B_S{}); ++i) { copy_unpack(S2R_B{}, tXsB(_,i,k,read), tXrB(_,i,k)); }
      CUTE_UNROLL
      for (int m = 0; m < size<1>(FragC{}); ++m) {
        CUTE_UNROLL
        for (int n = 0; n < size<2>(FragC{}); ++n) {
          Tensor acc = tCrC(_,m,n);
          mma_unpack(Mma{}, acc, tCrA(_,m,k), tCrB(_,n,k), acc);
        }
      }
    }
    read  = read  == PIPE{} - 1 ? 0 : read + 1;
    write = write == PIPE{} - 1 ? 0 : write + 1;
  }

  // 6. Epilogue: C = silu(acc * scale[m]) * gate[m, n] + c, in f32
  Tensor tDrD = make_tensor(tCrC.data(), AccR{});                                                     // (VEC,INNER,OUTER)
  int const m = m0 + Acc_M{}(tid);
  int const n = n0 + Acc_N{}(tid);
  CUTE_UNROLL
  for (int i = 0; i < size<2>(AccR{}); ++i) {
    CUTE_UNROLL
    for (int j = 0; j < size<1>(AccR{}); ++j) {
      CUTE_UNROLL
      for (int v = 0; v < 2; ++v) {
        int const m_at = m + Outer{}(i);
        int const n_at = n + Inner{}(j) + v;
        if (m_at < M && n_at < N) {
          float const scale_m = float(scale[batch * batch_scale + m_at]);
          float const gate_mn = float(gate[batch * batch_gate + m_at * ld_gate + n_at]);
          float const c_mn = float(mC(m_at, n_at));
          tDrD(v,j,i) = silu(tDrD(v,j,i) * scale_m) * gate_mn + c_mn;
        }
      }
    }
  }
  //    registers -> smem, where the main loop's tiles were
  __syncthreads();
  Tensor sC = make_tensor(make_smem_ptr(smem.C), SmemC{});                                            // (BLK_M,BLK_N)
  CUTE_UNROLL
  for (int i = 0; i < size<2>(AccR{}); ++i) {
    CUTE_UNROLL
    for (int j = 0; j < size<1>(AccR{}); ++j) {
      Tensor out = make_tensor<half_t>(Layout<_2>{});
      CUTE_UNROLL
      for (int v = 0; v < 2; ++v) { out(v) = half_t(tDrD(v,j,i)); }
      copy_unpack(Copy_Traits<UniversalCopy<uint32_t>>{}, out,
                  make_tensor(make_smem_ptr(&sC(Acc_M{}(tid) + Outer{}(i), Acc_N{}(tid) + Inner{}(j))), Layout<_2>{}));
    }
  }
  __syncthreads();

  //    smem -> gmem, whole rows in vectors of 8
  CUTE_UNROLL
  for (int i = 0; i < 16; ++i) {
    int const vector = tid + i * 128;
    int const outer = vector / 16;
    int const inner = vector % 16 * 8;
    if (m0 + outer < M && n0 + inner < N) {
      copy_unpack(Copy_Traits<UniversalCopy<S2G>>{}, make_tensor(make_smem_ptr(&sC(outer, inner)), Layout<_8>{}),
                  make_tensor(make_gmem_ptr(&mC(m0 + outer, n0 + inner)), Layout<_8>{}));
    }
  }
}
