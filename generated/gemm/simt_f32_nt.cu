// =============================================================================================================================
//  gemm_sm_80_nt_f32_f32_128x128x8_p4
//
//    C = alpha A B^T + beta C      A (M,K) f32 M-major      B (N,K) f32 N-major      C (M,N) f32 N-major
//    accumulated in f32; any M, N, K and batch; C is read only if beta is not 0
//
//    block tile (128,128,8)      stages 4      threads 256      shared memory 33792 B
//    grid: one block for each tile of each batch, in groups of 8 rows of tiles
//    A and its row stride aligned to 4 elements, B to 4, C to 4; so are the contiguous extents
//
//  Layouts are resolved: each tensor starts at its thread's first element, and a literal layout says which elements are the
//  thread's own. `make_tiled_copy`, `make_tiled_mma` and `partition_*` would compute the same.
//
//  Written by cutegen 0.1.0 from this spec; `cutegen emit` writes it again, `cutegen run` checks it:
//
//      kernel: gemm
//      arch: sm_80
//      description: "exact f32 without tensor cores, both operands MN-major"
//      problem: {m: 4096, n: 4096, k: 4096}
//      dtypes: {a: f32, b: f32, c: f32}
//      majors: NT
// =============================================================================================================================
#include <cute/tensor_impl.hpp>
#include <cute/atom/copy_traits_sm80.hpp>
#include <cute/arch/mma.hpp>

using namespace cute;

// -----------------------------------------------------------------------------------------------------------------------------
//  Static description: every number of this file
// -----------------------------------------------------------------------------------------------------------------------------
using BLK_M = _128;
using BLK_N = _128;
using BLK_K = _8;
using PIPE  = _4;                                                                                     // tiles of A and B in flight
using GROUP_M = _8;                                                                                   // rows of tiles that walk along N together, to meet in L2

// A: (BLK_M,BLK_K) of float, M-major
using SmemA = Layout<Shape<_128,_8,_4>, Stride<_1,Int<132>,Int<1056>>>;                               // (BLK_M,BLK_K,PIPE)
using G2S_A = Copy_Traits<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;                                // gmem -> smem, 4 values at once
using G2S_A_M = Layout<Shape<_32,_8>, Stride<_4,_0>>;                                                 // tid -> its first m
using G2S_A_K = Layout<Shape<_32,_8>, Stride<_0,_1>>;                                                 // tid -> its first k
using G2S_A_S = Layout<Shape<_4,_1,_1,_4>, Stride<_1,_0,_0,Int<1056>>>;                               // (CPY,CPY_M,CPY_K,PIPE)
using STEP_A_M = _128;                                                                                // from one CPY_M to the next
using STEP_A_K = _8;
using S2R_A = Copy_Traits<UniversalCopy<uint128_t>>;                                                  // smem -> registers
using S2R_A_M = Layout<Shape<_8,_16,_2>, Stride<_0,_4,_0>>;                                           // tid -> its first m
using S2R_A_K = Layout<Shape<_256>, Stride<_0>>;                                                      // tid -> its first k
using S2R_A_S = Layout<Shape<_4,_2,_8,_4>, Stride<_1,_64,Int<132>,Int<1056>>>;                        // (CPY,CPY_M,MMA_K,PIPE)
using S2R_A_R = Layout<Shape<_4,_2,_2>, Stride<_1,_4,_8>>;                                            // (CPY,CPY_M,2)
using FragA = Layout<Shape<_1,_8,_2>, Stride<_1,_1,_8>>;                                              // (MMA,MMA_M,2)

// B: (BLK_N,BLK_K) of float, N-major
using SmemB = Layout<Shape<_128,_8,_4>, Stride<_1,Int<132>,Int<1056>>>;                               // (BLK_N,BLK_K,PIPE)
using G2S_B = Copy_Traits<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;                                // gmem -> smem, 4 values at once
using G2S_B_N = Layout<Shape<_32,_8>, Stride<_4,_0>>;                                                 // tid -> its first n
using G2S_B_K = Layout<Shape<_32,_8>, Stride<_0,_1>>;                                                 // tid -> its first k
using G2S_B_S = Layout<Shape<_4,_1,_1,_4>, Stride<_1,_0,_0,Int<1056>>>;                               // (CPY,CPY_N,CPY_K,PIPE)
using STEP_B_N = _128;                                                                                // from one CPY_N to the next
using STEP_B_K = _8;
using S2R_B = Copy_Traits<UniversalCopy<uint128_t>>;                                                  // smem -> registers
using S2R_B_N = Layout<Shape<_8,_16,_2>, Stride<_4,_0,_32>>;                                          // tid -> its first n
using S2R_B_K = Layout<Shape<_256>, Stride<_0>>;                                                      // tid -> its first k
using S2R_B_S = Layout<Shape<_4,_2,_8,_4>, Stride<_1,_64,Int<132>,Int<1056>>>;                        // (CPY,CPY_N,MMA_K,PIPE)
using S2R_B_R = Layout<Shape<_4,_2,_2>, Stride<_1,_4,_8>>;                                            // (CPY,CPY_N,2)
using FragB = Layout<Shape<_1,_8,_2>, Stride<_1,_1,_8>>;                                              // (MMA,MMA_N,2)

