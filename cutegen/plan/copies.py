"""How an operand moves: global memory to shared memory, and shared memory to registers, resolved for every thread."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from pycute import Layout, flatten

from cutegen.atoms.copy import GLOBAL_COPIES, LDMATRIX, UNIVERSAL
from cutegen.dtypes import DType
from cutegen.errors import Fault, SpecError
from cutegen.layout import Swizzle, parse_layout
from cutegen.plan.fit import fit
from cutegen.plan.partition import TiledMma, thread_layout
from cutegen.plan.shared import SharedTile
from cutegen.spec.common import Copy


@dataclass(frozen=True)
class SmemView:
    """How a thread walks a tile in shared memory.

    `thr_mn`, `thr_k`: tid -> its first coordinate. `smem`: offsets from there, the last mode being the stage.
    `affine`: offsets are after the swizzle and the same for every thread; otherwise they are before it, and the
    swizzle is applied to the whole.
    """

    prefix: str
    atom: str
    thr_mn: Layout
    thr_k: Layout
    smem: Layout
    affine: bool
    # Byte addresses in shared memory of every thread's first access, after the swizzle, and its width.
    addresses: np.ndarray = field(repr=False, compare=False)
    width: int


@dataclass(frozen=True)
class GlobalCopy(SmemView):
    """gmem -> smem, `vector` elements at once; modes (CPY,CPY_MN,CPY_K,PIPE), CPY_MN and CPY_K `mn_step` and
    `k_step` apart. If `transposing`, a vector goes through registers, and its elements are stored one by one.
    """

    vector: int
    asynchronous: bool
    transposing: bool
    mn_step: int
    k_step: int
    threads: str
    values: str

    @property
    def mn_count(self) -> int:
        """Vectors of a thread along mn."""
        return int(self.smem[1].size())

    @property
    def k_count(self) -> int:
        """Vectors of a thread along k."""
        return int(self.smem[2].size())

    @property
    def regs(self) -> Layout:
        """(CPY,CPY_MN,CPY_K) of a tile on its way through registers, compact."""
        return Layout((self.vector, self.mn_count, self.k_count), (1, self.vector, self.vector * self.mn_count))


@dataclass(frozen=True)
class FragmentCopy(SmemView):
    """smem -> registers; modes (CPY,CPY_MN,MMA_K,PIPE), registers `regs` (CPY,CPY_MN,MMA_K).

    With `xor` (CPY_MN,MMA_K), a read is at (swizzled start ^ xor) + smem instead; see `bend`.
    """

    regs: Layout
    xor: Layout | None = None

    @property
    def together(self) -> int:
        """Elements that a thread, or for ldmatrix a row, has next to each other."""
        return int(self.smem[0].size())


def _neighbours(offsets: np.ndarray, vector: int) -> np.ndarray:
    """(tid, CPY, ...) of vectors that begin at `offsets` (tid, ...)."""
    return np.asarray(offsets[:, None] + np.arange(vector).reshape([1, -1] + [1] * (offsets.ndim - 1)))


def _view(tile: SharedTile, start: np.ndarray, offsets: np.ndarray, stages: int, path: str) -> tuple[Layout, bool]:
    """The layout (axes of `offsets` after tid..., PIPE) of a thread's offsets, and whether it is affine.

    Raises:
        SpecError: offsets are not the thread's start plus a common pattern.
    """
    stage = np.arange(stages) * tile.stage_stride

    def pattern(steps: np.ndarray) -> Layout | None:
        return fit(steps[..., None] + stage)

    first = (slice(None),) + (0,) * (offsets.ndim - 1)
    bent = tile.swizzled(offsets)
    relative = bent - bent[first].reshape([-1] + [1] * (offsets.ndim - 1))
    if (relative == relative[:1]).all():
        layout = pattern(relative[0])
        if layout is not None:
            return layout, True
    relative = offsets - start.reshape([-1] + [1] * (offsets.ndim - 1))
    layout = pattern(relative[0]) if (relative == relative[:1]).all() else None
    if layout is None:
        raise SpecError(
            Fault(
                path,
                "threads don't walk this shared-memory layout in equal steps",
                hint="use an atom whose extents divide the thread arrangement",
            )
        )
    if tile.swizzle is not None and (bad := _unsliceable(layout, tile.swizzle)):
        raise SpecError(
            Fault(
                path,
                f"{tile.swizzle} bends steps of {bad[1]} elements, of which there are {bad[0]}: CuTe takes powers of two",
                hint="a swizzle of none, or a layout atom whose extents and strides are powers of two",
            )
        )
    return layout, False


def _unsliceable(layout: Layout, swizzle: Swizzle) -> tuple[int, int] | None:
    """(shape, stride) of a mode by which CuTe can't index under a swizzle.

    `slice_and_offset` of `cute/swizzle_layout.hpp` sorts each step into the bits that the swizzle moves and the others,
    which wants powers of two, unless a mode stays below or above all of them.
    """
    period = 1 << (swizzle.base + swizzle.bits + abs(swizzle.shift))
    for mode in range(len(layout.shape)):
        for size, step in zip(*(flatten(x) for x in (layout.shape[mode], layout.stride[mode]))):
            free = size == 1 or step % period == 0 or size * step <= 1 << swizzle.base
            if not free and (size & (size - 1) or step & (step - 1)):
                return size, step
    return None


def default_threads(
    threads: int, blk_mn: int, blk_k: int, vector: int, mn_contiguous: bool, transposing: bool
) -> tuple[int, int] | None:
    """Threads along (mn, k): as many as fit along the contiguous mode, the rest along the other; None if the tile is
    too small.
    """
    inner, outer = (blk_mn // vector, blk_k) if mn_contiguous else (blk_k // vector, blk_mn)
    best = None
    for along in range(1, threads + 1):
        if threads % along or inner % along or outer % (threads // along):
            continue
        # Single elements: 8 of a row are a whole sector of f32, and a warp writes distinct banks. Vectors: two sectors
        # are faster than one by more than two-way conflicts cost (docs/performance.md).
        if transposing and along * vector > (8 if vector == 1 else 16):
            continue
        best = along
    if best is None:
        return None
    return (best, threads // best) if mn_contiguous else (threads // best, best)


def complete_copy(
    copy: Copy,
    path: str,
    dtype: DType,
    blk_mn: int,
    blk_k: int,
    threads: int,
    mn_contiguous: bool,
    align: int,
    limit: int,
    transposing: bool,
) -> Copy:
    """Fills in what `copy` leaves open: the widest vector that alignment, tile and shared-memory layout allow, through
    registers if it has to be transposed."""
    vector = min(16 // dtype.bytes, align, limit)
    if copy.values is not None:
        vector = parse_layout(copy.values, f"{path}.values").size()
    arrangement = default_threads(threads, blk_mn, blk_k, vector, mn_contiguous, transposing)
    while arrangement is None and vector > 1 and copy.values is None:
        vector //= 2
        arrangement = default_threads(threads, blk_mn, blk_k, vector, mn_contiguous, transposing)
    if copy.threads is None and arrangement is None:
        raise SpecError(
            Fault(
                f"{path}.threads",
                f"{threads} threads do not cover a ({blk_mn},{blk_k}) tile evenly",
                hint="use a larger tile or fewer threads",
            )
        )
    size = vector * dtype.bytes
    atom = copy.atom or (
        f"UniversalCopy_{size}B"
        if transposing and vector > 1
        else "SM80_CP_ASYNC_CACHEGLOBAL_16B"
        if size == 16
        else f"SM80_CP_ASYNC_CACHEALWAYS_{size}B"
        if size in (4, 8)
        else f"UniversalCopy_{size}B"
    )
    shape = arrangement or (1, threads)
    order = f"(1,{shape[0]})" if mn_contiguous else f"({shape[1]},1)"
    values = f"({vector},1):(1,0)" if mn_contiguous else f"(1,{vector}):(0,1)"
    return Copy(atom=atom, threads=copy.threads or f"({shape[0]},{shape[1]}):{order}", values=copy.values or values)


def global_copy(
    copy: Copy, path: str, tile: SharedTile, blk_mn: int, blk_k: int, threads: int, mn_contiguous: bool, stages: int
) -> GlobalCopy:
    """Resolves a completed copy.

    Raises:
        SpecError: unknown atom, threads that don't cover the tile, a vector that is not contiguous in both memories.
    """
    dtype = tile.dtype
    assert copy.atom is not None and copy.threads is not None and copy.values is not None
    if copy.atom not in GLOBAL_COPIES:
        raise SpecError(Fault(f"{path}.atom", "unknown copy atom", got=copy.atom, expected=", ".join(GLOBAL_COPIES)))
    atom = GLOBAL_COPIES[copy.atom]
    size, asynchronous = atom.bytes, atom.asynchronous
    thread_map, values = parse_layout(copy.threads, f"{path}.threads"), parse_layout(copy.values, f"{path}.values")
    t_mn, t_k = thread_map[0].size(), thread_map[1].size()
    v_mn, v_k = values[0].size(), values[1].size()
    vector = v_mn * v_k
    if vector * dtype.bytes != size:
        raise SpecError(
            Fault(
                f"{path}.values",
                f"{copy.atom} copies {size} B",
                got=f"{vector} values of {dtype.bytes} B",
                expected=f"{size // dtype.bytes} values",
            )
        )
    if (v_k if mn_contiguous else v_mn) != 1:
        raise SpecError(
            Fault(
                f"{path}.values",
                "a vector must run along the contiguous mode",
                got=copy.values,
                expected=f"({vector},1)" if mn_contiguous else f"(1,{vector})",
            )
        )
    ids = np.array([[thread_map[0](i) + thread_map[1](j) for j in range(t_k)] for i in range(t_mn)])
    if ids.size != threads or not np.array_equal(np.sort(ids.reshape(-1)), np.arange(threads)):
        raise SpecError(
            Fault(f"{path}.threads", f"must number the {threads} threads of the block once each", got=copy.threads)
        )
    if blk_mn % (t_mn * v_mn) or blk_k % (t_k * v_k):
        raise SpecError(
            Fault(
                f"{path}.threads",
                f"threads {copy.threads} with values {copy.values} cover ({t_mn * v_mn},{t_k * v_k}) at a time, which does not divide the tile ({blk_mn},{blk_k})",
                hint="the extents of threads times values must divide the tile's",
            )
        )
    transposing = vector > 1 and tile.mn_contiguous != mn_contiguous
    if transposing and asynchronous:
        raise SpecError(
            Fault(
                f"{path}.atom",
                "can't transpose a vector, and the tile in shared memory is contiguous along the other mode",
                got=copy.atom,
                expected=f"UniversalCopy_{size}B, which goes through registers",
            )
        )
    if vector > tile.vector_limit and not transposing:
        raise SpecError(
            Fault(
                f"{path}.values",
                f"the shared-memory layout keeps only {tile.vector_limit} elements together",
                got=f"{vector} values",
                hint=f"a swizzle base of at least {vector.bit_length() - 1} keeps them",
            )
        )
    where = np.argsort(ids.reshape(-1))
    thr_mn, thr_k = where // t_k * v_mn, where % t_k * v_k
    i, j = np.arange(blk_mn // (t_mn * v_mn)) * t_mn * v_mn, np.arange(blk_k // (t_k * v_k)) * t_k * v_k
    value = np.arange(vector)
    value_mn, value_k = (value, 0 * value) if mn_contiguous else (0 * value, value)
    places = tile.offsets(
        (thr_mn[:, None] + value_mn)[:, :, None, None] + i[:, None] + 0 * j,
        (thr_k[:, None] + value_k)[:, :, None, None] + 0 * i[:, None] + j,
    )
    first = places[:, 0, 0, 0]
    smem, affine = _view(tile, first, places, stages, path)
    return GlobalCopy(
        "G2S",
        atom.cpp,
        thread_layout(thr_mn, path),
        thread_layout(thr_k, path),
        smem,
        affine,
        tile.swizzled(first) * dtype.bytes,
        dtype.bytes if transposing else size,
        vector,
        asynchronous,
        transposing,
        t_mn * v_mn,
        t_k * v_k,
        copy.threads,
        copy.values,
    )


def fragment_copy(mma: TiledMma, side: str, tile: SharedTile, stages: int, path: str) -> FragmentCopy:
    """How fragments of A or B are read: ldmatrix where its 16-byte rows lie in shared memory (transposed for an
    MN-major tile of 16-bit elements; PTX ISA, "ldmatrix"), else plain loads."""
    mn, k = (mma.mn_a, mma.k_a) if side == "A" else (mma.mn_b, mma.k_b)
    dtype = tile.dtype
    if mma.simt:
        return _simt_copy(mn, k, tile, stages, path)
    values, count, steps = mn.shape[1:]
    per_register = 4 // dtype.bytes
    registers = values // per_register
    if tile.mn_contiguous and dtype.bytes != 2:
        flat = (mn.shape[0], values * count, steps)
        offsets = tile.offsets(mn, k).transpose(0, 2, 1, 3).reshape(flat)
        start_mn, start_k = mn[:, 0, 0, 0], k[:, 0, 0, 0]
        smem, affine = _view(tile, offsets[:, 0, 0], _neighbours(offsets, 1), stages, path)
        return FragmentCopy(
            "S2R",
            UNIVERSAL[dtype.bytes].cpp,
            thread_layout(start_mn, path),
            thread_layout(start_k, path),
            smem,
            affine,
            tile.swizzled(offsets[:, 0, 0]) * dtype.bytes,
            dtype.bytes,
            Layout((1, values * count, steps), (0, 1, values * count)),
        )
    transposed = tile.mn_contiguous
    row = 16 // dtype.bytes
    if tile.vector_limit < row:
        base = row.bit_length() - 1
        raise SpecError(
            Fault(
                f"{path}.swizzle",
                f"ldmatrix reads rows of 16 B, but the layout keeps only {tile.vector_limit} elements together",
                hint=f"rows of at least {row} contiguous elements, and a swizzle base of at least {base}",
            )
        )
    total = registers * count
    matrices = next(x for x in (4, 2, 1) if total % x == 0 and (x % registers == 0 or registers % x == 0))
    tid = np.arange(mma.threads)
    lane, warp0 = tid % 32, tid // 32 * 32
    source = np.arange(total // matrices)[None, :] * matrices + (lane // 8 % matrices)[:, None]
    atom_index, register = source // registers, source % registers
    row_index = (lane % 8)[:, None]
    holder = warp0[:, None] + (row_index // 2 if transposed else row_index * 4)
    value = register * per_register + (row_index % 2 if transposed else 0)
    row_mn, row_k = mn[holder, value, atom_index], k[holder, value, atom_index]
    offsets = tile.offsets(row_mn, row_k)
    start_mn, start_k = row_mn[:, 0, 0], row_k[:, 0, 0]
    smem, affine = _view(tile, offsets[:, 0, 0], _neighbours(offsets, row), stages, path)
    per_copy = matrices * per_register
    regs = Layout((per_copy, total // matrices, steps), (1, per_copy, values * count))
    return FragmentCopy(
        "S2R",
        LDMATRIX[matrices, transposed].cpp,
        thread_layout(start_mn, path),
        thread_layout(start_k, path),
        smem,
        affine,
        tile.swizzled(offsets[:, 0, 0]) * dtype.bytes,
        16,
        regs,
    )


def _simt_copy(mn: np.ndarray, k: np.ndarray, tile: SharedTile, stages: int, path: str) -> FragmentCopy:
    """Scalar atoms: a thread reads its rows of one k in vectors where they are contiguous; two buffers, k and k + 1."""
    count = mn.shape[2]
    vector = min(16 // tile.dtype.bytes, 4, tile.vector_limit) if tile.mn_contiguous else 1
    offsets = tile.offsets(mn[:, 0, ::vector], k[:, 0, ::vector])
    smem, affine = _view(tile, offsets[:, 0, 0], _neighbours(offsets, vector), stages, path)
    regs = Layout((vector, count // vector, 2), (1, vector, count))
    return FragmentCopy(
        "S2R",
        UNIVERSAL[vector * tile.dtype.bytes].cpp,
        thread_layout(mn[:, 0, 0, 0], path),
        thread_layout(k[:, 0, 0, 0], path),
        smem,
        affine,
        tile.swizzled(offsets[:, 0, 0]) * tile.dtype.bytes,
        vector * tile.dtype.bytes,
        regs,
    )
