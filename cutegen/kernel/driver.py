"""The few CUDA driver calls that loading and launching need; nothing else in the package talks to the driver.

Launching goes through `cuLaunchKernelEx` at the address that `cuGetProcAddress` gives, called by ctypes with the launch
configuration and the parameters packed beforehand: several times less Python work per launch than converting eleven
arguments each time.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cutegen.errors import LaunchError, ToolchainError
from cutegen.kernel.tensormap import TensorMapSpec
from cutegen.plan.signature import Geometry

# CUlaunchConfig and CUlaunchAttribute of cuda.h (64-bit): seven unsigned ints, padding, stream, attributes, count.
_CONFIG = struct.Struct("<7I4xQQI4x")
_ATTRIBUTE = struct.Struct("<I4x3I52x")
_ATTRIBUTE_CLUSTER = 4
STREAM_WORD = 4  # the stream is the fifth 64-bit word of CUlaunchConfig

_LaunchEx = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
# Too short a call to let other threads run meanwhile.
_CtxGetCurrent = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True)
class Device:
    """What a launch must know of a GPU. `context` is the address of its primary context, sizes are in bytes."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    sms: int
    smem_per_block: int
    l2_bytes: int
    context: int


@dataclass(frozen=True)
class Loaded:
    """A kernel in the driver: the addresses of its CUlibrary and CUkernel."""

    library: int
    kernel: int


def launch_config(
    grid: tuple[int, int, int], threads: int, smem_bytes: int, attributes: int = 0, count: int = 0
) -> bytes:
    """The bytes of a CUlaunchConfig with stream 0; `attributes` is the address of `count` CUlaunchAttribute."""
    return _CONFIG.pack(*grid, threads, 1, 1, smem_bytes, 0, attributes, count)


def cluster_attribute(cluster: tuple[int, int, int]) -> bytes:
    """The bytes of the CUlaunchAttribute that asks for clusters of this many blocks."""
    return _ATTRIBUTE.pack(_ATTRIBUTE_CLUSTER, *cluster)


