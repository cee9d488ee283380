"""The same call on the simulator: PTX in, numpy arrays as memory, no GPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from cutegen import sim
from cutegen.errors import ArgumentError
from cutegen.kernel import tensormap
from cutegen.kernel.arguments import Bound, bind, refuse_unread
from cutegen.kernel.host import check_output, collect, laid_out
from cutegen.kernel.overlap import overlapping
from cutegen.kernel.packing import scalar_bytes, scalar_values
from cutegen.kernel.ready import grid_of
from cutegen.kernel.tensors import NumpyAdapter, TensorView
from cutegen.plan.signature import Extent, Pointer, Scalar, Signature, Stride, TensorArg

if TYPE_CHECKING:
    from cutegen.kernel.launch import Kernel
    from cutegen.sim import Result

_NUMPY_SCALARS = {
    "float": np.float32,
    "int32_t": np.int32,
    "int64_t": np.int64,
    "uint32_t": np.uint32,
    "uint64_t": np.uint64,
}


def run(
    kernel: Kernel, arrays: Mapping[str, Any], scalars: Mapping[str, Any], **options: Any
) -> tuple[Any, Result | None]:
    """Runs a kernel's PTX on numpy arrays, or torch's on the CPU: its output as the same library's, and what was seen.

    Arrays whose strides the kernel can take are used in place, so that padding and packed views are tested as they are.
    The result is None where there was nothing to launch. `options` (`seed`, `budget`, `profile`, `muted`) as
    `sim.launch` takes them.

    Raises:
        ArgumentError: an argument does not fit.
        SimulationError: the kernel can't be run to its end.
    """
    torch = any(type(a).__module__.split(".")[0] == "torch" for a in arrays.values())
    given = {name: from_host_array(array, name) for name, array in arrays.items()}
    signature = kernel.signature
    adapter = NumpyAdapter()
    args = {t.name: t for t in signature.tensors}
    host: dict[str, np.ndarray[Any, Any]] = {}
    for name, array in given.items():
        if args[name].role != "input":
            check_output(args[name], array)
        usable = _usable(args[name], array)
        host[name] = array if usable else laid_out(args[name], array)
    views = {name: adapter.view(array, name) for name, array in host.items()}
    bound = bind(signature, views, dict.fromkeys(views, adapter.remedy))
    values = scalar_values(signature, scalars, bound.extents)
    refuse_unread(bound.read_if, values)
    _refuse_overlap(signature, views)
    for missing in bound.missing:
        host[missing.arg.name] = _aligned(missing.shape, missing.strides, missing.arg)
    fitting = kernel.fitting(bound)
    seen = _launch(fitting, bound, host, values, options)
    result = collect(kernel, given, host)
    if not torch:
        return result, seen
    outputs = [t.name for t in signature.tensors if t.role != "input"]
    made = result if isinstance(result, tuple) else (result,)
    mine = [arrays[n] if n in arrays else to_torch(r) for n, r in zip(outputs, made)]
    return mine[0] if len(mine) == 1 else tuple(mine), seen


def _launch(
    kernel: Kernel,
    bound: Bound,
    host: Mapping[str, np.ndarray[Any, Any]],
    values: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Result | None:
    signature = kernel.signature
    grid = grid_of(signature, bound.extents, kernel.arch.sms)
    if 0 in grid:
        return None
    geometry = signature.geometry
    return sim.launch(
        kernel.ptx,
        signature.symbol,
        grid=grid,
        block=(geometry.threads, 1, 1),
        args=arguments(signature, bound, host, values),
        shared_bytes=geometry.smem_bytes,
        cluster=geometry.cluster,
        tensors=host,
        outputs=[t.name for t in signature.tensors if t.role != "input"],
        **options,
    )


def arguments(
    signature: Signature, bound: Bound, host: Mapping[str, np.ndarray[Any, Any]], values: Mapping[str, Any]
) -> list[Any]:
    """The parameters in order: arrays for pointers, numpy scalars of the exact width, `TensorMapSpec` for descriptors.

    Raises:
        ArgumentError: a scalar that does not fit its C type.
    """
    kinds = {s.name: s for s in signature.scalars}
    found: list[Any] = []
    for param in signature.params:
        if isinstance(param, Pointer):
            found.append(host[param.tensor])
        elif isinstance(param, Extent):
            found.append(np.int32(bound.extents[param.mode]))
        elif isinstance(param, Stride):
            found.append(np.int64(bound.strides[param.tensor, param.mode]))
        elif isinstance(param, Scalar):
            arg = kinds[param.name]
            data = scalar_bytes(arg, values[param.name])
            found.append(np.frombuffer(data, dtype=_NUMPY_SCALARS[arg.ctype])[0])
        else:
            tensor = signature.tensor(param.tensor)
            address = host[param.tensor].ctypes.data
            found.append(tensormap.tensor_map(param, tensor, address, bound.extents, bound.strides_of(tensor)))
    return found


def _usable(arg: TensorArg, array: np.ndarray[Any, Any]) -> bool:
    """Whether the kernel could use the array as it lies."""
    if not array.dtype.isnative or any(s < 0 or s % array.itemsize for s in array.strides):
        return False
    modes = [m for m in arg.modes if array.ndim == len(arg.modes) or m not in arg.optional]
    return len(modes) == array.ndim and (
        array.shape[modes.index(arg.contiguous)] <= 1 or array.strides[modes.index(arg.contiguous)] == array.itemsize
    )


def _aligned(shape: tuple[int, ...], strides: tuple[int, ...], arg: TensorArg) -> np.ndarray[Any, Any]:
    """New memory aligned to 256 bytes as a GPU's is; numpy alone promises 16."""
    count = 1
    for extent in shape:
        count *= extent
    size = arg.dtype.bytes
    room = np.empty(count * size + 256, np.uint8)
    start = -room.ctypes.data % 256
    flat = room[start : start + count * size].view(f"u{size}")  # as_strided doesn't know every fp8 type
    found = np.lib.stride_tricks.as_strided(flat, shape, [s * size for s in strides]) if count else flat.reshape(shape)
    return found.view(arg.dtype.numpy)


def _refuse_overlap(signature: Signature, views: Mapping[str, TensorView]) -> None:
    for output in signature.tensors:
        for other in signature.tensors:
            if output.role == "input" or output is other or output.name not in views or other.name not in views:
                continue
            if overlapping(views[output.name], views[other.name], output.dtype.bytes, other.dtype.bytes):
                raise ArgumentError(f"{output.name} and {other.name} share memory: pass another out=")


def from_host_array(array: Any, name: str) -> np.ndarray[Any, Any]:
    """A numpy array over the memory of a numpy array or a torch tensor on the CPU.

    Raises:
        ArgumentError: neither.
    """
    if isinstance(array, np.ndarray):
        return array
    if type(array).__module__.split(".")[0] == "torch" and hasattr(array, "data_ptr"):
        if array.device.type != "cpu":
            raise ArgumentError(f"{name}: is on {array.device}; the simulator takes host arrays: pass {name}.cpu()")
        torch: Any = sys.modules["torch"]
        plain = array.detach()
        if plain.dtype == torch.bfloat16:  # which torch can't give to numpy
            return np.asarray(plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
        return np.asarray(plain.numpy())
    raise ArgumentError(
        f"{name}: the simulator takes numpy arrays or torch tensors on the CPU, got {type(array).__name__}"
    )


def to_torch(array: np.ndarray[Any, Any]) -> Any:
    """A torch tensor over a numpy array's memory."""
    torch: Any = sys.modules["torch"]
    if array.dtype == np.dtype(ml_dtypes.bfloat16):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
