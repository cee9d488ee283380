"""Validation of kernels that take lists of matrices and write lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cutegen.dtypes import F16, F32
from cutegen.errors import ArgumentError
from cutegen.report import FAMILIES, Numerics, Report, validate
from cutegen.report.inputs import random
from cutegen.report.reference import whole
from cutegen.spec.gemm import GemmEpilogue

NUMERICS = Numerics(F16, F32, F32)
both_ways = pytest.mark.parametrize("limit", [10**9, 0], ids=["full", "rows"])


def inputs(batch: int = 3, m: int = 70, n: int = 50, k: int = 40) -> dict[str, Any]:
    return {
        "a": [random((m, k), F16, seed, pad=3) for seed in range(batch)],
        "b": [random((n, k), F16, 100 + seed) for seed in range(batch)],
    }


def check(damage: Callable[[Any], None] = lambda out: None, scalars: Any = None, **keywords: Any) -> Report:
    def run(a: Any, b: Any, *, out: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        for left, right, c in zip(a, b, out):
            product = left.astype(np.float32) @ right.astype(np.float32).T
            c[...] = np.float32(alpha) * product + (np.float32(beta) * c if beta else 0)
        damage(out)
        return out

    arrays = keywords.pop("arrays", None) or inputs()
    return validate(run, FAMILIES["gemm"](), arrays, scalars, numerics=NUMERICS, **keywords)


@both_ways
@pytest.mark.parametrize("strides", [None, (64, 1), (1, 80)])
def test_right(limit: int, strides: Any) -> None:
    report = check(full_limit=limit, strides=strides)
    assert report.ok and report.shape == (3, 70, 50), str(report)
    arrays = {**inputs(), "c": [np.full((70, 50), seed, np.float32) for seed in range(3)]}
    arrays["b"] = [arrays["b"][0]] * 3
    report = check(arrays=arrays, scalars={"alpha": 0.5, "beta": -2.0}, full_limit=limit, strides=strides)
    assert report.ok, str(report)
    assert check(arrays=inputs(batch=1), full_limit=limit).shape == (1, 70, 50)
    assert check(arrays=inputs(k=0), full_limit=limit).ok and check(arrays=inputs(m=0)).checked == "empty"


@both_ways
def test_wrong(limit: int) -> None:
    def one_element(out: Any) -> None:
        out[2][5, 7] += 1

    def exchanged(out: Any) -> None:
        out[0][...], out[1][...] = out[1].copy(), out[0].copy()

    def between(out: Any) -> None:
        rows, columns = out[1].shape
        np.lib.stride_tricks.as_strided(out[1], (rows, columns + 1), out[1].strides)[3, columns] = 0

    def unwritten(out: Any) -> None:
        out[1].view(np.int32)[4, 4] = 0x7FC0CAFE

    report = check(one_element, full_limit=limit, sampled=0)
    assert not report.ok and report.first is not None and report.first.coordinate == (2, 5, 7)
    report = check(exchanged, full_limit=limit)
    assert not report.ok and report.first is not None and report.first.coordinate[0] == 0
    report = check(between, full_limit=limit, strides=(64, 1))
    assert not report.ok and report.stray == 1
    report = check(unwritten, full_limit=limit)
    assert not report.ok and report.unwritten == 1


def test_two_runs_that_differ_are_found() -> None:
    turns = iter((0.0, 1e-6))

    def damage(out: Any) -> None:
        out[1][0, 0] *= np.float32(1 + next(turns))

    report = check(damage)
    assert report.deterministic is False and "two runs differ" in str(report)


def test_two_lists_of_outputs() -> None:
    epilogue = GemmEpilogue(out="relu(acc + bias[n]) + c", aux="acc")
    family = FAMILIES["gemm"](expressions=epilogue.expressions)

    def run(a: Any, b: Any, bias: Any, *, out: Any, aux: Any) -> Any:
        for index, (left, right) in enumerate(zip(a, b)):
            product = left.astype(np.float32) @ right.astype(np.float32).T
            aux[index][...] = product
            out[index][...] += np.maximum(product + bias[index], 0)
        return out, aux

    arrays = {**inputs(), "bias": random((3, 50), F32, 7), "c": [random((70, 50), F32, seed) for seed in range(3)]}
    numerics = Numerics(F16, F32, F32, aux=F32)
    report = validate(run, family, arrays, numerics=numerics)
    assert report.ok, str(report)


def test_references_of_lists_and_of_their_stack_are_equal() -> None:
    arrays = inputs()
    stacked = {name: np.stack(given) for name, given in arrays.items()}
    gemm = FAMILIES["gemm"]()
    assert np.array_equal(whole(gemm.product(arrays, {})), whole(gemm.product(stacked, {})))
    for wrong in ([], [np.ones((3, 4), np.float16), np.ones((4, 4), np.float16)]):
        with pytest.raises(ArgumentError, match="a list of arrays of one shape"):
            gemm.product({**arrays, "a": wrong}, {})
