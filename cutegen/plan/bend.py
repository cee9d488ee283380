"""Shared-memory accesses whose steps the swizzle bends, as one XOR and one immediate.

A swizzle is linear over XOR. Where a step shares no bit with the start of any thread, adding is XORing, and
swizzle(start + step) = swizzle(start) ^ swizzle(step). The bits of that which lie in the swizzle's chunk field are kept
as an XOR, the others, which nothing flips, are added: (swizzle(start) ^ flips) + rest. The swizzled start is computed
once, flips and rest are constants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from pycute import Layout

from cutegen.errors import Fault, SpecError
from cutegen.plan.fit import fit
from cutegen.plan.operand import Operand
from cutegen.plan.shared import SharedTile


@dataclass(frozen=True)
class Bent:
    """Where steps lie from a thread's start: `(start ^ xor(step)) + rest(step)`, in elements."""

    xor: Layout
    rest: Layout


def bend(tile: SharedTile, start: np.ndarray, steps: np.ndarray, field: str) -> Bent:
    """States `steps`, element offsets before the swizzle of any shape, relative to each thread's `start`.

    Raises:
        SpecError: the swizzle bends a step in no regular way.
    """
    swizzle = tile.swizzle
    mask = 0 if swizzle is None else ((1 << swizzle.bits) - 1) << swizzle.base
    flips = tile.swizzled(steps) & mask
    rest = steps - (steps & mask)
    starts = start.reshape([-1] + [1] * steps.ndim)
    if np.array_equal(tile.swizzled(starts + steps), tile.swizzled(starts) + steps):
        flips, rest = np.zeros_like(steps), steps
    xor_layout, rest_layout = fit(flips), fit(rest)
    bent = (tile.swizzled(starts) ^ flips) + rest
    if xor_layout is None or rest_layout is None or not np.array_equal(bent, tile.swizzled(starts + steps)):
        raise SpecError(Fault(field, f"the swizzle {swizzle} bends these accesses in no regular way"))
    return Bent(xor_layout, rest_layout)


def with_xor(op: Operand, field: str) -> Operand:
    """The operand with its fragment reads stated as a `Bent`; checked for every thread and step.

    Raises:
        SpecError: the swizzle bends a step in no regular way.
    """
    view = op.s2r
    values, copies, steps, stages = (int(view.smem[mode].size()) for mode in range(4))
    relative = np.array([[view.smem(0, i, k, 0) for k in range(steps)] for i in range(copies)])
    tid = range(view.thr_mn.size())
    start = op.tile.linear[[view.thr_mn(t) for t in tid], [view.thr_k(t) for t in tid]]
    found = bend(op.tile, start, relative, field)
    rest = np.array([[found.rest(i, k) for k in range(steps)] for i in range(copies)])
    stage = np.arange(stages) * op.tile.stage_stride
    smem = fit(np.arange(values)[:, None, None, None] + rest[None, :, :, None] + stage)
    assert smem is not None
    return replace(op, s2r=replace(view, smem=smem, xor=found.xor))
