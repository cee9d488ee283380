"""Whether two tensors share memory, judged by their addresses and strides."""

from __future__ import annotations

from cutegen.kernel.tensors import TensorView


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