// Math: 16 x 16 threads of 8 x 8 scalar FMAs
using Mma   = UniversalFMA<float,float,float,float>;
using FragC = Layout<Shape<_1,_8,_8>, Stride<_1,_1,_8>>;                                              // (MMA,MMA_M,MMA_N)
using Acc_M = Layout<Shape<_8,_16,_2>, Stride<_0,_4,_0>>;                                             // tid -> its first row of C
using Acc_N = Layout<Shape<_8,_16,_2>, Stride<_4,_0,_32>>;                                            // tid -> its first column
using AccR  = Layout<Shape<_4,_2,_8>, Stride<_8,_32,_1>>;                                             // (VEC,INNER,OUTER) -> accumulator
using Inner = Layout<Shape<_2>, Stride<_64>>;                                                         // INNER -> n, from the first
using Outer = Layout<Shape<Shape<_4,_2>>, Stride<Stride<_1,_64>>>;                                    // OUTER -> m, from the first

struct SharedStorage {
  alignas(128) float A[4224];
  alignas(128) float B[4224];
};
static_assert(sizeof(SharedStorage) == 33792, "spec.smem");
static_assert(cosize_v<SmemA> <= 4224 && cosize_v<SmemB> <= 4224, "spec.smem");
static_assert(cosize_v<FragC> == 64 && size(AccR{}) == 64, "spec.mma");

