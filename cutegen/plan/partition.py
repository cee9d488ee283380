"""Which elements of a tile each thread multiplies: a tiled MMA, resolved to coordinates.

Warps own contiguous blocks of the tile: warp (w_m, w_n) of (W_M, W_N) starts at (w_m * BLK_M / W_M, w_n * BLK_N /
W_N) and repeats the atom over its block. In CuTe's terms it is a TiledMMA whose permutation tiler keeps each warp's
atoms together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pycute import Layout

from cutegen.atoms import MmaAtom
from cutegen.errors import Fault, SpecError
from cutegen.plan.fit import fit, fit_threads


@dataclass(frozen=True)
class TiledMma:
    """An MMA atom over a tile.

    `mn_a[tid, v, i, k]`, `k_a` are the tile coordinates of value v of atom i along M and step k; likewise for B;
    `m_c[tid, v, i, j]`,
    `n_c` for the accumulator.
    """

    atom: MmaAtom
    tile: tuple[int, int, int]
    threads: int
    arrangement: tuple[int, int]
    simt: bool
    mn_a: np.ndarray
    k_a: np.ndarray
    mn_b: np.ndarray
    k_b: np.ndarray
    m_c: np.ndarray
    n_c: np.ndarray

    @property
    def accumulators(self) -> int:
        """Accumulator values of a thread."""
        return int(np.prod(self.m_c.shape[1:]))

    @property
    def frag_c(self) -> Layout:
        """(MMA,MMA_M,MMA_N), compact."""
        values, rows, columns = self.m_c.shape[1:]
        return Layout((values, rows, columns), (1, values, values * rows))

    def start_c(self) -> tuple[Layout, Layout]:
        """tid -> (m, n) of its first accumulator value."""
        return thread_layout(self.m_c[:, 0, 0, 0], "mma"), thread_layout(self.n_c[:, 0, 0, 0], "mma")


def thread_layout(values: np.ndarray, field: str) -> Layout:
    """tid -> values[tid] as a literal layout.

    Raises:
        SpecError: the thread arrangement is no layout, such as a count of threads with no regular factors.
    """
    layout = fit_threads(values)
    if layout is None:
        raise SpecError(
            Fault(
                field,
                "the arrangement of threads over the tile is not a layout",
                expected="counts that divide each other, such as powers of two",
            )
        )
    return layout


def _atom_coordinates(layout: Layout, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(thread, value) -> (row, column) of an atom's TV layout, which counts the atom's elements column by column."""
    threads, values = layout[0], layout[1]
    index = np.array([[layout(t, v) for v in range(values.size())] for t in range(threads.size())])
    return index % rows, index // rows


