"""A checked call with everything packed: only addresses, given scalars and the stream change from launch to launch."""

from __future__ import annotations

import ctypes
import operator
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from cutegen.errors import ArgumentError, LaunchError
from cutegen.hardware import TENSOR_MAP_BYTES
from cutegen.kernel import tensormap
from cutegen.kernel.arguments import Bound
from cutegen.kernel.driver import STREAM_WORD, Device, Driver, Loaded, cluster_attribute, launch_config
from cutegen.kernel.packing import pack, scalar_bytes, slots
from cutegen.kernel.tables import Tables
from cutegen.plan.signature import Pointer, Scalar, Signature, TensorMapParam

# Limits of gridDim: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_CACHED_MAPS = 64


def grid_of(
    signature: Signature, extents: Mapping[str, int], sms: int, clusters: int | None = None
) -> tuple[int, int, int]:
    """The grid for these extents, see `Geometry.grid`; a zero means that there is nothing to launch.

    Raises:
        ArgumentError: beyond what a grid can hold.
    """
    grid = signature.geometry.grid(extents, sms, clusters)
    for axis, blocks, limit in zip("xyz", grid, _GRID_LIMITS):
        if blocks > limit:
            sizes = ", ".join(f"{mode} {extent}" for mode, extent in extents.items())
            raise ArgumentError(
                f"{signature.symbol}: {blocks} blocks along grid {axis}, at most {limit}: split the problem ({sizes})"
            )
    return grid