// -----------------------------------------------------------------------------------------------------------------------------
//  Kernel
// -----------------------------------------------------------------------------------------------------------------------------
extern "C" __global__ __launch_bounds__(256)
void gemm_sm_80_nt_f32_f32_128x128x8_p4(
    float const* A, float const* B, float* C, int32_t M, int32_t N, int32_t K, int64_t ldA, int64_t ldB, int64_t ldC,
    int64_t batch_A, int64_t batch_B, int64_t batch_C, float alpha, float beta) {
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

  Tensor mA = make_tensor(make_gmem_ptr(A + batch * batch_A), make_shape(M, K), make_stride(_1{}, ldA));  // (M,K)
  Tensor mB = make_tensor(make_gmem_ptr(B + batch * batch_B), make_shape(N, K), make_stride(_1{}, ldB));  // (N,K)
  Tensor mC = make_tensor(make_gmem_ptr(C + batch * batch_C), make_shape(M, N), make_stride(ldC, _1{}));  // (M,N)

  extern __shared__ __align__(128) unsigned char smem_raw[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(smem_raw);
  Tensor sA = make_tensor(make_smem_ptr(smem.A), SmemA{});                                            // (BLK_M,BLK_K,PIPE)
  Tensor sB = make_tensor(make_smem_ptr(smem.B), SmemB{});                                            // (BLK_N,BLK_K,PIPE)

  // 2. gmem -> smem: where this thread reads and writes
  int const a_m = G2S_A_M{}(tid);
  int const a_k = G2S_A_K{}(tid);
  Tensor tAgA = make_tensor(make_gmem_ptr(&mA(m0 + a_m, a_k)),
                            make_layout(make_shape(_4{}, _1{}, _1{}, k_tiles),
                                        make_stride(_1{}, STEP_A_M{} * _1{}, STEP_A_K{} * ldA, BLK_K{} * ldA)));  // (CPY,CPY_M,CPY_K,k)
  Tensor tAsA = make_tensor(make_smem_ptr(&sA(a_m, a_k, 0)), G2S_A_S{});                              // (CPY,CPY_M,CPY_K,PIPE)
  int const b_n = G2S_B_N{}(tid);
  int const b_k = G2S_B_K{}(tid);
  Tensor tBgB = make_tensor(make_gmem_ptr(&mB(n0 + b_n, b_k)),
                            make_layout(make_shape(_4{}, _1{}, _1{}, k_tiles),
                                        make_stride(_1{}, STEP_B_N{} * _1{}, STEP_B_K{} * ldB, BLK_K{} * ldB)));  // (CPY,CPY_N,CPY_K,k)
  Tensor tBsB = make_tensor(make_smem_ptr(&sB(b_n, b_k, 0)), G2S_B_S{});                              // (CPY,CPY_N,CPY_K,PIPE)

  // 3. smem -> registers: this thread's fragments, and the accumulator
  int const a_frag_m = S2R_A_M{}(tid);
  int const a_frag_k = S2R_A_K{}(tid);
  Tensor tXsA = make_tensor(make_smem_ptr(&sA(a_frag_m, a_frag_k, 0)), S2R_A_S{});                    // (CPY,CPY_M,MMA_K,PIPE)
  Tensor tCrA = make_tensor<float>(FragA{});                                                          // (MMA,MMA_M,2)
  Tensor tXrA = make_tensor(tCrA.data(), S2R_A_R{});                                                  // (CPY,CPY_M,2)
  int const b_frag_n = S2R_B_N{}(tid);
  int const b_frag_k = S2R_B_K{}(tid);
  Tensor tXsB = make_tensor(make_smem_ptr(&sB(b_frag_n, b_frag_k, 0)), S2R_B_S{});                    // (CPY,CPY_N,MMA_K,PIPE)
  Tensor tCrB = make_tensor<float>(FragB{});                                                          // (MMA,MMA_N,2)
  Tensor tXrB = make_tensor(tCrB.data(), S2R_B_R{});                                                  // (CPY,CPY_N,2)
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

    auto load_fragments = [&](int k) {
      CUTE_UNROLL
      for (int i = 0; i < size<1>(S2R_A_S{}); ++i) { copy_unpack(S2R_A{}, tXsA(_,i,k,read), tXrA(_,i,k % 2)); }
      CUTE_UNROLL
      for (int i = 0; i < size<1>(S2R_B_S{}); ++i) { copy_unpack(S2R_B{}, tXsB(_,i,k,read), tXrB(_,i,k % 2)); }
    };
    load_fragments(0);
    CUTE_UNROLL
    for (int k = 0; k < BLK_K{}; ++k) {
      if (k + 1 < BLK_K{}) { load_fragments(k + 1); }   // while the FMAs of k run
      CUTE_UNROLL
      for (int m = 0; m < size<1>(FragC{}); ++m) {
        CUTE_UNROLL
        for (int n = 0; n < size<2>(FragC{}); ++n) {
          Mma::fma(tCrC(0,m,n), tCrA(0,m,k % 2), tCrB(0,n,k % 2), tCrC(0,m,n));
        }
      }
    }
    read  = read  == PIPE{} - 1 ? 0 : read + 1;
    write = write == PIPE{} - 1 ? 0 : write + 1;
  }

  // 6. Epilogue: C = alpha * acc + beta * C, in f32
  Tensor tDrD = make_tensor(tCrC.data(), AccR{});                                                     // (VEC,INNER,OUTER)
  int const m = m0 + Acc_M{}(tid);
  int const n = n0 + Acc_N{}(tid);
  CUTE_UNROLL
  for (int i = 0; i < size(tDrD); ++i) { tDrD(i) *= alpha; }
  if (beta != 0) { // otherwise C is not read: it may hold anything, NaN too
    CUTE_UNROLL
    for (int i = 0; i < size<2>(AccR{}); ++i) {
      CUTE_UNROLL
      for (int j = 0; j < size<1>(AccR{}); ++j) {
        if (m + Outer{}(i) < M && n + Inner{}(j) < N) {
          CUTE_UNROLL
          for (int v = 0; v < 4; ++v) {
            tDrD(v,j,i) += beta * float(mC(m + Outer{}(i), n + Inner{}(j) + v));
          }
        }
      }
    }
  }
  CUTE_UNROLL
  for (int i = 0; i < size<2>(AccR{}); ++i) {
    if (m + Outer{}(i) < M) {
      float* row = &mC(m + Outer{}(i), n);
      CUTE_UNROLL
      for (int j = 0; j < size<1>(AccR{}); ++j) {
        Tensor out = make_tensor<float>(Layout<_4>{});
        CUTE_UNROLL
        for (int v = 0; v < 4; ++v) { out(v) = float(tDrD(v,j,i)); }
        CUTE_UNROLL
        for (int v = 0; v < 4; v += 4) {
          if (n + Inner{}(j) + v < N) {
            copy_unpack(Copy_Traits<UniversalCopy<uint128_t>>{}, make_tensor(out.data() + v, Layout<_4>{}),
                        make_tensor(make_gmem_ptr(row + Inner{}(j) + v), Layout<_4>{}));
          }
        }
      }
    }
  }
}
