// =============================================================================================================================
//  gemm_sm_90a_nt_bf16_128x192x64_p5_a1_b1_c1
//
//    C = alpha A B^T + beta C      A (M,K) bf16 M-major      B (N,K) bf16 N-major      C (M,N) bf16 N-major
//    accumulated in f32; any M, N, K and batch; C is read only if beta is not 0
//
//    block tile (128,192,64)      stages 5      cooperative      shared memory 222208 B
//    threads 512: 2 consumer warpgroups of 176 registers a thread and two producers of 80
//    grid: persistent, tiles in groups of 8 rows of tiles
//    A and B may begin at any element, with any stride; aligned: C to 2 B, C's contiguous extent too
//
//  Layouts are resolved: each tensor starts at its thread's first element, and a literal layout says which elements are the
//  thread's own. `make_tiled_copy`, `make_tiled_mma` and `partition_*` would compute the same.
//
//  Written by cutegen 0.1.0 from this spec; `cutegen emit` writes it again, `cutegen run` checks it:
//
//      kernel: gemm
//      arch: sm_90a
//      description: "bf16, A M-major, B N-major, odd M and N"
//      problem: {m: 8191, n: 8191, k: 8192}
//      dtypes: {a: bf16, b: bf16, c: bf16}
//      majors: NT
//      align: {a: 1, b: 1}
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
using BLK_N   = _192;
using BLK_K   = _64;
using PIPE    = _5;                                                                                   // tiles of A and of B in shared memory
using GROUP_M = _8;                                                                                   // rows of tiles that are taken together, so that their columns meet in L2

// Shared memory: boxes of 128-byte rows under the 128-byte swizzle of TMA and WGMMA.
using ROW   = _64;                                                                                    // elements of a row
using SmemA = Layout<Shape<Shape<_64,_2>,_64,_5>, Stride<Stride<_1,_4096>,_64,_8192>>;                // (BLK_M,BLK_K,PIPE) before the swizzle
using SmemB = Layout<Shape<Shape<_64,_3>,_64,_5>, Stride<Stride<_1,_4096>,_64,Int<12288>>>;           // (BLK_N,BLK_K,PIPE) before the swizzle

// Math: a WGMMA multiplies 64 rows of A with the tile of B, 32 bytes of K at a time.
using Mma     = MMA_Traits<SM90_64x192x16_F32BF16BF16_SS<GMMA::Major::MN, GMMA::Major::MN>>;
using MMA_M   = _1;                                                                                   // times 64 rows of a warpgroup
using K_STEPS = _4;
using DescA = Layout<Shape<_1,_1,_4,_5>, Stride<_0,_512,_128,_1024>>;                                 // (MMA,MMA_M,MMA_K,PIPE) in 16 B
using DescB = Layout<Shape<_1,_4,_5>, Stride<_0,_128,Int<1536>>>;                                     // (MMA,MMA_K,PIPE) in 16 B
using FragC = Layout<Shape<_2,_2,_24,_1>, Stride<_1,_2,_4,_96>>;                                      // (2 columns,rows r and r + 8,every 8 columns,MMA_M)
constexpr uint64_t DESCRIPTOR_A = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(8192 >> 4) << 16;  // 128-byte swizzle, 8 rows are 1024 B, boxes 8192 B apart
constexpr uint64_t DESCRIPTOR_B = uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(8192 >> 4) << 16;  // 128-byte swizzle, 8 rows are 1024 B, boxes 8192 B apart

// Rows that TMA can't load, since they begin anywhere: a warp moves one at once, a lane its word of 4 B.
using LOADERS = _8;                                                                                   // warps; each has every 8th row, and the swizzle moves all of those alike
using Raw = uint16_t;                                                                                 // the bits of an element, which are moved as they are
using SwizzleW = Swizzle<3,2,3>;                                                                      // that of TMA and WGMMA, counted in words
using WordsA = Layout<Shape<_32,_128,_5>, Stride<_1,_32,_4096>>;                                      // (32,rows of the boxes,PIPE) before the swizzle
using WarpA  = Layout<Shape<_16,_5>, Stride<_256,_4096>>;                                             // (a warp's rows,PIPE), from a thread's first word on
using RowsA  = Shape<_8,_2>;                                                                          // the same rows: (in a box,boxes)
using WordsB = Layout<Shape<_32,_192,_5>, Stride<_1,_32,Int<6144>>>;                                  // (32,rows of the boxes,PIPE) before the swizzle
using WarpB  = Layout<Shape<_24,_5>, Stride<_256,Int<6144>>>;                                         // (a warp's rows,PIPE), from a thread's first word on
using RowsB  = Shape<_8,_3>;                                                                          // the same rows: (in a box,boxes)

