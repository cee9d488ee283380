// =============================================================================================================================
//  gemm_sm_80_nt_tf32_f32_128x128x32_p3
//
//    C = alpha A B^T + beta C      A (M,K) f32 M-major      B (N,K) f32 N-major      C (M,N) f32 N-major
//    accumulated in f32 multiplied as tf32; any M, N, K and batch; C is read only if beta is not 0
//
//    block tile (128,128,32)      stages 3      threads 128      shared memory 98304 B
//    grid: one block for each tile of each batch, in groups of 8 rows of tiles
//    A and its row stride aligned to 4 elements, B to 4, C to 2; so are the contiguous extents
//
//  Layouts are resolved: each tensor starts at its thread's first element, and a literal layout says which elements are the
//  thread's own. `make_tiled_copy`, `make_tiled_mma` and `partition_*` would compute the same.
//
//  Written by cutegen 0.1.0 from this spec; `cutegen emit` writes it again, `cutegen run` checks it:
//
//      kernel: gemm
//      arch: sm_80
//      description: "f32 data multiplied as tf32, both operands MN-major"
//      problem: {m: 4096, n: 4096, k: 4096}
//      dtypes: {a: f32, b: f32, c: f32, multiply: tf32}
//      majors: NT
// =============================================================================================================================
#include <cute/tensor_impl.hpp>
#include <cute/swizzle.hpp>
#include <cute/swizzle_layout.hpp>
#include <cute/atom/copy_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm80.hpp>

using namespace cute;

// -----------------------------------------------------------------------------------------------------------------------------
//  Static description: every number of this file
// -----------------------------------------------------------------------------------------------------------------------------
using BLK_M = _128;
using BLK_N = _128;
using BLK_K = _32;
using PIPE  = _3;                                                                                     // tiles of A and B in flight
using GROUP_M = _8;                                                                                   // rows of tiles that walk along N together, to meet in L2

// A: (BLK_M,BLK_K) of float, M-major. The swizzle XORs row bits into the index of each 32-byte chunk: no bank conflicts
using SmemA = Layout<Shape<Shape<_32,_4>,Shape<_8,_4>,_3>, Stride<Stride<_1,_256>,Stride<_32,_1024>,_4096>>;  // (BLK_M,BLK_K,PIPE) before the swizzle
using SwizzleA = Swizzle<2,3,2>;
using G2S_A = Copy_Traits<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;                                // gmem -> smem, 4 values at once
using G2S_A_M = Layout<Shape<_32,_4>, Stride<_4,_0>>;                                                 // tid -> its first m
using G2S_A_K = Layout<Shape<_32,_4>, Stride<_0,_1>>;                                                 // tid -> its first k
using G2S_A_S = Layout<Shape<_4,_1,Shape<_2,_4>,_3>, Stride<_1,_0,Stride<_128,_1024>,_4096>>;         // (CPY,CPY_M,CPY_K,PIPE)
using STEP_A_M = _128;                                                                                // from one CPY_M to the next
using STEP_A_K = _4;
using S2R_A = Copy_Traits<UniversalCopy<uint32_t>>;                                                   // smem -> registers
using S2R_A_M = Layout<Shape<_4,_8,_2,_2>, Stride<_0,_1,_64,_0>>;                                     // tid -> its first m
using S2R_A_K = Layout<Shape<_4,_32>, Stride<_1,_0>>;                                                 // tid -> its first k
using S2R_A_S = Layout<Shape<_1,Shape<_2,_2,_2,_2>,_4,_3>, Stride<_0,Stride<_8,_128,_16,_256>,_1024,_4096>>;  // (CPY,CPY_M,MMA_K,PIPE)
using S2R_A_R = Layout<Shape<_1,_16,_4>, Stride<_0,_1,_16>>;                                          // (CPY,CPY_M,MMA_K)
using FragA = Layout<Shape<_4,_4,_4>, Stride<_1,_4,_16>>;                                             // (MMA,MMA_M,MMA_K)

// B: (BLK_N,BLK_K) of float, N-major. The swizzle XORs row bits into the index of each 32-byte chunk: no bank conflicts
using SmemB = Layout<Shape<Shape<_32,_4>,Shape<_8,_4>,_3>, Stride<Stride<_1,_256>,Stride<_32,_1024>,_4096>>;  // (BLK_N,BLK_K,PIPE) before the swizzle
using SwizzleB = Swizzle<2,3,2>;
using G2S_B = Copy_Traits<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;                                // gmem -> smem, 4 values at once
using G2S_B_N = Layout<Shape<_32,_4>, Stride<_4,_0>>;                                                 // tid -> its first n
using G2S_B_K = Layout<Shape<_32,_4>, Stride<_0,_1>>;                                                 // tid -> its first k
using G2S_B_S = Layout<Shape<_4,_1,Shape<_2,_4>,_3>, Stride<_1,_0,Stride<_128,_1024>,_4096>>;         // (CPY,CPY_N,CPY_K,PIPE)
using STEP_B_N = _128;                                                                                // from one CPY_N to the next
using STEP_B_K = _4;
using S2R_B = Copy_Traits<UniversalCopy<uint32_t>>;                                                   // smem -> registers
using S2R_B_N = Layout<Shape<_4,_8,_2,_2>, Stride<_0,_1,_0,_64>>;                                     // tid -> its first n
using S2R_B_K = Layout<Shape<_4,_32>, Stride<_1,_0>>;                                                 // tid -> its first k
using S2R_B_S = Layout<Shape<_1,Shape<_2,_4,_2>,_4,_3>, Stride<_0,Stride<_128,_8,_256>,_1024,_4096>>;  // (CPY,CPY_N,MMA_K,PIPE)
using S2R_B_R = Layout<Shape<_1,_16,_4>, Stride<_0,_1,_16>>;                                          // (CPY,CPY_N,MMA_K)
using FragB = Layout<Shape<_2,_8,_4>, Stride<_1,_2,_16>>;                                             // (MMA,MMA_N,MMA_K)

