"""Bank conflicts: figures computed by hand from 32 banks of 4 bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cutegen.layout import Swizzle
from cutegen.layout.banks import conflict_ways, phase_ways, sectors


def rows(pitch: int, swizzle: Swizzle | None, count: int = 8, step: int = 1) -> np.ndarray:
    """Byte addresses of the 16-byte chunk 0 of `count` rows, `pitch` f16 elements apart."""
    offsets = np.arange(count) * step * pitch
    return (offsets if swizzle is None else swizzle(offsets)) * 2


@pytest.mark.parametrize(
    ("pitch", "swizzle", "ways"),
    [
        (128, None, 8),
        (128, Swizzle(3, 3, 4), 1),
        (128, Swizzle(3, 3, 3), 2),
        (128, Swizzle(2, 3, 3), 4),
        (64, None, 8),
        (64, Swizzle(3, 3, 3), 1),
        (64, Swizzle(2, 3, 3), 2),
        (64, Swizzle(3, 4, 3), 2),
        (72, None, 1),
        (72, Swizzle(3, 3, 3), 8),
    ],
)
def test_sixteen_byte_columns_of_f16(pitch: int, swizzle: Swizzle | None, ways: int) -> None:
    assert conflict_ways(rows(pitch, swizzle), 16) == ways


@pytest.mark.parametrize(("swizzle", "ways"), [(None, 32), (Swizzle(5, 0, 5), 1), (Swizzle(3, 2, 3), 4)])
def test_a_column_of_f32(swizzle: Swizzle | None, ways: int) -> None:
    offsets = np.arange(32) * 32
    assert conflict_ways((offsets if swizzle is None else swizzle(offsets)) * 4, 4) == ways


def test_broadcast_is_free_and_a_swizzle_without_shift_changes_nothing() -> None:
    assert conflict_ways(np.zeros(32, np.int64), 4) == 1
    assert Swizzle(0, 4, 0)(1234) == 1234
    offsets = np.arange(4096)
    assert np.array_equal(np.sort(Swizzle(3, 3, 3)(offsets)), offsets)


def test_sectors_of_a_warp() -> None:
    assert sectors(np.arange(32) * 16, 16) == (16, 16)
    assert sectors(np.arange(32) * 64, 4) == (32, 4)


# Lanes' 16-byte (or 8-byte) words, and the wavefronts that ncu counted on an H200 (op_ld): where each lane is paired with the
# next one, or each with the next but one, two phases become one.
_COUNTED = [
    (16, lambda lane: lane, 4),
    (16, lambda lane: 0, 2),
    (16, lambda lane: lane // 2, 2),
    (16, lambda lane: lane // 8, 2),
    (16, lambda lane: lane % 2, 2),
    (16, lambda lane: lane % 4, 4),
    (16, lambda lane: lane % 8, 4),
    (16, lambda lane: lane % 2 + lane // 8 * 2, 2),
    (16, lambda lane: lane % 4 + lane // 8 * 8, 4),
    (16, lambda lane: 2 * lane, 8),
    (16, lambda lane: 8 * lane, 32),
    (16, lambda lane: (0, 22, 22, 0)[lane % 4], 4),
    (8, lambda lane: lane, 2),
    (8, lambda lane: lane // 2, 1),
    (8, lambda lane: lane % 2, 1),
    (8, lambda lane: lane % 4, 2),
    (4, lambda lane: lane, 1),
]


@pytest.mark.parametrize(("width", "word", "wavefronts"), _COUNTED)
def test_wavefronts_of_a_warp_as_counted_on_hardware(width: int, word: Callable[[int], int], wavefronts: int) -> None:
    assert sum(phase_ways(np.array([word(lane) * width for lane in range(32)]), width)) == wavefronts


def test_lanes_that_ask_for_nothing_and_rows_of_matrices() -> None:
    lanes = np.arange(0, 32, 2)
    assert len(phase_ways(lanes * 16, 16, lanes=lanes)) == 2
    assert len(phase_ways(np.zeros(32, np.int64), 16, rows=True)) == 4
    assert phase_ways(np.zeros(8, np.int64), 16, lanes=np.arange(24, 32)) == [1]
