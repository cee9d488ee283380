"""Scalar FMAs on the simulator: operands that are transposed on their way, and what epilogues make of NaN and infinity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutegen import api
from cutegen.report import inputs
from cutegen.spec import GemmSpec

F32 = {"a": "f32", "b": "f32", "c": "f32"}
SMALL = {"m": 64, "n": 64, "k": 16}


def made(**parts: Any) -> Any:
    return api.build(
        GemmSpec(arch="sm_80", problem={"m": 256, "n": 256, "k": 256}, mma={"atom": "UniversalFMA"}, **parts)
    )


@pytest.mark.parametrize(
    ("parts", "transposed"),
    [
        ({"majors": "TN"}, "AB"),
        ({"majors": "NN"}, "B"),
        ({"majors": "TT"}, "A"),
        ({"majors": "NT"}, ""),
        ({"majors": "TN", "pipeline": {"stages": 1}}, "AB"),
        ({"majors": "TN", "pipeline": {"stages": 3}}, "AB"),
        ({"majors": "NN", "pipeline": {"stages": 3}}, "B"),
        ({"majors": "NN", "pipeline": {"stages": 1}}, "B"),
        ({"majors": "TN", "align": {"a": 2}}, "AB"),
        ({"majors": "TN", "align": {"a": 1}}, "B"),
        ({"majors": "TN", "copy": {"b": {"threads": "(64,4):(4,1)"}}}, "AB"),
    ],
)
def test_vectors_are_transposed_through_registers(parts: dict[str, Any], transposed: str) -> None:
    kernel = made(dtypes=F32, tile=SMALL, **parts)
    assert "".join(op.name for op in kernel.plan.transposed) == transposed
    assert ("cp_async" in kernel.source) == (transposed != "AB")
    for m, n, k, batch in ((68, 132, 52, 2), (7, 129, 65, 1), (64, 64, 0, 1)):
        arrays = inputs.for_signature(kernel.signature, {"m": m, "n": n, "k": k, "batch": batch}, 2, inouts=True)
        report = kernel.validate(arrays, {"alpha": 1.5, "beta": 0.5}, device="sim", twice=False)
        assert report.ok, f"{m, n, k}: {report}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("relu(acc)", [np.nan, np.inf, 0.0, 2.0, 0.0]),
        ("gelu(acc)", [np.nan, np.inf, None, 1.9545, -0.0455]),
        ("gelu_tanh(acc)", [np.nan, np.inf, None, 1.9546, -0.0454]),
        ("silu(acc)", [np.nan, np.inf, None, 1.7616, -0.2384]),
        ("clamp(acc, -1, 1)", [np.nan, 1.0, -1.0, 1.0, -1.0]),
        ("max(acc, 0.5)", [np.nan, np.inf, 0.5, 2.0, 0.5]),
        ("min(0.5, acc)", [np.nan, 0.5, -np.inf, 0.5, -2.0]),
    ],
)
def test_nan_stays_and_infinity_is_taken(text: str, wanted: list[float | None]) -> None:
    """As torch has it; `None` is not asked for (minus infinity times zero)."""
    kernel = made(dtypes=F32, tile=SMALL, epilogue={"out": text})
    a = np.zeros((5, 4), np.float32)
    a[:, 0] = [np.nan, np.inf, -np.inf, 2.0, -2.0]
    b = np.zeros((4, 4), np.float32)
    b[:, 0] = 1
    with np.errstate(all="ignore"):
        found = kernel(a[:, :1].copy(), b[:, :1].copy(), device="sim")
    for row, value in zip(found, wanted):
        assert value is None or np.allclose(row, value, atol=2e-4, equal_nan=True), (text, row, value)
