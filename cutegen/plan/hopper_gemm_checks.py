"""Whether a `gemm` spec can take Hopper's own path, what is wrong if it asks for what it can't, and what it leaves open."""

from __future__ import annotations

import math
from collections.abc import Callable

from cutegen import hardware
from cutegen.dtypes import DTYPES
from cutegen.errors import Fault, SpecError
from cutegen.plan.hopper import ATOM, COMMON_N, ROW_BYTES, TYPES, atom_faults, layout_faults
from cutegen.plan.hopper_tiles import CLUSTERS, Choice, Kind, Shape, candidates, held, several_rounds, sustained
from cutegen.plan.mirror import mirrored
from cutegen.plan.partition import nearest
from cutegen.plan.unaligned import worth_copying
from cutegen.spec.gemm import GemmSpec

# BLAS letters: A is stored transposed (K-major) for T; B, held as (N,K), is K-major for N.
MAJORS = {"TN": ("K", "K"), "NT": ("M", "N"), "NN": ("M", "K"), "TT": ("K", "N")}
_HEAVY = 14  # instructions of an expression that calls an exponential or the like
_KINDS: tuple[Kind, ...] = ("cooperative", "ping_pong")


def operand_majors(spec: GemmSpec) -> tuple[str, str]:
    """The contiguous modes of A and B."""
    return MAJORS[spec.majors]


def multiplied(spec: GemmSpec) -> tuple[str, str]:
    """The formats that are multiplied."""
    return spec.dtypes.multiply or spec.dtypes.a, spec.dtypes.multiply or spec.dtypes.b


def store_vectors(spec: GemmSpec) -> tuple[int, ...]:
    """Elements of each output that are stored at once: what the spec says, else what the problem's N allows."""
    found = []
    for name, align in zip(spec.stored, (spec.align.c, spec.align.aux)):
        widest = 16 // DTYPES[name].bytes
        found.append(math.gcd(align or math.gcd(spec.problem.n, widest), widest))
    return tuple(found)


def store_bytes(spec: GemmSpec) -> int:
    """Bytes of the narrower output's store."""
    return min(vector * DTYPES[name].bytes for vector, name in zip(store_vectors(spec), spec.stored))


def stored_by_threads(spec: GemmSpec) -> bool:
    """Whether threads store the outputs: TMA wants rows aligned to 16 bytes, and would write rows of the next group."""
    return store_bytes(spec) < 16 or spec.epilogue.store == "vector" or spec.problem.groups is not None


def box_columns(spec: GemmSpec) -> int:
    """Columns of the boxes in which outputs leave: 128 B of the widest."""
    return ROW_BYTES // max(DTYPES[name].bytes for name in spec.stored)


def swizzled_rows(spec: GemmSpec, choice: Choice) -> bool:
    """Whether the rows of a tile are whole rows of boxes that TMA swizzles. If not, a tile is one box, whose rows TMA takes
    so long to read that threads store them faster (860 cycles for 64 rows of 144 B on an H200).
    """
    return choice.n // choice.split % (box_columns(spec) // 2) == 0


def wants_hopper_gemm(spec: GemmSpec) -> bool:
    """Whether the spec can and should take Hopper's own path: WGMMA reads its types and majors."""
    if spec.mma.atom is not None:
        return spec.mma.atom.startswith("SM90_")
    if spec.mma.a_in_registers:
        return hardware.arch(spec.arch).hopper
    tile_path = spec.smem != type(spec.smem)() or spec.copy_ != type(spec.copy_)() or spec.mma.warps or spec.mma.threads
    return (
        hardware.arch(spec.arch).hopper
        and all(name in TYPES for name in multiplied(spec))
        and spec.dtypes.accumulate == "f32"
        and not tile_path
        and spec.epilogue.staged is not False
        and not unreadable(spec)
    )


