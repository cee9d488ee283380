"""A kernel's calling convention: what a caller passes, what the `__global__` function takes, and the launch geometry.

The caller passes tensors and scalars by name. Each tensor's modes bind extents by name (`m`, `seqlen_q`), so that
shapes check each other; the kernel's own parameters (pointers, extents, strides, scalars, TMA descriptors) are then
read off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from cutegen.dtypes import DType

Role = Literal["input", "output", "inout"]
CType = Literal["float", "int32_t", "int64_t", "uint32_t", "uint64_t"]


@dataclass(frozen=True)
class TensorArg:
    """A tensor of a call.

    `modes` name its extents, outermost first as the caller's shape lists them; those also in `optional` may be missing
    from the shape (a two-dimensional operand of a batched GEMM): their stride is then 0. `contiguous` is the mode whose
    stride must be 1. The kernel reads or writes `vector` elements at once: the address, every stride but the contiguous
    one and, unless `ragged`, the extent of the contiguous mode must be multiples of it, or else a narrower variant of the
    kernel is built. (TMA knows where a row ends.)
    An `inout` tensor is read only when the scalar named by `read_if` is not 0.

    With `listed` it is a list of tensors, one for each index of that mode: equal in shape and strides, anywhere in memory.
    """

    name: str
    dtype: DType
    modes: tuple[str, ...]
    contiguous: str
    vector: int
    role: Role = "input"
    optional: frozenset[str] = frozenset()
    read_if: str | None = None
    listed: str | None = None
    ragged: bool = False


@dataclass(frozen=True)
class ScalarArg:
    """A scalar of a call, passed by value as `ctype`. `default` may be computed from the extents. A `positive` one must
    be greater than 0, and one with `below` at least 0 and less than that."""

    name: str
    ctype: CType
    default: float | int | Callable[[Mapping[str, int]], float] | None = None
    positive: bool = False
    below: float | None = None


# ---- what the __global__ function takes, in its order


@dataclass(frozen=True)
class Pointer:
    tensor: str


@dataclass(frozen=True)
class PointerArray:
    """The address of an array, in global memory, of the addresses of a listed tensor's members."""

    tensor: str


@dataclass(frozen=True)
class Extent:
    """The extent of a mode, as `int32_t`."""

    mode: str


@dataclass(frozen=True)
class Stride:
    """The stride of a tensor's mode in elements, as `int64_t`."""

    tensor: str
    mode: str


@dataclass(frozen=True)
class Scalar:
    name: str


@dataclass(frozen=True)
class TensorMapParam:
    """A TMA descriptor (`CUtensorMap`) of `tensor`, passed as `const __grid_constant__`.

    `modes` lists the tensor's modes innermost (contiguous) first, as cuTensorMapEncodeTiled wants them; `box` is the
    box in elements, mode for mode (1 where a block handles one index at a time); `swizzle` the span in bytes: 0, 32,
    64 or 128. Out-of-range elements read as zero and are not written. A `clipped` box has no more rows (the second mode)
    than the tensor.
    """

    tensor: str
    modes: tuple[str, ...]
    box: tuple[int, ...]
    swizzle: Literal[0, 32, 64, 128]
    clipped: bool = False


@dataclass(frozen=True)
class TensorMapArray:
    """The address of an array, in global memory, of TMA descriptors: one like `each` for each member of a listed tensor."""

    each: TensorMapParam

    @property
    def tensor(self) -> str:
        return self.each.tensor


KernelParam = Pointer | PointerArray | Extent | Stride | Scalar | TensorMapParam | TensorMapArray


@dataclass(frozen=True)
class Geometry:
    """Launch geometry. The work is the product of `ceil(extent / size)` over `axes`, each a mode and how much of it
    one block handles.

    `ragged` (mode, size, boundaries) multiplies that by the pieces of sequences that lie one after the other along a
    mode, cut at `boundaries` - 1 ends: at most extent // size, and one more for each sequence.

    A plain grid has one block for each piece of work; a `persistent` one has `blocks_per_sm` blocks for each SM, or
    fewer. The blocks of a `cluster` share a piece.
    """

    axes: tuple[tuple[str, int], ...]
    threads: int
    smem_bytes: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    persistent: bool = False
    blocks_per_sm: int = 1
    ragged: tuple[str, int, str] | None = None

    def work(self, extents: Mapping[str, int]) -> int:
        """Pieces of work; 0 means that there is nothing to do."""
        pieces = 1
        if self.ragged is not None:
            mode, size, boundaries = self.ragged
            pieces = extents[mode] // size + max(extents[boundaries] - 1, 0) if extents[mode] else 0
        return pieces * prod(-(-extents.get(mode, 1) // size) for mode, size in self.axes)

    def grid(self, extents: Mapping[str, int], sms: int, clusters: int | None = None) -> tuple[int, int, int]:
        """Blocks per axis on a GPU of `sms` multiprocessors; a zero means that there is nothing to do.

        `clusters` is how many the GPU runs at once, where that does not follow from the number of SMs.
        """
        work, size = self.work(extents), prod(self.cluster)
        resident = sms * self.blocks_per_sm // size if clusters is None else clusters
        return size * (min(work, resident) if self.persistent else work), 1, 1


def no_check(extents: Mapping[str, int]) -> str | None:
    """The check of a kernel whose shapes say everything."""
    return None


@dataclass(frozen=True)
class Signature:
    """Everything that a launcher must know of a kernel. `static` holds extents that the kernel was generated for."""

    symbol: str
    tensors: tuple[TensorArg, ...]
    scalars: tuple[ScalarArg, ...]
    params: tuple[KernelParam, ...]
    geometry: Geometry
    static: tuple[tuple[str, int], ...] = ()
    # Checks across extents that shapes alone can't express; returns a message or None.
    check: Callable[[Mapping[str, int]], str | None] = no_check

    def tensor(self, name: str) -> TensorArg:
        return next(t for t in self.tensors if t.name == name)

    @property
    def output(self) -> TensorArg:
        return next(t for t in self.tensors if t.role != "input")
