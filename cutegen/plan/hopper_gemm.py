"""The plan of a `gemm` spec on Hopper's own instructions: TMA loads, WGMMA, a persistent grid, stores by TMA.

One producer warp runs ahead through all tiles of its block, so that loads of the next tile overlap the epilogue of
this one. `cooperative` consumers share a tile, 64 rows or more each; in `ping_pong` two take whole tiles in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pycute import Layout

from cutegen import hardware
from cutegen.dtypes import DTYPES, DType
from cutegen.errors import Fault, SpecError
from cutegen.plan.hopper import ROW_BYTES, HopperPlan, Ring, atom_cpp, padded_storage, ring_major
from cutegen.plan.hopper_gemm_checks import checked_choice, gemm_vector, multiplied, operand_majors
from cutegen.plan.hopper_tiles import Choice, group_rows
from cutegen.plan.kernel_plan import KernelPlan, parameters
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
from cutegen.spec.gemm import GemmSpec

_MOST_STAGES = 12


@dataclass(frozen=True)
class HopperGemmPlan(HopperPlan):
    """Everything static of the kernel. Byte and element counts are of one block."""

    dtype_b: DType
    choice: Choice
    majors: tuple[str, str]
    stages: int
    group_m: int

    @property
    def headers(self) -> tuple[str, ...]:
        return (
            "cute/swizzle.hpp",
            "cute/swizzle_layout.hpp",
            "cute/arch/cluster_sm90.hpp",
            "cute/arch/copy_sm90_tma.hpp",
            "cute/atom/copy_traits_sm90.hpp",
            "cute/atom/mma_traits_sm90_gmma.hpp",
            "cutlass/arch/barrier.h",
            *(("cutlass/arch/reg_reconfig.h",) if self.registers else ()),
        )

    # ---- tile and roles

    @property
    def tile_m(self) -> int:
        return self.choice.m

    @property
    def tile_k(self) -> int:
        """Elements of K in 128 bytes."""
        return ROW_BYTES // self.dtype.bytes

    @property
    def ping_pong(self) -> bool:
        return self.choice.kind == "ping_pong"

    @property
    def consumers(self) -> int:
        return self.choice.consumers

    @property
    def mma_m(self) -> int:
        return self.choice.rows

    @property
    def block_threads(self) -> int:
        """The producer is a warpgroup too, of which one warp works: registers are given to whole warpgroups."""
        return 128 * self.consumers + 128

    @property
    def accumulators(self) -> int:
        return self.choice.accumulators

    @property
    def registers(self) -> tuple[int, int] | None:
        return self.choice.registers

    @property
    def split_note(self) -> str:
        """What a consumer warpgroup has of a tile, for the comment beside BLK_M."""
        if self.ping_pong:
            return "two consumer warpgroups take whole tiles in turn"
        rows = f"{64 * self.mma_m} rows"
        return (
            f"{self.consumers} consumer warpgroups of {rows}"
            if self.consumers > 1
            else f"one consumer warpgroup of {rows}"
        )

    @property
    def consumer_note(self) -> str:
        if self.ping_pong:
            return "one warpgroup multiplies its tile while the other stores the one before"
        if self.consumers == 1:
            return "one warpgroup multiplies the tile"
        return f"each warpgroup owns {64 * self.mma_m} rows of the tile"

    # ---- cluster

    @property
    def clustered(self) -> bool:
        return self.cluster_size > 1

    @property
    def cluster_size(self) -> int:
        return self.choice.cluster[0] * self.choice.cluster[1]

    @property
    def cluster_axis(self) -> str:
        return "M" if self.choice.cluster[0] > 1 else "N"

    @property
    def shared_ring(self) -> Ring:
        return self.b if self.b.slices > 1 else self.a

    @property
    def readers(self) -> int:
        """Arrivals that free a stage: a stage is one warpgroup's in ping-pong, all warpgroups' otherwise."""
        return (1 if self.ping_pong else self.consumers) * self.cluster_size

    @property
    def step_m(self) -> str:
        """Rows of C that a block or cluster covers."""
        return "CLUSTER{} * BLK_M{}" if self.choice.cluster[0] > 1 else "BLK_M{}"

    @property
    def step_n(self) -> str:
        return "CLUSTER{} * BLK_N{}" if self.choice.cluster[1] > 1 else "BLK_N{}"

    @property
    def origin_m(self) -> str:
        return "(m * CLUSTER{} + rank) * BLK_M{}" if self.choice.cluster[0] > 1 else "m * BLK_M{}"

    @property
    def origin_n(self) -> str:
        return "(n * CLUSTER{} + rank) * BLK_N{}" if self.choice.cluster[1] > 1 else "n * BLK_N{}"

    # ---- shared memory

    @property
    def a(self) -> Ring:
        return Ring(
            "A", self.dtype, ring_major(self.majors[0]), self.tile_m, self.tile_k, self.stages, self.choice.cluster[1]
        )

    @property
    def b(self) -> Ring:
        return Ring(
            "B", self.dtype_b, ring_major(self.majors[1]), self.tile_n, self.tile_k, self.stages, self.choice.cluster[0]
        )

    @property
    def rings(self) -> tuple[Ring, Ring]:
        return self.a, self.b

    @property
    def output_letter(self) -> str:
        return "C"

    @property
    def frag_c(self) -> Layout:
        """(column pair, row + 8, 8 columns, block of 64 rows) of a thread's accumulators (PTX ISA, "wgmma register
        fragments").
        """
        return Layout((2, 2, self.tile_n // 8, self.mma_m), (1, 2, 4, self.tile_n // 2))

    @property
    def store_buffers(self) -> int:
        """Boxes of a warpgroup on their way out: two let one fill while TMA reads the other."""
        return 2 if self.tma_store else 1

    @property
    def smem_c(self) -> Layout:
        box = 64 * self.out_row
        return Layout(
            (64, self.out_row, self.store_buffers, self.consumers), (self.out_row, 1, box, box * self.store_buffers)
        )

    @property
    def out_swizzle_base(self) -> int:
        """The swizzle moves chunks of 16 bytes, counted in elements of C."""
        return (16 // self.out.bytes).bit_length() - 1

    @property
    def staging_bytes(self) -> int:
        return self.consumers * self.store_buffers * 64 * ROW_BYTES

    @property
    def storage_bytes(self) -> int:
        """`sizeof(SharedStorage)`."""
        tiles = self.stages * (self.a.stage_bytes + self.b.stage_bytes) + self.staging_bytes
        return padded_storage(tiles, 2 * self.stages + (2 if self.ping_pong else 0))

    # ---- store

    @property
    def vectors_per_row(self) -> int:
        return self.out_row // self.vector

    @property
    def store_rounds(self) -> int:
        return 16 * self.vectors_per_row // 32

    @property
    def pair_cpp(self) -> str:
        """Two neighbouring elements of C."""
        return {2: "uint32_t", 4: "uint64_t"}[self.out.bytes]

    @property
    def store_note(self) -> str:
        if self.tma_store:
            return "box by box through shared memory; TMA writes them while the next tile is multiplied"
        return "box by box through shared memory, each warp its 16 rows"


def plan_hopper_gemm(spec: GemmSpec) -> KernelPlan:
    """Resolves C = alpha * A B^T + beta * C on TMA and WGMMA.

    Raises:
        SpecError: the arch lacks them, tile or atom don't fit them, or no pipeline fits shared memory.
    """
    arch = hardware.arch(spec.arch)
    choice = checked_choice(spec)
    dtype, out = DTYPES[spec.dtypes.a], DTYPES[spec.dtypes.c]
    majors = operand_majors(spec)
    vector = gemm_vector(spec)
    plan = HopperGemmPlan(
        spec=spec,
        symbol="",
        template="gemm_sm90.cu.jinja",
        arch=arch,
        signature=Signature("", (), (), (), Geometry((), 0, 0)),
        summary=(),
        params_cpp=(),
        dtype=dtype,
        out=out,
        dtype_b=DTYPES[spec.dtypes.b],
        multiply=min(multiplied(spec), key=lambda name: DTYPES[name].precision),
        atom=atom_cpp(multiplied(spec), choice.n, (ring_major(majors[0]), ring_major(majors[1]))),
        tile_n=choice.n,
        tma_store=_tma_store(spec, vector, out),
        vector=vector,
        choice=choice,
        majors=majors,
        stages=spec.pipeline.stages or _MOST_STAGES,
        group_m=spec.schedule.group_m or group_rows(choice, arch),
    )
    while spec.pipeline.stages is None and plan.storage_bytes > arch.smem_per_block and plan.stages > 2:
        plan = replace(plan, stages=plan.stages - 1)
    if plan.storage_bytes > arch.smem_per_block:
        raise SpecError(
            Fault(
                "pipeline.stages" if spec.pipeline.stages else "tile",
                f"needs {plan.storage_bytes} B of shared memory, {arch.name} has {arch.smem_per_block} B a block",
                hint="fewer stages, or a smaller tile",
            )
        )
    plan = replace(plan, symbol=spec.name or _symbol(spec, plan))
    params, names = _params(plan)
    return replace(
        plan,
        params_cpp=parameters(params, names, {"c": out}, frozenset({"c"})),
        signature=_signature(plan, params),
        summary=_summary(spec, plan),
    )


def _tma_store(spec: GemmSpec, vector: int, out: DType) -> bool:
    aligned = vector * out.bytes == 16
    if spec.epilogue.store == "tma" and not aligned:
        raise SpecError(
            Fault(
                "epilogue.store",
                "tma needs rows of C aligned to 16 B",
                got=f"{vector} elements of {out.bytes} B",
                hint="write epilogue.store: vector",
            )
        )
    return aligned and spec.epilogue.store != "vector"


def _params(plan: HopperGemmPlan) -> tuple[tuple[KernelParam, ...], tuple[str, ...]]:
    """What the kernel takes, and its names for it."""

    def load(tensor: str, mode: str, ring: Ring) -> TensorMapParam:
        modes = ("k", mode) if ring.major == "K" else (mode, "k")
        return TensorMapParam(tensor, (*modes, "batch"), (*ring.box, 1), 128)

    store = (TensorMapParam("c", ("n", "m", "batch"), (plan.out_row, 64, 1), 128),) if plan.tma_store else ()
    params: tuple[KernelParam, ...] = (
        load("a", "m", plan.a),
        load("b", "n", plan.b),
        *store,
        Pointer("c"),
        Stride("c", "m"),
        Stride("c", "batch"),
        *(Extent(mode) for mode in ("m", "n", "k", "batch")),
        Scalar("alpha"),
        Scalar("beta"),
    )
    maps = ("tma_A", "tma_B", "tma_C")[: 2 + len(store)]
    return params, (*maps, "C", "ldC", "batch_C", "M", "N", "K", "batches", "alpha", "beta")


def _signature(plan: HopperGemmPlan, params: tuple[KernelParam, ...]) -> Signature:
    batch = frozenset({"batch"})
    aligned = 16 // plan.dtype.bytes
    cluster = plan.choice.cluster
    return Signature(
        symbol=plan.symbol,
        tensors=(
            TensorArg("a", plan.dtype, ("batch", "m", "k"), plan.majors[0].lower(), aligned, optional=batch),
            TensorArg("b", plan.dtype_b, ("batch", "n", "k"), plan.majors[1].lower(), aligned, optional=batch),
            TensorArg("c", plan.out, ("batch", "m", "n"), "n", plan.vector, "inout", batch, "beta"),
        ),
        scalars=(ScalarArg("alpha", "float", 1.0), ScalarArg("beta", "float", 0.0)),
        params=params,
        geometry=Geometry(
            (("m", plan.tile_m * cluster[0]), ("n", plan.tile_n * cluster[1]), ("batch", 1)),
            plan.block_threads,
            plan.storage_bytes,
            cluster=(plan.cluster_size, 1, 1),
            persistent=True,
        ),
    )


def _symbol(spec: GemmSpec, plan: HopperGemmPlan) -> str:
    types = "_".join(dict.fromkeys((*multiplied(spec), spec.dtypes.c)))
    kind = "_pp" if plan.ping_pong else ""
    cluster = f"_{plan.choice.cluster[0]}x{plan.choice.cluster[1]}" if plan.clustered else ""
    narrow = f"_c{plan.vector}" if plan.vector * plan.out.bytes < 16 else ""
    tile = f"{plan.tile_m}x{plan.tile_n}x{plan.tile_k}"
    return f"gemm_{spec.arch}_{spec.majors.lower()}_{types}_{tile}_p{plan.stages}{kind}{cluster}{narrow}"


def _summary(spec: GemmSpec, plan: HopperGemmPlan) -> tuple[str, ...]:
    d = spec.dtypes
    as_what = f" multiplied as {d.multiply}" if d.multiply and d.multiply != d.a else ""
    regs = f" of {plan.registers[1]} registers a thread, {plan.registers[0]} for the producer" if plan.registers else ""
    cluster = f"      clusters of {plan.choice.cluster[0]}x{plan.choice.cluster[1]} blocks" if plan.clustered else ""
    kind = "ping-pong" if plan.ping_pong else "cooperative"
    return (
        f"C = alpha A B^T + beta C      A (M,K) {d.a} {plan.majors[0]}-major      B (N,K) {d.b} {plan.majors[1]}-major      C (M,N) {d.c} N-major",
        f"accumulated in f32{as_what}; any M, N, K and batch; C is read only if beta is not 0",
        "",
        f"block tile ({plan.tile_m},{plan.tile_n},{plan.tile_k})      stages {plan.stages}      {kind}      shared memory {plan.storage_bytes} B",
        f"threads {plan.block_threads}: {plan.consumers} consumer warpgroup{'s' if plan.consumers > 1 else ''} and a producer{regs}",
        f"grid: persistent, tiles in groups of {plan.group_m} rows of tiles{cluster}",
        f"A, B and their row strides aligned to 16 B, C to {plan.vector * plan.out.bytes} B; so are the contiguous extents",
    )
