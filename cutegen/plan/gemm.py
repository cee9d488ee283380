"""The plan of a `gemm` spec."""

from __future__ import annotations

from cutegen import hardware
from cutegen.dtypes import DTYPES
from cutegen.errors import Fault, SpecError
from cutegen.plan.batches import batches_of
from cutegen.plan.finish import aux_line, finish_of, first_line, pointers_line, reads_note
from cutegen.plan.hopper_gemm_build import plan_hopper_gemm
from cutegen.plan.hopper_gemm_checks import MAJORS, wants_hopper_gemm
from cutegen.plan.kernel_plan import KernelPlan, TilePlan, parameters
from cutegen.plan.output import Naming
from cutegen.plan.signature import (
    Extent,
    Geometry,
    KernelParam,
    Signature,
    Stride,
)
from cutegen.plan.tile_gemm import AuxRequest, Request, TileGemm, plan_tile_gemm
from cutegen.spec.gemm import GemmSpec

_NAMING = Naming(
    letters=("A", "B", "C"), fields=("a", "b", "c"), extents=("M", "N", "K"), strides=("ldA", "ldB", "ldC")
)


def plan_gemm(spec: GemmSpec) -> KernelPlan:
    """Resolves a GEMM.

    Raises:
        SpecError: the spec can't become a right kernel.
    """
    if wants_hopper_gemm(spec):
        return plan_hopper_gemm(spec)
    _refuse_hopper_only(spec)
    major_a, major_b = MAJORS[spec.majors]
    dtypes = (DTYPES[spec.dtypes.a], DTYPES[spec.dtypes.b], DTYPES[spec.dtypes.c])
    product = plan_tile_gemm(
        Request(
            arch=hardware.arch(spec.arch),
            dtypes=dtypes,
            multiply=spec.dtypes.multiply or spec.dtypes.a,
            accumulate=spec.dtypes.accumulate,
            majors=(major_a, major_b, spec.c_major),
            tile=spec.tile,
            mma=spec.mma,
            smem=(spec.smem.a, spec.smem.b),
            copy=(spec.copy_.a, spec.copy_.b),
            pipeline=spec.pipeline,
            epilogue=spec.epilogue,
            schedule=spec.schedule,
            align=(spec.align.a, spec.align.b, spec.align.c),
            naming=_NAMING,
            aux=AuxRequest(DTYPES[spec.stored[1]], spec.align.aux) if spec.epilogue.aux else None,
        )
    )
    finish, aux, batches = finish_of(spec), product.aux or product.c, batches_of(spec)
    symbol = spec.name or _symbol(spec, product) + finish.suffix
    outer = {
        "a": "k" if major_a == "M" else "m",
        "b": "k" if major_b == "N" else "n",
        "c": "n" if spec.c_major == "M" else "m",
    }
    letters = tuple(zip("abc", "ABC"))
    pairs: tuple[tuple[KernelParam, str], ...] = (
        *(batches.pointer(tensor, letter) for tensor, letter in letters),
        *((Extent(mode), mode.upper()) for mode in "mnk"),
        *((Stride(tensor, outer[tensor]), f"ld{letter}") for tensor, letter in letters),
        *(pair for tensor, letter in letters for pair in batches.stride(tensor, letter)),
        *finish.aux_params(batches, outer["c"]),
        *finish.params,
        *finish.scalar_params,
    )
    params, names = tuple(param for param, _ in pairs), tuple(name for _, name in pairs)
    signature = Signature(
        symbol=symbol,
        tensors=(
            batches.tensor("a", dtypes[0], ("m", "k"), "m" if major_a == "M" else "k", product.a.g2s.vector),
            batches.tensor("b", dtypes[1], ("n", "k"), "n" if major_b == "N" else "k", product.b.g2s.vector),
            *finish.tensors,
            batches.tensor(
                "c",
                dtypes[2],
                ("m", "n"),
                "m" if spec.c_major == "M" else "n",
                product.c.vector,
                finish.role,
                finish.read_if,
            ),
            *finish.aux_tensors(batches, aux.dtype, spec.c_major.lower(), aux.vector),
        ),
        scalars=finish.scalars,
        params=params,
        geometry=Geometry(
            (("m", product.tile[0]), ("n", product.tile[1]), ("batch", 1)), product.threads, product.smem_bytes
        ),
    )
    return TilePlan(
        spec=spec,
        symbol=symbol,
        arch=product.request.arch,
        template="gemm.cu.jinja",
        product=product,
        signature=signature,
        summary=_summary(spec, product),
        params_cpp=parameters(
            params, names, {**dict(zip("abc", dtypes)), "aux": aux.dtype, **finish.dtypes}, frozenset({"c", "aux"})
        ),
        finish=finish,
        batches=batches,
        k_extent="K",
    )


