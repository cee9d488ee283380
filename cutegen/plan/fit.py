"""From numbers to layouts: the literal layout whose values a thread or a loop would compute.

A plan evaluates partitions as plain arrays, then states each as the shortest layout that gives the same numbers.
What no layout gives is refused; nothing is emitted on trust.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pycute import Layout


def fit_mode(values: Sequence[int] | np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and stride of the coalesced layout f with f(i) = values[i], or None. `values[0]` must be 0.

    A mode is as long as values rise by one stride and its length divides what is left; the rest is fitted to the values
    at multiples of that length.
    """
    array = np.asarray(values, dtype=np.int64)
    if array[0] != 0:
        return None
    shape: list[int] = []
    stride: list[int] = []
    base = array
    while len(base) > 1:
        step = int(base[1])
        run = 1
        while run < len(base) and base[run] == run * step:
            run += 1
        while len(base) % run:
            run -= 1
        if run == 1:
            return None
        shape.append(run)
        stride.append(step)
        base = base[::run]
    if not shape:
        return (1,), (0,)
    found = np.zeros(1, dtype=np.int64)
    for extent, step in zip(shape, stride):
        found = (found[None, :] + (np.arange(extent) * step)[:, None]).reshape(-1)
    return (tuple(shape), tuple(stride)) if np.array_equal(found, array) else None


def fit(values: np.ndarray) -> Layout | None:
    """The layout over `values.shape`, one mode (perhaps nested) an axis, with layout(i, j, ...) = values[i, j, ...].

    None if the values are not the sum of one function per axis, or an axis is no layout.
    """
    array = np.asarray(values, dtype=np.int64)
    shapes: list[int | tuple[int, ...]] = []
    strides: list[int | tuple[int, ...]] = []
    total = np.zeros_like(array)
    for axis in range(array.ndim):
        line = array[tuple(slice(None) if a == axis else 0 for a in range(array.ndim))]
        mode = fit_mode(line)
        if mode is None:
            return None
        total = total + line.reshape([-1 if a == axis else 1 for a in range(array.ndim)])
        shape, stride = mode
        shapes.append(shape[0] if len(shape) == 1 else shape)
        strides.append(stride[0] if len(stride) == 1 else stride)
    if not np.array_equal(total, array):
        return None
    return Layout(tuple(shapes), tuple(strides))


def fit_threads(values: np.ndarray) -> Layout | None:
    """The layout over a thread index, flat modes, with layout(tid) = values[tid]."""
    mode = fit_mode(values)
    return None if mode is None else Layout(*mode)
