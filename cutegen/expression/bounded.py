"""Values in float64 beside a running bound on the error of their computation in f32.

Higham, Accuracy and Stability of Numerical Algorithms, 3.3: with u = 2^-24, an operation on x +- dx and y +- dy adds
its own rounding to what its operands bring along. Errors of `erff`, `tanhf` and `expf`: 2 units in the last place (CUDA
programming guide, "Mathematical functions"); of `ex2.approx.ftz.f32` and `rcp.approx.ftz.f32`: 2^-22 and 2^-23, and
subnormals become 0 (PTX ISA, "ex2", "rcp").
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
_NORMAL = 2.0**-126
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


def _exp2(x: Bounded) -> Bounded:
    """As the special-function unit has it. Exponents beyond 1000 stand for all that f32 has 0 or infinity for."""
    low, value, high = (np.exp2(np.clip(x.value + d, -1000, 1000)) for d in (-x.error, 0, x.error))
    return Bounded(value, np.maximum(high - value, value - low) + _NORMAL).rounded(_ULPS)


def _reciprocal(x: Bounded) -> Bounded:
    found = constant(1) / x
    return Bounded(found.value, found.error + _NORMAL).rounded()


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


def _stands_for(exact: Any, formula: Bounded) -> Bounded:
    """Exact values, computed by a formula that is off by itself."""
    with np.errstate(invalid="ignore"):
        off = np.where(formula.value == exact, 0.0, np.abs(formula.value - exact))
    return Bounded(exact, formula.error + off)


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


# log2 Phi(-a) by powers of a, highest first, for a from 0 to 6.5 (least squares with Lawson's weights; compared in
# `tests/expression`). For results in f32, the a 2^p(a) closest to a Phi(-a), off by 5.2e-8 at most. For an output that
# is rounded to fewer bits a lower degree does, with weights of 1 / (a Phi(-a) + 1/16): of gelu itself it is off by
# 2.8e-5 (f16, whose rounding costs 4.9e-4), 3.4e-4 (bf16, 2.0e-3) and 2.5e-3 (fp8, 3.1e-2 and more) for positive
# arguments, and in all by 1.1e-6, 1.3e-5 and 1.1e-4.
LOG2_TAIL = {
    "f32": (3.309283e-05, -0.0007692198, 0.008080717, -0.0534121, -0.458771, -1.1512017, -0.9999931),
    "f16": (-0.00045333457, 0.00694750006, -0.051507223, -0.460289091, -1.15069537, -1.00004102),
    "bf16": (0.00364319, -0.0430323, -0.46944976, -1.14682677, -1.00047856),
    "fp8": (-0.02339705, -0.50312376, -1.12666031, -1.00349533),
}


def gelu_for(output: str) -> Callable[[Bounded], Bounded]:
    """x Phi(x) = max(x, 0) - |x| Phi(-|x|), by the polynomial for an output."""

    def gelu_(x: Bounded) -> Bounded:
        a = min_(abs_(x), constant(6.5))
        first, *others = LOG2_TAIL[output]
        p = constant(first)
        for coefficient in others:
            p = p * a + constant(coefficient)
        return _stands_for(0.5 * x.value * _erfc(-x.value / math.sqrt(2)), relu_(x) - a * _exp2(p))

    return gelu_


def gelu_tanh_(x: Bounded) -> Bounded:
    """x (1 + tanh u) / 2 = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    slope = -2 * math.sqrt(2 / math.pi) * math.log2(math.e)
    exponent = x * (x * x * constant(0.044715 * slope) + constant(slope))
    return x * _reciprocal(constant(1) + _exp2(exponent))


def sigmoid_(x: Bounded) -> Bounded:
    return _reciprocal(constant(1) + _exp2(x * constant(-math.log2(math.e))))


def silu_(x: Bounded) -> Bounded:
    return x * sigmoid_(x)
