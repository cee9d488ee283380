"""The product of two tiles, resolved: what `gemm` and `attention_scores` share on every arch without Hopper's own
instructions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from pycute import Layout

from cutegen.atoms import MmaAtom, default_atom, mma_atom
from cutegen.dtypes import DTYPES, DType
from cutegen.errors import Fault, SpecError
from cutegen.hardware import Arch
from cutegen.plan.operand import Operand, plan_operand
from cutegen.plan.output import Naming, Output
from cutegen.plan.partition import TiledMma, accumulator_view, simt_mma, warp_mma
from cutegen.spec.common import Copy, Epilogue, Mma, Pipeline, Schedule, Smem, Tile


@dataclass(frozen=True)
class AuxRequest:
    """A second output, of the first one's shape and major: its type, and the elements that are aligned together."""

    dtype: DType
    align: int | None


@dataclass(frozen=True)
class Request:
    """What a family asks of the product: the shared parts of its spec, in the order A, B, C."""

    arch: Arch
    dtypes: tuple[DType, DType, DType]
    multiply: str
    accumulate: str
    majors: tuple[str, str, str]
    tile: Tile
    mma: Mma
    smem: tuple[Smem, Smem]
    copy: tuple[Copy, Copy]
    pipeline: Pipeline
    epilogue: Epilogue
    schedule: Schedule
    align: tuple[int | None, int | None, int | None]
    naming: Naming
    depth: int | None = None
    aux: AuxRequest | None = None

    @property
    def outputs(self) -> tuple[DType, ...]:
        """Element types of what is stored."""
        return (self.dtypes[2], *((self.aux.dtype,) if self.aux else ()))


@dataclass(frozen=True)
class Math:
    """The MMA as the templates see it."""

    tiled: TiledMma

    @property
    def simt(self) -> bool:
        return self.tiled.simt

    @property
    def atom(self) -> MmaAtom:
        return self.tiled.atom

    @property
    def cpp(self) -> str:
        return self.atom.cpp if self.simt else f"MMA_Traits<{self.atom.cpp}>"

    @property
    def acc_cpp(self) -> str:
        return DTYPES[self.atom.accumulate].cpp

    @property
    def frag_c(self) -> Layout:
        return self.tiled.frag_c

    @property
    def accumulators(self) -> int:
        return self.tiled.accumulators

    @cached_property
    def _start(self) -> tuple[Layout, Layout]:
        return self.tiled.start_c()

    @property
    def thr_m(self) -> Layout:
        return self._start[0]

    @property
    def thr_n(self) -> Layout:
        return self._start[1]

    @property
    def note(self) -> str:
        (m, n, _), (along_m, along_n) = self.tiled.tile, self.tiled.arrangement
        if self.simt:
            return f"{along_m} x {along_n} threads of {m // along_m} x {n // along_n} scalar FMAs"
        atom = self.atom.shape_mnk
        return f"{along_m} x {along_n} warps of {m // along_m} x {n // along_n}, each {m // along_m // atom[0]} x {n // along_n // atom[1]} atoms of m{atom[0]}n{atom[1]}k{atom[2]}"


