"""Floating-point formats of PTX: decoding, rounding in every mode, one rounding for a fused multiply-add.

Sources: PTX ISA, "Operand Types" and "Floating Point Instructions"; OCP 8-bit Floating Point Specification 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Format:
    """`digits` of the significand with its hidden one, the smallest and largest exponent of a normal number."""

    digits: int
    low: int
    high: int
    dtype: Any
    largest: float
    infinite: bool = True


FORMATS = {
    "f16": Format(11, -14, 15, np.dtype(np.float16), 65504.0),
    "bf16": Format(8, -126, 127, np.dtype(ml_dtypes.bfloat16), 3.3895313892515355e38),
    "tf32": Format(11, -126, 127, np.dtype(np.float32), 3.4011621342146535e38),
    "f32": Format(24, -126, 127, np.dtype(np.float32), 3.4028234663852886e38),
    "e4m3": Format(4, -6, 8, np.dtype(ml_dtypes.float8_e4m3fn), 448.0, False),
    "e5m2": Format(3, -14, 15, np.dtype(ml_dtypes.float8_e5m2), 57344.0),
}
_ROUND = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}


def decode(bits: NDArray[Any], kind: str) -> NDArray[Any]:
    """Bits as float32 (exact); float32 itself stays a view."""
    if kind == "f32":
        return np.asarray(bits.view(np.float32))
    if kind == "tf32":
        return np.asarray((bits.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32))
    return np.asarray(bits.view(FORMATS[kind].dtype).astype(np.float32))


def rounded(values: Any, kind: str, mode: str = "rn", satfinite: bool = False) -> NDArray[Any]:
    """float64 (or narrower) values as bits of `kind`, rounded once. `rna` is to nearest, ties away from zero."""
    form = FORMATS[kind]
    x = np.asarray(values, np.float64)
    _, exponent = np.frexp(x)
    unit = np.ldexp(1.0, np.maximum(exponent - 1, form.low) - (form.digits - 1))
    q = x / unit
    q = np.copysign(np.floor(np.abs(q) + 0.5), q) if mode == "rna" else _ROUND[mode](q)
    result = q * unit
    over = np.abs(result) > form.largest
    if over.any():
        ends = {"rz": form.largest, "rm": form.largest, "rp": form.largest}
        beyond: Any = np.inf if form.infinite else np.nan
        if satfinite:
            beyond = form.largest
        elif mode in ends:
            away = (mode == "rp") & (result > 0) | (mode == "rm") & (result < 0)
            beyond = np.where(away & form.infinite, np.inf, form.largest)
        finite = np.isfinite(x) | satfinite
        result = np.where(over & finite, np.copysign(beyond, result), result)
    result = np.where(np.isnan(x), x, result)
    if kind == "tf32":
        return result.astype(np.float32).view(np.uint32)
    # Every value is representable now, so that the conversion is exact, by way of float32 where ml_dtypes takes it.
    small = result.astype(np.float32).astype(form.dtype)
    return small.view(f"u{form.dtype.itemsize}")


def fused(product: Any, addend: Any) -> NDArray[np.float32]:
    """float32 of `product` + `addend` (float64, the product exact) with a single rounding.

    The float64 sum s is off by e (Knuth's two-sum). A second rounding can only go wrong when s lies halfway between
    two float32, or where float32 is subnormal; there s is moved one unit towards e if its last bit is even, that is
    rounded to odd (Boldo and Melquiond, Emulation of a FMA and correctly rounded sums, 2008).
    """
    s = np.asarray(product + addend)
    bits = s.view(np.int64)
    risky = ((bits & 0x1FFFFFFF) == 0x10000000) | (np.abs(s) < 2.4e-38)
    if not risky.any():
        return np.asarray(s.astype(np.float32))
    return np.asarray(to_odd(s, product, addend).astype(np.float32))


def directed(s: Any, product: Any, addend: Any, mode: str) -> NDArray[np.float32]:
    """float32 of `product` + `addend`, whose float64 sum is s, rounded by `mode`: rm (down), rp (up), rz (to zero).

    A sum rounded to odd is a float32 only if it is exact, so that it lies on the right side of every other one.
    """
    exact = to_odd(s, product, addend)
    with np.errstate(over="ignore"):
        near = np.asarray(exact.astype(np.float32))
    up = {"rm": np.zeros(exact.shape, bool), "rp": np.ones(exact.shape, bool), "rz": exact < 0}[mode]
    wrong = np.where(up, near < exact, near > exact)
    return np.where(wrong, np.nextafter(near, np.where(up, np.float32(np.inf), np.float32(-np.inf))), near)


def to_odd(s: Any, product: Any, addend: Any) -> Any:
    """The sum s of two float64, rounded to odd."""
    t = s - product
    e = (product - (s - t)) + (addend - t)
    bits = np.ascontiguousarray(s).view(np.int64)
    move = np.isfinite(s) & (e != 0) & ((bits & 1) == 0)
    # Away from zero is bit pattern + 1, whatever the sign.
    towards = np.where((e > 0) == (s > 0), 1, -1)
    return np.where(move, (bits + towards).view(np.float64), s)


def flush(values: Any) -> Any:
    """Subnormal float32 become zeros of their sign (`.ftz`)."""
    tiny = np.abs(values) < np.float32(1.1754943508222875e-38)
    return np.where(tiny, np.copysign(np.float32(0), values), values)
