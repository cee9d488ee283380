"""The plan of an `attention_scores` spec on Hopper's own instructions: TMA loads, WGMMA, a persistent grid.

A block keeps 64 rows of Q for each consumer warpgroup and walks along N; one producer warp keeps a ring of K tiles
full. Shared-memory tiles are rows of 128 B under the 128-byte swizzle, the layout that a TMA box of 128 B and a
K-major WGMMA descriptor agree on (PTX ISA, "Asynchronous warpgroup level matrix shared memory layout"; CuTe's
`GMMA::Layout_K_SW128_Atom`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pycute import Layout

from cutegen import hardware
from cutegen.dtypes import DTYPES, DType
from cutegen.errors import Fault, SpecError
from cutegen.plan.hopper import (
    COMMON_N,
    ROW_BYTES,
    TYPES,
    HopperPlan,
    Ring,
    atom_cpp,
    atom_faults,
    layout_faults,
    padded_storage,
)
from cutegen.plan.kernel_plan import KernelPlan, parameters
from cutegen.plan.scores import grouped, inverse_root
from cutegen.plan.signature import (
    Extent,
    Geometry,
    KernelParam,
    Pointer,
    Scalar,
    ScalarArg,
    Signature,
    Stride,
    TensorArg,
    TensorMapParam,
)
from cutegen.spec.attention import AttentionScoresSpec

WARPGROUPS = 2


@dataclass(frozen=True)
class HopperScoresPlan(HopperPlan):
    """Everything static of the kernel. Byte and element counts are of one block."""

    pipe_q: int
    pipe_k: int
    run_n: int
    head_dim: int
    causal: bool

    tile_m: int = 64 * WARPGROUPS
    warpgroups: int = WARPGROUPS

    @property
    def headers(self) -> tuple[str, ...]:
        swizzled = ("cute/swizzle.hpp", "cute/swizzle_layout.hpp") if self.tma_store else ()
        return (
            *swizzled,
            "cute/arch/cluster_sm90.hpp",
            "cute/arch/copy_sm90_tma.hpp",
            "cute/atom/copy_traits_sm90.hpp",
            "cute/atom/mma_traits_sm90_gmma.hpp",
            "cutlass/arch/barrier.h",
        )

    @property
    def q(self) -> Ring:
        return Ring("Q", self.dtype, "K", self.tile_m, self.head_dim, self.pipe_q)

    @property
    def k(self) -> Ring:
        return Ring("K", self.dtype, "K", self.tile_n, self.head_dim, self.pipe_k)

    @property
    def streamed_cpp(self) -> str:
        """The type of a vector for `__stcs`."""
        return {2: "short", 4: "int", 8: "int2", 16: "int4"}[self.vector * self.out.bytes]

    @property
    def rings(self) -> tuple[Ring, Ring]:
        return self.q, self.k

    @property
    def output_letter(self) -> str:
        return "S"

    @property
    def frag_s(self) -> Layout:
        """((column pair, row + 8, 8 columns)) of a warpgroup's m64nN accumulator (PTX ISA, "wgmma register
        fragments").
        """
        return Layout((2, 2, self.tile_n // 8), (1, 2, 4))

    @property
    def ahead(self) -> bool:
        """Whether a tile leaves while the next one is multiplied, for which a thread holds both: half as many registers
        as `tile_n` for the sums, and half or as many again for what leaves. Where threads store, it gains nothing
        (measured, docs/performance.md).
        """
        return self.tma_store and self.tile_n * (1 + self.out.bytes / 4) <= 192

    @property
    def pitch(self) -> int:
        """Elements between rows of a warp's staging tile: padded by 16 B, so that eight rows start in eight
        different banks.
        """
        return self.tile_n + 16 // self.out.bytes

    @property
    def vectors_per_row(self) -> int:
        return self.tile_n // self.vector

    @property
    def store_rounds(self) -> int:
        return 16 * self.vectors_per_row // 32

    @property
    def staging_bytes(self) -> int:
        if self.tma_store:
            return self.warpgroups * 2 * 64 * self.tile_n * self.out.bytes
        return self.warpgroups * 4 * 16 * self.pitch * self.out.bytes

    @property
    def storage_bytes(self) -> int:
        """`sizeof(SharedStorage)`: tiles at multiples of 1024 B, barriers last."""
        tiles = self.pipe_q * self.q.stage_bytes + self.pipe_k * self.k.stage_bytes + self.staging_bytes
        return padded_storage(tiles, 2 * (self.pipe_q + self.pipe_k))


def wants_hopper(spec: AttentionScoresSpec) -> bool:
    """Whether the spec can and should take Hopper's own path: WGMMA exists for its types, TMA can load its operands."""
    multiply = spec.dtypes.multiply or spec.dtypes.q
    if spec.mma.atom is not None:
        return spec.mma.atom.startswith("SM90_")
    tile_path = spec.smem != type(spec.smem)() or spec.copy_ != type(spec.copy_)() or spec.mma.warps or spec.mma.threads
    return (
        hardware.arch(spec.arch).hopper
        and multiply in TYPES
        and spec.dtypes.accumulate == "f32"
        and spec.problem.head_dim <= 256
        and not tile_path
        and spec.epilogue.staged is not False
        and not (spec.dtypes.q != "f32" and spec.dtypes.scores == "f32")
        and all((a or 16) * DTYPES[spec.dtypes.q].bytes >= 16 for a in (spec.align.q, spec.align.k))
    )


