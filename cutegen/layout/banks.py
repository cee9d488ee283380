"""What a warp's access costs: shared-memory wavefronts and bank conflicts, global-memory sectors.

Shared memory has 32 banks of 4 bytes. A warp's 16-byte accesses go in four phases of 8 lanes, 8-byte ones in two of
16, narrower in one; ldmatrix in a phase for each matrix of eight 16-byte rows (CUDA C++ Best Practices Guide,
"Shared memory and memory banks"). Two neighbouring phases become one where all their lanes are paired with a lane that
wants the same address, each lane with the next one, or each with the next but one. In a phase, distinct words of one
bank are served one after the other. The pairing is measured, not documented: 310 patterns on an H200 follow it
(`tests/layout/test_banks.py` has some; docs/simulator.md). Global memory moves in sectors of 32 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

WARP = 32
_BANKS, _WORD, _SECTOR = 32, 4, 32


def conflict_ways(addresses: NDArray[np.int64], width: int) -> int:
    """The worst number of distinct words that one bank must serve in one phase; 1 is free of conflicts.

    `addresses` are the byte addresses of a warp's lanes (or of the rows of ldmatrix, with `width` 16).
    """
    return max(phase_ways(addresses, width, rows=True))


def phase_ways(
    addresses: NDArray[np.int64], width: int, *, lanes: NDArray[np.int64] | None = None, rows: bool = False
) -> list[int]:
    """Ways of each phase; their sum is the wavefronts of the access.

    `lanes` says which lanes of the warp the addresses are of, the first ones if left out. `rows`: they are addresses of
    matrix rows, whose phases stay apart.
    """
    lanes = np.arange(len(addresses)) if lanes is None else lanes
    ways = []
    for phase in _phases(addresses, width, lanes, rows):
        first = np.unique(addresses[phase])
        words = np.unique((first[:, None] + np.arange(0, max(width, _WORD), _WORD)) // _WORD)
        ways.append(int(np.bincount(words % _BANKS, minlength=_BANKS).max()))
    return ways


def _phases(
    addresses: NDArray[np.int64], width: int, lanes: NDArray[np.int64], rows: bool
) -> Iterator[NDArray[np.bool_]]:
    size = {16: 8, 8: 16}.get(width, 32)
    for pair in range(0, 32, 2 * size):
        together = (lanes >= pair) & (lanes < pair + 2 * size)
        if size < 32 and not rows and _paired(addresses[together], lanes[together]):
            yield together
            continue
        for start in range(pair, min(pair + 2 * size, 32), size):
            phase = (lanes >= start) & (lanes < start + size)
            if phase.any():
                yield phase


def _paired(addresses: NDArray[np.int64], lanes: NDArray[np.int64]) -> bool:
    """Whether each lane wants what lane ^ 1 wants, or each what lane ^ 2 wants; lanes that ask for nothing agree."""
    wanted = np.full(32, -1, np.int64)
    wanted[lanes] = addresses
    others = (wanted[lanes ^ step] for step in (1, 2))
    return len(lanes) > 0 and any(bool(((other == addresses) | (other < 0)).all()) for other in others)


def sectors(addresses: NDArray[np.int64], width: int) -> tuple[int, int]:
    """(sectors that a warp's access touches, the fewest that its bytes fit in)."""
    touched = np.unique((addresses[:, None] + np.arange(width)).reshape(-1) // _SECTOR)
    distinct = np.unique((addresses[:, None] + np.arange(width)).reshape(-1))
    return len(touched), -(-len(distinct) // _SECTOR)
