"""Checks a call's tensors against a kernel's signature.

Nothing here needs a GPU: tensors come as `TensorView`, out come extents, strides and what is left to allocate.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from cutegen.errors import ArgumentError
from cutegen.kernel.lists import Addresses, is_list, split
from cutegen.kernel.tensors import TensorView, storage_name
from cutegen.plan.signature import Signature, TensorArg

_MAX_EXTENT = 2**31 - 1


@dataclass(frozen=True)
class Missing:
    """An output that the caller did not give: what to allocate. Strides are dense with the contiguous mode
    innermost. Of a listed one there are `count` of this shape."""

    arg: TensorArg
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    count: int | None = None

    def made(self, allocate: Callable[[], Any]) -> Any:
        """The array, or the list of them, that `allocate` makes one by one."""
        return allocate() if self.count is None else [allocate() for _ in range(self.count)]


@dataclass(frozen=True)
class Bound:
    """A call that fits: extents by mode, strides in elements by (tensor, mode), and the vector each tensor allows."""

    extents: Mapping[str, int]
    strides: Mapping[tuple[str, str], int]
    vectors: tuple[tuple[str, int], ...]
    missing: tuple[Missing, ...]
    # Outputs that were not given, which may only be allocated when this scalar is zero.
    read_if: tuple[tuple[str, str], ...]

    def strides_of(self, arg: TensorArg) -> dict[str, int]:
        return {mode: self.strides[arg.name, mode] for mode in arg.modes}


# ---- names


def assign(
    signature: Signature, positional: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sorts a call's arguments into tensors and scalars by name. `out` names the output; a tensor given as None is left
    out.

    Raises:
        ArgumentError: too many tensors, one given twice, or a name that the kernel does not have.
    """
    names = [t.name for t in signature.tensors]
    if len(positional) > len(names):
        raise ArgumentError(
            f"{signature.symbol} takes {len(names)} tensors ({', '.join(names)}), got {len(positional)}"
        )
    tensors = dict(zip(names, positional))
    scalars: dict[str, Any] = {}
    known = {s.name for s in signature.scalars}
    for keyword, value in keywords.items():
        name = signature.output.name if keyword == "out" and "out" not in names else keyword
        if name in known:
            scalars[name] = value
        elif name in names:
            if keyword == "out" and value is None:
                continue
            if tensors.get(name) is not None and value is not tensors[name]:
                raise ArgumentError(
                    f"{name} was given twice" + (" (out= is another name for it)" if keyword == "out" else "")
                )
            tensors[name] = value
        else:
            near = difflib.get_close_matches(keyword, [*known, *names, "out", "stream"], n=1)
            raise ArgumentError(
                f"{signature.symbol} has no argument {keyword!r}; it takes {', '.join([*names, *sorted(known)])}"
                + (f" (did you mean {near[0]}?)" if near else "")
            )
    for arg in signature.tensors:
        given = tensors.get(arg.name)
        if given is None and arg.role == "input":
            raise ArgumentError(f"{arg.name} is missing: {signature.symbol} takes {', '.join(names)}")
        if given is not None:
            _check_kind(signature.symbol, arg, given)
    return {name: tensors[name] for name in names if tensors.get(name) is not None}, scalars


def _check_kind(symbol: str, arg: TensorArg, given: Any) -> None:
    if arg.listed is not None and not is_list(given):
        raise ArgumentError(
            f"{arg.name}: {symbol} takes a list of tensors, one for each product of the {arg.listed}, got "
            f"{type(given).__name__}: pass list({arg.name}), or [{arg.name}] for one product"
        )
    if arg.listed is None and is_list(given):
        raise ArgumentError(
            f"{arg.name}: {symbol} takes one tensor, got a list: stack it, or build a kernel with "
            "problem.pointers: true for A, B and C"
        )


# ---- tensors