@dataclass(frozen=True)
class TileGemm:
    """Everything static about the product of two tiles."""

    request: Request
    math: Math
    a: Operand
    b: Operand
    c: Output
    stages: int
    group_m: int
    aux: Output | None = None

    @property
    def asynchronous(self) -> bool:
        """Whether an operand comes by `cp.async`."""
        return self.a.g2s.asynchronous or self.b.g2s.asynchronous

    @property
    def transposed(self) -> tuple[Operand, ...]:
        """Operands that go through registers into shared memory."""
        return tuple(op for op in (self.a, self.b) if op.g2s.transposing)

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.math.tiled.tile

    @property
    def threads(self) -> int:
        return self.math.tiled.threads

    @property
    def smem_bytes(self) -> int:
        main = self.a.smem_bytes + self.b.smem_bytes
        total = max(main, *(output.smem_elements * output.dtype.bytes for output in self.staged), 0)
        return -(-total // 128) * 128

    @property
    def staged(self) -> tuple[Output, ...]:
        """Outputs that are collected in shared memory."""
        return tuple(output for output in (self.c, self.aux) if output is not None and output.staged)

    @property
    def registers(self) -> int:
        """A floor for the registers of a thread: accumulator, the fragments of two steps, and 32 for addresses."""
        values = self.math.tiled
        acc = self.math.accumulators * DTYPES[self.math.atom.accumulate].bytes // 4
        fragments = sum(
            mn.shape[1] * mn.shape[2] * op.dtype.bytes / 4 for mn, op in ((values.mn_a, self.a), (values.mn_b, self.b))
        )
        return int(acc + fragments + 32)

    @property
    def min_blocks(self) -> int:
        """Blocks of an SM that shared memory and threads allow, as far as their registers would fit:
        `__launch_bounds__`' second argument.
        """
        arch = self.request.arch
        by_smem = arch.smem_per_sm // (self.smem_bytes + 1024)
        # What a thread needs beyond the floor. Left to itself ptxas gives a thread that transposes up to 212 registers,
        # though 128 are enough (tests/source: nothing spills).
        spare = 16 if self.transposed else 24
        by_registers = arch.registers // (self.threads * max(self.registers + spare, 1))
        return max(1, min(by_smem, by_registers, arch.threads_per_sm // self.threads, 2))


def choose_mma(request: Request) -> TiledMma:
    """Atom, tile and arrangement: what the spec says, the rest by default.

    Raises:
        SpecError: the atom is unknown, needs a newer arch, or disagrees with the dtypes; the tile does not fit it.
    """
    atom = mma_atom(request.mma.atom) if request.mma.atom else default_atom(request.multiply, request.accumulate)
    atom.check_arch(request.arch, "mma.atom")
    if (atom.multiply, atom.accumulate) != (request.multiply, request.accumulate):
        better = default_atom(request.multiply, request.accumulate).name
        raise SpecError(
            Fault(
                "mma.atom",
                f"multiplies {atom.multiply} into {atom.accumulate}, but the dtypes ask for {request.multiply} into {request.accumulate}",
                got=atom.name,
                hint=f"{better} would do",
            )
        )
    simt = atom.threads == 1
    bytes_ab = request.dtypes[0].bytes
    # Measured on an H200 (docs/performance.md): operands that are copied as they lie want short stages, transposed
    # ones longer.
    depth = (8 if request.majors[:2] == ("M", "N") else 16) if simt else 128 // bytes_ab
    if request.depth is not None and not simt:
        while depth > atom.shape_mnk[2] and depth // 2 >= request.depth:
            depth //= 2
    tile = (request.tile.m or 128, request.tile.n or 128, request.tile.k or depth)
    given, wrong = (request.mma.threads, request.mma.warps) if simt else (request.mma.warps, request.mma.threads)
    if wrong is not None:
        raise SpecError(
            Fault(
                "mma.warps" if simt else "mma.threads",
                f"{atom.name} is arranged by {'threads' if simt else 'warps'}",
                hint=f"write mma.{'threads' if simt else 'warps'}",
            )
        )
    if given is not None and given[2] != 1:
        raise SpecError(
            Fault(
                f"mma.{'threads' if simt else 'warps'}",
                "the third count must be 1: K is not split among threads",
                got=str(list(given)),
            )
        )
    if simt:
        arrangement = given[:2] if given else (_largest(tile[0] // 4, 16), _largest(tile[1] // 4, 16))
        return simt_mma(atom, tile, arrangement)
    arrangement = (
        given[:2] if given else (_largest(tile[0] // atom.shape_mnk[0], 2), _largest(tile[1] // atom.shape_mnk[1], 2))
    )
    return warp_mma(atom, tile, arrangement)


def _largest(extent: int, limit: int) -> int:
    """The largest power of two up to `limit` that divides `extent`."""
    count = limit
    while count > 1 and extent % count:
        count //= 2
    return count


def plan_tile_gemm(request: Request) -> TileGemm:
    """Resolves a product of tiles.

    Raises:
        SpecError: everything that design.md's table lists for a plan.
    """
    tiled = choose_mma(request)
    stages = request.pipeline.stages or _default_stages(request, tiled)
    operands = []
    for index, side in enumerate("AB"):
        dtype, naming = request.dtypes[index], request.naming
        widest = 16 // dtype.bytes
        align = request.align[index] or widest
        if align & (align - 1):
            raise SpecError(Fault(f"align.{naming.fields[index]}", "must be a power of two", got=str(align)))
        operands.append(
            plan_operand(
                name=naming.letters[index],
                side=side,
                paths=(f"smem.{naming.fields[index]}", f"copy.{naming.fields[index]}"),
                dtype=dtype,
                major=request.majors[index],
                mma=tiled,
                stages=stages,
                smem=request.smem[index],
                copy=request.copy[index],
                align=min(align, widest),
                multiply=request.multiply,
                extent=naming.extents[index],
                stride=naming.strides[index],
            )
        )
    a, b = operands
    main_bytes = a.smem_bytes + b.smem_bytes
    result = TileGemm(
        request,
        Math(tiled),
        a,
        b,
        _output(request, tiled, main_bytes, request.dtypes[2], request.align[2], request.naming),
        stages,
        request.schedule.group_m or 8,
        _aux(request, tiled, main_bytes) if request.aux else None,
    )
    _check_resources(result)
    return result


def _default_stages(request: Request, tiled: TiledMma) -> int:
    """Three, or as many as k tiles there are and shared memory has room for; SIMT as measured, see `choose_mma`."""
    if tiled.simt:
        return 4 if tiled.tile[2] <= 8 else 2
    per_stage = sum(tiled.tile[side] * tiled.tile[2] * request.dtypes[side].bytes for side in (0, 1))
    room = request.arch.smem_per_block // max(per_stage, 1)
    tiles = 3 if request.depth is None else max(2, -(-request.depth // tiled.tile[2]))
    return max(1, min(3, room, tiles))


def _aux(request: Request, tiled: TiledMma, main_bytes: int) -> Output:
    assert request.aux is not None
    naming = replace(
        request.naming,
        letters=(*request.naming.letters[:2], "Aux"),
        fields=(*request.naming.fields[:2], "aux"),
        strides=(*request.naming.strides[:2], "ldAux"),
    )
    return _output(request, tiled, main_bytes, request.aux.dtype, request.aux.align, naming)


def _output(
    request: Request, tiled: TiledMma, main_bytes: int, dtype: DType, given: int | None, naming: Naming
) -> Output:
    """How an output leaves. `given` is how many elements are aligned together, if the spec says."""
    major = request.majors[2]
    inner_is_n = major == "N"
    # Two outputs leave in vectors of as many values.
    view = accumulator_view(tiled, inner_is_n, 16 // max(output.bytes for output in request.outputs))
    inner = tiled.tile[1] if inner_is_n else tiled.tile[0]
    outer = tiled.tile[0] if inner_is_n else tiled.tile[1]
    bytes_needed = (inner + 16 // dtype.bytes) * outer * dtype.bytes
    wanted = request.epilogue.staged
    staged = (
        wanted
        if wanted is not None
        else view.vec * dtype.bytes < 8 and bytes_needed <= max(main_bytes, request.arch.smem_per_block // 2)
    )
    widest = 16 // dtype.bytes if staged else view.vec
    align = given or widest
    if align & (align - 1):
        raise SpecError(Fault(f"align.{naming.fields[2]}", "must be a power of two", got=str(align)))
    vector = min(align, widest)
    while staged and inner % vector:
        vector //= 2
    return Output(naming.letters[2], dtype, major, view, staged, vector, tiled.tile[:2], tiled.threads, naming)


def _check_resources(plan: TileGemm) -> None:
    arch = plan.request.arch
    faults = []
    if plan.smem_bytes > arch.smem_per_block:
        per_stage = (plan.a.smem_bytes + plan.b.smem_bytes) // plan.stages
        fitting = arch.smem_per_block // per_stage
        hint = (
            f"{fitting} stages would fit"
            if fitting
            else f"one stage takes {per_stage} B: make tile.k or the tile smaller"
        )
        if any(output.smem_elements * output.dtype.bytes > arch.smem_per_block for output in plan.staged):
            hint = "the staged output alone is too large: epilogue.staged: false, or a smaller tile"
        faults.append(
            Fault(
                "pipeline.stages" if fitting else "tile",
                f"needs {plan.smem_bytes} B of shared memory, {arch.name} has {arch.smem_per_block} B a block",
                hint=hint,
            )
        )
    if plan.registers > 255:
        faults.append(
            Fault(
                "tile",
                f"needs at least {plan.registers} registers a thread, of 255",
                hint="a smaller tile, or more warps",
            )
        )
    elif plan.registers * plan.threads > arch.registers:
        faults.append(
            Fault(
                "tile",
                f"needs at least {plan.registers * plan.threads} registers a block, {arch.name} has {arch.registers}",
                hint="fewer threads, or a smaller tile",
            )
        )
    if plan.threads > 1024:
        faults.append(Fault("mma.warps", "a block has at most 1024 threads", got=str(plan.threads)))
    if faults:
        raise SpecError(faults)
