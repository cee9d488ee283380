"""One operand of the product, resolved: global to shared copy, shared-memory tile, fragments and how they are read."""

from __future__ import annotations

from dataclasses import dataclass

from pycute import Layout

from cutegen.dtypes import DType
from cutegen.layout import Swizzle
from cutegen.plan.copies import FragmentCopy, GlobalCopy, complete_copy, fragment_copy, global_copy
from cutegen.plan.partition import TiledMma
from cutegen.plan.shared import SharedTile, default_atom, shared_tile
from cutegen.spec.common import Copy, Smem


@dataclass(frozen=True)
class Operand:
    """Operand A or B under the `name` that the emitted kernel gives it. `mn` and `k` are the letters of its modes there."""

    name: str
    mn: str
    dtype: DType
    major: str
    blk_mn: int
    blk_k: int
    tile: SharedTile
    g2s: GlobalCopy
    s2r: FragmentCopy
    frag: Layout
    frag_k: str
    frag_cpp: str
    extent: str
    stride_mn: str
    stride_k: str
    smem_spec: Smem
    copy_spec: Copy
    k: str = "K"

    @property
    def cpp(self) -> str:
        return self.dtype.cpp

    @property
    def blk_mn_name(self) -> str:
        return f"BLK_{self.mn}"

    @property
    def blk_k_name(self) -> str:
        return f"BLK_{self.k}"

    @property
    def contiguous(self) -> str:
        """The letter of the contiguous mode in global memory."""
        return self.k if self.major == "K" else self.mn

    @property
    def smem(self) -> Layout:
        return self.tile.layout

    @property
    def swizzle(self) -> Swizzle | None:
        return self.tile.swizzle

    @property
    def smem_elements(self) -> int:
        return self.tile.elements

    @property
    def smem_bytes(self) -> int:
        return self.tile.elements * self.dtype.bytes

    @property
    def swizzle_note(self) -> str:
        if self.swizzle is None:
            return ""
        chunk = (1 << self.swizzle.base) * self.dtype.bytes
        return f"The swizzle XORs row bits into the index of each {chunk}-byte chunk: no bank conflicts"


def plan_operand(
    *,
    name: str,
    side: str,
    paths: tuple[str, str],
    dtype: DType,
    major: str,
    mma: TiledMma,
    stages: int,
    smem: Smem,
    copy: Copy,
    align: int,
    multiply: str,
    extent: str,
    stride: str,
    letters: tuple[str, str] | None = None,
) -> Operand:
    """Resolves operand A or B; `paths` holds the spec's paths of its shared-memory layout and of its copy.

    `letters` name its modes (mn, k) in the emitted kernel, if not M or N, and K.
    """
    mn_letter = "M" if side == "A" else "N"
    blk_mn, blk_k = (mma.tile[0] if side == "A" else mma.tile[1]), mma.tile[2]
    mn_contiguous = major == mn_letter
    if smem.atom is None:
        atom, swizzle = default_atom(dtype, blk_mn, blk_k, mn_contiguous, mma.simt, mn_contiguous and dtype.bytes == 4)
        smem = Smem(atom=atom, swizzle=smem.swizzle or swizzle)
    tile = shared_tile(smem, paths[0], dtype, blk_mn, blk_k, stages)
    transposing = tile.mn_contiguous != mn_contiguous
    # Through registers a vector can be transposed; tensor-core kernels have none to spare.
    limit = tile.vector_limit if not transposing else 16 if mma.simt else 1
    copy = complete_copy(copy, paths[1], dtype, blk_mn, blk_k, mma.threads, mn_contiguous, align, limit, transposing)
    g2s = global_copy(copy, paths[1], tile, blk_mn, blk_k, mma.threads, mn_contiguous, stages)
    s2r = fragment_copy(mma, side, tile, stages, paths[0])
    values, count, steps = (mma.mn_a if side == "A" else mma.mn_b).shape[1:]
    buffers = 2 if mma.simt else steps
    return Operand(
        name=name,
        mn=letters[0] if letters else mn_letter,
        dtype=dtype,
        major=major,
        blk_mn=blk_mn,
        blk_k=blk_k,
        tile=tile,
        g2s=g2s,
        s2r=s2r,
        frag=Layout((values, count, buffers), (1, values, values * count)),
        frag_k="2" if mma.simt else "MMA_K",
        frag_cpp="tfloat32_t" if multiply == "tf32" else dtype.cpp,
        extent=extent,
        stride_mn="_1{}" if mn_contiguous else stride,
        stride_k=stride if mn_contiguous else "_1{}",
        smem_spec=smem,
        copy_spec=copy,
        k=letters[1] if letters else "K",
    )