def bind(signature: Signature, views: Mapping[str, TensorView], remedies: Mapping[str, str] | None = None) -> Bound:
    """Binds extents by mode name and checks every tensor. `remedies` say by tensor how its library makes a dense copy.

    Raises:
        ArgumentError: naming the tensor, what was got, what is wanted, and what to do.
    """
    remedies = remedies or {}
    extents: dict[str, int] = dict(signature.static)
    origin: dict[str, str] = dict.fromkeys(extents, "the kernel was generated for")
    held: dict[str, tuple[str, ...]] = {}
    device: tuple[str, int] | None = None
    for arg in signature.tensors:
        view = views.get(arg.name)
        if view is None:
            continue
        if view.dtype != storage_name(arg.dtype):
            raise ArgumentError(
                f"{arg.name}: expected dtype {storage_name(arg.dtype)}, got {view.dtype}: "
                "convert it, or build a kernel for it"
            )
        if device is not None and view.device != device[1]:
            raise ArgumentError(
                f"{arg.name} is on {_place(view.device)}, but {device[0]} on {_place(device[1])}: "
                "pass all on one device"
            )
        device = device or (arg.name, view.device)
        held[arg.name] = modes_of(arg, view.shape)
        counted: Iterable[tuple[str, int]] = zip(held[arg.name], view.shape)
        if arg.listed is not None and isinstance(view.pointer, Addresses):
            counted = chain(counted, ((arg.listed, len(view.pointer.members)),))
        for mode, extent in counted:
            if extent > _MAX_EXTENT:
                raise ArgumentError(
                    f"{arg.name}: {mode} is {extent}, more than the {_MAX_EXTENT} that a kernel counts to: split it"
                )
            if mode not in extents:
                extents[mode] = extent
                origin[mode] = f"{arg.name} has"
            elif extents[mode] != extent:
                hint = f": pass {arg.name}.expand(...)" if extent == 1 and mode in arg.optional else ""
                if mode == arg.listed:
                    hint = f": name {arg.name}[0] {extents[mode]} times" if extent == 1 and arg.role == "input" else ""
                    raise ArgumentError(
                        f"{arg.name}: the list has {extent} tensors, but {origin[mode]} {mode} {extents[mode]}{hint}"
                    )
                raise ArgumentError(
                    f"{arg.name}: {mode} is {extent}, but {origin[mode]} {mode} {extents[mode]} "
                    f"(shape {_shape(view.shape)}){hint}"
                )
    for arg in signature.tensors:
        for mode in arg.modes:
            if mode not in extents:
                if mode not in arg.optional:
                    raise ArgumentError(f"{mode} is not known from the tensors given: pass {arg.name}")
                extents[mode] = 1
    message = signature.check(extents)
    if message is not None:
        raise ArgumentError(message)

    strides: dict[tuple[str, str], int] = {}
    vectors: list[tuple[str, int]] = []
    missing: list[Missing] = []
    read_if: list[tuple[str, str]] = []
    given = {mode for modes in held.values() for mode in modes}
    for arg in signature.tensors:
        view = views.get(arg.name)
        if view is None:
            modes = tuple(m for m in arg.modes if m not in arg.optional or m in given)
            made = _dense(arg, modes, extents)
            missing.append(made)
            if arg.role == "inout":
                if arg.read_if is None:
                    raise ArgumentError(f"{arg.name} is read and written: pass it")
                read_if.append((arg.name, arg.read_if))
            view = TensorView(0, made.shape, made.strides, storage_name(arg.dtype), device[1] if device else 0)
        else:
            modes = held[arg.name]
            _check_strides(arg, modes, view, remedies.get(arg.name, "a contiguous copy of {}").format(arg.name))
        found = _strides(arg, modes, view)
        if arg.role != "input":
            check_unique(arg, extents, found)
        strides.update({(arg.name, mode): stride for mode, stride in found.items()})
        vectors.append((arg.name, _vector(arg, extents, found, view.pointer)))
    return Bound(extents, strides, tuple(vectors), tuple(missing), tuple(read_if))


def _place(device: int) -> str:
    return "the host" if device < 0 else f"GPU {device}"


def _shape(shape: Sequence[int | str]) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"


def modes_of(arg: TensorArg, shape: Sequence[int]) -> tuple[str, ...]:
    """The modes that a tensor's shape lists: all, or all but the optional ones.

    Raises:
        ArgumentError: neither has this many.
    """
    required = tuple(m for m in arg.modes if m not in arg.optional)
    for modes in (arg.modes, required):
        if len(shape) == len(modes):
            return modes
    wanted = _shape(arg.modes) if required == arg.modes else f"{_shape(arg.modes)} or {_shape(required)}"
    raise ArgumentError(f"{arg.name}: expected {wanted}, got shape {_shape(shape)}")