def unreadable(spec: GemmSpec) -> list[Fault]:
    """Majors that this path can't take."""
    faults = []
    if spec.mma.a_in_registers:
        field, got = "mma.a_operand", "registers"
        if operand_majors(spec)[0] == "M":
            faults.append(Fault(field, "A is loaded into registers K-major", got=got, hint="write majors: TN or TT"))
        if spec.c_major != "N":
            hint = "leave out c_major"
            faults.append(Fault(field, "an M-major C is the transposed product, with B first", got=got, hint=hint))
    if DTYPES[spec.dtypes.a].bytes != 2 and spec.majors != "TN":
        what = multiplied(spec)[0]
        faults.append(Fault("majors", f"WGMMA reads {what} operands K-major only", got=spec.majors, expected="TN"))
    if spec.problem.groups is not None:
        asked = {"c_major": spec.c_major != "N", "scales": spec.scales.rows}
        faults += [Fault(field, "not with problem.groups") for field, value in asked.items() if value]
        if spec.epilogue.store == "tma":
            hint = "leave it out"
            faults.append(Fault("epilogue.store", "groups end anywhere, so threads store them", got="tma", hint=hint))
    elif spec.c_major != "N" and spec.epilogue.out is not None:
        faults.append(Fault("c_major", "this path writes rows of an expression", got=spec.c_major, expected="N"))
    return faults


def by_threads(spec: GemmSpec) -> tuple[bool, bool]:
    """Whether threads must load A, and B: TMA can't where rows don't start at multiples of 16 bytes, by what the spec
    says, or by the problem's extents if it is too small for the launcher to copy operands to aligned rows.
    """
    size = DTYPES[spec.dtypes.a].bytes
    problem = spec.problem
    extents = {"M": problem.m, "N": problem.n, "K": problem.k}
    stays = problem.groups is not None or problem.pointers or not worth_copying(problem.m, problem.n, problem.k)
    first, second = (
        (align or (extents[major] if stays else 16)) * size % 16 != 0
        for align, major in zip((spec.align.a, spec.align.b), operand_majors(spec))
    )
    return first, second


def checked_choice(spec: GemmSpec, letters: str = "AB") -> Choice:
    """The tile, cluster and schedule that a spec of a row-major C asks for, completed by the model; `letters` are the
    caller's for its operands.

    Raises:
        SpecError: naming each field that does not fit.
    """
    arch = hardware.arch(spec.arch)
    asked_n = _asked_n(spec)
    faults = (
        [] if arch.hopper else [Fault("arch", "TMA and WGMMA need sm_90a", got=arch.name, hint="write arch: sm_90a")]
    )
    source = "RS" if spec.mma.a_in_registers else "SS"
    faults += atom_faults(spec.mma.atom, multiplied(spec), spec.dtypes.accumulate, spec.tile.n, source)
    faults += layout_faults(spec)
    row = ROW_BYTES // DTYPES[spec.dtypes.a].bytes
    if spec.tile.k not in (None, row):
        faults.append(Fault("tile.k", "a stage is 128 bytes deep", got=str(spec.tile.k), expected=str(row)))
    if spec.tile.m is not None and spec.tile.m not in (64, 128, 192, 256):
        faults.append(
            Fault("tile.m", "must be 64, 128, 192 or 256", got=str(spec.tile.m), hint="choose an SM80 atom for others")
        )
    unit = n_unit(spec)
    if asked_n is not None and (asked_n % unit or not unit <= asked_n <= 256):
        near = nearest(min(asked_n, 256), unit)
        faults.append(
            Fault("tile.n", f"must be a multiple of {unit} up to 256", got=str(asked_n), hint=f"nearest: {near}")
        )
    elif asked_n is not None and spec.mma.a_in_registers and asked_n not in COMMON_N:
        legal = ", ".join(str(n) for n in COMMON_N if n % unit == 0)
        faults.append(
            Fault(
                "tile.n",
                "no RS atom of this width in CuTe's usual header",
                got=str(asked_n),
                expected=f"one of {legal}",
            )
        )
    if spec.cluster is not None and spec.cluster not in CLUSTERS:
        got = str(list(spec.cluster))
        legal = ", ".join(str(list(cluster)) for cluster in CLUSTERS)
        faults.append(Fault("cluster", "no such neighbours share loads", got=got, expected=f"one of {legal}"))
    if spec.dtypes.promote is not None and spec.dtypes.promote % row:
        near = nearest(spec.dtypes.promote, row)
        got = str(spec.dtypes.promote)
        faults.append(Fault("dtypes.promote", f"must be a multiple of tile.k, {row}", got=got, hint=f"nearest: {near}"))
    if spec.pipeline.stages == 1:
        message = "consumers give a stage back one step late: the producer would wait for ever"
        faults.append(Fault("pipeline.stages", message, got="1", expected="2 or more"))
    faults += _split_faults(spec, asked_n) + _thread_faults(spec, letters)
    if spec.schedule.run_n is not None:
        faults.append(Fault("schedule.run_n", "gemm takes tiles in groups of rows", hint="write schedule.group_m"))
    if spec.epilogue.staged is False:
        faults.append(Fault("epilogue.staged", "this path is always staged", got="false"))
    if faults:
        raise SpecError(faults)
    return ranked(spec)[0][1]


