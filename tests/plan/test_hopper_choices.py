"""The model's choices beside times measured on an H200: in short turns (`benchmarks/results/gemm_matrix.json` and an earlier
run), where all kernels share one clock, and each for a while by itself (`gemm_matrix_settled.json`), where power decides it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutegen.plan.hopper_gemm_checks import ranked
from cutegen.plan.hopper_tiles import cycles, sustained
from cutegen.spec import GemmSpec

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SHORT, SETTLED, EARLIER = (
    json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["runs"]
    for name in ("gemm_matrix", "gemm_matrix_settled", "gemm_matrix_small")
)


def name(run: Any) -> str:
    return "x".join(str(run["problem"][mode]) for mode in "mnk") + f"-{run['dtype']}-{run['majors']}"


def times(run: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of the candidates that the model ranks."""
    return {
        candidate.removeprefix("first: "): row["median_ms"]
        for candidate, row in run["candidates"].items()
        if candidate not in ("cublas", "mma.sync") and "group_m" not in candidate
    }


@pytest.mark.parametrize(
    ("run", "time", "others"),
    [
        *(pytest.param(run, cycles, EARLIER, id=f"short-{name(run)}") for run in SHORT),
        *(pytest.param(run, sustained, [], id=f"settled-{name(run)}") for run in SETTLED),
    ],
)
def test_the_first_choice_is_among_the_fastest(
    run: dict[str, Any], time: Callable[..., float], others: list[dict[str, Any]]
) -> None:
    """What the model ranks first lost little to the best of the run that measured it."""
    types = dict.fromkeys("abc", run["dtype"])
    spec = GemmSpec(arch="sm_90a", problem=run["problem"], dtypes=types, majors=run["majors"])
    choice = str(ranked(spec, time)[0][1])
    same = [times(one) for one in (run, *others) if name(one) == name(run)]
    measured = [found for found in same if choice in found]
    if not measured:
        pytest.skip(f"{choice} was not among the candidates of these runs")
    for found in measured:
        assert found[choice] <= 1.07 * min(found.values()), f"{choice}: {found}"
