"""What a thread of a fused attention kernel holds, by rows: scores, P as an operand, and O on its way out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from pycute import Layout

from cutegen.errors import Fault, SpecError
from cutegen.plan.bend import Bent, bend
from cutegen.plan.fit import fit
from cutegen.plan.partition import TiledMma, accumulator_view
from cutegen.plan.shared import SharedTile
from cutegen.spec.common import Smem


@dataclass(frozen=True)
class Rows:
    """A thread's accumulator by rows: `regs` ((VEC,COLUMN),ROW) -> register, `columns` (VEC,COLUMN) -> column and
    `rows` ROW -> row, from the thread's first."""

    regs: Layout
    columns: Layout
    rows: Layout

    @property
    def count(self) -> int:
        return int(self.rows.size())


@dataclass(frozen=True)
class Store:
    """How a warp's rows of O leave through shared memory, where Q was.

    `write` (COLUMN,ROW) is where a thread's pairs of columns go; `read` (COLUMN,ROW) is where its vectors come from:
    `along` lanes share a row, `rows` rows are read at once.
    """

    write: Bent
    read: Bent
    vector: int
    along: int
    warp_rows: int
    columns: int
    guarded: bool

    @property
    def rows(self) -> int:
        return 32 // self.along

    @property
    def row_rounds(self) -> int:
        return self.warp_rows // self.rows


def rows_of(mma: TiledMma) -> Rows:
    """The accumulator sorted by rows."""
    view = accumulator_view(mma, True, 2)
    shape, stride = view.regs.shape, view.regs.stride
    return Rows(
        Layout((shape[:2], shape[2]), (stride[:2], stride[2])),
        Layout((view.vec, view.inner.shape[0]), (1, view.inner.stride[0])),
        view.outer,
    )


def store_of(tile: SharedTile, output: TiledMma, warps: int, head_dim: int, vector: int) -> Store:
    """O through its tile in shared memory; as many lanes along a row as its vectors allow."""
    linear = tile.linear
    rows = rows_of(output)
    m, n = output.m_c[:, 0, 0, 0], output.n_c[:, 0, 0, 0]
    pairs = np.array([rows.columns(2 * j) for j in range(rows.columns.size() // 2)])
    down = np.array([rows.rows(r) for r in range(rows.count)])
    write = linear[m[0] + down[None, :], n[0] + pairs[:, None]] - linear[m[0], n[0]]

    first = bend(tile, linear[m, n], write, "tile")
    warp_rows = output.tile[0] // warps
    per_row = output.tile[1] // vector  # of the padded row: what lies beyond head_dim is not stored
    along = min(max(per_row & -per_row, 32 // warp_rows), 32)
    while True:
        try:
            return Store(first, *_store_read(tile, output, warps, vector, along), output.tile[1] != head_dim)
        except SpecError:  # vectors narrower than a chunk of the swizzle: eight rows at once, which it bends alike
            if along <= 32 // warp_rows or along == 1:
                raise
            along //= 2


def _store_read(
    tile: SharedTile, output: TiledMma, warps: int, vector: int, along: int
) -> tuple[Bent, int, int, int, int]:
    """Where vectors of O are read, with `along` lanes along a row: the later fields of a `Store` but the last.

    Raises:
        SpecError: the swizzle bends these reads in no regular way.
    """
    linear, warp_rows = tile.linear, output.tile[0] // warps
    columns = -(-(output.tile[1] // vector) // along)
    lane, warp = np.arange(output.threads) % 32, np.arange(output.threads) // 32
    first_m, first_d = warp * warp_rows + lane // along, lane % along * vector
    down = np.arange(warp_rows // (32 // along)) * (32 // along)
    right = np.arange(columns) * along * vector
    read = linear[down[None, :], right[:, None]] - linear[0, 0]
    return bend(tile, linear[first_m, first_d], read, "tile"), vector, along, warp_rows, columns


def by_neighbours(mma: TiledMma) -> TiledMma:
    """P V with the keys of a tf32 step in the order that P's accumulator has them: neighbours in one thread.

    Operand A of m16n8k8 holds k = t and t + 4 in lane t of a quad, an accumulator columns 2 t and 2 t + 1 (PTX ISA,
    "Matrix fragments for mma.m16n8k8"). A sum doesn't mind in which order its keys come, if P and V agree. With 16-bit
    operands they come so anyway.
    """
    if mma.atom.multiply != "tf32":
        return mma

    def renamed(k: np.ndarray) -> np.ndarray:
        return np.asarray(k // 8 * 8 + k % 4 * 2 + k % 8 // 4)

    return replace(mma, k_a=renamed(mma.k_a), k_b=renamed(mma.k_b))


def value_smem(blk_dv: int) -> Smem:
    """V in f32, read an element at a time: four neighbouring keys' pairs, 8 columns each, fall in distinct banks."""
    width = 32 if blk_dv % 32 == 0 else 16
    return Smem(atom=f"({width},8):(1,{width})", swizzle="Sw<2,3,3>" if width == 32 else "Sw<2,3,2>")


def as_operand(scores: TiledMma, output: TiledMma) -> Layout:
    """(MMA,MMA_M,MMA_K) of P as operand A of the second product -> register of the scores' accumulator.

    The accumulator of m16n8 holds what operand A of m16n8k16 wants, two atoms along N for one step along K (PTX ISA,
    "Matrix fragments for mma.m16n8k16"), and by `by_neighbours` what that of m16n8k8 does, one atom for one step; here
    it is found by comparing coordinates.

    Raises:
        SpecError: a thread would need values that another holds.
    """
    count = scores.accumulators
    columns = scores.tile[1]
    where = (scores.m_c * columns + scores.n_c).transpose(0, 3, 2, 1).reshape(scores.threads, count)
    wanted = output.mn_a * columns + output.k_a
    register = np.argsort(where[0])[np.searchsorted(np.sort(where[0]), wanted[0])]
    layout = fit(register)
    if layout is None or not np.array_equal(where[:, register], wanted):
        raise SpecError(Fault("tile", "the scores of a thread are not the operand that it needs"))
    return layout
