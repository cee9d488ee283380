"""From a `gemm` spec to its plan on Hopper's own instructions: stages, calling convention, name and summary."""

from __future__ import annotations

from dataclasses import replace

from cutegen import hardware
from cutegen.dtypes import DTYPES, F32, I32
from cutegen.errors import Fault, SpecError
from cutegen.plan.batches import Batches
from cutegen.plan.finish import aux_line, finish_of, first_line, pointers_line, reads_note
from cutegen.plan.hopper import ROW_BYTES, Ring, atom_cpp, own_atom, ring_major
from cutegen.plan.hopper_gemm import HopperGemmPlan
from cutegen.plan.hopper_gemm_checks import (
    by_threads,
    checked_choice,
    multiplied,
    operand_majors,
    store_vectors,
    stored_by_threads,
    swizzled_rows,
    unreadable,
)
from cutegen.plan.hopper_tiles import Choice, clips, group_rows
from cutegen.plan.kernel_plan import KernelPlan, parameters
from cutegen.plan.mirror import mirrored, mirrored_back
from cutegen.plan.signature import (
    Extent,
    Geometry,
    KernelParam,
    Pointer,
    Signature,
    Stride,
    TensorArg,
    TensorMapArray,
    TensorMapParam,
)
from cutegen.spec.gemm import GemmSpec

_MOST_STAGES = 12


def plan_hopper_gemm(spec: GemmSpec) -> KernelPlan:
    """Resolves C = alpha * A B^T + beta * C on TMA and WGMMA; an M-major C as the transposed product.

    Raises:
        SpecError: the arch lacks them, tile or atom don't fit them, or no pipeline fits shared memory.
    """
    if faults := unreadable(spec):
        raise SpecError(faults)
    letters = "AB" if spec.c_major == "N" else "BA"
    plan = _row_major(mirrored(spec), spec.majors.lower() + ("m" if spec.c_major == "M" else ""), letters)
    if spec.c_major == "N":
        return plan
    note = (
        "C is M-major: this is C^T = alpha B A^T + beta C^T; the kernel's A, M and B, N are the caller's B, N and A, M"
    )
    what, how, *rest = plan.summary
    return replace(plan, spec=spec, signature=mirrored_back(plan.signature), summary=(what, how, note, *rest))


def _row_major(spec: GemmSpec, majors_name: str, letters: str) -> HopperGemmPlan:
    arch = hardware.arch(spec.arch)
    choice = checked_choice(spec, letters)
    dtype, out = DTYPES[spec.dtypes.a], DTYPES[spec.dtypes.c]
    majors = operand_majors(spec)
    vector, *vector_aux = store_vectors(spec)
    source = "RS" if spec.mma.a_in_registers else "SS"
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
        atom=atom_cpp(multiplied(spec), choice.n, (ring_major(majors[0]), ring_major(majors[1])), source),
        tile_n=choice.n,
        tma_store=_tma_store(spec) and (spec.epilogue.store == "tma" or swizzled_rows(spec, choice)),
        vector=vector,
        choice=choice,
        majors=majors,
        by_threads=by_threads(spec),
        promote=(spec.dtypes.promote or 0) * dtype.bytes // ROW_BYTES,
        scaled=spec.scales.rows,
        finish=finish_of(spec),
        stages=spec.pipeline.stages or _MOST_STAGES,
        group_m=spec.schedule.group_m or group_rows(choice, arch),
        aux=DTYPES[spec.stored[1]] if vector_aux else None,
        vector_aux=sum(vector_aux),
        clipped=_clipped(spec, choice, majors),
        own_atom=own_atom(multiplied(spec), choice.n, (ring_major(majors[0]), ring_major(majors[1]))),
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
    plan = replace(plan, symbol=spec.name or _symbol(spec, plan, majors_name))
    params, names = _params(plan)
    return replace(
        plan,
        params_cpp=parameters(
            params,
            names,
            {
                "a": dtype,
                "b": plan.dtype_b,
                "c": out,
                "aux": plan.aux or out,
                "ends": I32,
                "scale_a": F32,
                "scale_b": F32,
                **plan.finish.dtypes,
            },
            frozenset({"c", "aux"}),
        ),
        signature=_signature(plan, params),
        summary=_summary(spec, plan),
    )


