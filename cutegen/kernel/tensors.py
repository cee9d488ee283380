"""Arrays of other libraries as pointers, shapes and strides, without a copy.

One adapter a library. torch and cupy are read through their own attributes, which is fastest; everything else through
`__cuda_array_interface__` or DLPack. No library is imported: who passes its arrays has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from cutegen.dtypes import DTYPES, I32, DType
from cutegen.errors import ArgumentError
from cutegen.kernel import dlpack
from cutegen.kernel.driver import driver

HOST = -1


@dataclass(frozen=True)
class TensorView:
    """An array as a kernel sees it. `strides` count elements; `dtype` is cutegen's name, or the library's if unknown.

    `device` is a GPU's ordinal or HOST; `keep` is what must outlive the view.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int
    keep: Any = None


class Adapter(Protocol):
    """How to read and make one library's arrays."""

    library: str
    # How to make an array dense with its last mode contiguous, in this library's words; {} is the array.
    remedy: str

    def peek(self, array: Any) -> tuple[int, Hashable]:
        """The address, and all else that a launch depends on, as cheaply as can be."""

    def address(self, array: Any) -> int:
        """The address alone."""

    def view(self, array: Any, name: str) -> TensorView:
        """The whole description.

        Raises:
            ArgumentError: not an array whose bytes a kernel could use.
        """

    def stream(self, device: int) -> int:
        """The library's current stream on a device."""

    def allocator(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, device: int
    ) -> Callable[[], Any]:
        """Makes new arrays with these strides, a permutation of dense ones."""


def storage_name(dtype: DType) -> str:
    """The name of the type as stored: tf32 data are f32."""
    return "f32" if dtype.name == "tf32" else dtype.name


_BY_TORCH = {d.torch: storage_name(d) for d in (*DTYPES.values(), I32)}
_BY_NUMPY = {d.numpy: storage_name(d) for d in (*DTYPES.values(), I32)}


def _numpy_name(dtype: Any) -> str:
    return _BY_NUMPY.get(np.dtype(dtype), str(dtype))


