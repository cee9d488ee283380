"""Philox4x32-10 (Salmon, Moraes, Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011) in numpy, and the
elements that attention drops.

The four words of one call belong to queries q and q + 8 (q % 16 < 8) and keys k and k + 1 (k even), which one thread of
an `mma.sync` accumulator holds together. Counter: (k // 2, q // 16 * 8 + q % 8, batch * heads + head, offset); key: the
two halves of the seed. So the mask depends on neither tile nor launch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_M = (0xD2511F53, 0xCD9E8D57)
_W = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)


def philox(counter: tuple[Any, Any, Any, Any], seed: int) -> tuple[NDArray[np.uint64], ...]:
    """Four 32-bit words for each counter; its parts broadcast."""
    c0, c1, c2, c3 = (np.asarray(part, np.uint64) & _LOW for part in counter)
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        first, second = c0 * np.uint64(_M[0]), c2 * np.uint64(_M[1])
        high0, high1 = first >> np.uint64(32), second >> np.uint64(32)
        c0, c1, c2, c3 = high1 ^ c1 ^ np.uint64(key[0]), second & _LOW, high0 ^ c3 ^ np.uint64(key[1]), first & _LOW
        key = [(k + w) & 0xFFFFFFFF for k, w in zip(key, _W)]
    return tuple(np.broadcast_arrays(c0, c1, c2, c3))


def kept(
    queries: NDArray[np.int64], keys: int, row: int, p_dropout: float, seed: int, offset: int
) -> NDArray[np.bool_]:
    """(queries, keys): what is not dropped; `row` is batch * heads + head."""
    q, k = queries[:, None], np.arange(keys)[None, :]
    words = np.stack(philox((k // 2, q // 16 * 8 + q % 8, row, offset), seed))
    which = np.broadcast_to(k % 2 + 2 * (q // 8 % 2), words.shape[1:])
    threshold = np.uint64(float(np.float32(p_dropout)) * 2.0**32)
    return np.asarray(np.take_along_axis(words, which[None], axis=0)[0] >= threshold)
