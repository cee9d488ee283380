"""Candidates of a spec: each with what the plan would choose written down, so that it stays what was measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from cutegen.errors import SpecError
from cutegen.plan import KernelPlan, plan
from cutegen.plan.hopper import HopperPlan
from cutegen.plan.hopper_gemm import HopperGemmPlan
from cutegen.plan.hopper_gemm_checks import ranked
from cutegen.plan.hopper_tiles import Choice
from cutegen.source import render
from cutegen.spec import AttentionScoresSpec, GemmSpec, KernelSpec

# Fields left open are varied over these, the plan's own choice first.
_TILES = ((128, 128), (128, 256), (256, 128), (128, 64), (64, 128), (64, 64))
_STAGES = (None, 2, 3, 4)
_RUNS = (None, 1, 2, 8, 32)


def space(spec: KernelSpec, limit: int = 16) -> list[KernelSpec]:
    """At most `limit` specs that compute the same, those that the plan's model expects most of first; what the spec
    asks for is kept, what the plan refuses is left out.

    Raises:
        SpecError: the spec itself is refused.
    """
    found: dict[tuple[Any, ...], KernelSpec] = {}
    for candidate in itertools.chain([spec], _candidates(spec)):
        try:
            made = plan(candidate)
        except SpecError:
            if candidate is spec:
                raise
            continue
        found.setdefault(_kernel(made), candidate)
        if len(found) >= limit:
            break
    return list(found.values())


def pinned(spec: GemmSpec, choice: Choice, group_m: int | None = None) -> GemmSpec:
    """The spec of a GEMM on Hopper's path with one of its model's choices, and rows of tiles that are taken together,
    written into the fields that it leaves open.
    """
    made: GemmSpec = _with(
        spec,
        tile={"m": choice.m, "n": choice.n},
        schedule={"kind": choice.kind, "split_k": choice.split, "group_m": group_m},
    )
    return made if spec.cluster else made.model_copy(update={"cluster": choice.cluster})


def _kernel(made: KernelPlan) -> tuple[Any, ...]:
    """What tells a kernel from another: how it is launched, and its code apart from its name and the comment that heads
    it, which shows the spec.
    """
    source = render(made)
    return made.signature.geometry, made.signature.params, source[source.index("#include") :].replace(made.symbol, "")


def _candidates(spec: KernelSpec) -> Iterator[KernelSpec]:
    made = plan(spec)
    if isinstance(made, HopperGemmPlan):
        assert isinstance(spec, GemmSpec)
        yield from _hopper_gemms(spec, made.group_m)
    elif isinstance(made, HopperPlan):
        assert isinstance(spec, AttentionScoresSpec)
        for n, store, run in itertools.product((128, 64), ("tma", "vector"), _RUNS):
            yield _with(spec, tile={"n": n}, epilogue={"store": store}, schedule={"run_n": run})
    else:
        for (m, n), stages, group in itertools.product(_TILES, _STAGES, (None, 4, 16)):
            yield _with(spec, tile={"m": m, "n": n}, pipeline={"stages": stages}, schedule={"group_m": group})


def _hopper_gemms(spec: GemmSpec, group: int) -> Iterator[GemmSpec]:
    """The model's ranking, with the orders of tiles around the default one for its first three."""
    for place, (_, choice) in enumerate(ranked(spec)):
        groups = (None, 2 * group, max(1, group // 2)) if place < 3 else (None,)
        for rows in groups:
            yield pinned(spec, choice, rows)


def _with(spec: Any, **parts: dict[str, Any]) -> Any:
    """The spec with fields set that it leaves open."""
    update = {}
    for name, fields in parts.items():
        part = getattr(spec, name)
        update[name] = part.model_copy(
            update={field: value for field, value in fields.items() if getattr(part, field) is None}
        )
    return spec.model_copy(update=update)
