"""Outputs between guards, all of them poisoned, so that what a kernel wrote and where is seen."""

from __future__ import annotations

import math
from typing import Any

from cutegen.dtypes import DType
from cutegen.errors import ArgumentError
from cutegen.report.arrays import POISON, Backend, Stack

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

    @property
    def given(self) -> Any:
        """What the kernel is to write."""
        return self.array

    def kept(self) -> Any:
        """A copy of the bits."""
        return self.ops.copy(self.bits)

    def same(self, kept: Any) -> bool:
        """Whether the bits are those of a copy."""
        return self.ops.equal(kept, self.bits)

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


class GuardedList:
    """An output that is a list: each member between guards of its own."""

    def __init__(
        self, ops: Backend, like: Any, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None
    ) -> None:
        self.members = [Guarded(ops, like, dtype, shape[1:], strides) for _ in range(shape[0])]
        self.ops = ops
        self.array = Stack([member.array for member in self.members])

    @property
    def given(self) -> Any:
        return list(self.array.members)

    def kept(self) -> Any:
        return [member.kept() for member in self.members]

    def same(self, kept: Any) -> bool:
        return all(member.same(bits) for member, bits in zip(self.members, kept))

    def reset(self, initial: Any) -> None:
        for index, member in enumerate(self.members):
            member.reset(None if initial is None else initial[index])

    def unwritten(self) -> int:
        return sum(member.unwritten() for member in self.members)

    def stray(self) -> int:
        return sum(member.stray() for member in self.members)
