"""What a warp's access costs: shared-memory wavefronts and bank conflicts, global-memory sectors.

Shared memory has 32 banks of 4 bytes. A warp's 16-byte accesses go in four phases of 8 lanes, 8-byte ones in two of
16, narrower in one; ldmatrix in a phase for each matrix of eight 16-byte rows (CUDA C++ Best Practices Guide,
"Shared memory and memory banks"). In a phase, distinct words of one bank are served one after the other. Global
memory moves in sectors of 32 bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BANKS, _WORD, _SECTOR = 32, 4, 32


def conflict_ways(addresses: NDArray[np.int64], width: int) -> int:
    """The worst number of distinct words that one bank must serve in one phase; 1 is free of conflicts.

    `addresses` are the byte addresses of a warp's lanes (or of the rows of ldmatrix, with `width` 16).
    """
    return max(phase_ways(addresses, width))


def phase_ways(addresses: NDArray[np.int64], width: int) -> list[int]:
    """Ways of each phase; their sum is the wavefronts of the access."""
    lanes = {16: 8, 8: 16}.get(width, 32)
    ways = []
    for start in range(0, len(addresses), lanes):
        first = np.unique(addresses[start : start + lanes])
        words = np.unique((first[:, None] + np.arange(0, max(width, _WORD), _WORD)) // _WORD)
        ways.append(int(np.bincount(words % _BANKS, minlength=_BANKS).max()))
    return ways


def sectors(addresses: NDArray[np.int64], width: int) -> tuple[int, int]:
    """(sectors that a warp's access touches, the fewest that its bytes fit in)."""
    touched = np.unique((addresses[:, None] + np.arange(width)).reshape(-1) // _SECTOR)
    distinct = np.unique((addresses[:, None] + np.arange(width)).reshape(-1))
    return len(touched), -(-len(distinct) // _SECTOR)
