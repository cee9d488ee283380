"""Which element of a matrix each register of each lane holds, for mma.sync, wgmma and ldmatrix.

Source: PTX ISA, "Matrix Fragments for mma.m16n8k16" and its neighbours, "Register Fragments for wgmma.mma_async".
With g = lane / 4 and t = lane % 4, a 32-bit register holds `per` neighbouring elements along K of A and B.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
_LANE = np.arange(32)


@cache
def mma_a(k: int, bits: int) -> tuple[I64, I64]:
    """(row, column) of A (16 x k) for [lane, element], elements in register order."""
    per = 32 // bits
    i = np.arange(16 * k // 32)
    row = (_LANE[:, None] // 4) + 8 * (i // per % 2)
    column = (_LANE[:, None] % 4) * per + i % per + 4 * per * (i // (2 * per))
    return row, column


@cache
def mma_b(k: int, bits: int) -> tuple[I64, I64]:
    """(k, column) of B (k x 8) for [lane, element]."""
    per = 32 // bits
    i = np.arange(8 * k // 32)
    row = (_LANE[:, None] % 4) * per + i % per + 4 * per * (i // per)
    column = np.broadcast_to(_LANE[:, None] // 4, row.shape)
    return row, column


@cache
def accumulator(n: int) -> tuple[I64, I64]:
    """(row, column) of a warp's 16 x n accumulator for [lane, element]: mma.sync with n 8, wgmma with its n."""
    i = np.arange(n // 2)
    row = (_LANE[:, None] // 4) + 8 * (i // 2 % 2)
    column = 8 * (i // 4) + (_LANE[:, None] % 4) * 2 + i % 2
    return row, column


def gather(elements: NDArray[np.float32], place: tuple[I64, I64], shape: tuple[int, int]) -> NDArray[np.float32]:
    """(warps, 32, elements) to (warps, rows, columns)."""
    matrix = np.empty((len(elements), *shape), elements.dtype)
    matrix[:, place[0], place[1]] = elements
    return matrix
