"""A kind of call: what was found out at the first of it, and a call of it with everything bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from cutegen.kernel.lists import adapter, members
from cutegen.kernel.ready import Ready
from cutegen.kernel.tensors import Adapter, TensorView, TorchAdapter, stream_pointer


@dataclass(frozen=True)
class Entry:
    """What a kind of call needs beside its `Ready`. `order` says where each given array goes in the signature's
    order."""

    ready: Ready
    order: tuple[int, ...]
    count: int
    allocators: tuple[tuple[int, Callable[[], Any]], ...]
    adapter: Adapter
    ordinal: int
    outputs: tuple[int, ...]
    # The allocators, where the inputs come first and all were given, and no output.
    plain: tuple[Callable[[], Any], ...]
    # Tensors that were not given, and the scalars given that must therefore be 0.
    read_if: tuple[tuple[str, str], ...]
    # (output, other, bytes spanned by each), where the caller gave the output; a list also with itself.
    spans: tuple[tuple[int, int, int, int], ...]
    # Whether other tensors are like these in all but their addresses, if torch says it at once.
    alike: Callable[..., bool] | None = None
    # Addresses of lists that were found to share no memory; None where there are no lists.
    apart: set[Any] | None = None
    # (place, what copies it) of operands that TMA can't load where they lie.
    copies: tuple[tuple[int, Callable[..., Any]], ...] = ()


def view_span(view: TensorView, size: int) -> int:
    """Bytes from the first to past the last element; 0 where there is none."""
    if 0 in view.shape:
        return 0
    return size * (1 + sum((extent - 1) * stride for extent, stride in zip(view.shape, view.strides)))


def complete(
    entry: Entry, arrays: Sequence[Any], pointers: Sequence[int], stream: Any = None
) -> tuple[list[Any], list[int]]:
    """Arrays and addresses in the signature's order, with outputs that were not given allocated.

    With torch and a `stream` of its own, a launch gets memory that this stream has given back, so that work which is
    still under way elsewhere does not use it; and nobody gets it after the launch before the current stream, on which
    the caller goes on, has done with it.
    """
    whole: list[Any] = [None] * entry.count
    found = [0] * entry.count
    for place, array, pointer in zip(entry.order, arrays, pointers):
        whole[place], found[place] = array, pointer
    torch = entry.adapter if stream is not None and isinstance(entry.adapter, TorchAdapter) else None
    for place, allocate in entry.allocators:
        with nullcontext() if torch is None else torch.using(stream_pointer(stream), entry.ordinal):
            whole[place] = allocate()
        if torch is not None:
            for made in members(whole[place]):
                torch.keep(made, entry.ordinal)
        found[place] = adapter(whole[place]).address(whole[place])
    return whole, found


def copy_operands(
    entry: Entry, whole: Sequence[Any], pointers: list[int], stream: Any
) -> list[tuple[Callable[..., Any], Any, Any]]:
    """Copies the operands that TMA can't load, and puts the copies' addresses among `pointers`: (what copies, array,
    copy) of each.
    """
    made = [(copy, whole[place], copy(whole[place], stream=stream)) for place, copy in entry.copies]
    for (place, _), (_, _, copied) in zip(entry.copies, made):
        pointers[place] = adapter(copied).address(copied)
    return made


class Launch:
    """A call with everything bound: `launch()` starts it on the current stream (or the one it was prepared for).

    Keeps its arrays alive; `out` is the output that each launch writes. Not to be called from two threads at once.
    """

    def __init__(
        self,
        ready: Ready,
        arrays: Sequence[Any],
        outputs: Sequence[int],
        stream: int | None,
        current: Callable[[int], int],
        ordinal: int,
        before: Callable[[], None] | None = None,
    ) -> None:
        self.out = arrays[outputs[0]] if len(outputs) == 1 else tuple(arrays[index] for index in outputs)
        self._arrays = tuple(arrays)
        self._again = ready.again
        self._stream = stream
        self._current = current
        self._ordinal = ordinal
        self._before = before

    def __call__(self) -> Any:
        """Launches.

        Raises:
            LaunchError: the driver refuses the launch.
        """
        if self._before is not None:
            self._before()
        stream = self._stream
        self._again(self._current(self._ordinal) if stream is None else stream)
        return self.out
