"""Candidates of a spec: each with what the plan would choose written down, so that it stays what was measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from cutegen.errors import SpecError
from cutegen.plan import plan
from cutegen.plan.hopper import HopperPlan
from cutegen.plan.hopper_gemm import HopperGemmPlan
from cutegen.plan.hopper_gemm_checks import ranked
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
    found: dict[str, KernelSpec] = {}
    for candidate in itertools.chain([spec], _candidates(spec)):
        try:
            made = plan(candidate)
        except SpecError:
            if candidate is spec:
                raise
            continue
        # Two that emit the same kernel differ in nothing.
        group = getattr(made, "group_m", None) or getattr(made, "run_n", None)
        found.setdefault(f"{made.signature.geometry} {made.signature.params} {group}", candidate)
        if len(found) >= limit:
            break
    return list(found.values())


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
            pinned = _with(
                spec,
                tile={"m": choice.m, "n": choice.n},
                schedule={"kind": choice.kind, "split_k": choice.split, "group_m": rows},
            )
            yield pinned if spec.cluster else pinned.model_copy(update={"cluster": choice.cluster})


def _with(spec: Any, **parts: dict[str, Any]) -> Any:
    """The spec with fields set that it leaves open."""
    update = {}
    for name, fields in parts.items():
        part = getattr(spec, name)
        update[name] = part.model_copy(
            update={field: value for field, value in fields.items() if getattr(part, field) is None}
        )
    return spec.model_copy(update=update)
