"""Values in float64 beside a running bound on the error of their computation in f32.

Higham, Accuracy and Stability of Numerical Algorithms, 3.3: with u = 2^-24, an operation on x +- dx and y +- dy adds
its own rounding to what its operands bring along. Errors of `erff`, `tanhf` and `expf`: 2 units in the last place (CUDA
programming guide, "Mathematical functions").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
_U = 2.0**-24
_TINY = 2.0**-149
_ULPS = 2 * 2 * _U


@dataclass(frozen=True)
class Bounded:
    """Values in float64 (or integers, or conditions), and how far an f32 computation of each may be off."""

    value: Any
    error: Any = 0.0

    def rounded(self, units: float = _U) -> Bounded:
        return Bounded(self.value, self.error + units * (np.abs(self.value) + self.error) + _TINY)

    def __add__(self, other: Bounded) -> Bounded:
        return Bounded(self.value + other.value, self.error + other.error).rounded()

    def __neg__(self) -> Bounded:
        return Bounded(-self.value, self.error)

    def __sub__(self, other: Bounded) -> Bounded:
        return self + -other

    def __mul__(self, other: Bounded) -> Bounded:
        cross = np.abs(self.value) * other.error + np.abs(other.value) * self.error + self.error * other.error
        return Bounded(self.value * other.value, cross).rounded()

    def __truediv__(self, other: Bounded) -> Bounded:
        with np.errstate(divide="ignore", invalid="ignore"):
            value = self.value / other.value
            room = np.abs(other.value) - other.error
            error = np.where(room > 0, (self.error + np.abs(value) * other.error) / room, np.inf)
        return Bounded(value, error).rounded()


def constant(value: float) -> Bounded:
    """A literal, which the compiler rounds to f32."""
    return Bounded(np.float64(value), np.float64(abs(float(np.float32(value)) - value)))


def exact(value: float | F64) -> Bounded:
    """Values that f32 holds as they are."""
    found = np.asarray(value, np.float64)
    return Bounded(found, np.zeros_like(found))


def _lipschitz(function: Callable[[F64], F64], slope: float) -> Callable[[Bounded], Bounded]:
    return lambda x: Bounded(function(x.value), slope * x.error).rounded(_ULPS)


def exp_(x: Bounded) -> Bounded:
    with np.errstate(over="ignore"):
        value = np.exp(x.value)
        return Bounded(value, value * np.expm1(x.error)).rounded(_ULPS)


erf_ = _lipschitz(np.vectorize(math.erf, otypes=[np.float64]), 2 / math.sqrt(math.pi))
tanh_ = _lipschitz(np.tanh, 1.0)


def abs_(x: Bounded) -> Bounded:
    return Bounded(np.abs(x.value), x.error)


def log_(x: Bounded) -> Bounded:
    """`logf` is off by a unit in the last place, and by 2^-22 near 1 (CUDA programming guide)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.abs(x.value) - x.error
        carried = np.where(room > 0, x.error / room, np.where(np.asarray(x.error) > 0, np.inf, 0.0))
        return Bounded(np.log(x.value), carried + 4 * _U).rounded(_ULPS)


def sqrt_(x: Bounded) -> Bounded:
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.sqrt(x.value)
        # |sqrt(x) - sqrt(x + d)| is at most d / sqrt(x), and at most sqrt(d)
        carried = np.where(value > 0, np.minimum(x.error / value, np.sqrt(x.error)), np.sqrt(x.error))
        return Bounded(value, carried).rounded()


def where_(condition: Any, x: Bounded, y: Bounded) -> Bounded:
    return Bounded(np.where(condition, x.value, y.value), np.where(condition, x.error, y.error))


def relu_(x: Bounded) -> Bounded:
    return max_(x, constant(0))


def clamp_(x: Bounded, low: Bounded, high: Bounded) -> Bounded:
    return min_(max_(x, low), high)


def max_(x: Bounded, y: Bounded) -> Bounded:
    return Bounded(np.maximum(x.value, y.value), np.maximum(x.error, y.error))


def min_(x: Bounded, y: Bounded) -> Bounded:
    return -max_(-x, -y)


def gelu_(x: Bounded) -> Bounded:
    return constant(0.5) * x * (constant(1) + erf_(x * constant(0.7071067811865476)))


def gelu_tanh_(x: Bounded) -> Bounded:
    inner = constant(0.7978845608028654) * (x + constant(0.044715) * x * x * x)
    return constant(0.5) * x * (constant(1) + tanh_(inner))


def sigmoid_(x: Bounded) -> Bounded:
    return constant(1) / (constant(1) + exp_(-x))


def silu_(x: Bounded) -> Bounded:
    return x / (constant(1) + exp_(-x))
