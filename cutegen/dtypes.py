"""Element types: their names in specs, in C++ and in numpy, and the rounding facts that error bounds are made of."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """An element type.

    `bits` is the storage width, `precision` the significand bits including the implicit one, `max` the largest finite
    value, `cpp` the CuTe type (`cute/numeric_types.hpp`), `torch` the attribute of the torch module.
    """

    name: str
    cpp: str
    bits: int
    precision: int
    max: float
    numpy: np.dtype
    torch: str

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding to nearest: 2^-precision (Higham, Accuracy and Stability, 2.2)."""
        return 2.0**-self.precision

    def __str__(self) -> str:
        return self.name


F32 = DType("f32", "float", 32, 24, 3.4028234663852886e38, np.dtype(np.float32), "float32")
# tf32 is a way to multiply f32 data, not a storage type: 8 exponent and 10 explicit mantissa bits (PTX ISA, "Alternate
# floating-point data formats").
TF32 = DType("tf32", "tfloat32_t", 32, 11, 3.4011621342146535e38, np.dtype(np.float32), "float32")
F16 = DType("f16", "half_t", 16, 11, 65504.0, np.dtype(np.float16), "float16")
BF16 = DType("bf16", "bfloat16_t", 16, 8, 3.3895313892515355e38, np.dtype(ml_dtypes.bfloat16), "bfloat16")
E4M3 = DType("e4m3", "float_e4m3_t", 8, 4, 448.0, np.dtype(ml_dtypes.float8_e4m3fn), "float8_e4m3fn")
E5M2 = DType("e5m2", "float_e5m2_t", 8, 3, 57344.0, np.dtype(ml_dtypes.float8_e5m2), "float8_e5m2")
# Counts and offsets that a kernel reads from memory; nothing is multiplied in it.
I32 = DType("i32", "int32_t", 32, 31, 2147483647.0, np.dtype(np.int32), "int32")

DTYPES: dict[str, DType] = {d.name: d for d in (F32, TF32, F16, BF16, E4M3, E5M2, I32)}
