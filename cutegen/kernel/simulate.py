"""The same call on the simulator: PTX in, numpy arrays as memory, no GPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from cutegen import sim
from cutegen.errors import ArgumentError
from cutegen.kernel import tensormap
from cutegen.kernel.arguments import Bound, bind, refuse_unread
from cutegen.kernel.host import check_output, collect, laid_out, refuse_overlap
from cutegen.kernel.lists import adapter, each, is_list, members
from cutegen.kernel.packing import scalar_bytes, scalar_values
from cutegen.kernel.ready import grid_of
from cutegen.plan.signature import (
    Extent,
    Pointer,
    PointerArray,
    Scalar,
    Signature,
    Stride,
    TensorArg,
    TensorMapArray,
    TensorMapParam,
)

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
    torch = any(type(a).__module__.split(".")[0] == "torch" for given in arrays.values() for a in members(given))
    given = {name: each(partial(from_host_array, name=name), array) for name, array in arrays.items()}
    signature = kernel.signature
    args = {t.name: t for t in signature.tensors}
    host: dict[str, Any] = {}  # arrays, or lists of them
    for name, array in given.items():
        if args[name].role != "input":
            each(partial(check_output, args[name]), array)
        usable = all(_usable(args[name], member) for member in members(array))
        host[name] = array if usable else each(partial(laid_out, args[name]), array)
    adapters = {name: adapter(array, name) for name, array in host.items()}
    views = {name: found.view(host[name], name) for name, found in adapters.items()}
    bound = bind(signature, views, {name: found.remedy for name, found in adapters.items()})
    values = scalar_values(signature, scalars, bound.extents)
    refuse_unread(bound.read_if, values)
    refuse_overlap(signature, views)
    for missing in bound.missing:
        host[missing.arg.name] = missing.made(partial(_aligned, missing.shape, missing.strides, missing.arg))
    fitting = kernel.fitting(bound)
    seen = _launch(fitting, bound, host, values, options)
    result = collect(kernel, given, host)
    outputs = [t.name for t in signature.tensors if t.role != "input"]
    made = result if isinstance(result, tuple) else (result,)
    mine = [arrays[n] if n in arrays else each(to_torch, r) if torch else r for n, r in zip(outputs, made)]
    return mine[0] if len(mine) == 1 else tuple(mine), seen


def _launch(
    kernel: Kernel,
    bound: Bound,
    host: Mapping[str, Any],
    values: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Result | None:
    signature = kernel.signature
    grid = grid_of(signature, bound.extents, kernel.arch.sms)
    if 0 in grid:
        return None
    geometry = signature.geometry
    tensors = {name + index: array for name, given in host.items() for index, array in _named(given)}
    outputs = {t.name for t in signature.tensors if t.role != "input"}
    return sim.launch(
        kernel.ptx,
        signature.symbol,
        grid=grid,
        block=(geometry.threads, 1, 1),
        args=arguments(signature, bound, host, values),
        shared_bytes=geometry.smem_bytes,
        cluster=geometry.cluster,
        tensors=tensors,
        outputs=[name for name in tensors if name.split("[")[0] in outputs],
        **options,
    )


def arguments(signature: Signature, bound: Bound, host: Mapping[str, Any], values: Mapping[str, Any]) -> list[Any]:
    """The parameters in order: arrays for pointers, numpy scalars of the exact width, `TensorMapSpec` for descriptors,
    lists of them for arrays of descriptors.

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
        elif isinstance(param, PointerArray):
            found.append(np.array([array.ctypes.data for array in host[param.tensor]], np.uint64))
        else:
            found.append(each(partial(_description, signature, bound, param), host[param.tensor]))
    return found


def _description(
    signature: Signature, bound: Bound, param: TensorMapParam | TensorMapArray, array: Any
) -> tensormap.TensorMapSpec | None:
    each_map = param.each if isinstance(param, TensorMapArray) else param
    arg = signature.tensor(param.tensor)
    return tensormap.tensor_map(each_map, arg, array.ctypes.data, bound.extents, bound.strides_of(arg))


def _named(given: Any) -> list[tuple[str, Any]]:
    """Arrays with "[index]" in a list, or the one with ""."""
    return [(f"[{index}]", array) for index, array in enumerate(given)] if is_list(given) else [("", given)]


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
