"""numpy arrays on a GPU: copied there, the kernel run to its end, the outputs copied back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegen.errors import ArgumentError
from cutegen.kernel.arguments import bind, check_unique, modes_of, refuse_unread
from cutegen.kernel.driver import driver
from cutegen.kernel.packing import scalar_values
from cutegen.kernel.tensors import NumpyAdapter, TensorView, stream_pointer
from cutegen.plan.signature import TensorArg

if TYPE_CHECKING:
    from cutegen.kernel.launch import Kernel


def laid_out(arg: TensorArg, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A dense copy, unless dense already, with `arg`'s contiguous mode innermost in memory and the shape unchanged.

    Raises:
        ArgumentError: the wrong number of modes.
    """
    modes = modes_of(arg, array.shape)
    axis = modes.index(arg.contiguous)
    moved = np.moveaxis(array.astype(array.dtype.newbyteorder("="), copy=False), axis, -1)
    return np.moveaxis(np.ascontiguousarray(moved), -1, axis)


def check_output(arg: TensorArg, array: np.ndarray[Any, Any]) -> None:
    """Refuses an output that can't be written element by element.

    Raises:
        ArgumentError: read-only, or elements share an address.
    """
    if not array.flags.writeable:
        raise ArgumentError(f"{arg.name}: the array is read-only: pass {arg.name}.copy()")
    modes = modes_of(arg, array.shape)
    extents = {**dict.fromkeys(arg.modes, 1), **dict(zip(modes, array.shape))}
    steps = {mode: abs(stride) // array.itemsize for mode, stride in zip(modes, array.strides)}
    check_unique(arg, extents, {**dict.fromkeys(arg.modes, 0), **steps})


def run_on_gpu(kernel: Kernel, arrays: Mapping[str, Any], stream: Any, scalars: Mapping[str, Any]) -> Any:
    """Runs a kernel on host arrays, on the current GPU (else the first).

    Raises:
        ArgumentError, LaunchError, ToolchainError: as a call does.
    """
    adapter = NumpyAdapter()
    args = {t.name: t for t in kernel.signature.tensors}
    host: dict[str, np.ndarray[Any, Any]] = {}
    for name, array in arrays.items():
        if args[name].role != "input":
            check_output(args[name], array)
        host[name] = laid_out(args[name], array)
    described = {name: adapter.view(array, name) for name, array in host.items()}
    # Device memory is aligned to 256 bytes, whatever the host's address was.
    views = {name: TensorView(0, v.shape, v.strides, v.dtype, 0) for name, v in described.items()}
    bound = bind(kernel.signature, views, dict.fromkeys(views, adapter.remedy))
    values = scalar_values(kernel.signature, scalars, bound.extents)
    refuse_unread(bound.read_if, values)

    api = driver()
    ordinal = api.current_device()
    ready = kernel.fitting(bound).ready(bound, ordinal, scalars)
    for missing in bound.missing:
        host[missing.arg.name] = adapter.allocator(missing.shape, missing.strides, missing.arg.dtype, ordinal)()
    address = 0 if stream is None else stream_pointer(stream)
    pointers: list[int] = []
    entered = api.enter(api.device(ordinal))
    try:
        for name, arg in args.items():
            pointers.append(api.allocate(host[name].nbytes))
            if arg.role == "input" or (arg.role == "inout" and name in arrays):
                api.copy_in(pointers[-1], host[name].ctypes.data, host[name].nbytes)
        ready.launch(pointers, address, scalars)
        api.synchronize(address, f"running {kernel.signature.symbol}")
        for (name, arg), pointer in zip(args.items(), pointers):
            if arg.role != "input":
                api.copy_out(host[name].ctypes.data, pointer, host[name].nbytes)
    finally:
        for pointer in pointers:
            api.free(pointer)
        if entered:
            api.leave()
    return collect(kernel, arrays, host)


def collect(kernel: Kernel, given: Mapping[str, Any], host: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """The outputs: written into the arrays that were given, or new ones."""
    results = []
    for arg in kernel.signature.tensors:
        if arg.role == "input":
            continue
        made, out = host[arg.name], given.get(arg.name)
        if out is not None and not np.may_share_memory(out, made):
            out[...] = made
        results.append(made if out is None else out)
    return results[0] if len(results) == 1 else tuple(results)