def _split_faults(spec: GemmSpec, asked_n: int | None) -> list[Fault]:
    """What does not go together with blocks that share a tile along K."""
    split = spec.schedule.split_k or 1
    if split == 1:
        return []
    field, got = "schedule.split_k", str(split)
    faults = []
    if spec.problem.groups is not None:
        faults.append(Fault(field, "not with problem.groups", got=got))
    if spec.schedule.kind == "ping_pong":
        faults.append(Fault(field, "blocks that share a tile are cooperative", got=got, hint="leave out schedule.kind"))
    if spec.cluster not in (None, (1, 1)):
        faults.append(Fault(field, "the blocks of a tile are a cluster already", got=got, hint="leave out cluster"))
    unit = split * box_columns(spec)
    if unit > 256 or (asked_n or unit) % unit:
        message = f"each block stores rows of 128 B: tile.n must be a multiple of {unit}, at most 256"
        faults.append(Fault(field, message, got=got, hint="a smaller split_k"))
    return faults


def _thread_faults(spec: GemmSpec, letters: str) -> list[Fault]:
    """What does not go together with operands that threads load; `letters` are the caller's for the two."""
    threads = by_threads(spec)
    operands = " and ".join(sorted(letter for letter, own in zip(letters, threads) if own))
    if not operands:
        return []
    why = f"rows of {operands} don't start at multiples of 16 B, so that threads load them"
    hint = "or pad rows to 16 B"
    faults = []
    down, along = spec.cluster or (1, 1)
    shared = [letter for letter, own, many in zip(letters, threads, (along, down)) if own and many > 1]
    if shared:
        got, message = str(list(spec.cluster or ())), f"{why}: blocks can't share {' and '.join(shared)}"
        faults.append(Fault("cluster", message, got=got, hint=f"leave it out, {hint}"))
    if (spec.schedule.split_k or 1) > 1:
        got = str(spec.schedule.split_k)
        faults.append(Fault("schedule.split_k", f"{why}: blocks share no tile", got=got, hint=f"leave it out, {hint}"))
    if spec.schedule.kind == "ping_pong":
        got = "ping_pong"
        faults.append(
            Fault("schedule.kind", f"{why}, for all that multiply", got=got, expected="cooperative", hint=hint)
        )
    if spec.mma.a_in_registers:
        expected = "shared"
        faults.append(Fault("mma.a_operand", why, got="registers", expected=expected, hint=f"leave it out, {hint}"))
    if spec.tile.m == 192:
        expected = "64, 128 or 256"
        message = f"{why}: two warpgroups load, which leaves registers for two that multiply"
        faults.append(Fault("tile.m", message, got="192", expected=expected, hint=f"128 or 256, {hint}"))
    return faults


def _splits(spec: GemmSpec) -> tuple[int, ...]:
    """How many blocks may share a tile; the model is free where the spec says nothing of clusters."""
    if spec.schedule.split_k is not None:
        return (spec.schedule.split_k,)
    return (1,) if spec.cluster is not None or spec.problem.groups is not None else (1, 2, 4, 8)