class Driver:
    """The CUDA driver of this process. Use `driver()`: there is one.

    Raises:
        ToolchainError: cuda-bindings, libcuda or a GPU is missing.
    """

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver as api
        except ImportError as error:
            raise ToolchainError(
                f"running on a GPU needs cuda-bindings ({error}): pip install cuda-python, or pass device='sim'"
            ) from None
        self.api: Any = api
        try:
            (status,) = api.cuInit(0)
        except Exception as error:  # cuda-bindings raises RuntimeError of its own making where libcuda can't be opened
            raise ToolchainError(
                f"no CUDA driver on this machine ({error}): install NVIDIA's driver, or pass device='sim'"
            ) from None
        if int(status) != 0:
            raise ToolchainError(
                f"no usable GPU (cuInit: {status.name}): run on a machine with one, or pass device='sim'"
            )
        self._devices: dict[int, Device] = {}
        self._upload_streams: dict[int, int] = {}  # by device
        self._lock = threading.Lock()
        self.launch: Callable[[int, int, int, int | None], int] = _LaunchEx(self._address("cuLaunchKernelEx", 12000))
        self.get_context: Callable[[int], int] = _CtxGetCurrent(self._address("cuCtxGetCurrent", 12000))

    def check(self, result: tuple[Any, ...], what: str) -> Any:
        """The value of a driver call's `(status, *values)`.

        Raises:
            LaunchError: the call failed; names it and the driver's error.
        """
        status = result[0]
        if int(status) != 0:
            raise LaunchError(f"{what}: {self.error_text(int(status))}")
        return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]

    def error_text(self, status: int) -> str:
        """Name and description of a CUresult."""
        code = self.api.CUresult(status)
        _, text = self.api.cuGetErrorString(code)
        return f"{code.name} ({text.decode()})" if text else str(code.name)

    def _address(self, name: str, version: int) -> int:
        result = self.api.cuGetProcAddress(name.encode(), version, 0)
        address = int(result[1]) if int(result[0]) == 0 else 0
        if address == 0:
            raise ToolchainError(f"the NVIDIA driver is too old: it has no {name}; install one for CUDA 12 or newer")
        return address

    def version(self) -> tuple[int, int]:
        """The newest CUDA version that the driver supports."""
        number = int(self.check(self.api.cuDriverGetVersion(), "cuDriverGetVersion"))
        return number // 1000, number % 1000 // 10

    def device_count(self) -> int:
        return int(self.check(self.api.cuDeviceGetCount(), "cuDeviceGetCount"))

    def device(self, ordinal: int) -> Device:
        """The GPU with this ordinal; its primary context is made if nobody has.

        Raises:
            LaunchError: there is no such GPU.
        """
        known = self._devices.get(ordinal)
        if known is not None:
            return known
        with self._lock:
            if ordinal not in self._devices:
                handle = self.check(self.api.cuDeviceGet(ordinal), f"cuDeviceGet({ordinal})")
                keys = self.api.CUdevice_attribute

                def attribute(key: str) -> int:
                    return int(
                        self.check(
                            self.api.cuDeviceGetAttribute(getattr(keys, f"CU_DEVICE_ATTRIBUTE_{key}"), handle), key
                        )
                    )

                name = self.check(self.api.cuDeviceGetName(128, handle), "cuDeviceGetName")
                context = self.check(self.api.cuDevicePrimaryCtxRetain(handle), "cuDevicePrimaryCtxRetain")
                self._devices[ordinal] = Device(
                    ordinal=ordinal,
                    name=name.split(b"\0")[0].decode(),
                    capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
                    sms=attribute("MULTIPROCESSOR_COUNT"),
                    smem_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
                    l2_bytes=attribute("L2_CACHE_SIZE"),
                    context=int(context),
                )
        return self._devices[ordinal]

    def device_of(self, pointer: int) -> int:
        """The ordinal of the GPU that `pointer` belongs to.

        Raises:
            LaunchError: not a pointer that CUDA knows.
        """
        key = self.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self.check(self.api.cuPointerGetAttribute(key, pointer), f"cuPointerGetAttribute({pointer:#x})"))

    def current_device(self) -> int:
        """The ordinal of the current context's GPU, or 0 where there is no current context."""
        status, handle = self.api.cuCtxGetDevice()
        return int(handle) if int(status) == 0 else 0

    # ---- loading

    def load(self, cubin: bytes, symbol: str) -> Loaded:
        """Loads a cubin into the process; contexts get it when they first launch.

        Raises:
            LaunchError: the driver refuses the cubin, or it has no kernel called `symbol`.
        """
        library = self.check(self.api.cuLibraryLoadData(cubin, [], [], 0, [], [], 0), f"loading {symbol}")
        kernel = self.check(self.api.cuLibraryGetKernel(library, symbol.encode()), f"no kernel {symbol} in the cubin")
        return Loaded(int(library), int(kernel))

    def configure(
        self, loaded: Loaded, symbol: str, device: Device, smem_bytes: int, cluster: tuple[int, int, int]
    ) -> None:
        """Allows a kernel its dynamic shared memory and cluster on a device.

        Raises:
            LaunchError: static and dynamic shared memory together exceed the device's limit.
        """
        api = self.api
        kernel, handle = api.CUkernel(loaded.kernel), self.check(api.cuDeviceGet(device.ordinal), "cuDeviceGet")
        keys = api.CUfunction_attribute
        static = int(
            self.check(
                api.cuKernelGetAttribute(keys.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, handle), f"reading {symbol}"
            )
        )
        if static + smem_bytes > device.smem_per_block:
            raise LaunchError(
                f"{symbol} needs {static + smem_bytes} bytes of shared memory ({smem_bytes} dynamic, {static} static); "
                f"{device.name} allows {device.smem_per_block} per block: use a smaller tile or fewer pipeline.stages"
            )
        if smem_bytes:
            # Not only above 48 KiB: that limit counts static shared memory too, so exactly 48 KiB may need the opt-in.
            key = keys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.check(
                api.cuKernelSetAttribute(key, smem_bytes, kernel, handle), f"{symbol}: {smem_bytes} B of shared memory"
            )
        if cluster[0] * cluster[1] * cluster[2] > 8:
            key = keys.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            self.check(api.cuKernelSetAttribute(key, 1, kernel, handle), f"{symbol}: cluster of {cluster}")

    def active_clusters(self, loaded: Loaded, symbol: str, device: Device, geometry: Geometry) -> int:
        """How many clusters of a configured kernel a device runs at once; no context need be current.

        A cluster's blocks share a GPC, and not every GPC's number of SMs is a multiple of the cluster's.
        """
        api = self.api
        attribute, config = api.CUlaunchAttribute(), api.CUlaunchConfig()
        attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dim = attribute.value.clusterDim
        dim.x, dim.y, dim.z = geometry.cluster
        config.gridDimX, config.gridDimY, config.gridDimZ = math.prod(geometry.cluster), 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = geometry.threads, 1, 1
        config.sharedMemBytes, config.attrs, config.numAttrs = geometry.smem_bytes, [attribute], 1
        entered = self.enter(device)
        try:
            function = self.check(api.cuKernelGetFunction(api.CUkernel(loaded.kernel)), f"reading {symbol}")
            return int(self.check(api.cuOccupancyMaxActiveClusters(function, config), f"{symbol}: clusters at once"))
        finally:
            if entered:
                self.leave()

    # ---- contexts

    def enter(self, device: Device) -> bool:
        """Makes the device's primary context current unless one of its contexts is; whether `leave` must undo that."""
        status, current = self.api.cuCtxGetCurrent()
        if int(status) == 0 and int(current) != 0 and self.current_device() == device.ordinal:
            return False
        self.check(self.api.cuCtxPushCurrent(self.api.CUcontext(device.context)), "cuCtxPushCurrent")
        return True

    def leave(self) -> None:
        self.check(self.api.cuCtxPopCurrent(), "cuCtxPopCurrent")

    # ---- memory and streams (the caller has made the device's context current)

    def allocate(self, size: int) -> int:
        """Device memory of `size` bytes, aligned to 256."""
        return int(self.check(self.api.cuMemAlloc(max(size, 1)), f"allocating {size} bytes on the GPU"))

    def free(self, pointer: int) -> None:
        self.check(self.api.cuMemFree(pointer), "cuMemFree")

    def copy_in(self, pointer: int, host: int, size: int) -> None:
        if size:
            self.check(self.api.cuMemcpyHtoD(pointer, host, size), "copying to the GPU")

    def copy_out(self, host: int, pointer: int, size: int) -> None:
        if size:
            self.check(self.api.cuMemcpyDtoH(host, pointer, size), "copying from the GPU")

    def upload(self, device: Device, data: bytes) -> int:
        """New device memory that holds `data`, aligned to 256 bytes; complete when this returns, for every stream.
        Neither waits for work of other streams nor becomes part of a graph that is being captured.

        Raises:
            LaunchError: device memory is exhausted.
        """
        api, what = self.api, f"copying {len(data)} bytes of addresses and descriptors to the GPU"
        held = ctypes.create_string_buffer(data, len(data))
        with self._beside_captures(device):
            if device.ordinal not in self._upload_streams:
                kind = int(api.CUstream_flags.CU_STREAM_NON_BLOCKING)
                self._upload_streams[device.ordinal] = int(self.check(api.cuStreamCreate(kind), what))
            stream, pointer = self._upload_streams[device.ordinal], self.allocate(len(data))
            self.check(api.cuMemcpyHtoDAsync(pointer, ctypes.addressof(held), len(data), stream), what)
            self.synchronize(stream, what)
        return pointer

    def discard(self, device: Device, pointers: Sequence[int]) -> None:
        """Frees uploaded memory. cuMemFree waits for what was launched before, for memory that cuMemAlloc gave."""
        with self._beside_captures(device):
            for pointer in pointers:
                self.free(pointer)

    @contextmanager
    def _beside_captures(self, device: Device) -> Iterator[None]:
        """In the device's context, with calls allowed that a capture of this thread's work would otherwise forbid."""
        api, entered = self.api, self.enter(device)
        relaxed = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self.check(api.cuThreadExchangeStreamCaptureMode(relaxed), "cuThreadExchangeStreamCaptureMode")
        try:
            yield
        finally:
            self.check(api.cuThreadExchangeStreamCaptureMode(before), "cuThreadExchangeStreamCaptureMode")
            if entered:
                self.leave()

    def synchronize(self, stream: int, what: str) -> None:
        """Waits for a stream; an error of a kernel that ran on it appears here, so `what` should name it."""
        self.check(self.api.cuStreamSynchronize(stream), what)

    def encode(self, spec: TensorMapSpec) -> bytes:
        """The 128 bytes of a CUtensorMap.

        Raises:
            LaunchError: the driver refuses the description.
        """
        api = self.api
        found = self.check(
            api.cuTensorMapEncodeTiled(
                getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{spec.data_type}"),
                len(spec.dims),
                spec.pointer,
                _words(api.cuuint64_t, spec.dims),
                _words(api.cuuint64_t, spec.strides),
                _words(api.cuuint32_t, spec.box),
                _words(api.cuuint32_t, (1,) * len(spec.dims)),
                api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                getattr(
                    api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{f'{spec.swizzle}B' if spec.swizzle else 'NONE'}"
                ),
                api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            ),
            f"TMA descriptor of {spec.tensor}: dims {spec.dims}, strides {spec.strides} B, box {spec.box}",
        )
        return ctypes.string_at(found.getPtr(), 128)


def _words(word: Any, values: Sequence[int]) -> list[Any]:
    return [word(v) for v in values]


_driver: Driver | None = None
_driver_lock = threading.Lock()


def driver() -> Driver:
    """The process's driver, opened when first asked for.

    Raises:
        ToolchainError: cuda-bindings, libcuda or a GPU is missing.
    """
    global _driver
    if _driver is None:
        with _driver_lock:
            if _driver is None:
                _driver = Driver()
    return _driver
