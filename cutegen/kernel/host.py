"""numpy arrays on a GPU: copied there, the kernel run to its end, the outputs copied back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegen.errors import ArgumentError
from cutegen.kernel.arguments import bind, check_unique, modes_of, refuse_unread
from cutegen.kernel.driver import driver
from cutegen.kernel.lists import Addresses, addresses, each, is_list, members
from cutegen.kernel.lists import adapter as adapter_of
from cutegen.kernel.overlap import first_overlap
from cutegen.kernel.packing import scalar_values
from cutegen.kernel.tensors import NumpyAdapter, TensorView, stream_pointer
from cutegen.plan.signature import Signature, TensorArg

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
    host: dict[str, Any] = {}  # arrays, or lists of them
    for name, array in arrays.items():
        if args[name].role != "input":
            each(partial(check_output, args[name]), array)
        host[name] = each(partial(laid_out, args[name]), array)
    described = {name: adapter_of(array, name).view(array, name) for name, array in host.items()}
    # Device memory is aligned to 256 bytes, whatever the host's address was.
    views = {name: replace(view, pointer=_aligned(view.pointer), device=0) for name, view in described.items()}
    outputs = {name: array for name, array in arrays.items() if args[name].role != "input" and args[name].listed}
    refuse_overlap(
        kernel.signature, {name: adapter_of(array, name).view(array, name) for name, array in outputs.items()}
    )
    bound = bind(kernel.signature, views, dict.fromkeys(views, adapter.remedy))
    values = scalar_values(kernel.signature, scalars, bound.extents)
    refuse_unread(bound.read_if, values)

    api = driver()
    ordinal = api.current_device()
    ready = kernel.fitting(bound).ready(bound, ordinal, scalars)
    for missing in bound.missing:
        host[missing.arg.name] = missing.made(
            adapter.allocator(missing.shape, missing.strides, missing.arg.dtype, ordinal)
        )
    address = 0 if stream is None else stream_pointer(stream)
    allocated: list[int] = []

    def to_gpu(array: Any, copied: bool) -> int:
        allocated.append(api.allocate(array.nbytes))
        if copied:
            api.copy_in(allocated[-1], array.ctypes.data, array.nbytes)
        return allocated[-1]

    entered = api.enter(api.device(ordinal))
    try:
        pointers: list[int] = []
        for name, arg in args.items():
            found = each(
                partial(to_gpu, copied=arg.role == "input" or (arg.role == "inout" and name in arrays)), host[name]
            )
            pointers.append(Addresses(found) if is_list(found) else found)
        ready.launch(pointers, address, scalars)
        api.synchronize(address, f"running {kernel.signature.symbol}")
        for (name, arg), pointer in zip(args.items(), pointers):
            if arg.role != "input":
                for array, place in zip(members(host[name]), addresses(pointer)):
                    api.copy_out(array.ctypes.data, place, array.nbytes)
    finally:
        for pointer in allocated:
            api.free(pointer)
        if entered:
            api.leave()
    return collect(kernel, arrays, host)


def _aligned(pointer: int) -> int:
    return Addresses(0 for _ in pointer.members) if isinstance(pointer, Addresses) else 0


def refuse_overlap(signature: Signature, views: Mapping[str, TensorView]) -> None:
    """Refuses an output that shares memory with another tensor, or members of an output's list that share it.

    Raises:
        ArgumentError: naming both.
    """
    for output in signature.tensors:
        for other in signature.tensors:
            if output.role == "input" or output.name not in views or other.name not in views:
                continue
            if output is other and not output.listed:
                continue
            found = first_overlap(views[output.name], views[other.name], output.dtype.bytes, other.dtype.bytes)
            if found is not None:
                names = output.name + found[0], other.name + found[1]
                raise ArgumentError(f"{names[0]} and {names[1]} share memory: pass another out=")


def collect(kernel: Kernel, given: Mapping[str, Any], host: Mapping[str, Any]) -> Any:
    """The outputs: written into the arrays that were given, or new ones."""
    results = []
    for arg in kernel.signature.tensors:
        if arg.role == "input":
            continue
        made, out = host[arg.name], given.get(arg.name)
        for to, array in zip(members(out), members(made)) if out is not None else ():
            if not np.may_share_memory(to, array):
                to[...] = array
        results.append(made if out is None else out)
    return results[0] if len(results) == 1 else tuple(results)
