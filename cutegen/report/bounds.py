r"""Elementwise error bounds of scaled matrix products, from number formats alone.

Let x = sum_k a_k b_k in exact arithmetic, X = sum_k |a_k| |b_k|, u the unit roundoff of a format (2^-precision).

*Operands.* tf32 multiplication drops the low 13 bits of an f32; without a rounding conversion that truncates, a
relative change below d = 2^-10 of each operand (PTX ISA, "Alternate floating-point data formats"), so products change
by at most t = 2 d + d^2. Other multiplicands are used as given (t = 0). Products are exact: 22 significant bits at
most, or inside an FMA.

*Accumulation.* In any order of summation, K terms give |X - x| <= gamma_K(v) X with gamma_n(v) = n v / (1 - n v)
(Higham, Accuracy and Stability of Numerical Algorithms, 3.1 and 4.2), v being the largest relative error of an
addition. v = u for FMAs, which round to nearest. Tensor cores align the terms of an instruction to the largest and
truncate (Fasi, Higham, Mikaitis, Pranesh, Numerical behavior of NVIDIA tensor cores, PeerJ CS 2021): each term then
loses less than one unit in the last place of the largest, which X bounds, so v = 2 u of f32. Hopper sums fp8 products
with 13 fraction bits (DeepSeek-V3 technical report, arXiv 2412.19437, 3.3.2), v = 2^-12. f16 accumulators are
summed that way and rounded to f16 once an instruction: gamma_I(u_f16), I = ceil(K / products of an instruction), comes
on top, and I times half the smallest subnormal of f16 for sums near zero.

Sums that move to f32 every P terms see gamma_P(v), then gamma_{K/P}(u_32).

*Epilogue.* y = fl(fl(alpha x) + fl(beta c)) in f32, three roundings of which any term sees two, then once more to the
output format, u_o |y|, or half the smallest subnormal, h, near zero:

(each factor of a product besides alpha adds one to the power)

    E = |alpha| X ((1 + t)(1 + g)(1 + u_32)^2 - 1) + |beta c| ((1 + u_32)^2 - 1) + r,    g = all of the accumulation
    |computed - y| <= E + u_o (|y| + E) + h

r = gamma_{K+2}(2^-53) (|alpha| X + |beta c|) is the float64 reference's own error.

*Integers.* If all operands are integers and K max|a| max|b| does not exceed 2^precision of the accumulator (and the
operands survive tf32), then nothing is rounded before the epilogue, and with alpha a power of two and beta 0 only the
output's rounding is left: a sharp test of indexing, which E for normal inputs and large K is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cutegen.dtypes import F32, DType

F64 = NDArray[np.float64]

_U64 = 2.0**-53
TF32_TRUNCATION = 2.0**-10
_FP8_SUM = 2.0**-12
# Smallest subnormal: 2^(1 - bias - explicit bits), IEEE 754 and OCP 8-bit Floating Point Specification.
SUBNORMAL = {
    "f32": 2.0**-149,
    "tf32": 2.0**-149,
    "f16": 2.0**-24,
    "bf16": 2.0**-133,
    "e4m3": 2.0**-9,
    "e5m2": 2.0**-16,
}


@dataclass(frozen=True)
class Numerics:
    """A kernel's number formats. `products` is how many products one tensor-core instruction sums before an f16
    accumulator is rounded (the K of the MMA atom). `promote` is how many terms tensor cores sum before f32 adds take
    over (0: all), `scales` how many factors a product has besides alpha; `aux` is a second output's format."""

    multiply: DType
    accumulate: DType
    output: DType
    tensor_cores: bool = True
    products: int = 1
    promote: int = 0
    scales: int = 0
    aux: DType | None = None

    @property
    def saturates(self) -> bool:
        """Whether the output's largest finite value stands for all beyond it: fp8's conversions do that."""
        return self.output.bits == 8


@dataclass(frozen=True)
class Coefficients:
    """E = |alpha| (product X + floor) + addend |beta c|; then the output's roundoff and half its smallest subnormal.

    Where X passes `limit`, a partial sum may overflow the accumulator, and nothing is promised.
    """

    product: float
    addend: float
    output: float
    tiny: float
    limit: float
    floor: float = 0.0

    def before(self, magnitude: F64, addend: F64, alpha: float) -> F64:
        """E, of which `magnitude` is |alpha| X and `addend` |beta c|: the error before the output is rounded."""
        with np.errstate(invalid="ignore"):
            error = self.product * magnitude + self.addend * addend + self.floor * abs(alpha)
        error = np.where(magnitude + addend == 0, 0.0, error)
        return np.where(magnitude > abs(alpha) * self.limit, np.inf, error)

    def bound(self, value: F64, magnitude: F64, addend: F64, alpha: float = 1.0) -> F64:
        """The bound of each element."""
        error = self.before(magnitude, addend, alpha)
        finite = np.where(np.isfinite(value), np.abs(value), 0.0)
        return error + self.output * (finite + error) + np.where(magnitude + addend == 0, 0.0, self.tiny)


def gamma(n: int, u: float) -> float:
    """n u / (1 - n u); infinite from n u = 1, where nothing can be said."""
    return n * u / (1 - n * u) if n * u < 1 else math.inf


def coefficients(numerics: Numerics, k: int, *, exact: bool = False) -> Coefficients:
    """The bound's coefficients for products of depth `k`. `exact`: see "Integers" above."""
    output = numerics.output
    tiny = SUBNORMAL[output.name] / 2
    if exact:
        return Coefficients(0.0, 0.0, output.unit_roundoff, 0.0, numerics.accumulate.max)
    dropped = TF32_TRUNCATION if numerics.multiply.name == "tf32" else 0.0
    t = 2 * dropped + dropped**2
    v = _FP8_SUM if numerics.multiply.bits == 8 else F32.unit_roundoff * (2 if numerics.tensor_cores else 1)
    chunk = min(k, numerics.promote) if numerics.promote else k
    g = (1 + gamma(chunk, v)) * (1 + gamma(-(-k // chunk) if chunk < k else 0, F32.unit_roundoff)) - 1
    floor = 0.0
    if numerics.accumulate.precision < F32.precision:
        instructions = -(-k // numerics.products)
        g = (1 + g) * (1 + gamma(instructions, numerics.accumulate.unit_roundoff)) - 1
        floor = instructions * SUBNORMAL[numerics.accumulate.name] / 2
    twice = (1 + F32.unit_roundoff) ** (2 + numerics.scales)
    own = gamma(k + 2, _U64)
    return Coefficients(
        (1 + t) * (1 + g) * twice - 1 + own, twice - 1 + own, output.unit_roundoff, tiny, numerics.accumulate.max, floor
    )


def exact_integers(numerics: Numerics, k: int, largest_left: float, largest_right: float) -> bool:
    """Whether integer operands of at most these magnitudes are multiplied and summed without any rounding."""
    limit = 2.0**numerics.multiply.precision
    total = k * largest_left * largest_right
    return largest_left <= limit and largest_right <= limit and total <= 2.0**numerics.accumulate.precision
