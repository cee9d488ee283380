"""Shared-memory tiles: an atom layout repeated over (mn, k, stage), under a swizzle, evaluated and stated as one
layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pycute import Layout

from cutegen.dtypes import DType
from cutegen.errors import Fault, SpecError
from cutegen.layout import Swizzle, parse_layout, parse_swizzle
from cutegen.plan.fit import fit
from cutegen.plan.partition import nearest
from cutegen.spec.common import Smem


@dataclass(frozen=True)
class SharedTile:
    """Storage of one operand, all stages. `linear[mn, k]` is the element offset in stage 0 before the swizzle.

    `stage_stride` elements apart; `layout` is (mn, k, stage) as a literal; `elements` counts all stages.
    """

    dtype: DType
    linear: np.ndarray
    layout: Layout
    swizzle: Swizzle | None
    stage_stride: int
    elements: int
    mn_contiguous: bool

    def offsets(self, mn: np.ndarray, k: np.ndarray) -> np.ndarray:
        """Element offsets in stage 0, before the swizzle."""
        return np.asarray(self.linear[mn, k])

    def swizzled(self, offsets: np.ndarray) -> np.ndarray:
        """Element offsets as the hardware sees them."""
        return offsets if self.swizzle is None else np.asarray(self.swizzle(offsets))

    @property
    def vector_limit(self) -> int:
        """The most elements that stay together, and aligned, under the layout and the swizzle."""
        lines = self.linear if not self.mn_contiguous else self.linear.T
        together = 1
        while together < lines.shape[1] and lines.shape[1] % (together * 2) == 0:
            groups = lines.reshape(lines.shape[0], -1, together * 2)
            if not (
                np.array_equal(groups, groups[:, :, :1] + np.arange(together * 2))
                and not (groups[:, :, 0] % (together * 2)).any()
            ):
                break
            together *= 2
        return together if self.swizzle is None or self.swizzle.bits == 0 else min(together, 1 << self.swizzle.base)


def default_atom(
    dtype: DType, blk_mn: int, blk_k: int, mn_contiguous: bool, simt: bool, scalar_reads: bool
) -> tuple[str, str]:
    """A layout atom and swizzle without bank conflicts, in CuTe notation.

    Rows of 128 B where the tile has them, else 64 or 32 B; `Sw<b,base,3>` spreads eight rows over the 16-byte
    chunks, so that the eight rows of an ldmatrix phase and the chunks of a copy fall in distinct banks.
    `scalar_reads` (tf32 fragments of an MN-major tile, no transposed ldmatrix for 32-bit elements) spreads four rows
    over groups of eight elements. SIMT reads run along mn: rows are padded by 16 B, which keeps every step affine
    and spreads a transposing copy over the banks.
    """
    chunk = 16 // dtype.bytes
    if simt:
        return f"({blk_mn},{blk_k}):(1,{blk_mn + chunk})", "none"
    extent = blk_mn if mn_contiguous else blk_k
    if scalar_reads and extent % 32 == 0:
        return "(32,8):(1,32)", "Sw<2,3,2>"
    base = chunk.bit_length() - 1
    for bits, width in ((3, 8 * chunk), (2, 4 * chunk), (1, 2 * chunk)):
        if extent % width == 0:
            return (f"({width},8):(1,{width})" if mn_contiguous else f"(8,{width}):({width},1)"), f"Sw<{bits},{base},3>"
    return (f"({chunk},8):(1,{chunk})" if mn_contiguous else f"(8,{chunk}):({chunk},1)"), "none"


def shared_tile(spec: Smem, field: str, dtype: DType, blk_mn: int, blk_k: int, stages: int) -> SharedTile:
    """The tile that a completed `spec` describes.

    Raises:
        SpecError: the atom is not a layout of rank 2, has overlapping elements, or does not divide the tile.
    """
    assert spec.atom is not None
    atom = parse_layout(spec.atom, f"{field}.atom")
    swizzle = parse_swizzle(spec.swizzle or "none", f"{field}.swizzle")
    if atom.rank() if callable(getattr(atom, "rank", None)) else len(atom) != 2:
        raise SpecError(Fault(f"{field}.atom", "must have two modes, (mn, k)", got=spec.atom))
    rows, columns = atom[0], atom[1]
    a_mn, a_k = rows.size(), columns.size()
    faults = [
        Fault(
            f"{field}.atom",
            f"its {mode} extent {unit} does not divide the tile's {extent}",
            got=spec.atom,
            hint=f"a tile of {nearest(extent, unit)} would fit",
        )
        for mode, extent, unit in (("mn", blk_mn, a_mn), ("k", blk_k, a_k))
        if extent % unit
    ]
    if faults:
        raise SpecError(faults)
    cell = np.array([[rows(i) + columns(j) for j in range(a_k)] for i in range(a_mn)])
    if len(np.unique(cell)) != cell.size:
        raise SpecError(
            Fault(
                f"{field}.atom",
                "puts two elements in one place",
                got=spec.atom,
                hint="every (mn, k) needs an offset of its own",
            )
        )
    period = int(cell.max()) + 1
    align = max(
        16 // dtype.bytes,
        1 << (swizzle.bits + swizzle.base + abs(swizzle.shift))
        if swizzle is not None and (a_mn, a_k) != (blk_mn, blk_k)
        else 1,
    )
    period = (
        -(-period // align) * align
        if (period % align and swizzle is not None)
        else -(-period // (16 // dtype.bytes)) * (16 // dtype.bytes)
    )
    mn, k = np.indices((blk_mn, blk_k))
    linear = cell[mn % a_mn, k % a_k] + period * (mn // a_mn + (k // a_k) * (blk_mn // a_mn))
    span = int(linear.max()) + 1
    unit = 128 // dtype.bytes
    if swizzle is not None:
        unit = max(unit, 1 << (swizzle.bits + swizzle.base + abs(swizzle.shift)))
    stage_stride = -(-span // unit) * unit
    layout = fit(np.stack([linear + s * stage_stride for s in range(stages)], axis=-1))
    if layout is None:
        raise SpecError(Fault(f"{field}.atom", f"repeated over ({blk_mn},{blk_k}) it is no layout", got=spec.atom))
    mn_contiguous = (
        blk_mn > 1 and linear[1, 0] - linear[0, 0] == 1 and not (blk_k > 1 and linear[0, 1] - linear[0, 0] == 1)
    )
    return SharedTile(
        dtype,
        linear,
        layout,
        swizzle if swizzle is not None and swizzle.bits else None,
        stage_stride,
        stage_stride * stages,
        mn_contiguous,
    )