def plan_hopper_scores(spec: AttentionScoresSpec) -> KernelPlan:
    """Resolves S = scale * Q K^T on TMA and WGMMA.

    Raises:
        SpecError: the arch lacks them, the atom disagrees with the dtypes, or no pipeline fits shared memory.
    """
    arch = hardware.arch(spec.arch)
    multiply = spec.dtypes.multiply or spec.dtypes.q
    _check(spec, multiply)
    dtype, out = DTYPES[spec.dtypes.q], DTYPES[spec.dtypes.scores]
    tma_store = spec.epilogue.store == "tma" if spec.epilogue.store else spec.problem.head_dim >= 128
    widest = 16 // out.bytes
    vector = min(spec.align.scores or widest, widest)
    if tma_store and vector < widest:
        if spec.epilogue.store:
            raise SpecError(
                Fault(
                    "epilogue.store",
                    "tma needs rows aligned to 16 B",
                    got=f"align.scores: {vector}",
                    hint="write epilogue.store: vector",
                )
            )
        tma_store = False
    plan = None
    for tile_n, pipe_q, pipe_k in _candidates(spec, dtype, tma_store):
        plan = _build(spec, multiply, dtype, out, tile_n, pipe_q, pipe_k, tma_store, vector)
        if plan.storage_bytes <= arch.smem_per_block:
            return plan
    assert plan is not None
    raise SpecError(
        Fault(
            "tile.n" if spec.tile.n else "pipeline.stages",
            f"needs {plan.storage_bytes} B of shared memory, {arch.name} has {arch.smem_per_block} B a block",
            hint="a smaller tile.n, or fewer stages",
        )
    )


def _candidates(spec: AttentionScoresSpec, dtype: DType, tma_store: bool) -> Iterator[tuple[int, int, int]]:
    """(tile_n, stages of Q, stages of K), best first: where threads store, more loads on their way make up for it."""
    depths = [spec.pipeline.stages] if spec.pipeline.stages else [4, 3] if tma_store else [8, 4, 3]
    wanted = [spec.tile.n] if spec.tile.n else [128, 64, 32] if dtype.bytes == 2 else [64, 32]
    for tile_n in wanted:
        for pipe_q in (2, 1):
            for pipe_k in depths:
                yield tile_n, pipe_q, pipe_k
    for tile_n in wanted:
        yield tile_n, 1, spec.pipeline.stages or 2