def _dense(arg: TensorArg, modes: tuple[str, ...], extents: Mapping[str, int]) -> Missing:
    order = [m for m in modes if m != arg.contiguous] + [arg.contiguous]
    step, by_mode = 1, {}
    for mode in reversed(order):
        by_mode[mode] = step
        step *= max(extents[mode], 1)
    count = None if arg.listed is None else extents[arg.listed]
    return Missing(arg, tuple(extents[m] for m in modes), tuple(by_mode[m] for m in modes), count)


def _check_strides(arg: TensorArg, modes: tuple[str, ...], view: TensorView, remedy: str) -> None:
    if 0 in view.shape:
        return
    for mode, extent, stride in zip(modes, view.shape, view.strides):
        if extent == 1:
            continue
        if stride < 0:
            raise ArgumentError(
                f"{arg.name}: the stride of {mode} is {stride}; negative strides can't be used: pass {remedy}"
            )
        if mode == arg.contiguous and stride != 1:
            if mode == modes[-1]:
                todo = f"pass {remedy}"
            else:
                todo = (
                    f"lay {arg.name} out with {mode} innermost, as {arg.name}.mT.contiguous().mT does, "
                    "or build a kernel for the other major"
                )
            raise ArgumentError(
                f"{arg.name}: {mode} must be contiguous (stride 1), "
                f"its stride is {stride} in shape {_shape(view.shape)}: {todo}"
            )
        if stride == 0 and arg.role != "input":
            raise ArgumentError(
                f"{arg.name}: the stride of {mode} is 0, so that elements overlap; "
                "an output needs one place for each: pass a new tensor"
            )
    if view.pointer % arg.dtype.bytes:
        pointer = next(member.pointer for member in split(view) if member.pointer % arg.dtype.bytes)
        raise ArgumentError(
            f"{arg.name}: the address {pointer:#x} is not a multiple of the {arg.dtype.bytes}-byte element: "
            f"pass {remedy}"
        )


def _strides(arg: TensorArg, modes: tuple[str, ...], view: TensorView) -> dict[str, int]:
    """Strides by mode; 0 for what never moves the address, so that odd strides of extents 1 and 0 don't matter."""
    if 0 in view.shape:
        found = {}
    else:
        found = {mode: stride for mode, extent, stride in zip(modes, view.shape, view.strides) if extent > 1}
    return {mode: 1 if mode == arg.contiguous else found.get(mode, 0) for mode in arg.modes}


def check_unique(arg: TensorArg, extents: Mapping[str, int], strides: Mapping[str, int]) -> None:
    """Refuses an output with two elements at one address, or strides so entangled that this can't be excluded."""
    if any(extents[mode] == 0 for mode in arg.modes):
        return
    span = 1
    for stride, mode in sorted((strides[mode], mode) for mode in arg.modes if extents[mode] > 1):
        if stride < span:
            raise ArgumentError(
                f"{arg.name}: the stride of {mode} is {stride}, so that elements overlap "
                f"(the modes within span {span}): pass a new tensor"
            )
        span += stride * (extents[mode] - 1)


def _vector(arg: TensorArg, extents: Mapping[str, int], strides: Mapping[str, int], pointer: int) -> int:
    """The widest vector, in elements, that address, strides and contiguous extent allow; at most the kernel's own."""
    if any(extents[mode] == 0 for mode in arg.modes):
        return arg.vector
    common = math.gcd(arg.vector, pointer // arg.dtype.bytes, 0 if arg.ragged else extents[arg.contiguous])
    return math.gcd(common, *(strides[mode] for mode in arg.modes if mode != arg.contiguous))


def refuse_unread(read_if: Sequence[tuple[str, str]], values: Mapping[str, Any]) -> None:
    """Refuses a call without a tensor that its scalars say is read.

    Raises:
        ArgumentError: naming tensor and scalar.
    """
    for tensor, scalar in read_if:
        if values[scalar] != 0:
            raise ArgumentError(
                f"{tensor} is missing: {scalar} is {values[scalar]}, so it is read: pass {tensor}, or {scalar}=0"
            )
