"""Global memory: the arrays of a call at their own addresses. An access must lie in one of them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


@dataclass
class Allocation:
    """Memory [base, end) of an array. `counts` are writes of each element of an output, of `itemsize` bytes. Rows of an
    `interleaved` one lie between those of another, as columns of one matrix do.
    """

    name: str
    base: int
    end: int
    array: NDArray[Any] | None
    output: bool
    itemsize: int
    start: int = 0
    bytes_: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    counts: NDArray[np.uint16] | None = None
    interleaved: bool = False
    mask: NDArray[np.bool_] | None = None

    def holds(self, addresses: I64) -> NDArray[np.bool_]:
        """Whether an element of the array lies at each address."""
        if self.mask is None:
            self.mask = self.elements()
        places = (addresses - self.base) // self.itemsize
        inside = (places >= 0) & (places < len(self.mask))
        return np.asarray(inside & self.mask[np.where(inside, places, 0)])

    def elements(self) -> NDArray[np.bool_]:
        """Which places between base and end are elements of the array; the rest is padding between its rows."""
        mask = np.zeros((self.end - self.base) // self.itemsize, bool)
        if self.array is not None and self.array.size:
            steps = [stride // self.itemsize for stride in self.array.strides]
            np.lib.stride_tricks.as_strided(mask, self.array.shape, steps)[...] = True
        return mask


class GlobalMemory:
    """Loads and stores at absolute addresses."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []

    def add(self, array: NDArray[Any], name: str, output: bool) -> int:
        """Makes an array reachable, once; its address. An empty one has an address that nothing may read."""
        base = array.ctypes.data
        if array.size == 0:
            return base
        low = sum(min(0, (n - 1) * s) for n, s in zip(array.shape, array.strides))
        high = sum(max(0, (n - 1) * s) for n, s in zip(array.shape, array.strides)) + array.itemsize
        if any((a.base, a.end) == (base + low, base + high) for a in self.allocations):
            return base
        found = Allocation(name, base + low, base + high, array, output, array.itemsize)
        # Typed views need a start at their own alignment, which a slice does not have; only [base, end) is touched.
        found.start = found.base // 16 * 16
        size = -(-(found.end - found.start) // 16) * 16
        found.bytes_ = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(found.start))
        if output:
            found.counts = np.zeros((found.end - found.base) // found.itemsize, np.uint16)
        for other in self.allocations:
            if other.base < found.end and found.base < other.end:
                other.interleaved = found.interleaved = True
        self.allocations.append(found)
        return base

    def find(self, addresses: NDArray[np.uint64], width: int) -> NDArray[np.int64]:
        """The allocation that holds each access, or -1."""
        first = addresses.astype(np.int64)
        found = np.full(len(first), -1, np.int64)
        for index, allocation in enumerate(self.allocations):
            inside = (first >= allocation.base) & (first + width <= allocation.end)
            if allocation.interleaved:
                inside &= (found < 0) | allocation.holds(first)
            found[inside] = index
        return found

    def load(self, which: I64, addresses: NDArray[np.uint64], width: int, size: int) -> NDArray[Any]:
        """(n, width / size) values of `size` bytes; zeros where `which` is -1."""
        values = np.zeros((len(addresses), width // size), f"u{size}")
        for index in np.unique(which[which >= 0]):
            allocation = self.allocations[index]
            lanes = np.flatnonzero(which == index)
            first = (addresses[lanes].astype(np.int64) - allocation.start) // size
            values[lanes] = allocation.bytes_.view(f"u{size}")[first[:, None] + np.arange(width // size)]
        return values

    def store(self, which: I64, addresses: NDArray[np.uint64], values: NDArray[Any]) -> None:
        """Puts (n, k) values down where `which` is not -1, and counts them."""
        size = values.dtype.itemsize
        width = size * values.shape[1]
        for index in np.unique(which[which >= 0]):
            allocation = self.allocations[index]
            lanes = np.flatnonzero(which == index)
            offset = addresses[lanes].astype(np.int64)
            places = ((offset - allocation.start) // size)[:, None] + np.arange(values.shape[1])
            allocation.bytes_.view(f"u{size}")[places] = values[lanes]
            self.count(allocation, offset, width)

    @staticmethod
    def count(allocation: Allocation, addresses: I64, width: int) -> None:
        """Counts the elements that accesses of `width` bytes write."""
        if allocation.counts is None:
            return
        per = max(1, width // allocation.itemsize)
        elements = ((addresses - allocation.base) // allocation.itemsize)[:, None] + np.arange(per)
        np.add.at(allocation.counts, elements.reshape(-1), 1)

    def coverage(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """(kind, message, first coordinates) of outputs written incompletely, twice, or between their elements."""
        found = []
        for allocation in self.allocations:
            if allocation.counts is None or allocation.array is None:
                continue
            mask = allocation.elements()
            faults = {
                "never-written": (mask & (allocation.counts == 0), "elements were never written"),
                "written-twice": (mask & (allocation.counts > 1), "elements were written more than once"),
                "stray-write": (~mask & (allocation.counts > 0), "places between elements were written"),
            }
            for kind, (where, text) in faults.items():
                count = int(where.sum())
                if count:
                    at = _coordinate(allocation, int(np.argmax(where)))
                    found.append((kind, f"{allocation.name}: {count} of {int(mask.sum())} {text}, first at {at}", at))
        return found


def _coordinate(allocation: Allocation, element: int) -> tuple[int, ...]:
    """The coordinate of an element that is so many elements after the first, largest stride first."""
    assert allocation.array is not None
    rest = element * allocation.itemsize
    coordinate = [0] * allocation.array.ndim
    for mode in sorted(range(allocation.array.ndim), key=lambda m: -abs(allocation.array.strides[m])):  # type: ignore[union-attr]
        stride = abs(allocation.array.strides[mode])
        if stride and allocation.array.shape[mode] > 1:
            coordinate[mode], rest = divmod(rest, stride)
    return tuple(coordinate)