// Store: boxes of 64 rows of 128 B, swizzled; 1 for each warpgroup
using ROW_C   = _64;
using BOXES_C = _3;                                                                                   // boxes along N
using SwizzleC = Swizzle<3,3,3>;
using SmemC = Layout<Shape<_64,_64,_1,_2>, Stride<_64,_1,_4096,_4096>>;                               // (64,ROW_C,buffers,warpgroups) before the swizzle

struct SharedStorage {
  alignas(1024) TA A[40960];
  alignas(1024) TB B[61440];
  alignas(1024) TC C[8192];
  uint64_t full[5], empty[5];                                                                         // the stage has been filled; its readers are done with it
};
static_assert(sizeof(SharedStorage) == 222208, "spec.smem");
static_assert(cosize_v<SmemA> * sizeof(TA) == sizeof(SharedStorage::A) && cosize_v<SmemB> * sizeof(TB) == sizeof(SharedStorage::B), "spec.smem");
static_assert(cosize_v<SmemC> * sizeof(TC) == sizeof(SharedStorage::C) && size(FragC{}) == 96, "spec.tile");

// Four bytes of a row that begins `bits` into an aligned word: the end of this lane's word and the beginning of the next
// lane's. Lane 31 gets the word that comes `after` its own from lane 0.
CUTE_DEVICE uint32_t joined(uint32_t word, uint32_t after, int bits) {
  int const lane = threadIdx.x % 32;
  uint32_t const next = __shfl_sync(0xffffffff, lane == 0 ? after : word, (lane + 1) % 32);
  return __funnelshift_r(word, next, bits);
}

// A word that is not safe to load whole, element by element: `count` of them are there, and the rest is zero.
CUTE_DEVICE uint32_t assembled(Raw const* from, int count) {
  uint32_t word = 0;
  CUTE_UNROLL
  for (int v = 0; v < 2; ++v) {
    if (v < count) { word |= uint32_t(__ldg(from + v)) << 16 * v; }
  }
  return word;
}

