"""The output of a product, resolved: how it leaves the registers, and a family's words for all that is named."""

from __future__ import annotations

from dataclasses import dataclass

from pycute import Layout

from cutegen.dtypes import DType
from cutegen.plan.partition import AccumulatorView


@dataclass(frozen=True)
class Naming:
    """A family's words: kernel names and spec fields of the operands and of the output, extents, strides."""

    letters: tuple[str, str, str]
    fields: tuple[str, str, str]
    extents: tuple[str, str, str]
    strides: tuple[str, str, str]


@dataclass(frozen=True)
class Output:
    """C: its types, and how it leaves the registers."""

    name: str
    dtype: DType
    major: str
    view: AccumulatorView
    staged: bool
    vector: int
    tile: tuple[int, int]
    threads: int
    naming: Naming

    @property
    def cpp(self) -> str:
        return self.dtype.cpp

    @property
    def alias(self) -> str:
        """What its types are called after in an emitted file: an output is C there, a second one Aux."""
        return "Aux" if self.name == "Aux" else "C"

    @property
    def inner_is_n(self) -> bool:
        return self.major == "N"

    @property
    def inner_name(self) -> str:
        return "n" if self.inner_is_n else "m"

    @property
    def outer_name(self) -> str:
        return "m" if self.inner_is_n else "n"

    @property
    def inner_extent(self) -> str:
        return self.naming.extents[1 if self.inner_is_n else 0]

    @property
    def outer_extent(self) -> str:
        return self.naming.extents[0 if self.inner_is_n else 1]

    @property
    def stride_m(self) -> str:
        return self.naming.strides[2] if self.inner_is_n else "_1{}"

    @property
    def stride_n(self) -> str:
        return "_1{}" if self.inner_is_n else self.naming.strides[2]

    def _origin(self, outer: str, inner: str) -> str:
        return f"{outer}, {inner}" if self.inner_is_n else f"{inner}, {outer}"

    @property
    def row_origin(self) -> str:
        return self._origin(f"{self.outer_name} + Outer{{}}(i)", self.inner_name)

    @property
    def value_origin(self) -> str:
        return self._origin(f"{self.outer_name} + Outer{{}}(i)", f"{self.inner_name} + Inner{{}}(j) + v")

    @property
    def staged_origin(self) -> str:
        return self._origin(f"{self.outer_name}0 + outer", f"{self.inner_name}0 + inner")

    @property
    def blk_inner(self) -> str:
        return f"BLK_{self.inner_name.upper()}"

    @property
    def blk_outer(self) -> str:
        return f"BLK_{self.outer_name.upper()}"

    @property
    def inner_size(self) -> int:
        return self.tile[1] if self.inner_is_n else self.tile[0]

    @property
    def outer_size(self) -> int:
        return self.tile[0] if self.inner_is_n else self.tile[1]

    @property
    def vec(self) -> int:
        return self.view.vec

    @property
    def regs(self) -> Layout:
        return self.view.regs

    @property
    def inner(self) -> Layout:
        return self.view.inner

    @property
    def outer(self) -> Layout:
        return self.view.outer

    @property
    def element_guard(self) -> bool:
        """Whether a vector of the registers may reach over the edge, so that each element needs a check."""
        return self.vector % self.vec != 0

    @property
    def part(self) -> int:
        """Elements of one direct store."""
        return min(self.vec, self.vector)

    @property
    def part_cpp(self) -> str:
        return word(self.part * self.dtype.bytes)

    @property
    def vec_cpp(self) -> str:
        return word(self.vec * self.dtype.bytes)

    @property
    def vector_cpp(self) -> str:
        return word(self.vector * self.dtype.bytes)

    @property
    def smem(self) -> Layout:
        return Layout((self.outer_size, self.inner_size), (self.pitch, 1))

    @property
    def pitch(self) -> int:
        return self.inner_size + 16 // self.dtype.bytes

    @property
    def smem_elements(self) -> int:
        return self.pitch * self.outer_size

    @property
    def vectors_per_row(self) -> int:
        return self.inner_size // self.vector

    @property
    def vectors(self) -> int:
        return self.vectors_per_row * self.outer_size

    @property
    def store_rounds(self) -> int:
        return -(-self.vectors // self.threads)

    @property
    def ragged(self) -> bool:
        return bool(self.vectors % self.threads)


def word(size: int) -> str:
    """The C++ type of so many bytes, moved at once."""
    return {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t", 16: "uint128_t"}[size]