def _refuse_hopper_only(spec: GemmSpec) -> None:
    asked: dict[str, object] = {
        "schedule.kind": spec.schedule.kind,
        "schedule.split_k": None if spec.schedule.split_k == 1 else spec.schedule.split_k,
        "cluster": None if spec.cluster in (None, (1, 1)) else spec.cluster,
        "mma.a_operand": spec.mma.a_operand,
        "scales": spec.scales.rows or None,
        "problem.groups": spec.problem.groups,
        "dtypes.promote": spec.dtypes.promote,
        "epilogue.store": None if spec.epilogue.store == "vector" else spec.epilogue.store,
    }
    if "e4m3" in (spec.dtypes.a, spec.dtypes.b) or "e5m2" in (spec.dtypes.a, spec.dtypes.b):
        asked["dtypes.a"] = spec.dtypes.a
    if DTYPES[spec.dtypes.c].bits == 8:
        asked["dtypes.c"] = spec.dtypes.c
    faults = [
        Fault(
            field,
            "only where TMA and WGMMA can do the product",
            got=str(value),
            hint="sm_90a, f32 accumulators, tf32 and fp8 only as TN, no SM80 atom",
        )
        for field, value in asked.items()
        if value is not None
    ]
    if faults:
        raise SpecError(faults)


def align_suffix(product: TileGemm, letters: str) -> str:
    """Marks a variant for tensors that are less aligned than 16 bytes: `_a1b8` and so on; empty for the usual one."""
    marks = []
    for letter, vector, width in (
        (letters[0], product.a.g2s.vector, product.a.dtype.bytes),
        (letters[1], product.b.g2s.vector, product.b.dtype.bytes),
        (letters[2], product.c.vector, product.c.dtype.bytes),
    ):
        if vector * width < 4:
            marks.append(f"{letter}{vector}")
    return "_" + "".join(marks) if marks else ""


def _symbol(spec: GemmSpec, product: TileGemm) -> str:
    types = [spec.dtypes.multiply or spec.dtypes.a, spec.dtypes.accumulate, spec.dtypes.c]
    if types[1] == "f32":
        del types[1]
    tile = "x".join(map(str, product.tile))
    major = spec.majors.lower() + ("m" if spec.c_major == "M" else "")
    marks = ("_ptr" if spec.problem.pointers else "") + align_suffix(product, "abc")
    return f"gemm_{spec.arch}_{major}_{'_'.join(types)}_{tile}_p{product.stages}{marks}"


def _summary(spec: GemmSpec, product: TileGemm) -> tuple[str, ...]:
    major_a, major_b = MAJORS[spec.majors]
    d = spec.dtypes
    as_what = f" multiplied as {d.multiply}" if d.multiply and d.multiply != d.a else ""
    stored = ", ".join(f"{out.name} to {out.vector}" for out in (product.c, product.aux) if out is not None)
    return (
        f"{first_line(spec)}      A (M,K) {d.a} {major_a}-major      B (N,K) {d.b} {major_b}-major      C (M,N) {d.c} {spec.c_major}-major",
        f"accumulated in {d.accumulate}{as_what}; any M, N, K and batch{reads_note(spec)}",
        *aux_line(spec),
        *pointers_line(spec),
        "",
        *resources(product),
        f"A and its row stride aligned to {product.a.g2s.vector} elements, B to {product.b.g2s.vector}, {stored}; so are the contiguous extents",
    )


def resources(product: TileGemm) -> tuple[str, ...]:
    """Lines of the header that say what a block takes."""
    m, n, k = product.tile
    return (
        f"block tile ({m},{n},{k})      stages {product.stages}      threads {product.threads}      shared memory {product.smem_bytes} B",
        f"grid: one block for each tile of each batch, in groups of {product.group_m} rows of tiles",
    )
