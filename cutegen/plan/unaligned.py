"""What becomes of operands that TMA can't load: a copy of them, or threads that load them."""

from __future__ import annotations

_LEAST = 1024
_PRODUCT = 2**31


def worth_copying(m: int, n: int, k: int) -> bool:
    """Whether a product of these extents is so large that its operands are better copied to aligned rows first.

    An element of A costs a read and a write, about 2 ps at 2 TB/s, and is used 2 n times; threads that load rows
    multiply at 264 TFLOP/s where TMA has 700 (docs/performance.md), so that from n = 430 on a copy pays. Launches of
    copies take about 5 us, which a product of 2^31 multiplications gains.
    """
    return min(m, n) >= _LEAST and m * n * k >= _PRODUCT
