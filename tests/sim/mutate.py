"""Compiles a mutated source and says what catches the fault."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cutegen import api, binary
from cutegen.data import data_dir
from cutegen.errors import SimulationError
from cutegen.kernel import Kernel
from cutegen.report import inputs, validate
from tests.sim.faults import PROBLEMS, Mutation


@lru_cache
def shipped(name: str) -> tuple[Any, Any, str]:
    """(spec, plan, source) of a shipped spec."""
    spec = api.load(data_dir("specs") / f"{name}.yaml")
    return spec, api.resolve(spec), api.emit(spec)


def mutated(mutation: Mutation) -> tuple[Kernel, dict[str, Any]]:
    """The kernel with the fault, and inputs of the problem that shows it."""
    spec, plan, source = shipped(mutation.spec)
    changed = mutation.apply(source)
    made = binary.compile(changed, stem=plan.symbol, arch=plan.arch.name, kernel=plan.symbol)
    extents = {**api.problem(spec), **PROBLEMS[mutation.spec]}
    extents = {k: v for k, v in extents.items() if k != "batch" or "gemm" not in mutation.spec}
    kernel = Kernel(plan.signature, made.cubin, plan.arch, ptx=made.ptx)
    return kernel, inputs.for_signature(plan.signature, extents, 0)


def catch(mutation: Mutation) -> str:
    """The kind of the first finding, `deadlock`, `numbers`, or `nothing`."""
    spec, plan, _ = shipped(mutation.spec)
    kernel, arrays = mutated(mutation)
    kinds: list[str] = []

    def call(*tensors: Any, **keywords: Any) -> Any:
        output, seen = kernel.simulate(*tensors, schedule_seed=mutation.seed, budget=3_000_000, **keywords)
        kinds.extend(f.kind for f in seen.findings if seen is not None)
        return output

    try:
        taken = {scalar.name for scalar in plan.signature.scalars}
        scalars = {name: value for name, value in (("alpha", 0.75), ("beta", 0.0)) if name in taken}
        report = validate(call, api.family(spec), arrays, scalars, numerics=api.numerics(plan), twice=False)
    except SimulationError as error:
        return "deadlock" if "deadlock" in str(error) else "endless loop" if "endless" in str(error) else f"? {error}"
    if kinds:
        return kinds[0]
    return "nothing" if report.ok else "numbers"
