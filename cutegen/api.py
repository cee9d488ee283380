"""The pipeline as Python: load, resolve, emit, compile, build; each step is one function with one result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from cutegen import binary as _binary
from cutegen.binary import Binary
from cutegen.dtypes import DTYPES
from cutegen.errors import ArgumentError, SpecError
from cutegen.kernel.launch import Kernel as _Kernel
from cutegen.kernel.launch import Vectors
from cutegen.plan import KernelPlan, plan
from cutegen.plan.attention_expressions import plan_expressions
from cutegen.plan.hopper import HopperPlan
from cutegen.plan.kernel_plan import TilePlan
from cutegen.plan.preflight import Preflight, extents, preflight
from cutegen.report import FAMILIES, AttentionForward, Numerics, Report, validate, validate_attention
from cutegen.source import render
from cutegen.spec import AttentionForwardSpec, AttentionScoresSpec, GemmSpec, KernelSpec
from cutegen.spec.common import Copy
from cutegen.spec.yaml import load_spec


class Kernel(_Kernel):
    """A kernel built from a spec: call it with arrays. `spec`, `plan`, `source`, `compiled` show how it came about.

    A call takes the tensors in the signature's order and scalars by keyword, and returns the output:

    - gemm: `kernel(a, b, c=None, alpha=1, beta=0)`, a ([batch,] m, k), b ([batch,] n, k), c ([batch,] m, n); scales of
    rows and an expression's tensors come between b and c. With `epilogue.aux` it returns (c, aux), and takes
    `out=` and `aux=` to write them to.
    With `problem.groups`: `kernel(a, b, ends, c=None, ...)`, a (m, k) in groups of rows that end at ends[g], b
    (groups, n, k)
    With `problem.pointers`: `kernel([a0, a1], [b0, b1], c=None, ...)`, lists of a (m, k), b (n, k) and c (m, n), each
    list's alike but for their addresses; one tensor may be named several times, an output not. Returns a list
    - attention_scores: `kernel(q, k, scale=head_dim ** -0.5)`, q (batch, heads, seqlen_q, head_dim), k (batch,
    heads_kv, seqlen_k, head_dim)
    - attention_forward: `kernel(q, k, v, scale=head_dim ** -0.5)`, shapes likewise; with `lse` in the spec it returns
    (o, lse); tensors of its expressions and `sinks` stand between v and the outputs, their scalars are keywords

    Tensors that are less aligned than the kernel assumes get a variant of it, built at the first such call.
    """

    def __init__(self, plan: KernelPlan, source: str, compiled: Binary) -> None:
        super().__init__(plan.signature, compiled.cubin, plan.arch, ptx=compiled.ptx, variants=self._narrower)
        self.plan = plan
        self.spec = plan.spec
        self.source = source
        self.compiled = compiled

    def _narrower(self, vectors: Vectors) -> _Kernel:
        try:
            return build(narrower(self.spec, vectors))
        except SpecError as error:
            got = ", ".join(f"{name} {count}" for name, count in vectors)
            name = self.signature.symbol
            raise ArgumentError(
                f"{name}: no kernel for tensors aligned to ({got}) elements: pad rows. {error}"
            ) from None

    def _output_strides(self, arrays: dict[str, Any]) -> tuple[int, ...] | None:
        """Strides of a compact output whose contiguous mode is not its last; None for a row-major one."""
        output = self.signature.output
        product = family(self.spec).product(arrays, {"beta": 0.0} if isinstance(self.spec, GemmSpec) else {})
        shape = product.shape[1:] if output.listed else product.shape
        modes = output.modes[-len(shape) :]
        if output.contiguous == modes[-1]:
            return None
        order = [*(mode for mode in modes if mode != output.contiguous), output.contiguous]
        extent = dict(zip(modes, shape))
        pitch = {mode: math.prod(extent[later] for later in order[place + 1 :]) for place, mode in enumerate(order)}
        return tuple(pitch[mode] for mode in modes)

    def validate(
        self,
        arrays: dict[str, Any],
        scalars: dict[str, float] | None = None,
        device: str | None = None,
        call: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Report:
        """Runs the kernel on poisoned memory and compares with the float64 reference; see `report.validate`.

        `device="sim"` runs it on the simulator; `call` is called in the kernel's place.
        """
        run = call or (self if device is None else partial(self, device=device))
        if isinstance(self.spec, AttentionForwardSpec):
            options |= {"dtype": DTYPES[self.spec.dtypes.q], "lse": self.spec.lse}
            return validate_attention(run, family(self.spec), arrays, scalars, **options)
        options.setdefault("strides", self._output_strides(arrays))
        return validate(run, family(self.spec), arrays, scalars, numerics=numerics(self.plan), **options)


def load(path: str | Path, overrides: Iterable[str] = ()) -> KernelSpec:
    """The spec in a YAML or JSON file, with overrides such as `problem.m=512`.

    Raises:
        SpecError: every fault found, with line and column.
    """
    return load_spec(path, overrides)


def resolve(spec: KernelSpec) -> KernelPlan:
    """The plan of a spec: everything that follows from it, checked.

    Raises:
        SpecError: the spec can't become a right kernel; every fault names its field.
    """
    return plan(spec)


def emit(spec: KernelSpec) -> str:
    """The `.cu` of a spec.

    Raises:
        SpecError: the spec can't become a right kernel.
    """
    return render(plan(spec))


def compile(spec: KernelSpec, **options: Any) -> Binary:
    """PTX and cubin of a spec, from the cache if they are there; needs no GPU. `options` as in `binary.compile`.

    Raises:
        SpecError, ToolchainError, CompileError.
    """
    made = plan(spec)
    return _binary.compile(render(made), stem=made.symbol, arch=made.arch.name, kernel=made.symbol, **options)


def build(spec: KernelSpec) -> Kernel:
    """A kernel that can be called. Needs no GPU until it is.

    Raises:
        SpecError, ToolchainError, CompileError.
    """
    made = plan(spec)
    source = render(made)
    return Kernel(made, source, _binary.compile(source, stem=made.symbol, arch=made.arch.name, kernel=made.symbol))


def check(spec: KernelSpec) -> Preflight:
    """What can be said of a spec without compiling it.

    Raises:
        SpecError: the spec can't become a right kernel.
    """
    return preflight(plan(spec))


def narrower(spec: KernelSpec, vectors: Vectors) -> KernelSpec:
    """The spec for tensors that allow only these vectors: alignment lowered, and what would not fit it left to
    choice.
    """
    allowed = dict(vectors)
    if isinstance(spec, AttentionForwardSpec):
        known = {name: vector for name, vector in vectors if name in type(spec.align).model_fields}
        return spec.model_copy(update={"align": spec.align.model_copy(update=known), "name": None})
    assert isinstance(spec, GemmSpec | AttentionScoresSpec)
    made = plan(spec)
    short = [t.name for t in made.signature.tensors if t.role == "input" and allowed[t.name] < t.vector]
    align = {name: count for name, count in allowed.items() if name in type(spec.align).model_fields}
    update: dict[str, Any] = {"align": spec.align.model_copy(update=align), "name": None}
    if not isinstance(made, HopperPlan):
        update["copy_"] = spec.copy_.model_copy(update={name: Copy() for name in short})
    elif short:
        # TMA can't load these: threads do, in a GEMM on Hopper's path, else on that of any arch. What is asked of tiles
        # may fit neither.
        fields = type(spec).model_fields
        own = ("mma", "tile", "pipeline", "schedule", "cluster")
        update |= {name: fields[name].get_default() for name in own if name in fields}
        store = None if spec.epilogue.store == "tma" else spec.epilogue.store
        update["epilogue"] = spec.epilogue.model_copy(update={"store": store, "staged": None})
    elif spec.epilogue.store == "tma":
        update["epilogue"] = spec.epilogue.model_copy(update={"store": "vector"})
    return spec.model_copy(update=update)


def family(spec: KernelSpec) -> Any:
    """The numpy reference of a spec's family."""
    if isinstance(spec, AttentionScoresSpec):
        return FAMILIES["attention_scores"](causal=spec.causal)
    if isinstance(spec, AttentionForwardSpec):
        expressions = plan_expressions(spec)
        return AttentionForward(
            score=expressions.score,
            mask=expressions.mask,
            tensors=tuple((a.name, a.modes) for a in spec.arguments if a.modes),
            scalars=tuple(a.name for a in spec.arguments if not a.modes),
            sinks=spec.sinks,
            varlen=spec.varlen,
            dropout=spec.dropout,
            left=spec.window.left,
            right=0 if spec.causal else spec.window.right,
            bottom_right=spec.causal_align == "bottom_right",
            softcap=spec.softcap,
            tf32=spec.dtypes.multiply == "tf32",
        )
    assert isinstance(spec, GemmSpec)
    return FAMILIES["gemm"](scaled=spec.scales.rows, expressions=spec.expressions, grouped=bool(spec.problem.groups))


def numerics(made: KernelPlan) -> Numerics:
    """The number formats that the error bound of a plan is made of."""
    aux = DTYPES[made.spec.stored[1]] if isinstance(made.spec, GemmSpec) and made.spec.epilogue.aux else None
    if isinstance(made, TilePlan):
        atom = made.mma.atom
        return Numerics(
            DTYPES[atom.multiply], DTYPES[atom.accumulate], made.c.dtype, not made.mma.simt, atom.shape_mnk[2], aux=aux
        )
    assert isinstance(made, HopperPlan)
    return Numerics(
        DTYPES[made.multiply],
        DTYPES["f32"],
        made.out,
        True,
        16,
        promote=made.promoted_depth,
        scales=made.scale_count,
        aux=aux,
    )


def problem(spec: KernelSpec) -> dict[str, int]:
    """The spec's problem: extents by mode. A batch of 1 that may be left out is left out."""
    found = extents(spec)
    if isinstance(spec, GemmSpec) and found["batch"] == 1 and not spec.problem.pointers:
        del found["batch"]
    return found