// -----------------------------------------------------------------------------------------------------------------------------
//  Kernel
// -----------------------------------------------------------------------------------------------------------------------------
extern "C" __global__ __launch_bounds__(512, 1)
void gemm_sm_90a_nt_bf16_128x192x64_p5_a1_b1_c1(
    bfloat16_t const* A, int64_t ldA, int64_t batch_A, bfloat16_t const* B, int64_t ldB, int64_t batch_B, bfloat16_t* C,
    int64_t ldC, int64_t batch_C, int32_t M, int32_t N, int32_t K, int32_t batches, float alpha, float beta) {
  extern __shared__ __align__(1024) unsigned char smem_raw[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(smem_raw);
  int const warpgroup = threadIdx.x / 128;

  // 1. Barriers: a full one waits for the 8 warps that load, an empty one for each reader
  if (threadIdx.x == 0) {
    for (int i = 0; i < PIPE{}; ++i) { initialize_barrier(smem.full[i], 8); initialize_barrier(smem.empty[i], 2); }
    cutlass::arch::fence_barrier_init();
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

  if (warpgroup >= 2) {
    // 3. Producers: two warpgroups keep the stages full, tile after tile, however far the consumers are
    cutlass::arch::warpgroup_reg_dealloc<80>();
    int const warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0) - 8;                                // so that the compiler knows it to be one for all lanes
    int const lane = threadIdx.x % 32;
    Tensor sA = make_tensor(make_smem_ptr(reinterpret_cast<uint32_t*>(smem.A)), composition(SwizzleW{}, WordsA{}));  // (32,rows,PIPE)
    Tensor tAs = make_tensor(make_smem_ptr(&sA(lane, warp, 0)), WarpA{});                             // (a warp's rows,PIPE)
    Tensor sB = make_tensor(make_smem_ptr(reinterpret_cast<uint32_t*>(smem.B)), composition(SwizzleW{}, WordsB{}));  // (32,rows,PIPE)
    Tensor tBs = make_tensor(make_smem_ptr(&sB(lane, warp, 0)), WarpB{});                             // (a warp's rows,PIPE)
    int stage = 0, phase = 1;                                                                         // an empty stage lets the first wait pass
    for (int i = first; i < work; i += stride) {
      auto const [m0, n0, batch] = origin(i);
      for (int k = 0; k < k_tiles; ++k) {
        // A: this stage's words set out
        int64_t const at_A = k * BLK_K{} * ldA + m0;                                                  // the stage's first element
        Raw const* from_A = reinterpret_cast<Raw const*>(A + batch * batch_A) + at_A + warp * ldA;    // this warp's first element
        int const rows_A  = K - k * BLK_K{} - warp;                                                   // how many there are from that one on
        // Words may reach beyond their rows, but not beyond the matrix: elements come before these, and rows that follow are as long as what is too much.
        bool const safe_A = at_A >= 1 && (k + 1) * BLK_K{} <= K && m0 + BLK_M{} + 1 - M <= (K - (k + 1) * BLK_K{}) * ldA;
        Tensor tAr = make_tensor<uint32_t>(RowsA{});                                                  // (rows in a box,boxes)
        int bits_A = 0;
        uint32_t edge_A = 0;                                                                          // lane i has the word after row i's last
        if (safe_A) {
          int const skew = reinterpret_cast<uint64_t>(from_A) % 4 / 2;                                // elements from an aligned word on: as many in all rows of a warp
          bits_A = 16 * skew;
          uint32_t const* words = reinterpret_cast<uint32_t const*>(from_A - skew) + lane;
          if (bits_A != 0 && lane < size<0>(tAr)) { edge_A = words[lane * 4 * ldA + 64 - lane]; }
          CUTE_UNROLL
          for (int r = 0; r < size<0>(tAr); ++r, words += 4 * ldA) {
            CUTE_UNROLL
            for (int b = 0; b < size<1>(tAr); ++b) { tAr(r, b) = words[32 * b]; }
          }
        }
        // B: this stage's words set out
        int64_t const at_B = k * BLK_K{} * ldB + n0;                                                  // the stage's first element
        Raw const* from_B = reinterpret_cast<Raw const*>(B + batch * batch_B) + at_B + warp * ldB;    // this warp's first element
        int const rows_B  = K - k * BLK_K{} - warp;                                                   // how many there are from that one on
        // Words may reach beyond their rows, but not beyond the matrix: elements come before these, and rows that follow are as long as what is too much.
        bool const safe_B = at_B >= 1 && (k + 1) * BLK_K{} <= K && n0 + BLK_N{} + 1 - N <= (K - (k + 1) * BLK_K{}) * ldB;
        Tensor tBr = make_tensor<uint32_t>(RowsB{});                                                  // (rows in a box,boxes)
        int bits_B = 0;
        uint32_t edge_B = 0;                                                                          // lane i has the word after row i's last
        if (safe_B) {
          int const skew = reinterpret_cast<uint64_t>(from_B) % 4 / 2;                                // elements from an aligned word on: as many in all rows of a warp
          bits_B = 16 * skew;
          uint32_t const* words = reinterpret_cast<uint32_t const*>(from_B - skew) + lane;
          if (bits_B != 0 && lane < size<0>(tBr)) { edge_B = words[lane * 4 * ldB + 96 - lane]; }
          CUTE_UNROLL
          for (int r = 0; r < size<0>(tBr); ++r, words += 4 * ldB) {
            CUTE_UNROLL
            for (int b = 0; b < size<1>(tBr); ++b) { tBr(r, b) = words[32 * b]; }
          }
        }
        wait_barrier(smem.empty[stage], phase);                                                       // while the loads are on their way
        if (safe_A) {
          if (bits_A != 0) {
            CUTE_UNROLL
            for (int r = 0; r < size<0>(tAr); ++r) {
              CUTE_UNROLL
              for (int b = 0; b < size<1>(tAr) - 1; ++b) { tAr(r, b) = joined(tAr(r, b), tAr(r, b + 1), bits_A); } // a row goes on in the next box
              tAr(r, 1) = joined(tAr(r, 1), __shfl_sync(0xffffffff, edge_A, r), bits_A);
            }
          }
          CUTE_UNROLL
          for (int v = 0; v < size(tAr); ++v) { tAs(v, stage) = tAr(v); }
        } else { // rare, so that speed matters less than registers
          CUTE_NO_UNROLL
          for (int b = 0; b < size<1>(tAr); ++b) {
            int const along = ROW{} * b + 2 * lane;
            int const count = M - m0 - along;
            Raw const* from = from_A + along;
            #pragma unroll 4
            for (int r = 0; r < size<0>(tAr); ++r, from += LOADERS{} * ldA) {
              tAs(r + size<0>(tAr) * b, stage) = assembled(from, LOADERS{} * r < rows_A ? count : 0);
            }
          }
        }
        if (safe_B) {
          if (bits_B != 0) {
            CUTE_UNROLL
            for (int r = 0; r < size<0>(tBr); ++r) {
              CUTE_UNROLL
              for (int b = 0; b < size<1>(tBr) - 1; ++b) { tBr(r, b) = joined(tBr(r, b), tBr(r, b + 1), bits_B); } // a row goes on in the next box
              tBr(r, 2) = joined(tBr(r, 2), __shfl_sync(0xffffffff, edge_B, r), bits_B);
            }
          }
          CUTE_UNROLL
          for (int v = 0; v < size(tBr); ++v) { tBs(v, stage) = tBr(v); }
        } else { // rare, so that speed matters less than registers
          CUTE_NO_UNROLL
          for (int b = 0; b < size<1>(tBr); ++b) {
            int const along = ROW{} * b + 2 * lane;
            int const count = N - n0 - along;
            Raw const* from = from_B + along;
            #pragma unroll 4
            for (int r = 0; r < size<0>(tBr); ++r, from += LOADERS{} * ldB) {
              tBs(r + size<0>(tBr) * b, stage) = assembled(from, LOADERS{} * r < rows_B ? count : 0);
            }
          }
        }
        cutlass::arch::fence_view_async_shared();                                                     // WGMMA reads what these threads wrote
        __syncwarp();
        if (lane == 0) { arrive_barrier(smem.full[stage]); }
        if (++stage == PIPE{}) { stage = 0; phase ^= 1; }
      }
    }

  } else {
    // 4. Consumers: each warpgroup owns 64 rows of the tile
    cutlass::arch::warpgroup_reg_alloc<176>();
    int const tid  = threadIdx.x % 128;
    int const lane = threadIdx.x % 32;
    int const row  = tid / 32 * 16;                                                                   // first of this warp's 16 rows, in each 64
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
                tCrC(0,i,j,m) += beta * float(old[8 * j]);
                tCrC(1,i,j,m) += beta * float(old[8 * j + 1]);
              }
            } else if (r < M) {
              CUTE_UNROLL
              for (int j = 0; j < BLK_N{} / 8; ++j) {
                if (c + 8 * j < N) { tCrC(0,i,j,m) += beta * float(old[8 * j]); }
                if (c + 8 * j + 1 < N) { tCrC(1,i,j,m) += beta * float(old[8 * j + 1]); }
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

          __syncwarp();
          #pragma unroll 4 // 32 addresses at once would spill
          for (int i = 0; i < 32; ++i) { // rows of 128 B leave in vectors of 1
            int const r = row + (32 * i + lane) / 64;
            int const c = (32 * i + lane) % 64 * 1;
            if (m0 + 64 * m + r < M && n0 + box * ROW_C{} + c < N) {
              TC* place = C + batch * batch_C + (m0 + 64 * m + r) * ldC + n0 + box * ROW_C{} + c;
              copy_unpack(Copy_Traits<UniversalCopy<uint16_t>>{}, make_tensor(make_smem_ptr(&sC(r, c, 0, warpgroup)), Layout<_1>{}), make_tensor(make_gmem_ptr(place), Layout<_1>{}));
            }
          }
        }
      }
    }
  }
}
