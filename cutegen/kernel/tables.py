"""Arrays of pointers and of TMA descriptors in device memory, for kernels whose tensors are lists.

All arrays of a call lie in one allocation, which is written once, before anything can read it, and kept for calls with
the same addresses. It is never written again: a launch that still runs, or a graph, may read it.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence
from typing import Any

from cutegen.hardware import TENSOR_MAP_BYTES
from cutegen.kernel import tensormap
from cutegen.kernel.arguments import Bound
from cutegen.kernel.driver import Device, Driver
from cutegen.kernel.packing import slots
from cutegen.plan.signature import PointerArray, Signature, TensorMapArray

# Sets of addresses whose arrays are kept. Then the half used longest ago is freed, which waits for the GPU: seldom.
_CACHED_SETS = 64


class Tables:
    """The arrays of one kernel for one set of shapes and strides on one device."""

    def __init__(self, driver: Driver, device: Device, signature: Signature, bound: Bound) -> None:
        names = [t.name for t in signature.tensors]
        self._signature, self._bound, self._driver, self._device = signature, bound, driver, device
        self._params = tuple(
            (slot.offset // 8, names.index(slot.param.tensor), slot.param)
            for slot in slots(signature)
            if isinstance(slot.param, (PointerArray, TensorMapArray))
        )
        self._kept: dict[tuple[tuple[int, ...], ...], int] = {}
        self._maps: dict[tuple[TensorMapArray, int], bytes] = {}
        weakref.finalize(self, _release, driver, device, self._kept).atexit = False

    @classmethod
    def of(cls, driver: Driver, device: Device, signature: Signature, bound: Bound) -> Tables | None:
        """None for a kernel without arrays."""
        found = cls(driver, device, signature, bound)
        return found if found._params else None

    def addresses(self, pointers: Sequence[Any]) -> list[tuple[int, int]]:
        """(64-bit word of the parameters, address) of each array, for tensors at `pointers` in the signature's order.

        Raises:
            LaunchError: device memory is exhausted, or the driver refuses a descriptor.
        """
        key = tuple(pointers[tensor].members for _, tensor, _ in self._params)
        start = self._kept.pop(key, None)
        if start is None:
            if len(self._kept) >= _CACHED_SETS:
                _release(self._driver, self._device, self._kept, len(self._kept) // 2)
            parts = [self._bytes(param, members) for (_, _, param), members in zip(self._params, key)]
            start = self._driver.upload(self._device, b"".join(parts))
        self._kept[key] = start  # the last in order is the last used
        found = []
        for word, tensor, param in self._params:
            found.append((word, start))
            start += len(pointers[tensor].members) * _size(param)
        return found

    def _bytes(self, param: PointerArray | TensorMapArray, members: Sequence[int]) -> bytes:
        if isinstance(param, PointerArray):
            return struct.pack(f"<{len(members)}Q", *members)
        return b"".join(self._map(param, pointer) for pointer in members)

    def _map(self, param: TensorMapArray, pointer: int) -> bytes:
        key = param, pointer
        if key not in self._maps:
            if len(self._maps) >= 16 * _CACHED_SETS:
                self._maps.clear()
            arg = self._signature.tensor(param.tensor)
            spec = tensormap.tensor_map(param.each, arg, pointer, self._bound.extents, self._bound.strides_of(arg))
            self._maps[key] = bytes(TENSOR_MAP_BYTES) if spec is None else self._driver.encode(spec)
        return self._maps[key]


def _size(param: PointerArray | TensorMapArray) -> int:
    return 8 if isinstance(param, PointerArray) else TENSOR_MAP_BYTES


def _release(driver: Driver, device: Device, kept: dict[Any, int], count: int | None = None) -> None:
    """Frees the first `count` arrays, or all."""
    freed = [kept.pop(key) for key in list(kept)[:count]]
    if freed:
        driver.discard(device, freed)
