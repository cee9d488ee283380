"""What validation does with arrays of numpy, torch and cupy, in one vocabulary."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cutegen.dtypes import DType
from cutegen.errors import ArgumentError

F64 = NDArray[np.float64]

# Quiet NaNs with payloads that arithmetic does not make, so that what nobody wrote is told from a computed NaN.
POISON = {"f32": 0x7FC0CAFE, "tf32": 0x7FC0CAFE, "f16": 0x7E5A, "bf16": 0x7FDA, "e4m3": 0x7F, "e5m2": 0x7D}
# Bytes of float64 that a chunk of a large array may take.
_CHUNK = 256 << 20


@dataclass(frozen=True)
class Projection:
    """Per row of a matrix S with hidden columns as zero: S X (rows, r), sum |s|, sum s^2, whether all is finite, and
    whether the hidden columns, and no others, are -inf."""

    product: F64
    absolute: F64
    squares: F64
    finite: NDArray[np.bool_]
    hidden: NDArray[np.bool_]


class Backend(Protocol):
    """One library's arrays."""

    def float64(self, array: Any) -> F64:
        """As float64 on the host."""

    def take_rows(self, array: Any, index: NDArray[np.int64]) -> Any:
        """Rows of a matrix."""

    def filled(self, like: Any, count: int, dtype: DType) -> Any:
        """A flat integer array of the dtype's width on `like`'s device, holding its poison."""

    def poison(self, flat: Any, dtype: DType) -> None: ...

    def shaped(self, flat: Any, dtype: DType, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """`flat` seen as `dtype` with these element strides."""

    def integers(self, array: Any, dtype: DType) -> Any:
        """An array's bits, shape and strides kept."""

    def count(self, integers: Any, pattern: int) -> int: ...

    def equal(self, first: Any, second: Any) -> bool: ...

    def copy(self, array: Any) -> Any: ...

    def assign(self, to: Any, source: Any) -> None: ...

    def synchronize(self) -> None: ...

    def project(self, matrix: Any, vectors: F64, visible: NDArray[np.int64] | None) -> Projection: ...


def _integer(dtype: DType) -> str:
    return {8: "int8", 16: "int16", 32: "int32"}[dtype.bits]


class ArrayBackend:
    """numpy and cupy, which share an interface."""

    def __init__(self, module: Any) -> None:
        self.xp: Any = module

    def _host(self, array: Any) -> Any:
        return array.get() if hasattr(array, "get") else array

    def float64(self, array: Any) -> F64:
        return np.asarray(self._host(array)).astype(np.float64)

    def take_rows(self, array: Any, index: NDArray[np.int64]) -> Any:
        return array[self.xp.asarray(index)]

    def filled(self, like: Any, count: int, dtype: DType) -> Any:
        size = dtype.bytes
        raw = self.xp.empty(count * size + 256, dtype=np.uint8)
        address = raw.ctypes.data if self.xp is np else raw.data.ptr
        flat = raw[-address % 256 :][: count * size].view(_integer(dtype))
        self.poison(flat, dtype)
        return flat

    def poison(self, flat: Any, dtype: DType) -> None:
        flat[...] = POISON[dtype.name]

    def shaped(self, flat: Any, dtype: DType, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
        if 0 in shape:
            return flat[:0].view(dtype.numpy).reshape(shape)
        steps = tuple(s * dtype.bytes for s in strides)
        # Bits are strided, and seen as the type then: as_strided doesn't know every fp8 type.
        return self.xp.lib.stride_tricks.as_strided(flat[offset:], tuple(shape), steps).view(dtype.numpy)

    def integers(self, array: Any, dtype: DType) -> Any:
        return array.view(np.dtype(_integer(dtype)))  # of the same width, so that any strides are kept

    def count(self, integers: Any, pattern: int) -> int:
        return int((integers == pattern).sum())

    def equal(self, first: Any, second: Any) -> bool:
        return bool((first == second).all())

    def copy(self, array: Any) -> Any:
        return array.copy()

    def assign(self, to: Any, source: Any) -> None:
        to[...] = source

    def synchronize(self) -> None:
        if self.xp is not np:
            self.xp.cuda.get_current_stream().synchronize()

    def project(self, matrix: Any, vectors: F64, visible: NDArray[np.int64] | None) -> Projection:
        xp = self.xp
        x = xp.asarray(vectors)
        found = []
        step = max(1, _CHUNK // 8 // max(1, matrix.shape[1]))
        for start in range(0, matrix.shape[0], step):
            chunk = matrix[start : start + step].astype(np.float64)
            hidden = xp.ones(len(chunk), dtype=bool)
            if visible is not None:
                mask = xp.arange(chunk.shape[1])[None, :] >= xp.asarray(visible[start : start + step])[:, None]
                hidden = (xp.isneginf(chunk) | ~mask).all(axis=1)
                chunk[mask] = 0.0
            finite = xp.isfinite(chunk).all(axis=1)
            chunk[~finite] = 0.0
            parts = (chunk @ x, xp.abs(chunk).sum(axis=1), (chunk * chunk).sum(axis=1), finite, hidden)
            found.append(tuple(np.asarray(self._host(p)) for p in parts))
        return Projection(*(np.concatenate([f[i] for f in found]) for i in range(5)))


class TorchBackend:
    def __init__(self) -> None:
        self.torch: Any = sys.modules["torch"]

    def float64(self, array: Any) -> F64:
        return np.asarray(array.detach().double().cpu().numpy())

    def take_rows(self, array: Any, index: NDArray[np.int64]) -> Any:
        where = self.torch.from_numpy(np.ascontiguousarray(index)).to(array.device)
        if array.element_size() == 1:  # not every torch gathers fp8
            return array.view(self.torch.uint8)[where].view(array.dtype)
        return array[where]

    def filled(self, like: Any, count: int, dtype: DType) -> Any:
        return self.torch.full(
            (count,), POISON[dtype.name], dtype=getattr(self.torch, _integer(dtype)), device=like.device
        )

    def poison(self, flat: Any, dtype: DType) -> None:
        flat.fill_(POISON[dtype.name])

    def shaped(self, flat: Any, dtype: DType, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
        typed = flat.view(getattr(self.torch, dtype.torch))
        return typed.as_strided(tuple(shape), tuple(strides), offset)

    def integers(self, array: Any, dtype: DType) -> Any:
        return array.view(getattr(self.torch, _integer(dtype)))

    def count(self, integers: Any, pattern: int) -> int:
        step = _CHUNK // max(1, integers[0].numel()) if integers.ndim and len(integers) else 1
        return sum(int((part == pattern).sum()) for part in integers.split(max(1, step))) if integers.numel() else 0

    def equal(self, first: Any, second: Any) -> bool:
        return bool(self.torch.equal(first, second))

    def copy(self, array: Any) -> Any:
        return array.clone()

    def assign(self, to: Any, source: Any) -> None:
        to.copy_(source)

    def synchronize(self) -> None:
        if self.torch.cuda.is_available():
            self.torch.cuda.synchronize()

    def project(self, matrix: Any, vectors: F64, visible: NDArray[np.int64] | None) -> Projection:
        torch = self.torch
        x = torch.from_numpy(vectors).to(matrix.device)
        found = []
        step = max(1, _CHUNK // 8 // max(1, matrix.shape[1]))
        for start in range(0, matrix.shape[0], step):
            chunk = matrix[start : start + step].double()
            hidden = torch.ones(len(chunk), dtype=torch.bool)
            if visible is not None:
                limit = torch.from_numpy(np.ascontiguousarray(visible[start : start + step])).to(matrix.device)
                mask = torch.arange(chunk.shape[1], device=matrix.device)[None, :] >= limit[:, None]
                hidden = (torch.isneginf(chunk) | ~mask).all(dim=1)
                chunk = chunk.masked_fill(mask, 0.0)
            finite = torch.isfinite(chunk).all(dim=1)
            chunk = chunk.masked_fill(~finite[:, None], 0.0)
            parts = (chunk @ x, chunk.abs().sum(dim=1), (chunk * chunk).sum(dim=1), finite, hidden)
            found.append(tuple(p.cpu().numpy() for p in parts))
        return Projection(*(np.concatenate([f[i] for f in found]) for i in range(5)))


class Stack:
    """A list of equally shaped arrays, seen as one array with a mode more."""

    def __init__(self, members: Sequence[Any]) -> None:
        self.members = members
        self.shape = (len(members), *(int(extent) for extent in members[0].shape))
        self.ndim = len(self.shape)

    def __getitem__(self, where: Any) -> Any:
        """The member that an index, or a tuple of one, names."""
        (index,) = where if isinstance(where, tuple) else (where,)
        return self.members[index]


def stacked(array: Any) -> Any:
    """A list as a `Stack`; an array as it is.

    Raises:
        ArgumentError: the list is empty, or its arrays differ in shape.
    """
    if not isinstance(array, (list, tuple)):
        return array
    shapes = sorted({tuple(member.shape) for member in array})
    if len(shapes) != 1:
        raise ArgumentError(f"expected a list of arrays of one shape, got {shapes or 'none'}")
    return Stack(array)


def backend(array: Any) -> Backend:
    """The backend of an array, or of a list's arrays.

    Raises:
        ArgumentError: not an array of numpy, torch or cupy.
    """
    if isinstance(array, Stack):
        return backend(array.members[0])
    if isinstance(array, (np.ndarray, np.generic)):
        return ArrayBackend(np)
    root = type(array).__module__.split(".")[0]
    if root == "torch":
        return TorchBackend()
    if root == "cupy":
        return ArrayBackend(sys.modules["cupy"])
    raise ArgumentError(f"validation takes arrays of numpy, torch or cupy, got {type(array).__name__}")


def dtype_of(array: Any) -> str:
    """cutegen's name of an array's element type, as stored.

    Raises:
        ArgumentError: a type that no kernel takes.
    """
    text = str(array.dtype).rsplit(".", 1)[-1]
    names = {
        "float32": "f32",
        "float16": "f16",
        "bfloat16": "bf16",
        str(np.dtype(ml_dtypes.float8_e4m3fn)): "e4m3",
        str(np.dtype(ml_dtypes.float8_e5m2)): "e5m2",
    }
    if text not in names:
        raise ArgumentError(f"expected float32, float16, bfloat16 or an 8-bit float, got {text}")
    return names[text]
