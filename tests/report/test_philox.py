"""Philox against the known answers of its authors' library (Random123, kat_vectors), and the share that is kept."""

from __future__ import annotations

import numpy as np
import pytest

from cutegen.report.philox import kept, philox


@pytest.mark.parametrize(
    ("counter", "seed", "expected"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter: tuple[int, int, int, int], seed: int, expected: tuple[int, ...]) -> None:
    assert tuple(int(word) for word in philox(counter, seed)) == expected


def test_the_share_kept_and_that_blocks_agree() -> None:
    whole = kept(np.arange(100), 333, 3, 0.25, 11, 2)
    assert abs(whole.mean() - 0.75) < 0.01
    assert np.array_equal(whole[40:60], kept(np.arange(40, 60), 333, 3, 0.25, 11, 2))
    assert not np.array_equal(whole, kept(np.arange(100), 333, 3, 0.25, 12, 2))
    assert kept(np.arange(5), 7, 0, 0.0, 0, 0).all()
