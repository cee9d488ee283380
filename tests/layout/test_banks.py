"""Bank conflicts: figures computed by hand from 32 banks of 4 bytes."""

from __future__ import annotations

import numpy as np
import pytest

from cutegen.layout import Swizzle
from cutegen.layout.banks import conflict_ways, sectors


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