def _clipped(spec: GemmSpec, choice: Choice, majors: tuple[str, str]) -> str:
    """The operands with fewer rows than a tile: a row outside the tensor takes the copy engine as long as one inside."""
    if spec.problem.groups is not None or any(by_threads(spec)):
        return ""
    operands = zip("AB", (spec.problem.m, spec.problem.n), (choice.m, choice.n), reversed(choice.cluster), majors)
    return "".join(n for n, extent, tile, slices, major in operands if clips(extent, tile, slices, major == "K"))


def _tma_store(spec: GemmSpec) -> bool:
    """Whether TMA stores the outputs: all of them, or none."""
    for name, vector, dtype in zip(("C", "Aux"), store_vectors(spec), spec.stored):
        size = DTYPES[dtype].bytes
        if spec.epilogue.store == "tma" and vector * size < 16:
            raise SpecError(
                Fault(
                    "epilogue.store",
                    f"tma needs rows of {name} aligned to 16 B",
                    got=f"{vector} elements of {size} B",
                    hint="write epilogue.store: vector",
                )
            )
    return not stored_by_threads(spec)


def _operand(ring: Ring, mode: str, batches: Batches) -> list[tuple[KernelParam, str]]:
    """What the kernel takes of an operand, and its names: a descriptor, or pointer and strides where threads load it."""
    name = ring.name
    tensor = name.lower()
    modes = ("k", mode) if ring.major == "K" else (mode, "k")
    if not ring.by_threads:
        return [(batches.map(tensor, modes, ring.box, 128, ring.clipped), f"tma_{name}")]
    return [batches.pointer(tensor, name), (Stride(tensor, modes[1]), f"ld{name}"), *batches.stride(tensor, name)]


def _params(plan: HopperGemmPlan) -> tuple[tuple[KernelParam, ...], tuple[str, ...]]:
    """What the kernel takes, and its names for it. Descriptors come first: they want 64 bytes of alignment."""
    finish, batches = plan.finish, plan.batches
    given = [*_operand(plan.a, "m", batches), *_operand(plan.b, "n", plan.batches_b)]
    maps = TensorMapParam | TensorMapArray
    pairs = [pair for pair in given if isinstance(pair[0], maps)]
    pairs += [(output.map(batches), f"tma_{output.name}") for output in plan.outputs if plan.tma_store]
    pairs += [pair for pair in given if not isinstance(pair[0], maps)]
    pairs += [(Pointer("ends"), "ends")] if plan.grouped else []
    pairs += [batches.pointer("c", "C"), (Stride("c", "m"), "ldC"), *batches.stride("c", "C")]
    pairs += [] if plan.tma_store else finish.aux_params(batches, "m")
    for name in plan.scaled:
        vector, own = f"scale_{name}", f"scale_{name.upper()}"
        pairs += [(Pointer(vector), own), (Stride(vector, "batch"), f"batch_{own}")]
    extents = (
        {"n": "N", "k": "K", "groups": "groups"} if plan.grouped else {"m": "M", "n": "N", "k": "K", "batch": "batches"}
    )
    pairs += [*finish.params, *((Extent(mode), name) for mode, name in extents.items()), *finish.scalar_params]
    return tuple(param for param, _ in pairs), tuple(name for _, name in pairs)


