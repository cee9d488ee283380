"""What a GEMM on Hopper's own instructions is made of: TMA loads, WGMMA, a persistent grid, stores by TMA.

One producer warp runs ahead through all tiles of its block, so that loads of the next tile overlap the epilogue of
this one; where TMA can't load an operand, two producer warpgroups move its rows. `cooperative` consumers share a tile,
64 rows or more each; in `ping_pong` two take whole tiles in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from pycute import Layout

from cutegen.dtypes import DType
from cutegen.plan.finish import Finish
from cutegen.plan.hopper import LOADERS, ROW_BYTES, OwnAtom, Ring, fragment, padded_storage, ring_major
from cutegen.plan.hopper_neighbours import HopperNeighbours
from cutegen.plan.hopper_output import BoxedOutput
from cutegen.spec.gemm import GemmSpec


@dataclass(frozen=True)
class HopperGemmPlan(HopperNeighbours):
    """Everything static of the kernel. Byte and element counts are of one block."""

    dtype_b: DType
    majors: tuple[str, str]
    by_threads: tuple[bool, bool]
    promote: int
    scaled: tuple[str, ...]
    finish: Finish
    stages: int
    group_m: int
    aux: DType | None = None
    vector_aux: int = 0
    clipped: str = ""
    own_atom: OwnAtom | None = None

    @property
    def headers(self) -> tuple[str, ...]:
        return (
            "cute/swizzle.hpp",
            "cute/swizzle_layout.hpp",
            "cute/arch/cluster_sm90.hpp",
            "cute/arch/copy_sm90_tma.hpp",
            "cute/atom/copy_traits_sm90.hpp",
            "cute/atom/mma_traits_sm90_gmma.hpp",
            *(("cute/atom/copy_traits_sm75.hpp",) if self.a_in_registers else ()),
            "cutlass/arch/barrier.h",
            *(("cutlass/arch/reg_reconfig.h",) if self.registers else ()),
        )

    # ---- tile and roles

    @property
    def tile_m(self) -> int:
        return self.choice.m

    @property
    def tile_k(self) -> int:
        """Elements of K in 128 bytes."""
        return ROW_BYTES // self.dtype.bytes

    @property
    def ping_pong(self) -> bool:
        return self.choice.kind == "ping_pong"

    @property
    def consumers(self) -> int:
        return self.choice.consumers

    @property
    def mma_m(self) -> int:
        return self.choice.rows

    @property
    def block_threads(self) -> int:
        """The producer is a warpgroup too, of which one warp works unless threads load: registers are given to whole
        warpgroups.
        """
        return 128 * (self.consumers + self.choice.producers)

    @property
    def states_blocks(self) -> bool:
        """ptxas ignores `setmaxnreg` unless it knows the registers at entry, which this fixes where few would do."""
        return self.registers is not None

    @property
    def a_in_registers(self) -> bool:
        """Whether WGMMA takes A from registers (an RS atom), into which `ldmatrix` loads it."""
        assert isinstance(self.spec, GemmSpec)
        return self.spec.mma.a_in_registers

    @property
    def frag_a(self) -> Layout:
        """(values, block of 64 rows, step along K) of a thread's A: 16 bytes of each 16 x 32 bytes of its warp."""
        values = 16 // self.dtype.bytes
        return Layout((values, self.mma_m, self.k_steps))

    @property
    def touched(self) -> tuple[str, ...]:
        """The outputs that threads store, or whose old values an expression reads."""
        return tuple(o.name for o in self.outputs if not self.tma_store or (o.name == "C" and self.finish.reads_c))

    def spans(self, ring: Ring) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
        """(first, size, extent) of a stage across the rows of an operand that threads load, and along them."""
        k = ("k * BLK_K{}", "BLK_K{}", "K")
        mn = ("m0", "BLK_M{}", self.row_limit) if ring.name == "A" else ("n0", "BLK_N{}", "N")
        return (mn, k) if ring.major == "K" else (k, mn)

    @property
    def promoted_depth(self) -> int:
        return self.promote * self.tile_k

    @property
    def scale_count(self) -> int:
        return len(self.scaled)

    @property
    def sums(self) -> str:
        """What the tensor cores add to: the accumulator, or partial sums of it."""
        return "tCrP" if self.promote else self.products

    @property
    def formula(self) -> str:
        """What is stored, for the comment above the epilogue."""
        scaled = "".join(f" * scale_{name.upper()}" for name in self.scaled)
        aux = f" and Aux = {self.finish.aux.text}" if self.finish.aux else ""
        return (self.finish.formula + aux).replace("acc", f"acc{scaled}")

    @property
    def accumulators(self) -> int:
        return self.choice.accumulators

    @property
    def registers(self) -> tuple[int, int] | None:
        return self.choice.registers

    @property
    def split_note(self) -> str:
        """What a consumer warpgroup has of a tile, for the comment beside BLK_M."""
        if self.ping_pong:
            return "two consumer warpgroups take whole tiles in turn"
        count = f"{self.consumers} consumer warpgroups" if self.consumers > 1 else "one consumer warpgroup"
        return f"{count} of {64 * self.mma_m} rows"

    @property
    def producer_note(self) -> str:
        return "Producers: two warpgroups keep" if self.word_rings else "Producer: one thread keeps"

    @property
    def consumer_note(self) -> str:
        if self.split:
            return "they multiply this block's part of K, then add up their slice of the tile"
        if self.ping_pong:
            return "one warpgroup multiplies its tile while the other stores the one before"
        if self.consumers == 1:
            return "one warpgroup multiplies the tile"
        return f"each warpgroup owns {64 * self.mma_m} rows of the tile"

    # ---- barriers of a stage

    @property
    def readers(self) -> int:
        """Arrivals that free a stage: a stage is one warpgroup's in ping-pong, all warpgroups' otherwise. Each warp
        speaks for itself where it loads A into registers; a WGMMA's reads are those of a warpgroup.
        """
        speakers = 4 if self.a_in_registers else 1
        return (1 if self.ping_pong else self.consumers) * self.sharers * speakers

    @property
    def speaker(self) -> str:
        """The number, within those who speak together, of the thread that frees a stage."""
        return "lane" if self.a_in_registers else "tid"

    # ---- blocks that share a tile along K

    @property
    def slice_n(self) -> int:
        """Columns of a tile that one block stores."""
        return self.tile_n // (self.split or 1)

    @property
    def width(self) -> str:
        """The name of that number."""
        return "SLICE_N" if self.split else "BLK_N"

    @property
    def products(self) -> str:
        """The accumulator of the main loop; the epilogue's is tCrC."""
        return "tKrC" if self.split else "tCrC"

    @property
    def frag_k(self) -> Layout:
        """Of the main loop's accumulators, a whole tile."""
        return fragment(self.tile_n, self.mma_m)

    @property
    def smem_p(self) -> Layout:
        """(a thread's four of 8 columns, thread, 8 columns, block of 64 rows) of a block's sums: a warp has 512 B in a row."""
        return Layout((4, 128 * self.consumers, self.tile_n // 8, self.mma_m))

    @property
    def out_row(self) -> int:
        """Columns of a box: 128 bytes of the widest output, or 64 where those don't divide the tile, or all of the tile."""
        columns = ROW_BYTES // max(dtype.bytes for dtype in (self.out, self.aux or self.out))
        return next((width for width in (columns, columns // 2) if self.slice_n % width == 0), self.slice_n)

    @property
    def out_boxes(self) -> int:
        return self.slice_n // self.out_row

    @property
    def swizzled(self) -> bool:
        """Whether boxes have rows that TMA swizzles."""
        return all(output.swizzle_bytes for output in self.outputs)

    # ---- shared memory

    @property
    def a(self) -> Ring:
        major, slices, depth = ring_major(self.majors[0]), self.choice.cluster[1], self.tile_k
        clipped, threads = "A" in self.clipped, self.by_threads[0]
        shared = ("rank_n", "SHARE_A << rank_m") if self.two_ways else ()
        return Ring("A", self.dtype, major, self.tile_m, depth, self.stages, slices, clipped, threads, *shared)

    @property
    def b(self) -> Ring:
        major, slices, depth = ring_major(self.majors[1]), self.choice.cluster[0], self.tile_k
        clipped, threads = "B" in self.clipped, self.by_threads[1]
        shared = ("rank_m", "SHARE_B << rank_n * CLUSTER_M{}") if self.two_ways else ()
        return Ring("B", self.dtype_b, major, self.tile_n, depth, self.stages, slices, clipped, threads, *shared)

    @property
    def clipped_rings(self) -> tuple[tuple[Ring, str, str], ...]:
        """With the names of the tile's rows and of the tensor's."""
        return tuple(
            (ring, rows, extent)
            for ring, rows, extent in ((self.a, "BLK_M", "M"), (self.b, "BLK_N", "N"))
            if ring.clipped
        )

    @property
    def stage_bytes(self) -> str:
        """Bytes of a stage that TMA brings."""
        whole = sum(ring.stage_bytes for ring in self.tma_rings if not ring.clipped)
        parts = [f"min({extent}, {rows}{{}}) * 128" for _, rows, extent in self.clipped_rings]
        return " + ".join((*parts, *([str(whole)] if whole else []))) or "0"

    @property
    def rings(self) -> tuple[Ring, Ring]:
        return self.a, self.b

    @property
    def shared_ring(self) -> Ring:
        """The operand whose loads the blocks of a one-way cluster share."""
        return self.b if self.b.slices > 1 else self.a

    @property
    def word_rings(self) -> tuple[Ring, ...]:
        """The operands that threads load."""
        return tuple(ring for ring in self.rings if ring.by_threads)

    @property
    def tma_rings(self) -> tuple[Ring, ...]:
        return tuple(ring for ring in self.rings if not ring.by_threads)

    @property
    def loaders(self) -> int:
        """Warps that load what TMA can't."""
        return LOADERS if self.word_rings else 0

    @property
    def writers(self) -> int:
        """Arrivals that fill a stage, beside TMA's bytes: the thread that issues TMA, and each warp that loads."""
        return (1 if self.tma_rings else 0) + self.loaders

    @property
    def filled_note(self) -> str:
        """What a full barrier waits for, for a comment."""
        if not self.word_rings:
            return "one arrival and the bytes of a stage"
        return f"the {self.loaders} warps that load" + (", one arrival more and TMA's bytes" if self.tma_rings else "")

    @property
    def output_letter(self) -> str:
        return "C"

    @property
    def frag_c(self) -> Layout:
        """Of the epilogue's accumulators."""
        return fragment(self.slice_n, self.mma_m)

    @property
    def store_buffers(self) -> int:
        """Boxes of a warpgroup and of each output on their way out. Two of C let one fill while TMA reads the other. With
        a second output there is one of each, so that the stages keep their room: a box's expressions are computed while
        TMA reads the box before.
        """
        return 2 if self.tma_store and self.aux is None and self.out_boxes * self.mma_m > 1 else 1

    @property
    def buffer(self) -> str:
        """The one that a box goes through."""
        return "buffer" if self.store_buffers > 1 else "0"

    @property
    def outputs(self) -> tuple[BoxedOutput, ...]:
        """C, and Aux if there is one."""
        found = [("C", self.out, self.vector)]
        if self.aux is not None:
            found.append(("Aux", self.aux, self.vector_aux))
        return tuple(
            BoxedOutput(name, dtype, self.out_row, vector, self.store_buffers, self.consumers)
            for name, dtype, vector in found
        )

    @property
    def frag_aux(self) -> Layout:
        """Of a box of Aux in registers: like a box of C's accumulators."""
        return Layout((2, 2, self.out_row // 8))

    @property
    def staging_bytes(self) -> int:
        return sum(output.bytes for output in self.outputs)

    @property
    def storage_bytes(self) -> int:
        """`sizeof(SharedStorage)`."""
        tiles = self.stages * (self.a.stage_bytes + self.b.stage_bytes) + self.staging_bytes
        return padded_storage(tiles, 2 * self.stages + (2 if self.ping_pong else 0))

    # ---- store

    @property
    def store_note(self) -> str:
        if self.tma_store:
            return "box by box through shared memory; TMA writes them while the next tile is multiplied"
        return "box by box through shared memory, each warp its 16 rows"
