"""An output between guards, all of it poisoned, so that what a kernel wrote and where is seen."""

from __future__ import annotations

import math
from typing import Any

from cutegen.dtypes import DType
from cutegen.errors import ArgumentError
from cutegen.report.arrays import POISON, Backend

_GUARD = 1024  # elements before and after the output that must stay as they are


class Guarded:
    """An output between guards, all of it poisoned."""

    def __init__(
        self, ops: Backend, like: Any, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None
    ) -> None:
        self.dtype = dtype
        self.ops = ops
        self.size = math.prod(shape)
        if strides is None:
            strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        elif len(strides) != len(shape):
            raise ArgumentError(f"strides: expected {len(shape)} for shape {shape}, got {strides}")
        span = 1 + sum((e - 1) * s for e, s in zip(shape, strides)) if self.size else 0
        self.flat = ops.filled(like, span + 2 * _GUARD, self.dtype)
        self.array = ops.shaped(self.flat, self.dtype, _GUARD, shape, strides)
        self.bits = ops.integers(self.array, self.dtype)

    def reset(self, initial: Any) -> None:
        self.ops.poison(self.flat, self.dtype)
        if initial is not None:
            self.ops.assign(self.array, initial)

    def unwritten(self) -> int:
        return self.ops.count(self.bits, POISON[self.dtype.name])

    def stray(self) -> int:
        """Elements of the guards and gaps that are poisoned no more."""
        inside = self.ops.count(self.bits, POISON[self.dtype.name])
        around = self.ops.count(self.flat, POISON[self.dtype.name]) - inside
        return len(self.flat) - self.size - around