def n_unit(spec: GemmSpec) -> int:
    """What N of a tile must be a multiple of: the 8 columns that a `stmatrix` stores of 16-bit outputs, rows of 64 B of
    the widest output and 32 B of the other where there are outputs of other sizes, and of 128 B of B where it is N-major
    and threads load it.
    """
    sizes = [DTYPES[name].bytes for name in spec.stored]
    row = 8 if set(sizes) == {2} else max(ROW_BYTES // 2 // max(sizes), 32 // min(sizes))
    by_rows = operand_majors(spec)[1] == "N" and by_threads(spec)[1]
    return max(row, ROW_BYTES // DTYPES[spec.dtypes.b].bytes) if by_rows else row


def _asked_n(spec: GemmSpec) -> int | None:
    atom = ATOM.fullmatch(spec.mma.atom or "")
    return spec.tile.n or (int(atom[1]) if atom else None)


def ranked(
    spec: GemmSpec, time: Callable[[Choice, Shape, hardware.Arch], float] = sustained
) -> list[tuple[float, Choice]]:
    """The candidates that agree with what the spec asks for, best first, with the model's time in cycles: where the GPU does
    nothing else for long, or another `time`.

    Raises:
        SpecError: there is none.
    """
    spec = mirrored(spec)
    asked_n, p = _asked_n(spec), spec.problem
    size, sizes = DTYPES[spec.dtypes.a].bytes, [DTYPES[name].bytes for name in spec.stored]
    instructions = sum(expression.cost for expression in spec.expressions)
    groups = p.groups or 1
    threads, majors = by_threads(spec), operand_majors(spec)
    rows_of_k = (majors[0] == "K", majors[1] == "K")
    shape = Shape(
        -(-p.m // groups),
        p.n,
        p.k,
        p.batch * groups,
        size,
        sum(sizes),
        store_bytes(spec),
        instructions,
        rows_of_k,
        threads,
        not stored_by_threads(spec),
    )
    arch = hardware.arch(spec.arch)
    kinds: tuple[Kind, ...] = (spec.schedule.kind,) if spec.schedule.kind else _KINDS
    fitting = [
        choice
        for choice in candidates(kinds, asked_n, _splits(spec), threads)
        if spec.tile.m in (None, choice.m)
        and spec.cluster in (None, choice.cluster)
        and choice.n % n_unit(spec) == 0
        and choice.accumulators * (2 if spec.dtypes.promote else 1) + _operand_registers(spec, choice)
        <= choice.most_accumulators
        and (not spec.mma.a_in_registers or choice.n in COMMON_N)
        and (spec.cluster is not None or not several_rounds(choice, shape, arch))
        and (choice.split == 1 or _addable(spec, choice))
    ]
    if not fitting:
        asked = f"tile.m {spec.tile.m}, tile.n {asked_n}, schedule.kind {spec.schedule.kind}, cluster {spec.cluster}"
        asked += f", schedule.split_k {spec.schedule.split_k}" if spec.schedule.split_k else ""
        raise SpecError(
            Fault(
                "tile",
                "too many accumulators for a thread's registers or for the stages, or too few boxes to share in a cluster",
                got=asked,
                hint="a smaller tile, or another schedule.kind",
            )
        )
    return sorted(
        ((time(choice, shape, arch), choice) for choice in fitting),
        key=lambda found: (_crowded(spec, found[1]), found[0]),
    )


def _operand_registers(spec: GemmSpec, choice: Choice) -> int:
    """Registers of a thread that hold A: four for 64 rows and 32 bytes of K, for all of a stage."""
    return 16 * choice.rows if spec.mma.a_in_registers else 0


def _crowded(spec: GemmSpec, choice: Choice) -> bool:
    """Whether an epilogue's values spill beside the accumulators (NVRTC 13.0): beside 192 of them those of gelu and of a
    second output do, those of relu don't, and a kernel that takes arrays of descriptors spills 8 B; and the addresses of
    threads that store C themselves, also beside 64 in three warpgroups. Such a choice comes last, but can be asked for.
    """
    heavy = spec.epilogue.aux is not None or any(found.cost >= _HEAVY for found in spec.expressions)
    addresses = stored_by_threads(spec) or not swizzled_rows(spec, choice)
    if choice.consumers == 3:
        return addresses and choice.accumulators > 48
    return (heavy or addresses or spec.problem.pointers) and choice.consumers == 2 and choice.accumulators > 160


def _addable(spec: GemmSpec, choice: Choice) -> bool:
    """Whether blocks that share a tile can each store whole boxes of it, and the stages hold a block's sums."""
    stage = (choice.m + held(choice.n, DTYPES[spec.dtypes.b].bytes, operand_majors(spec)[1] == "K")) * ROW_BYTES
    # What two boxes for each warpgroup to store, and barriers, leave.
    room = hardware.arch(spec.arch).smem_per_block - choice.consumers * 2 * 64 * ROW_BYTES - 1024
    stages = spec.pipeline.stages or room // stage
    return choice.n % (choice.split * box_columns(spec)) == 0 and stages * stage >= choice.partial_bytes