class _Buffer:
    """Zeroed memory that stays where it is, aligned to 64 bytes."""

    def __init__(self, size: int) -> None:
        room = max(size, 8)
        room = -(-room // 8) * 8
        self._memory = (ctypes.c_char * (room + 63))()
        start = -ctypes.addressof(self._memory) % 64
        self.address = ctypes.addressof(self._memory) + start
        self.bytes = memoryview(self._memory).cast("B")[start : start + room]
        self.words = self.bytes.cast("Q")


class Ready:
    """One kernel's launch for one set of shapes, strides and dtypes on one device. Safe to use from several threads."""

    def __init__(
        self,
        driver: Driver,
        device: Device,
        loaded: Loaded,
        signature: Signature,
        bound: Bound,
        values: Mapping[str, Any],
        clusters: int | None = None,
    ) -> None:
        self.signature = signature
        self.bound = bound
        self.grid = grid_of(signature, bound.extents, device.sms, clusters)
        self.empty = 0 in self.grid
        self._driver = driver
        self._device = device
        self._lock = threading.Lock()
        self._context_word = _Buffer(8)

        names = [t.name for t in signature.tensors]
        self._tables = Tables.of(driver, device, signature, bound)
        places = slots(signature)
        packed = pack(signature, bound, dict.fromkeys(names, 0), values)
        self._params = _Buffer(len(packed))
        self._params.bytes[: len(packed)] = packed
        self._moves = tuple(
            (s.offset // 8, names.index(s.param.tensor)) for s in places if isinstance(s.param, Pointer)
        )
        self._maps = tuple(
            (s.offset, names.index(s.param.tensor), s.param, dict[int, bytes]())
            for s in places
            if isinstance(s.param, TensorMapParam)
        )
        # Addresses of the descriptors that stand in the parameters: most calls find them there.
        self._mapped: Any = None
        self._watched = operator.itemgetter(*(tensor for _, tensor, _, _ in self._maps)) if self._maps else None
        kinds = {s.name: s for s in signature.scalars}
        self._scalars = {
            s.param.name: (s.offset, s.size, kinds[s.param.name]) for s in places if isinstance(s.param, Scalar)
        }
        self._kinds = kinds
        self._table = _Buffer(8 * len(places))
        for index, slot in enumerate(places):
            self._table.words[index] = self._params.address + slot.offset

        geometry = signature.geometry
        attributes, count = 0, 0
        if geometry.cluster != (1, 1, 1):
            data = cluster_attribute(geometry.cluster)
            self._attributes = _Buffer(len(data))
            self._attributes.bytes[: len(data)] = data
            attributes, count = self._attributes.address, 1
        config = launch_config(self.grid, geometry.threads, geometry.smem_bytes, attributes, count)
        self._config = _Buffer(len(config))
        self._config.bytes[: len(config)] = config

        # Looked up once: the launch below is the hot path.
        self._fire = driver.launch
        self._get_context = driver.get_context
        self._context = device.context
        self._context_address = self._context_word.address
        self._current, self._stream = self._context_word.words, self._config.words
        self._words = self._params.words
        self._addresses = (self._config.address, loaded.kernel, self._table.address)

    def packed(self) -> bytes:
        """The parameters as they were last launched."""
        return bytes(self._params.bytes)

    def launch(self, pointers: Sequence[int], stream: int, scalars: Mapping[str, Any] | None = None) -> None:
        """Launches with the tensors at `pointers`, in the signature's order. `scalars` must be the names bound as
        given.

        Raises:
            ArgumentError: a scalar that does not fit.
            LaunchError: the driver refuses the launch.
        """
        with self._lock:
            if (
                scalars
                or (self._watched is not None and self._mapped != self._watched(pointers))
                or self._tables is not None
            ):
                self.set(pointers, scalars)
            else:
                words = self._words
                for word, tensor in self._moves:
                    words[word] = pointers[tensor]
            self.again(stream)

    def set(self, pointers: Sequence[int], scalars: Mapping[str, Any] | None = None) -> None:
        """Puts addresses and scalars into the parameters."""
        words = self._words
        for word, tensor in self._moves:
            words[word] = pointers[tensor]
        if scalars:
            for name, value in scalars.items():
                data = scalar_bytes(self._kinds[name], value)
                if name in self._scalars:
                    offset, size, _ = self._scalars[name]
                    self._params.bytes[offset : offset + size] = data
        if self._tables is not None and not self.empty:
            for word, address in self._tables.addresses(pointers):
                words[word] = address
        if self._watched is None:
            return
        self._mapped = None
        for offset, tensor, param, cache in self._maps:
            pointer = pointers[tensor]
            encoded = cache.get(pointer)
            if encoded is None:
                if len(cache) >= _CACHED_MAPS:
                    cache.clear()
                encoded = cache[pointer] = self._encode(param, pointer)
            self._params.bytes[offset : offset + TENSOR_MAP_BYTES] = encoded
        self._mapped = self._watched(pointers)

    def _encode(self, param: TensorMapParam, pointer: int) -> bytes:
        arg = self.signature.tensor(param.tensor)
        spec = tensormap.tensor_map(param, arg, pointer, self.bound.extents, self.bound.strides_of(arg))
        return bytes(TENSOR_MAP_BYTES) if spec is None else self._driver.encode(spec)

    def again(self, stream: int) -> None:
        """Launches with the parameters as they are.

        Raises:
            LaunchError: the driver refuses the launch.
        """
        if self.empty:
            return
        self._stream[STREAM_WORD] = stream
        # The null stream means that of the current context, which need not be this device's.
        if self._get_context(self._context_address) or self._current[0] != self._context:
            self._launch_elsewhere()
            return
        config, kernel, table = self._addresses
        status = self._fire(config, kernel, table, None)
        if status:
            self._refused(status)

    def _launch_elsewhere(self) -> None:
        config, kernel, table = self._addresses
        entered = self._driver.enter(self._device)
        try:
            status = self._fire(config, kernel, table, None)
        finally:
            if entered:
                self._driver.leave()
        if status:
            self._refused(status)

    def _refused(self, status: int) -> None:
        geometry = self.signature.geometry
        raise LaunchError(
            f"launching {self.signature.symbol} (grid {self.grid}, {geometry.threads} threads, {geometry.smem_bytes} B "
            f"of shared memory, cluster {geometry.cluster}) on {self._device.name}: {self._driver.error_text(status)}"
        )