// Math: 2 x 2 warps of 64 x 64, each 4 x 8 atoms of m16n8k8
using Mma   = MMA_Traits<SM80_16x8x8_F32TF32TF32F32_TN>;
using FragC = Layout<Shape<_4,_4,_8>, Stride<_1,_4,_16>>;                                             // (MMA,MMA_M,MMA_N)
using Acc_M = Layout<Shape<_4,_8,_2,_2>, Stride<_0,_1,_64,_0>>;                                       // tid -> its first row of C
using Acc_N = Layout<Shape<_4,_16,_2>, Stride<_2,_0,_64>>;                                            // tid -> its first column
using AccR  = Layout<Shape<_2,_8,_8>, Stride<_1,_16,_2>>;                                             // (VEC,INNER,OUTER) -> accumulator
using Inner = Layout<Shape<_8>, Stride<_8>>;                                                          // INNER -> n, from the first
using Outer = Layout<Shape<_8>, Stride<_8>>;                                                          // OUTER -> m, from the first

struct SharedStorage {
  alignas(128) float A[12288];
  alignas(128) float B[12288];
};
static_assert(sizeof(SharedStorage) == 98304, "spec.smem");
static_assert(cosize_v<SmemA> <= 12288 && cosize_v<SmemB> <= 12288, "spec.smem");
static_assert(cosize_v<FragC> == 128 && size(AccR{}) == 128, "spec.mma");

// -----------------------------------------------------------------------------------------------------------------------------
//  Kernel
// -----------------------------------------------------------------------------------------------------------------------------
extern "C" __global__ __launch_bounds__(128)
void gemm_sm_80_nt_tf32_f32_128x128x32_p3(
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
  Tensor sA = make_tensor(make_smem_ptr(smem.A), composition(SwizzleA{}, SmemA{}));                   // (BLK_M,BLK_K,PIPE)
  Tensor sB = make_tensor(make_smem_ptr(smem.B), composition(SwizzleB{}, SmemB{}));                   // (BLK_N,BLK_K,PIPE)

  // 2. gmem -> smem: where this thread reads and writes
  int const a_m = G2S_A_M{}(tid);
  int const a_k = G2S_A_K{}(tid);
  Tensor tAgA = make_tensor(make_gmem_ptr(&mA(m0 + a_m, a_k)),
                            make_layout(make_shape(_4{}, _1{}, _8{}, k_tiles),
                                        make_stride(_1{}, STEP_A_M{} * _1{}, STEP_A_K{} * ldA, BLK_K{} * ldA)));  // (CPY,CPY_M,CPY_K,k)
  Tensor tAsA = make_tensor(make_smem_ptr(&sA(a_m, a_k, 0)), G2S_A_S{});                              // (CPY,CPY_M,CPY_K,PIPE)
  int const b_n = G2S_B_N{}(tid);
  int const b_k = G2S_B_K{}(tid);
  Tensor tBgB = make_tensor(make_gmem_ptr(&mB(n0 + b_n, b_k)),
                            make_layout(make_shape(_4{}, _1{}, _8{}, k_tiles),
                                        make_stride(_1{}, STEP_B_N{} * _1{}, STEP_B_K{} * ldB, BLK_K{} * ldB)));  // (CPY,CPY_N,CPY_K,k)
  Tensor tBsB = make_tensor(make_smem_ptr(&sB(b_n, b_k, 0)), G2S_B_S{});                              // (CPY,CPY_N,CPY_K,PIPE)

  // 3. smem -> registers: this thread's fragments, and the accumulator
  int const a_frag_m = S2R_A_M{}(tid);
  int const a_frag_k = S2R_A_K{}(tid);
  Tensor tXsA = make_tensor(make_smem_ptr(smem.A), make_composed_layout(SwizzleA{}, SmemA{}(a_frag_m, a_frag_k, 0), S2R_A_S{}));  // (CPY,CPY_M,MMA_K,PIPE)
  Tensor tCrA = make_tensor<tfloat32_t>(FragA{});                                                     // (MMA,MMA_M,MMA_K)
  Tensor tXrA = make_tensor(tCrA.data(), S2R_A_R{});                                                  // (CPY,CPY_M,MMA_K)
  int const b_frag_n = S2R_B_N{}(tid);
  int const b_frag_k = S2R_B_K{}(tid);
  Tensor tXsB = make_tensor(make_smem_ptr(smem.B), make_composed_layout(SwizzleB{}, SmemB{}(b_frag_n, b_frag_k, 0), S2R_B_S{}));  // (CPY,CPY_N,MMA_K,PIPE)
  Tensor tCrB = make_tensor<tfloat32_t>(FragB{});                                                     // (MMA,MMA_N,MMA_K)
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
          for (int v = 0; v < 2; ++v) {
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
        Tensor out = make_tensor<float>(Layout<_2>{});
        CUTE_UNROLL
        for (int v = 0; v < 2; ++v) { out(v) = float(tDrD(v,j,i)); }
        CUTE_UNROLL
        for (int v = 0; v < 2; v += 2) {
          if (n + Inner{}(j) + v < N) {
            copy_unpack(Copy_Traits<UniversalCopy<uint64_t>>{}, make_tensor(out.data() + v, Layout<_2>{}),
                        make_tensor(make_gmem_ptr(row + Inner{}(j) + v), Layout<_2>{}));
          }
        }
      }
    }
  }
}
