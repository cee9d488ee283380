"""Faults put into emitted sources, one at a time, and what catches each.

`caught` is the kind of the first finding, `deadlock`, or `numbers` where only the result is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One edit of an emitted source: every occurrence of `old`, or only one of them."""

    name: str
    spec: str
    old: str
    new: str
    caught: str
    occurrence: int | None = None
    seed: int | None = None

    def apply(self, source: str) -> str:
        if self.old not in source:
            raise AssertionError(f"{self.name}: the source of {self.spec} has no {self.old!r}")
        if self.occurrence is None:
            return source.replace(self.old, self.new)
        pieces = source.split(self.old)
        cut = self.occurrence + 1
        return self.old.join(pieces[:cut]) + self.new + self.old.join(pieces[cut:])


GEMM = "gemm/sm80_bf16_nn"
SIMT = "gemm/simt_f32_nt"
CAUSAL = "attention/scores_sm80_bf16_d128_causal"
TMA = "attention/scores_sm90_bf16_d128"
VECTOR = "attention/scores_sm90_f16_d64"
SPLIT = "gemm/sm90_wgmma_bf16_split_k"
AUX = "gemm/sm90_wgmma_bf16_gelu_aux"
BOXES = "gemm/sm90_wgmma_bf16_nt"
WORDS = "gemm/sm90_wgmma_bf16_nt_odd"
EIGHT = "gemm/sm90_wgmma_bf16_one_wave"

PROBLEMS: dict[str, dict[str, int]] = {
    GEMM: {"m": 200, "n": 136, "k": 264, "batch": 1},
    SIMT: {"m": 132, "n": 136, "k": 44, "batch": 1},
    CAUSAL: {"batch": 1, "heads": 2, "heads_kv": 2, "seqlen_q": 136, "seqlen_k": 200},
    TMA: {"batch": 1, "heads": 1, "heads_kv": 1, "seqlen_q": 136, "seqlen_k": 1032},
    SPLIT: {"m": 72, "n": 136, "k": 328},
    AUX: {"m": 72, "n": 264, "k": 72},
    BOXES: {"m": 136, "n": 136, "k": 72},
    EIGHT: {"m": 520, "n": 136, "k": 648},
    WORDS: {"m": 135, "n": 201, "k": 392},
    VECTOR: {"batch": 1, "heads": 1, "heads_kv": 1, "seqlen_q": 136, "seqlen_k": 1032},
}

_TOP = "    __syncthreads();               // ... for every thread"
_LOAD = "load_stage(k_tile + PIPE{} - 1, write);"