def _elements(strides: Sequence[int], size: int, name: str) -> tuple[int, ...]:
    """Byte strides as element strides.

    Raises:
        ArgumentError: a stride that is not a whole number of elements.
    """
    for stride in strides:
        if stride % size:
            raise ArgumentError(
                f"{name}: a stride of {stride} bytes is not a whole number of {size}-byte elements: pass a copy"
            )
    return tuple(s // size for s in strides)


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def dense_permutation(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The axes from outermost to innermost for dense strides; extents of 1 and 0 leave the order of the shape."""
    return tuple(sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis)))


class TorchAdapter:
    library = "torch"
    remedy = "{}.contiguous()"

    def __init__(self) -> None:
        self.torch: Any = sys.modules["torch"]
        raw = getattr(getattr(self.torch, "_C", None), "_cuda_getCurrentRawStream", None)
        # The public call builds a Stream object each time, which costs as much as the rest of a launch.
        self.stream = raw if raw is not None else self._public_stream
        # What code that torch compiles checks its inputs and allocates its outputs with.
        self._guards: Any = getattr(getattr(getattr(self.torch, "_C", None), "_dynamo", None), "guards", None)
        self._compares = self._tells_apart()

    def _public_stream(self, device: int) -> int:
        return int(self.torch.cuda.current_stream(device).cuda_stream)

    def address(self, array: Any) -> int:
        return array.data_ptr()  # type: ignore[no-any-return]

    def peek(self, array: Any) -> tuple[int, Hashable]:
        return array.data_ptr(), (array.shape, array.stride(), array.dtype, array.get_device())

    def view(self, array: Any, name: str) -> TensorView:
        kind = str(array.dtype).rsplit(".", 1)[-1]
        device = array.get_device() if array.device.type == "cuda" else HOST
        if device == HOST and array.device.type != "cpu":
            raise ArgumentError(f"{name}: is on torch device {array.device}, expected cuda: pass {name}.cuda()")
        return TensorView(
            array.data_ptr(), tuple(array.shape), tuple(array.stride()), _BY_TORCH.get(kind, kind), device, keep=array
        )

    def allocator(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, device: int
    ) -> Callable[[], Any]:
        where = self.torch.device(f"cuda:{device}" if device != HOST else "cpu")
        kind = getattr(self.torch, dtype.torch)
        public = partial(self.torch.empty_strided, shape, strides, dtype=kind, device=where)
        # It parses less, and allocates on the current device.
        quick = getattr(self._guards, "_empty_strided_cuda", None)
        if quick is None or device == HOST:
            return public

        def empty() -> Any:
            made = quick(shape, strides, kind)
            return made if made.get_device() == device else public()

        try:
            trial = empty()
            alike = (tuple(trial.shape), tuple(trial.stride()), trial.dtype) == (shape, strides, kind)
        except Exception:  # not a public function: whatever it does not take, the public one does
            alike = False
        return empty if alike else public

    def comparison(self, tensors: Sequence[Any]) -> Callable[..., bool] | None:
        """Says of as many other tensors, in one call, whether they are like these in all that `peek` gives but the
        address; None where torch has no such function, or not for these. The same tensor twice is never like two."""
        return self._comparison(tensors) if self._compares else None

    def _comparison(self, tensors: Sequence[Any]) -> Callable[..., bool] | None:
        try:
            check = self._guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
            return check if check(*tensors) is True else None
        except Exception:  # not a public function
            return None

    def _tells_apart(self) -> bool:
        """Whether this torch's comparison is one: it has to see each difference that matters."""
        try:
            empty, wide, narrow = self.torch.empty, self.torch.float32, self.torch.float16
            given = empty((2, 2), dtype=wide)
            alike = self._comparison([given])
            others = [
                empty((3, 2), dtype=wide),
                empty((2, 2), dtype=narrow),
                given.t(),
                empty((2, 2), dtype=wide, device="meta"),
                empty((2, 2, 1), dtype=wide),
            ]
            return alike is not None and alike(empty((2, 2), dtype=wide)) and not any(alike(x) for x in others)
        except Exception:
            return False

    def using(self, stream: int, device: int) -> AbstractContextManager[Any]:
        """Within it, memory is taken from what `stream` has given back, so that nothing else still uses it."""
        cuda = self.torch.cuda
        # torch takes the address 0, the default stream's, for none given, and makes a new stream.
        named = cuda.ExternalStream(stream, device=device) if stream else cuda.default_stream(device)
        made: AbstractContextManager[Any] = cuda.stream(named)
        return made

    def keep(self, array: Any, device: int) -> None:
        """Keeps the allocator from giving the memory to others before the current stream has done with it."""
        array.record_stream(self.torch.cuda.current_stream(device))


class CupyAdapter:
    library = "cupy"
    remedy = "cupy.ascontiguousarray({})"

    def __init__(self) -> None:
        self.cupy: Any = sys.modules["cupy"]

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def peek(self, array: Any) -> tuple[int, Hashable]:
        return array.data.ptr, (array.shape, array.strides, array.dtype, array.data.device_id)

    def view(self, array: Any, name: str) -> TensorView:
        strides = _elements(array.strides, array.itemsize, name)
        return TensorView(
            array.data.ptr, tuple(array.shape), strides, _numpy_name(array.dtype), array.data.device_id, keep=array
        )

    def stream(self, device: int) -> int:
        return int(self.cupy.cuda.get_current_stream().ptr)

    def allocator(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, device: int
    ) -> Callable[[], Any]:
        axes = dense_permutation(strides, shape)

        def empty() -> Any:
            with self.cupy.cuda.Device(device):
                dense = self.cupy.empty([shape[axis] for axis in axes], dtype=dtype.numpy)
            return dense.transpose([axes.index(axis) for axis in range(len(axes))])

        return empty


class NumpyAdapter:
    """Host arrays. Kernels on a GPU get copies; the simulator reads them in place."""

    library = "numpy"
    remedy = "numpy.ascontiguousarray({})"

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def peek(self, array: Any) -> tuple[int, Hashable]:
        return array.ctypes.data, (array.shape, array.strides, array.dtype, HOST)

    def view(self, array: Any, name: str) -> TensorView:
        if not array.dtype.isnative:
            raise ArgumentError(
                f"{name}: bytes are in foreign order ({array.dtype.str}): "
                f"pass {name}.astype({name}.dtype.newbyteorder('='))"
            )
        strides = _elements(array.strides, array.itemsize, name)
        return TensorView(array.ctypes.data, array.shape, strides, _numpy_name(array.dtype), HOST, keep=array)

    def stream(self, device: int) -> int:
        return 0

    def allocator(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, device: int
    ) -> Callable[[], Any]:
        axes = dense_permutation(strides, shape)

        def empty() -> Any:
            dense = np.empty([shape[axis] for axis in axes], dtype=dtype.numpy)
            return dense.transpose([axes.index(axis) for axis in range(len(axes))])

        return empty


class InterfaceAdapter:
    """Arrays with `__cuda_array_interface__` (version 2 or 3) or else DLPack: numba, jax, cuda.core and others."""

    library = "the array's library"
    remedy = "a contiguous copy of {}"

    def address(self, array: Any) -> int:
        return self.view(array, "tensor").pointer

    def peek(self, array: Any) -> tuple[int, Hashable]:
        view = self.view(array, "tensor")
        return view.pointer, (view.shape, view.strides, view.dtype, view.device)

    def view(self, array: Any, name: str) -> TensorView:
        # An interface may be a property that raises for what it can't express (bfloat16): DLPack is then asked.
        interface = getattr(array, "__cuda_array_interface__", None)
        if interface is None:
            return self._dlpack(array, name)
        if interface.get("mask") is not None:
            raise ArgumentError(f"{name}: masked arrays aren't supported: pass the plain data")
        dtype = np.dtype(interface["typestr"])
        kind = _numpy_name(getattr(array, "dtype", dtype)) if dtype.kind == "V" else _numpy_name(dtype)
        shape = tuple(int(extent) for extent in interface["shape"])
        strides = interface.get("strides")
        steps = dense_strides(shape) if strides is None else _elements(strides, dtype.itemsize, name)
        pointer = int(interface["data"][0] or 0)
        device = driver().device_of(pointer) if pointer else driver().current_device()
        stream = interface.get("stream")
        if stream is not None and stream != 1:
            # The exporter's pending work is on another stream than the one that is launched on.
            driver().synchronize(int(stream), f"waiting for the stream of {name}")
        return TensorView(pointer, shape, steps, kind, device, array)

    def _dlpack(self, array: Any, name: str) -> TensorView:
        found = dlpack.read(array, name)
        if found.device_type == dlpack.CPU:
            device = HOST
        elif found.device_type in (dlpack.CUDA, dlpack.CUDA_MANAGED):
            device = found.device
        else:
            raise ArgumentError(
                f"{name}: is on DLPack device type {found.device_type}, expected CUDA (2): copy it to a GPU"
            )
        strides = dense_strides(found.shape) if found.strides is None else found.strides
        # The capsule owns the exporter's reference for as long as nobody consumes it.
        return TensorView(found.pointer, found.shape, strides, found.dtype, device, keep=found.capsule)

    def stream(self, device: int) -> int:
        return 0

    def allocator(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, device: int
    ) -> Callable[[], Any]:
        makers: tuple[tuple[str, Callable[[], Adapter]], ...] = (("torch", TorchAdapter), ("cupy", CupyAdapter))
        for name, make in makers:
            if name in sys.modules:
                return make().allocator(shape, strides, dtype, device)
        raise ArgumentError("no library to allocate the output with: pass out=, or import torch or cupy beforehand")


_adapters: dict[type, Adapter] = {}


def adapter(array: Any, name: str = "tensor") -> Adapter:
    """The adapter for an array's type.

    Raises:
        ArgumentError: not an array of a kind that kernels take.
    """
    kind = type(array)
    found = _adapters.get(kind)
    if found is None:
        found = _adapters[kind] = _choose(array, name)
    return found


def _choose(array: Any, name: str) -> Adapter:
    if isinstance(array, np.ndarray):
        return NumpyAdapter()
    roots = {base.__module__.split(".")[0] for base in type(array).__mro__}
    if "torch" in roots and hasattr(array, "data_ptr"):
        return TorchAdapter()
    if "cupy" in roots and hasattr(array, "data"):
        return CupyAdapter()
    # Asked of the type: the attribute of an instance may be a property that raises.
    if hasattr(type(array), "__cuda_array_interface__") or hasattr(array, "__cuda_array_interface__"):
        return InterfaceAdapter()
    if hasattr(array, "__dlpack__"):
        return InterfaceAdapter()
    raise ArgumentError(
        f"{name}: expected an array (torch, cupy, jax, numba or numpy), got {type(array).__name__}"
        + (": scalars are passed by keyword" if isinstance(array, (int, float)) or array is None else "")
    )


def stream_pointer(stream: Any) -> int:
    """A stream handle as an address: an int, or a stream of torch, cupy, cuda.core, or whatever has `__cuda_stream__`.

    Raises:
        ArgumentError: not a stream.
    """
    if isinstance(stream, bool):
        raise ArgumentError(f"stream: expected a stream or its address, got {stream}")
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        # A method since the protocol's first release; early cuda.core had a property.
        version_and_handle = protocol() if callable(protocol) else protocol
        return int(version_and_handle[1])
    for attribute in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, attribute, None)
        if value is not None:
            return int(getattr(value, "value", value) or 0)
    raise ArgumentError(f"stream: expected a stream or its address, got {type(stream).__name__}")
