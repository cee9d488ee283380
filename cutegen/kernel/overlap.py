"""Whether two tensors share memory, judged by their addresses and strides."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from cutegen.kernel.lists import Addresses, addresses, split
from cutegen.kernel.tensors import TensorView


def _crossing(first: int, second: int, first_span: int, second_span: int, same: bool) -> Iterator[tuple[int, int]]:
    """The members, of two tensors or lists at these addresses, whose ranges of bytes meet. Of the `same` list: each
    pair of different members once.
    """
    starts, others = addresses(first), addresses(second)
    order = sorted(range(len(others)), key=others.__getitem__)
    ranks = [others[index] for index in order]
    for index, start in enumerate(starts):
        low, high = bisect_right(ranks, start - second_span), bisect_left(ranks, start + first_span)
        yield from ((index, other) for other in order[low:high] if not same or other > index)


def meet(first: int, second: int, first_span: int, second_span: int, same: bool = False) -> bool:
    """Whether the ranges of bytes of two tensors, or of any members of lists or of the `same` list, meet."""
    if type(first) is int and type(second) is int:
        return first < second + second_span and second < first + first_span
    return any(True for _ in _crossing(first, second, first_span, second_span, same))


def first_overlap(first: TensorView, second: TensorView, first_bytes: int, second_bytes: int) -> tuple[str, str] | None:
    """The first two tensors that may share memory, as "" or as "[index]" of a list; None if none do. Of a list with
    itself its members are compared with each other.
    """
    spans = _span(first, first_bytes, None), _span(second, second_bytes, None)
    if 0 in first.shape or 0 in second.shape:
        return None
    parts = split(first), split(second)
    for i, j in _crossing(first.pointer, second.pointer, *spans, same=first is second):
        if overlapping(parts[0][i], parts[1][j], first_bytes, second_bytes):
            names = zip((first, second), (i, j))
            one, other = (f"[{at}]" if isinstance(view.pointer, Addresses) else "" for view, at in names)
            return one, other
    return None


def overlapping(first: TensorView, second: TensorView, first_bytes: int, second_bytes: int) -> bool:
    """Whether two tensors may share an address. Views interleaved in one buffer at a common stride don't."""
    if 0 in first.shape or 0 in second.shape:
        return False
    low, high, size_low, size_high = (first, second, first_bytes, second_bytes)
    if first.pointer > second.pointer:
        low, high, size_low, size_high = (second, first, second_bytes, first_bytes)
    offset = high.pointer - low.pointer
    if offset >= _span(low, size_low, None):
        return False
    steps = {s * size_low for s, e in zip(low.strides, low.shape) if e > 1} & {
        s * size_high for s, e in zip(high.strides, high.shape) if e > 1
    }
    for step in steps - {0}:
        whole = all(
            s * size % step == 0 or s * size < step
            for t, size in ((low, size_low), (high, size_high))
            for s in t.strides
        )
        shift = offset % step
        if whole and _span(low, size_low, step) <= shift and shift + _span(high, size_high, step) <= step:
            return False
    return True


def _span(view: TensorView, size: int, below: int | None) -> int:
    """Bytes from a tensor's first to past its last element, counting only modes with a stride under `below` bytes."""
    return size + sum(
        (extent - 1) * abs(stride) * size
        for extent, stride in zip(view.shape, view.strides)
        if below is None or abs(stride) * size < below
    )
