"""Lists of tensors: what a kernel takes where the matrices of a batch lie anywhere.

The members of a list are equal in library, shape, strides, dtype and device, so that a list is seen as one of them at
many addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

from cutegen.dtypes import DType
from cutegen.errors import ArgumentError
from cutegen.kernel import tensors
from cutegen.kernel.tensors import Adapter, TensorView


class Addresses(int):
    """The addresses of a list's members. As a number it has the bits that any of them has: its alignment is that of the
    least aligned.
    """

    members: tuple[int, ...]

    def __new__(cls, members: Iterable[int]) -> Addresses:
        found = tuple(members)
        self = super().__new__(cls, reduce(or_, found, 0))
        self.members = found
        return self


def addresses(pointer: int) -> tuple[int, ...]:
    """Those of a list's members, or the one of a tensor."""
    return pointer.members if isinstance(pointer, Addresses) else (pointer,)


def is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def members(value: Any) -> Sequence[Any]:
    """The members of a list, or the one tensor that is no list."""
    return value if is_list(value) else (value,)


def each(function: Callable[[Any], Any], value: Any) -> Any:
    """`function` of a tensor, or of each member of a list."""
    return [function(member) for member in value] if is_list(value) else function(value)


def peek(arrays: Sequence[Any]) -> tuple[int, Any]:
    """The addresses of a list, and all else that a launch depends on.

    Raises:
        KeyError: no list of arrays. The full check of a call, which such a list has not passed, says what is wrong.
    """
    if not arrays:
        raise KeyError(type(arrays))
    try:
        found = [tensors.adapter(array).peek(array) for array in arrays]
    except ArgumentError:
        raise KeyError(type(arrays)) from None
    facts = [fact for _, fact in found]
    alike = all(fact == facts[0] for fact in facts)
    return Addresses(pointer for pointer, _ in found), (len(facts), facts[0] if alike else tuple(facts))


class ListAdapter:
    """Lists of one library's arrays."""

    def __init__(self, of: Adapter) -> None:
        self.of = of
        self.library = of.library
        self.remedy = "[" + of.remedy.format("x") + " for x in {}]"

    def address(self, array: Any) -> int:
        return peek(array)[0]

    def peek(self, array: Any) -> tuple[int, Any]:
        return peek(array)

    def view(self, array: Any, name: str) -> TensorView:
        views = [self.of.view(member, f"{name}[{index}]") for index, member in enumerate(array)]
        first = views[0]
        for index, view in enumerate(views):
            for what, mine, wanted in (
                ("shape", view.shape, first.shape),
                ("dtype", view.dtype, first.dtype),
                ("device", view.device, first.device),
                ("strides", used_strides(view), used_strides(first)),
            ):
                if mine != wanted:
                    raise ArgumentError(
                        f"{name}[{index}]: its {what} {'are' if what == 'strides' else 'is'} {mine}, but {name}[0] has "
                        f"{wanted}: the tensors of a list must be alike: copy them into one layout, or call for each"
                    )
        return replace(first, pointer=Addresses(view.pointer for view in views), keep=array)

    def stream(self, device: int) -> int:
        return self.of.stream(device)

    def allocator(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, device: int
    ) -> Callable[[], Any]:
        return self.of.allocator(shape, strides, dtype, device)


def used_strides(view: TensorView) -> tuple[int, ...]:
    """Strides of modes that are longer than 1; others move no address."""
    return tuple(stride if extent > 1 else 0 for extent, stride in zip(view.shape, view.strides))


def adapter(array: Any, name: str = "tensor") -> Adapter:
    """The adapter for an array or a list of arrays.

    Raises:
        ArgumentError: not of a kind that kernels take, or a list without members or of several libraries.
    """
    if not is_list(array):
        return tensors.adapter(array, name)
    if not len(array):
        raise ArgumentError(f"{name}: the list is empty: a batch has a tensor at least, skip the call")
    found = [tensors.adapter(member, f"{name}[{index}]") for index, member in enumerate(array)]
    for index, other in enumerate(found):
        if type(other) is not type(found[0]):
            raise ArgumentError(
                f"{name}[{index}]: is an array of {other.library}, but {name}[0] of {found[0].library}: "
                "the tensors of a list must be alike"
            )
    return ListAdapter(found[0])


def split(view: TensorView) -> tuple[TensorView, ...]:
    """The views of a list's members, or the one of a tensor."""
    return tuple(replace(view, pointer=pointer) for pointer in addresses(view.pointer))
