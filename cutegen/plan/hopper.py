"""What kernels on Hopper's own instructions share: shared-memory tiles that TMA writes and WGMMA reads, and the atoms.

A tile in shared memory is made of boxes, rows of 128 B under the 128-byte swizzle: the one layout in which a TMA box, a
WGMMA descriptor of either major, `stmatrix` and TMA stores agree (PTX ISA, "Asynchronous warpgroup level matrix shared
memory layout"; CuTe's `GMMA::Layout_K_SW128_Atom` and `GMMA::Layout_MN_SW128_Atom`). `Ring` is its only source: smem
layout, descriptors, box and byte counts are all read off it, so that they can't disagree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from pycute import Layout

from cutegen.dtypes import DType
from cutegen.errors import Fault
from cutegen.plan.kernel_plan import KernelPlan
from cutegen.plan.output import word
from cutegen.spec import KernelSpec

ROW_BYTES = 128
# Rows that TMA can't load: a lane moves a word, a warp a row, and so many warps a stage.
WORD_BYTES = 4
WORDS = ROW_BYTES // WORD_BYTES
LOADERS = 8
# What a start address or a byte offset in a matrix descriptor counts.
DESCRIPTOR_UNIT = 16
ATOM = re.compile(r"SM90_64x(\d+)x(\d+)_F32((?:BF16|TF32|F16|E4M3|E5M2){2})_(SS|RS)(_TN)?")
TYPES = {"f16": "F16", "bf16": "BF16", "tf32": "TF32", "e4m3": "E4M3", "e5m2": "E5M2"}
_DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}


RingMajor = Literal["K", "MN"]


def ring_major(mode: str) -> RingMajor:
    """The major of an operand whose contiguous mode is `mode`: K, or else M or N."""
    return "K" if mode == "K" else "MN"


@dataclass(frozen=True)
class Ring:
    """The stages of one operand. `mn` elements along M or N and `depth` along K make a tile; `rows` of one WGMMA are 64
    for the first operand, all `mn` for the second. `slices` blocks of a cluster each load a part for all of them: `rank`
    is a block's number among these, `sharers` the bits of their ranks in the cluster, in C++. Where a tile can't be cut
    into as many groups of eight rows, they load it whole, one stage each in turn.
    An MN-major tile that is no whole number of rows wide is held in boxes that are: what they have too much is not read.
    A `clipped` ring is loaded in boxes that have no rows outside the tensor: the copy engine takes its time over those too.
    `by_threads`: rows in global memory begin anywhere, so that warps load them, a word for each lane, and not TMA.
    """

    name: str
    dtype: DType
    major: RingMajor
    mn: int
    depth: int
    stages: int
    slices: int = 1
    clipped: bool = False
    by_threads: bool = False
    rank: str = "rank"
    sharers: str = "(1 << CLUSTER{}) - 1"

    @property
    def in_turn(self) -> bool:
        """Whether the blocks that share a tile take turns at loading it."""
        return self.slices > 1 and self.major == "K" and self.mn % (8 * self.slices) != 0

    @property
    def parts(self) -> int:
        """Parts of a tile that different blocks load."""
        return 1 if self.in_turn else self.slices

    @property
    def row(self) -> int:
        """Elements of a 128-byte row, which runs along the contiguous mode."""
        return ROW_BYTES // self.dtype.bytes

    @property
    def box_rows(self) -> int:
        return self.mn if self.major == "K" else self.depth

    @property
    def boxes(self) -> int:
        """Boxes of a stage, one after the other along the contiguous mode."""
        return -(-(self.depth if self.major == "K" else self.mn) // self.row)

    @property
    def box_elements(self) -> int:
        return self.box_rows * self.row

    @property
    def stage_bytes(self) -> int:
        return self.boxes * self.box_rows * ROW_BYTES

    @property
    def elements(self) -> int:
        """Elements of all stages."""
        return self.stages * self.boxes * self.box_elements

    @property
    def smem(self) -> Layout:
        """(mn, k, stage) in elements before the swizzle; the contiguous mode is (row, boxes)."""
        along, pitch = (self.row, self.boxes), (1, self.box_elements)
        stage = self.boxes * self.box_elements
        if self.major == "K":
            return Layout((self.mn, along, self.stages), (self.row, pitch, stage))
        return Layout((along, self.depth, self.stages), (pitch, self.row, stage))

    @property
    def words(self) -> Layout:
        """(word of a row, row, stage) in words of 4 bytes before the swizzle: the stages as warps fill them. The rows of
        a box follow each other, and so do boxes.
        """
        rows = self.boxes * self.box_rows
        return Layout((WORDS, rows, self.stages), (1, WORDS, WORDS * rows))

    @property
    def warp_rows(self) -> tuple[int, int]:
        """(rows in a box, boxes) of a stage that one of the warps loads: every 8th row, which the swizzle moves alike."""
        return self.box_rows // LOADERS, self.boxes

    @property
    def warp_words(self) -> Layout:
        """(row of a warp, stage) in words from the first word of a thread on: the swizzle moves all of them alike."""
        rows = self.boxes * self.box_rows
        return Layout((rows // LOADERS, self.stages), (LOADERS * WORDS, WORDS * rows))

    @property
    def word_step(self) -> int:
        """Words between two rows of a warp, for rows one element long."""
        return LOADERS * self.dtype.bytes // WORD_BYTES

    @property
    def spare(self) -> int:
        """Elements of a neighbour that an aligned word can hold beside one of a row."""
        return WORD_BYTES // self.dtype.bytes - 1

    @property
    def steps(self) -> int:
        """WGMMAs along K: each reads 32 bytes of it."""
        return -(-self.depth * self.dtype.bytes // 32)

    @property
    def _steps(self) -> tuple[Any, Any, int]:
        """Extents and strides of the steps along K, and the stride of a stage, in 16-byte units.

        K-major: a step is 32 bytes further in the row. MN-major: it is as many rows further as 32 bytes have elements.
        """
        box = self.box_elements * self.dtype.bytes // DESCRIPTOR_UNIT
        if self.major == "K":
            return (4, self.boxes), (2, box), box * self.boxes
        return self.steps, 32 // self.dtype.bytes * ROW_BYTES // DESCRIPTOR_UNIT, box * self.boxes

    @property
    def descriptors(self) -> Layout:
        """(MMA,step along K,stage): how a descriptor's start address advances, in 16-byte units."""
        shape, stride, stage = self._steps
        return Layout((1, shape, self.stages), (0, stride, stage))

    def descriptors_by_rows(self, blocks: int) -> Layout:
        """(MMA,block of 64 rows,step along K,stage), likewise; 64 rows of an MN-major tile are whole boxes."""
        shape, stride, stage = self._steps
        block = 64 * self.row if self.major == "K" else 64 // self.row * self.box_elements
        return Layout((1, blocks, shape, self.stages), (0, block * self.dtype.bytes // DESCRIPTOR_UNIT, stride, stage))

    @property
    def leading_bytes(self) -> int:
        """The descriptor's leading-dimension offset: from box to box for MN-major; unused (1) for swizzled K-major."""
        return DESCRIPTOR_UNIT if self.major == "K" else self.box_elements * self.dtype.bytes

    @property
    def box(self) -> tuple[int, int]:
        """The TMA box, contiguous mode first."""
        return self.row, self.box_rows // self.parts if self.sliced_rows else self.box_rows

    @property
    def sliced_rows(self) -> bool:
        """Whether a block of a cluster loads some rows of each box, and not some boxes: rows along K of an MN-major tile
        only where the boxes can't be dealt out.
        """
        return self.major == "K" or self.boxes % self.slices != 0

    @property
    def loads(self) -> int:
        """TMA instructions that one block issues for a stage."""
        return self.boxes if self.sliced_rows else self.boxes // self.slices

    @property
    def slice_mn(self) -> int:
        """Extent along M or N that one block of a cluster loads."""
        return self.mn // self.parts if self.major == "K" else self.loads * self.row

    @property
    def part(self) -> tuple[str, str]:
        """Where in a tile a block of a cluster begins to load, along M or N and along K, in C++; empty: at 0."""
        if self.parts == 1:
            return "", ""
        if self.major == "MN" and self.sliced_rows:
            return "", f"{self.rank} * {self.box[1]}"
        return f"{self.rank} * {self.slice_mn}", ""


@dataclass(frozen=True)
class HopperPlan(KernelPlan):
    """A kernel of consumer warpgroups and a producer warp. `multiply` names the format of the operands with the fewest bits; `out` what leaves."""

    dtype: DType
    out: DType
    multiply: str
    atom: str
    tile_n: int
    tma_store: bool
    vector: int

    @property
    def rings(self) -> tuple[Ring, Ring]:
        """The operands' rings of tiles."""
        raise NotImplementedError

    @property
    def staging_bytes(self) -> int:
        """Shared memory through which the output leaves."""
        raise NotImplementedError

    @property
    def output_letter(self) -> str:
        raise NotImplementedError

    @property
    def promoted_depth(self) -> int:
        """Elements of K after which sums move from the tensor cores to f32; 0: never."""
        return 0

    @property
    def scale_count(self) -> int:
        """Factors of a product besides alpha."""
        return 0

    @property
    def k_steps(self) -> int:
        """WGMMAs along a stage's depth."""
        return self.rings[0].steps

    @property
    def out_row(self) -> int:
        """Output elements of a 128-byte row."""
        return ROW_BYTES // self.out.bytes

    @property
    def out_boxes(self) -> int:
        return self.tile_n // self.out_row

    @property
    def vector_cpp(self) -> str:
        return word(self.vector * self.out.bytes)


def fragment(columns: int, blocks: int) -> Layout:
    """(column pair, row + 8, 8 columns, block of 64 rows) of a thread's accumulators (PTX ISA, "wgmma register
    fragments").
    """
    return Layout((2, 2, columns // 8, blocks), (1, 2, 4, columns // 2))


def padded_storage(tiles: int, barriers: int) -> int:
    """`sizeof(SharedStorage)`: tiles at multiples of 1024 B, then `barriers` of 8 B."""
    return -(-(tiles + 8 * barriers) // 1024) * 1024


def atom_name(multiply: tuple[str, str], n: int, source: str = "SS") -> str:
    """CuTe's name of the WGMMA of these operands, both in shared memory (SS) or the first in registers (RS); only 16-bit
    ones are read in other majors than TN.
    """
    first, second = multiply
    suffix = "" if _DEPTH[first] == 16 else "_TN"
    return f"SM90_64x{n}x{_DEPTH[first]}_F32{TYPES[first]}{TYPES[second]}_{source}{suffix}"


# Widths whose atoms are in the header that CuTe always reads (cute/arch/mma_sm90_gmma.hpp).
COMMON_N = (8, 16, 32, 64, 96, 128, 192, 256)


@dataclass(frozen=True)
class OwnAtom:
    """A WGMMA of a width that CuTe has in mma_sm90_gmma_ext.hpp, which takes three times as long to compile as all other
    headers: the instruction, operand by operand (PTX ISA, "wgmma.mma_async").
    """

    n: int
    instruction: str
    majors: str

    @property
    def registers(self) -> int:
        """f32 accumulators of a thread."""
        return self.n // 2

    def rows(self, form: str, width: int = 16) -> list[str]:
        """The accumulators, written as `form` says, some in a line."""
        every = [form.format(i) for i in range(self.registers)]
        return [", ".join(every[i : i + width]) for i in range(0, len(every), width)]


def own_atom(multiply: tuple[str, str], n: int, majors: tuple[str, str]) -> OwnAtom | None:
    """What must be written out for a width; None where CuTe's header has it."""
    if n in COMMON_N:
        return None
    depth = _DEPTH[multiply[0]]
    name = f"wgmma.mma_async.sync.aligned.m64n{n}k{depth}.f32.{multiply[0]}.{multiply[1]}"
    transposed = "".join(f", {int(major == 'MN')}" for major in majors) if depth == 16 else ""
    return OwnAtom(n, name, transposed)


def atom_cpp(multiply: tuple[str, str], n: int, majors: tuple[str, str] = ("K", "K"), source: str = "SS") -> str:
    """The same as a C++ type; 16-bit atoms take the operands' majors."""
    arguments = ", ".join(f"GMMA::Major::{major}" for major in majors) if _DEPTH[multiply[0]] == 16 else ""
    return f"{atom_name(multiply, n, source)}<{arguments}>"


def atom_faults(
    name: str | None, multiply: tuple[str, str], accumulate: str, tile_n: int | None, source: str = "SS"
) -> list[Fault]:
    """What is wrong with a spec's atom and types."""
    first, second = multiply
    if first not in TYPES or second not in TYPES or accumulate != "f32":
        got = f"{first} and {second}" if first != second else first
        hint = "f16, bf16, tf32, e4m3 or e5m2 into f32"
        return [Fault("dtypes", f"no WGMMA multiplies {got} into {accumulate} here", hint=hint)]
    if name is None:
        return []
    match = ATOM.fullmatch(name)
    if match is None or match[3] != TYPES[first] + TYPES[second] or match[4] != source:
        near = atom_name(multiply, tile_n or 128, source)
        return [Fault("mma.atom", "not the WGMMA atom of these dtypes", got=name, hint=f"{near} would do")]
    if tile_n is not None and int(match[1]) != tile_n:
        return [Fault("tile.n", f"must equal the atom's N, {match[1]}", got=str(tile_n))]
    return []


def layout_faults(spec: KernelSpec) -> list[Fault]:
    """Layouts and copies that a spec asks for where TMA and WGMMA leave no choice."""
    return [
        Fault(
            part.rstrip("_"),
            "TMA and WGMMA fix the layout on this path",
            hint="leave it out, or choose an SM80 atom",
        )
        for part in ("smem", "copy_")
        if getattr(spec, part) != type(getattr(spec, part))()
    ]
