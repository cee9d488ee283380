"""CuTe's `Swizzle<B,M,S>`: XORs B bits of an offset into B others (`cute/swizzle.hpp`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Swizzle:
    """`bits` bits from position `base + max(shift, 0)` are XORed into those from `base - min(shift, 0)`, in elements.

    `base` low bits stay as they are, so `2^base` elements stay together. No bits, or a shift of 0, is the identity:
    XOR of bits with themselves would erase them, and CuTe asserts |shift| >= bits.
    """

    bits: int
    base: int
    shift: int

    def __call__(self, offset: Any) -> Any:
        """The offset after the swizzle; takes integers and arrays."""
        if not self.bits or not self.shift:
            return offset
        mask = ((1 << self.bits) - 1) << (self.base + max(self.shift, 0))
        moved = np.asarray(offset) & mask
        moved = moved >> self.shift if self.shift > 0 else moved << -self.shift
        result = np.asarray(offset) ^ moved
        return int(result) if result.ndim == 0 else result

    @property
    def period(self) -> int:
        """Offsets that differ by a multiple of this are swizzled alike."""
        return 1 << (self.bits + self.base + abs(self.shift))

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"
