"""The plan's choices beside times measured on an H200: `benchmarks/results/gemm_matrix.json` and an earlier run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cutegen import api
from cutegen.spec import GemmSpec

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
RUNS, EARLIER = (
    json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["runs"] for name in ("gemm_matrix", "gemm_matrix_small")
)


def name(run: dict[str, Any]) -> str:
    return "x".join(str(run["problem"][mode]) for mode in "mnk") + f"-{run['dtype']}-{run['majors']}"


def times(run: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of the candidates that the model ranks."""
    return {
        candidate.removeprefix("first: "): row["median_ms"]
        for candidate, row in run["candidates"].items()
        if candidate not in ("cublas", "mma.sync") and "group_m" not in candidate
    }


@pytest.mark.parametrize("run", RUNS, ids=name)
def test_the_first_choice_is_among_the_fastest(run: dict[str, Any]) -> None:
    """What the model takes lost little to the best of the run that measured it."""
    types = dict.fromkeys("abc", run["dtype"])
    plan: Any = api.resolve(GemmSpec(arch="sm_90a", problem=run["problem"], dtypes=types, majors=run["majors"]))
    same = [times(one) for one in (run, *EARLIER) if name(one) == name(run)]
    measured = [found for found in same if str(plan.choice) in found]
    if not measured:
        pytest.skip(f"{plan.choice} was not among the candidates of these runs")
    for found in measured:
        assert found[str(plan.choice)] <= 1.06 * min(found.values()), f"{plan.choice}: {found}"