def _check(spec: AttentionScoresSpec, multiply: str) -> None:
    arch = hardware.arch(spec.arch)
    faults = []
    if not arch.hopper:
        faults.append(Fault("mma.atom", f"{spec.mma.atom} needs sm_90a", got=arch.name, hint="write arch: sm_90a"))
    faults += atom_faults(spec.mma.atom, (multiply, multiply), spec.dtypes.accumulate, spec.tile.n)
    n = spec.tile.n
    widths = [width for width in COMMON_N if width % 32 == 0]
    if n is not None and n not in widths:
        near = min(widths, key=lambda width: abs(width - n))
        faults.append(Fault("tile.n", f"must be one of {widths}", got=str(n), hint=f"nearest: {near}"))
    if spec.tile.m not in (None, 64 * WARPGROUPS):
        faults.append(Fault("tile.m", "must be 128: two warpgroups of 64 rows", got=str(spec.tile.m)))
    row = ROW_BYTES // DTYPES[spec.dtypes.q].bytes
    boxed = -(-spec.problem.head_dim // row) * row
    if spec.tile.k not in (None, boxed, spec.problem.head_dim):
        faults.append(Fault("tile.k", "the whole head_dim is one stage", got=str(spec.tile.k), expected=str(boxed)))
    if spec.problem.head_dim > 256:
        faults.append(
            Fault(
                "problem.head_dim",
                "at most 256 on this path",
                got=str(spec.problem.head_dim),
                hint="choose an SM80 atom",
            )
        )
    if spec.dtypes.q != "f32" and spec.dtypes.scores == "f32":
        faults.append(
            Fault(
                "dtypes.scores",
                "this path writes the type of q",
                got="f32",
                hint="choose an SM80 atom for f32 scores of 16-bit operands",
            )
        )
    faults += layout_faults(spec)
    if faults:
        raise SpecError(faults)


def _build(
    spec: AttentionScoresSpec,
    multiply: str,
    dtype: DType,
    out: DType,
    tile_n: int,
    pipe_q: int,
    pipe_k: int,
    tma_store: bool,
    vector: int,
) -> HopperScoresPlan:
    head_dim = spec.problem.head_dim
    row = ROW_BYTES // dtype.bytes
    modes = ("head_dim", "seqlen_q", "heads", "batch")
    modes_k = ("head_dim", "seqlen_k", "heads_kv", "batch")
    modes_s = ("seqlen_k", "seqlen_q", "heads", "batch")
    store: tuple[KernelParam, ...] = (
        (TensorMapParam("scores", modes_s, (ROW_BYTES // out.bytes, 64, 1, 1), 128),)
        if tma_store
        else (Pointer("scores"), Stride("scores", "seqlen_q"), Stride("scores", "heads"), Stride("scores", "batch"))
    )
    params: tuple[KernelParam, ...] = (
        TensorMapParam("q", modes, (row, 64 * WARPGROUPS, 1, 1), 128),
        TensorMapParam("k", modes_k, (row, tile_n, 1, 1), 128),
        *store,
        *(Extent(mode) for mode in ("batch", "heads", "heads_kv", "seqlen_q", "seqlen_k")),
        Scalar("scale"),
    )
    store_names = ("tma_S",) if tma_store else ("S", "row_S", "head_S", "batch_S")
    names = ("tma_Q", "tma_K", *store_names, "batches", "heads", "heads_kv", "seqlen_q", "seqlen_k", "scale")
    run_n = spec.schedule.run_n or _run(dtype, head_dim)
    types = [multiply] if multiply == spec.dtypes.scores else [multiply, spec.dtypes.scores]
    narrow = f"_s{vector}" if vector * out.bytes < 16 else ""
    causal = "_causal" if spec.causal else ""
    symbol = (
        spec.name
        or f"attention_scores_{spec.arch}_{'_'.join(types)}_d{head_dim}{causal}_{64 * WARPGROUPS}x{tile_n}_p{pipe_k}{narrow}"
    )
    plan = HopperScoresPlan(
        spec=spec,
        symbol=symbol,
        template="attention_scores_sm90.cu.jinja",
        arch=hardware.arch(spec.arch),
        signature=Signature(symbol, (), (), (), Geometry((), 0, 0)),
        summary=(),
        params_cpp=parameters(params, names, {"scores": out}, frozenset({"scores"})),
        dtype=dtype,
        out=out,
        multiply=multiply,
        atom=atom_cpp((multiply, multiply), tile_n),
        tile_n=tile_n,
        pipe_q=pipe_q,
        pipe_k=pipe_k,
        run_n=run_n,
        tma_store=tma_store,
        vector=vector,
        head_dim=head_dim,
        causal=spec.causal,
    )
    return _with_signature(plan, params)


def _run(dtype: DType, head_dim: int) -> int:
    """Tiles that a block takes in a row, as measured (docs/performance.md)."""
    if dtype.bytes == 4:
        return 32 if head_dim >= 128 else 4
    return 8 if head_dim >= 128 else 4


def _with_signature(plan: HopperScoresPlan, params: tuple[KernelParam, ...]) -> HopperScoresPlan:
    aligned = 16 // plan.dtype.bytes
    signature = Signature(
        symbol=plan.symbol,
        tensors=(
            TensorArg("q", plan.dtype, ("batch", "heads", "seqlen_q", "head_dim"), "head_dim", aligned),
            TensorArg("k", plan.dtype, ("batch", "heads_kv", "seqlen_k", "head_dim"), "head_dim", aligned),
            TensorArg(
                "scores", plan.out, ("batch", "heads", "seqlen_q", "seqlen_k"), "seqlen_k", plan.vector, "output"
            ),
        ),
        scalars=(ScalarArg("scale", "float", inverse_root),),
        params=params,
        geometry=Geometry(
            (("seqlen_q", plan.tile_m), ("seqlen_k", plan.tile_n * plan.run_n), ("heads", 1), ("batch", 1)),
            128 * plan.warpgroups + 32,
            plan.storage_bytes,
            persistent=True,
        ),
        static=(("head_dim", plan.head_dim),),
        check=grouped,
    )
    causal = (
        ("query i sees key j when j <= i + seqlen_k - seqlen_q; what it does not see is -inf",) if plan.causal else ()
    )
    multiplied = " multiplied as tf32" if plan.multiply == "tf32" else ""
    summary = (
        f"S = scale Q K^T for each batch and head      Q (M,K) {plan.dtype}      K (N,K) {plan.dtype}      S (M,N) {plan.out}",
        f"M = seqlen_q, N = seqlen_k, K = head_dim = {plan.head_dim}; accumulated in f32{multiplied}; any lengths, batch, heads",
        *causal,
        "",
        f"block tile ({plan.tile_m},{plan.tile_n},{plan.head_dim})      stages Q {plan.pipe_q}, K {plan.pipe_k}      threads {signature.geometry.threads} = {plan.warpgroups} warpgroups and a producer warp",
        f"shared memory {plan.storage_bytes} B      grid: persistent, a block takes {plan.run_n} tiles along N at a time",
        f"rows of Q and K aligned to 16 B, of S to {plan.vector * plan.out.bytes} B; head_dim is contiguous",
    )
    return replace(plan, signature=signature, summary=summary)
