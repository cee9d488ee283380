"""Bounds hold for arithmetic done as the formats say, and are not so loose that they hold for anything."""

from __future__ import annotations

import numpy as np
import pytest

from cutegen.dtypes import BF16, F16, F32, TF32
from cutegen.report.bounds import Numerics, coefficients, exact_integers, gamma
from cutegen.report.reference import Gemm, rows


def test_gamma() -> None:
    assert gamma(10, 0.01) == pytest.approx(0.1 / 0.9)
    assert gamma(0, 0.5) == 0.0 and gamma(2, 0.5) == np.inf


def truncated(values: np.ndarray, bits: int) -> np.ndarray:
    """f32 with the low `bits` of its mantissa dropped."""
    return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)).view(np.float32)


def accumulate(a: np.ndarray, b: np.ndarray, step: int, dtype: type) -> np.ndarray:
    """A B^T in steps of `step` products, each truncated to f32, then rounded to `dtype`."""
    total = np.zeros((len(a), len(b)), dtype)
    for start in range(0, a.shape[1], step):
        stop = start + step
        exact = total.astype(np.float64) + a[:, start:stop].astype(np.float64) @ b[:, start:stop].astype(np.float64).T
        rounded = exact.astype(np.float32)
        toward = np.where(np.abs(rounded) > np.abs(exact), np.nextafter(rounded, np.float32(0)), rounded)
        total = toward.astype(dtype)
    return total


@pytest.mark.parametrize("k", [1, 7, 64, 1000])
@pytest.mark.parametrize(
    ("numerics", "stored", "dtype"),
    [
        (Numerics(F16, F32, F32, products=16), F16, np.float32),
        (Numerics(BF16, F32, BF16, products=16), BF16, np.float32),
        (Numerics(F16, F16, F16, products=16), F16, np.float16),
        (Numerics(TF32, F32, F32, products=8), F32, np.float32),
        (Numerics(F32, F32, F32, tensor_cores=False), F32, np.float32),
    ],
    ids=lambda x: f"{x.multiply}-{x.accumulate}-{x.output}" if isinstance(x, Numerics) else "",
)
def test_bound_holds_and_is_not_vacuous(k: int, numerics: Numerics, stored: object, dtype: type) -> None:
    rng = np.random.default_rng(k)
    a = rng.standard_normal((40, k)).astype(stored.numpy)  # type: ignore[attr-defined]
    b = rng.standard_normal((50, k)).astype(stored.numpy)  # type: ignore[attr-defined]
    multiplied = [truncated(x, 13) if numerics.multiply is TF32 else x for x in (a, b)]
    computed = accumulate(multiplied[0], multiplied[1], numerics.products, dtype).astype(np.float32)
    computed = (np.float32(0.7) * computed).astype(numerics.output.numpy)
    product = Gemm().product({"a": a, "b": b}, {"alpha": 0.7})
    expected = rows(product, 0, np.arange(40))
    bound = coefficients(numerics, k).bound(expected.value, expected.magnitude, expected.addend, product.alpha)
    error = np.abs(computed.astype(np.float64) - expected.value)
    assert (error <= bound).all()
    assert bound.max() < 0.7 * (
        expected.magnitude.max() if dtype is np.float16 else 0.05 * expected.magnitude.max() + 1
    )


def test_tf32_needs_its_term() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((40, 64)).astype(np.float32), rng.standard_normal((40, 64)).astype(np.float32)
    computed = truncated(a, 13).astype(np.float64) @ truncated(b, 13).astype(np.float64).T
    expected = rows(Gemm().product({"a": a, "b": b}, {}), 0, np.arange(40))

    def share(numerics: Numerics) -> float:
        bound = coefficients(numerics, 64).bound(expected.value, expected.magnitude, expected.addend)
        return float((np.abs(computed - expected.value) <= bound).mean())

    assert share(Numerics(TF32, F32, F32)) == 1.0
    assert share(Numerics(F32, F32, F32)) < 0.5


def test_f16_accumulators_may_overflow() -> None:
    numerics = Numerics(F16, F16, F16, products=16)
    a = np.full((1, 64), 100.0, np.float16)
    expected = rows(Gemm().product({"a": a, "b": a}, {}), 0, np.arange(1))
    limits = coefficients(numerics, 64)
    assert limits.bound(expected.value, expected.magnitude, expected.addend)[0, 0] == np.inf
    safe = coefficients(Numerics(F16, F32, F32), 64).bound(expected.value, expected.magnitude, expected.addend)
    assert safe[0, 0] < 100.0


def test_nothing_computed_nothing_allowed() -> None:
    expected = rows(Gemm().product({"a": np.zeros((2, 0)), "b": np.zeros((3, 0))}, {}), 0, np.arange(2))
    limits = coefficients(Numerics(F16, F32, F16), 0)
    assert (limits.bound(expected.value, expected.magnitude, expected.addend) == 0).all()


@pytest.mark.parametrize(
    ("numerics", "k", "largest", "exact"),
    [
        (Numerics(F16, F32, F32), 4096, 2, True),
        (Numerics(F16, F16, F16), 512, 2, True),
        (Numerics(F16, F16, F16), 513, 2, False),
        (Numerics(TF32, F32, F32), 1, 2048, True),
        (Numerics(TF32, F32, F32), 1, 2049, False),
        (Numerics(BF16, F32, F32), 256, 256, True),
        (Numerics(F32, F32, F32), 2, 4096, False),
    ],
)
def test_when_integers_are_exact(numerics: Numerics, k: int, largest: float, exact: bool) -> None:
    assert exact_integers(numerics, k, largest, largest) is exact