def warp_mma(atom: MmaAtom, tile: tuple[int, int, int], warps: tuple[int, int]) -> TiledMma:
    """The warp-wide `atom` repeated over `tile` by `warps` along M and N.

    Raises:
        SpecError: the atoms of all warps don't divide the tile; names the nearest legal extents.
    """
    atom_m, atom_n, atom_k = atom.shape_mnk
    units = (atom_m * warps[0], atom_n * warps[1], atom_k)
    faults = [
        Fault(
            f"tile.{mode}",
            f"must be a multiple of {unit} ({atom.name} with warps {list(warps)})",
            got=str(extent),
            hint=f"nearest: {nearest(extent, unit)}",
        )
        for mode, extent, unit in zip("mnk", tile, units)
        if extent % unit
    ]
    if faults:
        raise SpecError(faults)
    threads = 32 * warps[0] * warps[1]
    tid = np.arange(threads)
    lane, warp = tid % 32, tid // 32
    warp_m = (warp % warps[0]) * (tile[0] // warps[0])
    warp_n = (warp // warps[0]) * (tile[1] // warps[1])
    steps = (tile[0] // units[0], tile[1] // units[1], tile[2] // atom_k)

    def operand(layout: Layout, rows: int, start: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        mn, k = _atom_coordinates(layout, rows)
        i = np.arange(count) * rows
        step = np.arange(steps[2]) * atom_k
        mn_all = start[:, None, None, None] + mn[lane][:, :, None, None] + i[None, None, :, None] + 0 * step
        k_all = k[lane][:, :, None, None] + 0 * i[None, None, :, None] + step
        return mn_all, k_all

    mn_a, k_a = operand(atom.layout_a, atom_m, warp_m, steps[0])
    mn_b, k_b = operand(atom.layout_b, atom_n, warp_n, steps[1])
    m, n = _atom_coordinates(atom.layout_c, atom_m)
    i, j = np.arange(steps[0]) * atom_m, np.arange(steps[1]) * atom_n
    m_c = warp_m[:, None, None, None] + m[lane][:, :, None, None] + i[None, None, :, None] + 0 * j
    n_c = warp_n[:, None, None, None] + n[lane][:, :, None, None] + 0 * i[None, None, :, None] + j
    return TiledMma(atom, tile, threads, warps, False, mn_a, k_a, mn_b, k_b, m_c, n_c)


def simt_mma(atom: MmaAtom, tile: tuple[int, int, int], arrangement: tuple[int, int], vector: int = 4) -> TiledMma:
    """The scalar `atom` over `tile`, by `arrangement` threads along M and N.

    A thread owns groups of `vector` neighbouring rows and columns, so that its operands are read in vectors; groups
    repeat all over the tile. A warp is 4 x 8 threads where the arrangement allows, which reads the fewest distinct
    elements.
    """
    threads_m, threads_n = arrangement
    units = (threads_m * vector, threads_n * vector, 1)
    faults = [
        Fault(
            f"tile.{mode}",
            f"must be a multiple of {unit} ({threads} threads of {vector} values)",
            got=str(extent),
            hint=f"nearest: {nearest(extent, unit)}",
        )
        for mode, extent, unit, threads in zip("mn", tile, units, arrangement)
        if extent % unit
    ]
    threads = threads_m * threads_n
    if threads % 32 or threads > 1024:
        faults.append(
            Fault(
                "mma.threads",
                "must be whole warps, at most 1024 threads",
                got=str(threads),
                expected="a multiple of 32",
            )
        )
    if faults:
        raise SpecError(faults)
    tid = np.arange(threads)
    if threads_n % 8 == 0 and threads_m % 4 == 0:
        lane, warp = tid % 32, tid // 32
        warps_m = threads_m // 4
        thread_m = lane // 8 + 4 * (warp % warps_m)
        thread_n = lane % 8 + 8 * (warp // warps_m)
    else:
        thread_m, thread_n = tid // threads_n, tid % threads_n

    def spread(thread: np.ndarray, count: int, extent: int) -> np.ndarray:
        groups = extent // (count * vector)
        i = np.arange(vector * groups)
        return (thread[:, None] * vector) + (i % vector) + (i // vector) * count * vector

    m, n = spread(thread_m, threads_m, tile[0]), spread(thread_n, threads_n, tile[1])
    step = np.arange(tile[2])
    mn_a, k_a = m[:, None, :, None] + 0 * step, 0 * m[:, None, :, None] + step
    mn_b, k_b = n[:, None, :, None] + 0 * step, 0 * n[:, None, :, None] + step
    m_c = m[:, None, :, None] + 0 * n[:, None, None, :]
    n_c = 0 * m[:, None, :, None] + n[:, None, None, :]
    return TiledMma(atom, tile, threads, arrangement, True, mn_a, k_a, mn_b, k_b, m_c, n_c)


def nearest(extent: int, unit: int) -> str:
    """The legal extents on both sides of an illegal one."""
    below = extent // unit * unit
    return f"{below} or {below + unit}" if below else str(unit)


@dataclass(frozen=True)
class AccumulatorView:
    """A thread's accumulator as the epilogue walks it: `regs` (VEC,INNER,OUTER) -> register, and the offsets of
    INNER and OUTER.

    INNER runs along the contiguous mode of the output, in groups of VEC neighbours.
    """

    vec: int
    regs: Layout
    inner: Layout
    outer: Layout


def accumulator_view(mma: TiledMma, inner_is_n: bool, vec_limit: int) -> AccumulatorView:
    """Sorts a thread's accumulator values into rows (outer) and vectors of neighbours (inner)."""
    m = (mma.m_c - mma.m_c[:, :1, :1, :1])[0]
    n = (mma.n_c - mma.n_c[:, :1, :1, :1])[0]
    inner, outer = (n, m) if inner_is_n else (m, n)
    values, rows, _ = m.shape
    v, i, j = np.indices(m.shape)
    register = (v + values * (i + rows * j)).reshape(-1)
    inner_set, outer_set = np.unique(inner), np.unique(outer)
    table = np.full((len(inner_set), len(outer_set)), -1)
    table[np.searchsorted(inner_set, inner.reshape(-1)), np.searchsorted(outer_set, outer.reshape(-1))] = register
    vec = 1
    while (
        vec * 2 <= vec_limit
        and len(inner_set) % (vec * 2) == 0
        and np.array_equal(inner_set[: vec * 2], np.arange(vec * 2))
    ):
        vec *= 2
    groups = inner_set.reshape(-1, vec)
    if not np.array_equal(groups, groups[:, :1] + np.arange(vec)):
        vec, groups = 1, inner_set.reshape(-1, 1)
    # table: (inner, outer) with inner = vec + VEC * group
    regs = fit(table.reshape(len(groups), vec, len(outer_set)).transpose(1, 0, 2))
    inner_layout, outer_layout = fit(groups[:, 0]), fit(outer_set)
    if regs is None or inner_layout is None or outer_layout is None:
        raise SpecError(Fault("mma", f"the accumulator of {mma.atom.name} over {mma.tile} has no layout of vectors"))
    return AccumulatorView(vec, regs, inner_layout, outer_layout)
