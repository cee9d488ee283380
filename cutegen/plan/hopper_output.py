"""An output of a GEMM on its way from registers through shared memory, a box of 64 rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pycute import Layout

from cutegen.dtypes import DType
from cutegen.plan.batches import Batches
from cutegen.plan.output import word
from cutegen.plan.signature import KernelParam

# TMA's swizzles, by the bytes of a row of a box.
_SWIZZLES: dict[int, Literal[32, 64, 128]] = {32: 32, 64: 64, 128: 128}


@dataclass(frozen=True)
class BoxedOutput:
    """C, or the second output Aux. `columns` of a box are 128 or 64 B of the widest output, or a tile's; `buffers` boxes of each of
    `warpgroups` are in shared memory at once; threads that store it write `vector` elements at once.
    """

    name: str
    dtype: DType
    columns: int
    vector: int
    buffers: int
    warpgroups: int

    @property
    def tensor(self) -> str:
        """The caller's name."""
        return self.name.lower()

    @property
    def row_bytes(self) -> int:
        """A row of a box, and the span of its swizzle."""
        return self.columns * self.dtype.bytes

    @property
    def smem(self) -> Layout:
        """(row, column, buffer, warpgroup) in elements before the swizzle."""
        box = 64 * self.columns
        return Layout((64, self.columns, self.buffers, self.warpgroups), (self.columns, 1, box, box * self.buffers))

    @property
    def swizzle_bytes(self) -> Literal[0, 32, 64, 128]:
        """What TMA's swizzle spans; rows of other lengths have none."""
        return _SWIZZLES.get(self.row_bytes, 0)

    @property
    def swizzle(self) -> str:
        """The same in elements: chunks of 16 bytes change places."""
        bits = max((self.swizzle_bytes // 16).bit_length() - 1, 0)
        return f"Swizzle<{bits},{(16 // self.dtype.bytes).bit_length() - 1},3>"

    @property
    def bytes(self) -> int:
        """Of shared memory."""
        return self.warpgroups * self.buffers * 64 * self.row_bytes

    def map(self, batches: Batches) -> KernelParam:
        """The descriptor with which TMA stores boxes, or an array of them."""
        return batches.map(self.tensor, ("n", "m"), (self.columns, 64), self.swizzle_bytes)

    # ---- stores by threads

    @property
    def vectors_per_row(self) -> int:
        return self.columns // self.vector

    @property
    def store_rounds(self) -> int:
        return -(-16 * self.vectors_per_row // 32)

    @property
    def uneven(self) -> bool:
        """Whether a warp's last round of vectors is not for all its lanes."""
        return 16 * self.vectors_per_row % 32 != 0

    @property
    def pair_cpp(self) -> str:
        """Two neighbouring elements."""
        return word(2 * self.dtype.bytes)

    @property
    def vector_cpp(self) -> str:
        return word(self.vector * self.dtype.bytes)
