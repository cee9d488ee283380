"""Compares computed elements with expected ones under a bound. What is not shown to be right is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Mismatch:
    """A wrong element."""

    coordinate: tuple[int, ...]
    got: float
    expected: float
    bound: float

    def __str__(self) -> str:
        return f"{self.coordinate}: got {self.got:.9g}, expected {self.expected:.9g}, allowed error {self.bound:.3g}"


@dataclass(frozen=True)
class Comparison:
    """`ratio` is the largest error over its bound (0 if nothing was compared), at `worst`; `first` the first wrong
    element."""

    ratio: float
    worst: tuple[int, ...] | None
    wrong: int
    nans: int
    first: Mismatch | None


def compare(got: F64, expected: F64, bound: F64, *, largest: float = np.inf, allow_nan: bool = False) -> Comparison:
    """Compares arrays of one shape in float64.

    NaN is wrong, unless `allow_nan` and both are. Infinities must agree in sign; where the expected value with its
    bound passes `largest`, the output format's largest finite value, an infinity of that sign is right too. An infinite
    bound allows whatever is not NaN.

    Returns a comparison whose coordinates index these arrays; of different shapes all elements are wrong.
    """
    if got.shape != expected.shape:
        count = max(got.size, expected.size, 1)
        return Comparison(np.inf, None, count, int(np.isnan(got).sum()), None)
    if got.size == 0:
        return Comparison(0.0, None, 0, 0, None)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.abs(got - expected)
        ratio = np.where(error == 0, 0.0, error / bound)
        ratio = np.where(np.isinf(bound), 0.0, ratio)
        infinite = np.isinf(got) | np.isinf(expected)
        same = infinite & (got == expected)
        beyond = np.isinf(got) & np.isfinite(expected) & (np.sign(got) * expected + bound > largest)
    ratio = np.where(infinite & ~np.isinf(bound), np.inf, ratio)
    ratio = np.where(same | beyond, 0.0, ratio)
    nans = np.isnan(got) | np.isnan(expected) | np.isnan(bound)
    ratio = np.where(nans, np.inf, ratio)
    if allow_nan:
        ratio = np.where(np.isnan(got) & np.isnan(expected), 0.0, ratio)
    bad = ratio > 1
    wrong = int(bad.sum())
    worst = _index(int(np.argmax(ratio)), got.shape)
    first = None
    if wrong:
        where = _index(int(np.argmax(bad)), got.shape)
        first = Mismatch(where, float(got[where]), float(expected[where]), float(bound[where]))
    return Comparison(float(ratio.max()), worst, wrong, int(np.isnan(got).sum()), first)


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))
