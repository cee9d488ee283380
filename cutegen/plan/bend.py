"""Fragment reads whose steps the swizzle bends, as one XOR and one immediate.

A swizzle XORs row bits into the chunk bits of an offset. A step that moves only chunk bits which no start of a thread
has set can be XORed into the swizzled start itself: swizzle(start + step) = (swizzle(start) ^ x) + rest, with x the
step's chunk bits. The start is computed once, x and rest are constants.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cutegen.errors import Fault, SpecError
from cutegen.plan.fit import fit
from cutegen.plan.operand import Operand


def with_xor(op: Operand, path: str) -> Operand:
    """The operand with its fragment reads in the form (start ^ xor) + step; checked for every thread and step.

    Raises:
        SpecError: the swizzle bends a step in another way.
    """
    view = op.s2r
    values, copies, steps, stages = (mode.size() for mode in (view.smem[0], view.smem[1], view.smem[2], view.smem[3]))
    relative = np.array([[view.smem(0, i, k, 0) for k in range(steps)] for i in range(copies)])
    swizzle = op.swizzle
    field = 0 if swizzle is None or view.affine else ((1 << swizzle.bits) - 1) << swizzle.base
    flipped = relative & field
    rest = relative - flipped
    tid = range(view.thr_mn.size())
    mn, k = np.array([view.thr_mn(t) for t in tid]), np.array([view.thr_k(t) for t in tid])
    start = op.tile.linear[mn, k][:, None, None]
    if view.affine:
        expected = op.tile.swizzled(start) + relative
    else:
        expected = op.tile.swizzled(start + relative)
    stage = np.arange(stages) * op.tile.stage_stride
    xor = fit(flipped)
    smem = fit(np.arange(values)[:, None, None, None] + rest[None, :, :, None] + stage)
    if xor is None or smem is None or not np.array_equal((op.tile.swizzled(start) ^ flipped) + rest, expected):
        raise SpecError(Fault(path, f"the swizzle {swizzle} bends the fragment reads of {op.name} in no regular way"))
    return replace(op, s2r=replace(view, smem=smem, xor=xor))