MUTATIONS = (
    # The pipeline of cp.async
    Mutation("no barrier at the top of the main loop", GEMM, _TOP, "    // ... for every thread", "shared-race"),
    Mutation(
        "a wait for one group too few",
        GEMM,
        "cp_async_wait<PIPE{} - 2>();",
        "cp_async_wait<PIPE{} - 1>();",
        "read-before-arrival",
    ),
    Mutation("no wait at all", GEMM, "cp_async_wait<PIPE{} - 2>();", "", "read-before-arrival"),
    Mutation(
        "groups not committed in the main loop", GEMM, "cp_async_fence();              //", "//", "read-before-arrival"
    ),
    Mutation("groups not committed in the prologue", GEMM, "    cp_async_fence();\n", "", "read-before-arrival"),
    Mutation(
        "copies into the stage being read", GEMM, _LOAD, "load_stage(k_tile + PIPE{} - 1, read);", "read-before-arrival"
    ),
    Mutation(
        "the next tile is loaded, not the one after", GEMM, _LOAD, "load_stage(k_tile + PIPE{} - 2, write);", "numbers"
    ),
    Mutation("fragments from the wrong stage", GEMM, "tXsA(_,i,k,read)", "tXsA(_,i,k,write)", "read-before-arrival"),
    Mutation("the stage never wraps", GEMM, "write == PIPE{} - 1 ? 0", "write == PIPE{} ? 0", "out-of-bounds-shared"),
    Mutation("one k tile too many", GEMM, "k_tile < k_tiles; ++k_tile", "k_tile <= k_tiles; ++k_tile", "numbers"),
    # Predicates and addresses
    Mutation(
        "off by one along k",
        GEMM,
        "a_k + j * STEP_A_K{} < k_left",
        "a_k + j * STEP_A_K{} <= k_left",
        "out-of-bounds-global",
    ),
    Mutation(
        "off by one along m",
        GEMM,
        "a_m + i * STEP_A_M{} < M - m0",
        "a_m + i * STEP_A_M{} <= M - m0",
        "out-of-bounds-global",
    ),
    Mutation("no predicate along n", GEMM, "b_n + i * STEP_B_N{} < N - n0 && ", "", "out-of-bounds-global"),
    Mutation("copies not predicated", GEMM, "G2S_A{}.with(inside)", "G2S_A{}.with(true)", "out-of-bounds-global"),
    Mutation("the stride of the other operand", GEMM, "STEP_A_K{} * ldA", "STEP_A_K{} * ldB", "out-of-bounds-global"),
    Mutation("half the step along k", GEMM, "BLK_K{} * ldA", "_32{} * ldA", "numbers"),
    Mutation(
        "rows of tiles swapped with columns", GEMM, "mA(m0 + a_m, a_k)", "mA(n0 + a_m, a_k)", "out-of-bounds-global"
    ),
    # Layouts
    Mutation(
        "no swizzle where A is written", GEMM, "composition(SwizzleA{}", "composition(Swizzle<0,3,3>{}", "numbers"
    ),
    Mutation(
        "another swizzle where B is read",
        GEMM,
        "make_composed_layout(SwizzleB{}",
        "make_composed_layout(Swizzle<2,3,3>{}",
        "numbers",
    ),
    Mutation("the same fragment for every k", GEMM, "tCrB(_,n,k), acc", "tCrB(_,n,0), acc", "numbers"),
    Mutation("the accumulator starts at one", GEMM, "tCrC(i) = float(0);", "tCrC(i) = float(1);", "numbers"),
    # Epilogue
    Mutation(
        "no barrier before the epilogue reuses shared memory",
        GEMM,
        "  __syncthreads();\n  Tensor sC",
        "  Tensor sC",
        "shared-race",
    ),
    Mutation(
        "no barrier after the epilogue's writes",
        GEMM,
        "  __syncthreads();\n\n  //    smem -> gmem",
        "  //    smem -> gmem",
        "shared-race",
    ),
    Mutation("off by one row of C", GEMM, "m0 + outer < M &&", "m0 + outer <= M &&", "out-of-bounds-global"),
    Mutation(
        "columns of C not predicated",
        GEMM,
        " && n0 + inner < N) {\n      copy",
        ") {\n      copy",
        "out-of-bounds-global",
    ),
    Mutation("a row of C stored twice", GEMM, "vector / 16", "vector / 32", "never-written"),
    Mutation("no alpha", GEMM, "tDrD(i) *= alpha;", "", "numbers"),
    Mutation(
        "an early return before a barrier",
        GEMM,
        "  // 4. Prologue",
        "  if (tid >= 64 && m0 > 0) return;\n  // 4. Prologue",
        "barrier-after-exit",
    ),
    Mutation("a barrier for half of the warps", GEMM, _TOP, "    if (tid < 64) __syncthreads();  //", "shared-race"),
    # f32 without tensor cores
    Mutation("no barrier at the top of the f32 main loop", SIMT, _TOP, "    // ... for every thread", "shared-race"),
    Mutation(
        "f32 copies into the stage being read",
        SIMT,
        _LOAD,
        "load_stage(k_tile + PIPE{} - 1, read);",
        "read-before-arrival",
    ),
    Mutation(
        "f32 stores not predicated along n",
        SIMT,
        "n + Inner{}(j) + v < N",
        "n + Inner{}(j) + v < N + 4",
        "out-of-bounds-global",
    ),
    # Causal masks
    Mutation(
        "the diagonal itself is masked", CAUSAL, "> m + Outer{}(i) + shift", ">= m + Outer{}(i) + shift", "numbers"
    ),
    Mutation(
        "the mask aligned to the wrong corner",
        CAUSAL,
        "shift = seqlen_k - seqlen_q",
        "shift = seqlen_q - seqlen_k",
        "numbers",
    ),
    Mutation(
        "tiles on the diagonal skipped", CAUSAL, "n0 > m0 + BLK_M{} - 1 + shift", "n0 > m0 - 1 + shift", "numbers"
    ),
    Mutation("the batch's stride for the head", CAUSAL, "head_k * head_K", "head_k * row_K", "numbers"),
    # TMA, mbarriers, WGMMA
    Mutation(
        "a box that begins within 16 bytes",
        TMA,
        "k), box * ROW{}, n * BLK_N{}",
        "k), box * ROW{} + 1, n * BLK_N{}",
        "misaligned-global",
    ),
    Mutation("no proxy fence before the TMA store", TMA, "tma_store_fence();", "", "missing-proxy-fence"),
    Mutation("the store's buffer reused too early", TMA, "if (tid == 0) { tma_store_wait<1>(); }", "", "shared-race"),
    Mutation(
        "no barrier before the buffer is written",
        TMA,
        "NamedBarrier::sync(128, 1 + warpgroup);",
        "NamedBarrier::arrive(128, 3 + warpgroup);",
        "shared-race",
        0,
    ),
    Mutation(
        "no barrier before the TMA store",
        TMA,
        "NamedBarrier::sync(128, 1 + warpgroup);",
        "NamedBarrier::arrive(128, 3 + warpgroup);",
        "shared-race",
        1,
    ),
    Mutation("the accumulator read before the wait", TMA, "warpgroup_wait<0>();", "", "register-before-wait"),
    Mutation("no wgmma fence", TMA, "        warpgroup_arrive();\n", "", "missing-wgmma-fence"),
    Mutation(
        "half of the bytes expected",
        TMA,
        "set_barrier_transaction_bytes(smem.full_K[k], 32768)",
        "set_barrier_transaction_bytes(smem.full_K[k], 16384)",
        "read-before-arrival",
    ),
    Mutation(
        "twice the bytes expected",
        TMA,
        "set_barrier_transaction_bytes(smem.full_K[k], 32768)",
        "set_barrier_transaction_bytes(smem.full_K[k], 65536)",
        "deadlock",
    ),
    Mutation("no wait for a full stage", TMA, "wait_barrier(smem.full_K[k], k_phase);", "", "read-before-arrival"),
    Mutation("no wait for an empty stage", TMA, "wait_barrier(smem.empty_K[k], k_phase);", "", "deadlock"),
    Mutation(
        "an empty stage after one warpgroup of two",
        TMA,
        "initialize_barrier(smem.empty_K[i], 2)",
        "initialize_barrier(smem.empty_K[i], 1)",
        "deadlock",
    ),
    Mutation(
        "an empty stage after a third arrival",
        TMA,
        "initialize_barrier(smem.empty_K[i], 2)",
        "initialize_barrier(smem.empty_K[i], 3)",
        "deadlock",
    ),
    Mutation("the phase never flips", TMA, "k = 0; k_phase ^= 1;", "k = 0;", "deadlock", 1),
    Mutation(
        "a stage released before it was read",
        TMA,
        "        Mma mma;",
        "        if (tid == 0) { arrive_barrier(smem.empty_K[k]); }\n        Mma mma;",
        "shared-race",
    ),
    Mutation("a descriptor for another swizzle", TMA, "uint64_t(1) << 62", "uint64_t(2) << 62", "numbers"),
    Mutation("a descriptor's stride halved", TMA, "uint64_t(1024 >> 4)", "uint64_t(512 >> 4)", "numbers"),
    Mutation(
        "both warpgroups multiply the same rows", TMA, "SmemQ{}(64 * warpgroup, 0, 0)", "SmemQ{}(0, 0, 0)", "numbers"
    ),
    Mutation(
        "the block ends before its last store", TMA, "if (tid == 0) { tma_store_wait<0>(); }", "", "copy-after-exit"
    ),
    Mutation("every lane issues the copies", TMA, "if (cute::elect_one_sync())", "if (true)", "mbarrier-overflow"),
    Mutation(
        "no barrier after the mbarriers' initialisation", TMA, "  __syncthreads();\n", "", "uninitialised-mbarrier"
    ),
    Mutation(
        "the second box of K at the first's place",
        TMA,
        "smem.K + SmemK{}(0, box * ROW{}, k)",
        "smem.K + SmemK{}(0, 0, k)",
        "shared-race",
    ),
    # Staging through padded shared memory
    Mutation("no warp barrier before the staged tile is read", VECTOR, "        __syncwarp();\n", "", "shared-race", 0),
    Mutation(
        "no warp barrier before the staged tile is reused", VECTOR, "        __syncwarp();\n", "", "shared-race", 1
    ),
    # Descriptors of a block that is not the first of its cluster
    Mutation(
        "a block ends while a neighbour may signal it",
        BOXES,
        "for (int s = 0; s < PIPE{}; ++s) { // a neighbour",
        "for (int s = 0; s < 0; ++s) { // a neighbour",
        "signal-after-exit",
    ),
    Mutation(
        "a descriptor takes all bits of an address",
        BOXES,
        "(cast_smem_ptr_to_uint(smem.B) & 0x3FFFF)",
        "cast_smem_ptr_to_uint(smem.B)",
        "read-before-arrival",
    ),
    # Blocks that share both operands
    Mutation(
        "neighbours along N are not told of a free stage", EIGHT, "tid % CLUSTER_M{} == rank_m || ", "", "deadlock"
    ),
    Mutation(
        "a stage is free when two blocks have read it",
        EIGHT,
        "initialize_barrier(smem.empty[i], 10)",
        "initialize_barrier(smem.empty[i], 4)",
        "shared-race",
    ),
    Mutation("A shared down a column", EIGHT, "SHARE_A << rank_m", "SHARE_A << rank_n", "deadlock"),
    Mutation("every block loads B in its turn and out of it", EIGHT, "k % 4 == rank_m", "true", "deadlock"),
    # What an epilogue reads over the edge
    Mutation("columns past the last", AUX, "v % 2, N - 1)", "v % 2, N + 7)", "out-of-bounds-global"),
    # Sums that meet through the shared memory of a cluster
    Mutation(
        "sums written over stages that are still multiplied",
        SPLIT,
        "      cutlass::arch::NamedBarrier::sync(256, 0);",
        "",
        "shared-race",
    ),
    Mutation("no cluster barriers around the sums", SPLIT, "      cute::cluster_sync();", "", "shared-race"),
    Mutation("a block's slice is another's", SPLIT, "rank * SLICE_N{} / 8", "(rank ^ 1) * SLICE_N{} / 8", "numbers"),
    # Operands that threads load
    Mutation(
        "no proxy fence after the words of a stage",
        WORDS,
        "cutlass::arch::fence_view_async_shared();",
        "",
        "missing-proxy-fence",
    ),
    Mutation(
        "a warp does not say that its words are there",
        WORDS,
        "if (lane == 0) { arrive_barrier(smem.full[stage]); }",
        "if (lane == 0 && warp != 3) { arrive_barrier(smem.full[stage]); }",
        "deadlock",
    ),
    Mutation(
        "a stage is full after half of the warps",
        WORDS,
        "initialize_barrier(smem.full[i], 8)",
        "initialize_barrier(smem.full[i], 4)",
        "deadlock",
    ),
    Mutation(
        "words written before the stage is free", WORDS, "wait_barrier(smem.empty[stage], phase);", "", "deadlock"
    ),
    Mutation("a row shifted by half as much", WORDS, "bits_A = 16 * skew;", "bits_A = 8 * skew;", "numbers"),
    Mutation("the word after another row's last", WORDS, "edge_B, r)", "edge_B, r ^ 1)", "numbers"),
    Mutation("words in the order of another swizzle", WORDS, "Swizzle<3,2,3>", "Swizzle<2,2,3>", "numbers"),
    Mutation(
        "words past the last row",
        WORDS,
        "(k + 1) * BLK_K{} <= K && m0 + BLK_M{} + 1 - M <= (K - (k + 1) * BLK_K{}) * ldA",
        "m0 + BLK_M{} + 1 - M <= K * ldA",
        "out-of-bounds-global",
    ),
    Mutation(
        "elements past the last row",
        WORDS,
        "LOADERS{} * r < rows_A ? count : 0",
        "count",
        "out-of-bounds-global",
    ),
    # Two outputs, a buffer each
    Mutation(
        "boxes overwritten while TMA reads them",
        AUX,
        "if (tid == 0) { tma_store_wait<0>(); } // the box",
        "// the box",
        "shared-race",
    ),
    Mutation(
        "the second output stored from the first's box", AUX, "smem.Aux + SmemAux{}", "smem.C + SmemC{}", "numbers"
    ),
)