def _signature(plan: HopperGemmPlan, params: tuple[KernelParam, ...]) -> Signature:
    batch, batches = frozenset({"batch"}), plan.batches
    by_tma = [not ring.by_threads for ring in plan.rings]
    vectors = [16 // plan.dtype.bytes if tma else 1 for tma in by_tma]
    cluster = plan.choice.cluster
    return Signature(
        symbol=plan.symbol,
        tensors=(
            replace(batches.tensor("a", plan.dtype, ("m", "k"), plan.majors[0].lower(), vectors[0]), ragged=by_tma[0]),
            replace(
                plan.batches_b.tensor("b", plan.dtype_b, ("n", "k"), plan.majors[1].lower(), vectors[1]),
                ragged=by_tma[1],
            ),
            *((TensorArg("ends", I32, ("groups",), "groups", 1),) if plan.grouped else ()),
            *(
                TensorArg(f"scale_{name}", F32, ("batch", mode), mode, 1, optional=batch)
                for name, mode in (("a", "m"), ("b", "n"))
                if name in plan.scaled
            ),
            *plan.finish.tensors,
            batches.tensor("c", plan.out, ("m", "n"), "n", plan.vector, plan.finish.role, plan.finish.read_if),
            *plan.finish.aux_tensors(batches, plan.aux or plan.out, "n", plan.vector_aux),
        ),
        scalars=plan.finish.scalars,
        params=params,
        geometry=Geometry(
            (("m", plan.tile_m * cluster[0]), ("n", plan.tile_n * cluster[1]), ("batch", 1)),
            plan.block_threads,
            plan.storage_bytes,
            cluster=(plan.choice.blocks, 1, 1),
            persistent=True,
        ),
    )


def _symbol(spec: GemmSpec, plan: HopperGemmPlan, majors: str) -> str:
    types = "_".join(dict.fromkeys((*multiplied(spec), spec.dtypes.c)))
    kind = ("_grouped" if plan.grouped else "_ptr" if plan.pointers else "") + ("_pp" if plan.ping_pong else "")
    cluster = f"_{plan.choice.cluster[0]}x{plan.choice.cluster[1]}" if plan.clustered else ""
    cluster += f"_k{plan.split}" if plan.split else ""
    scaled = f"_s{''.join(plan.scaled)}" if plan.scaled else ""
    promoted = f"_every{spec.dtypes.promote}" if plan.promote else ""
    narrow = "".join(f"_{ring.name.lower()}1" for ring in plan.word_rings)
    narrow += "".join(f"_{o.tensor}{o.vector}" for o in plan.outputs if o.vector * o.dtype.bytes < 16)
    narrow += f"_few{plan.clipped.lower()}" if plan.clipped else ""
    tile = f"{plan.tile_m}x{plan.tile_n}x{plan.tile_k}"
    kind += "_rs" if plan.a_in_registers else ""
    marks = f"{kind}{cluster}{scaled}{promoted}{narrow}{plan.finish.suffix}"
    return f"gemm_{spec.arch}_{majors}_{types}_{tile}_p{plan.stages}{marks}"


def _summary(spec: GemmSpec, plan: HopperGemmPlan) -> tuple[str, ...]:
    d = spec.dtypes
    as_what = f" multiplied as {d.multiply}" if d.multiply and d.multiply != d.a else ""
    promoted = f", the sums of {spec.dtypes.promote} elements of K at a time" if plan.promote else ""
    each, less = (" of {1} registers a thread", " of {0}") if plan.registers else ("", "")
    consumers = (
        f"{plan.consumers} consumer warpgroup{'s' if plan.consumers > 1 else ''}{each.format(*plan.registers or ())}"
    )
    producers = "two producers" if plan.word_rings else "a producer"
    cluster = f"      clusters of {plan.choice.cluster[0]}x{plan.choice.cluster[1]} blocks" if plan.clustered else ""
    cluster += f"      {plan.split} blocks share a tile along K" if plan.split else ""
    kind = "ping-pong" if plan.ping_pong else "cooperative"
    return (
        f"{first_line(spec)}      A (M,K) {d.a} {plan.majors[0]}-major      B (N,K) {d.b} {plan.majors[1]}-major      C (M,N) {d.c} N-major",
        f"accumulated in f32{as_what}{promoted}; any M, N, K and batch{reads_note(spec)}",
        *aux_line(spec),
        *pointers_line(spec),
        *(
            ("rows up to ends[g] that no earlier group has are multiplied with B[g] (groups,N,K)",)
            if plan.grouped
            else ()
        ),
        "",
        f"block tile ({plan.tile_m},{plan.tile_n},{plan.tile_k})      stages {plan.stages}      {kind}      shared memory {plan.storage_bytes} B",
        f"threads {plan.block_threads}: {consumers} and {producers}{less.format(*plan.registers or ())}",
        f"grid: persistent, tiles in groups of {plan.group_m} rows of tiles{cluster}",
        _alignments(plan),
    )


def _alignments(plan: HopperGemmPlan) -> str:
    """What the arguments must satisfy."""
    stored = ", ".join(f"{output.name} to {output.vector * output.dtype.bytes} B" for output in plan.outputs)
    loaded = " and ".join(ring.name for ring in plan.tma_rings)
    free = " and ".join(ring.name for ring in plan.word_rings)
    extents = "C's contiguous extent too" if len(plan.outputs) == 1 else "their contiguous extents too"
    aligned = f"addresses and row strides of {loaded} aligned to 16 B, {stored}" if loaded else f"aligned: {stored}"
    anywhere = f"{free} may begin at any element, with any stride; " if free else ""
    return f"{anywhere}{aligned}, {extents}"
