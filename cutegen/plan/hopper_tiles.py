"""Which tile, cluster and schedule a GEMM on Hopper takes, from its problem and the number of SMs.

The model counts clock cycles of one SM. A block computes its tiles one after the other, so that

    time = max(rounds * main + (rounds - 1) * between, bytes of A, B and C / DRAM rate) + epilogue + fill
    rounds = ceil(tiles / blocks)
    between = epilogue                    cooperative
    between = max(epilogue - main, 0)     ping-pong: one warpgroup stores while the other multiplies
    main = ceil(steps / split) * (max(multiply, shared, load, moved) + _STEP + drag)

with, for each step of 128 bytes along K,

    multiply = m * n * k / 2048       dense 16-bit products of an SM and cycle, half of it for tf32, twice for fp8 (H100 whitepaper: 989
                                      TFLOP/s at 1.83 GHz on 132 SMs)
    shared   = bytes / _SHARED        shared memory: TMA writes the stage once, each WGMMA reads 64 rows of A and all of B
    load     = bytes / _L2            L2 to SM; multicast reads a slice of what is shared. Rows that don't begin at a multiple of
                                      128 B take `_STRADDLING` times as long, rows outside the tensor `_OUTSIDE` cycles each
    _STEP                             barriers of a step
    drag     = _DRAG * filled / _L2   what loads cost even where they are not the bound; multicast takes its share off in a single
                                      round, where nothing has run ahead, and beside threads that load, or store C in pieces
    moved    = _LATENCY + _WORD_ROW * rows    where threads load an operand: a row of 128 B takes the load/store unit a load, shuffles and a
                                      store, `_WHOLE_ROW` where elements are words, and a warp has one step's rows under way at
                                      a time: L2's latency

Where tiles are few, `split` blocks share one along K. Each leaves m * n sums in its shared memory and reads a slice of
them from every block of its cluster, so that a tile takes

    meet   = _MEET                    two barriers of a cluster and the first answer from afar
    sums   = 4 * m * n * (1 / _SHARED + (split - 1) / split / _NEIGHBOUR)

more, and its epilogue a `split`-th. `_EPILOGUE` bytes leave the registers of a warpgroup in a cycle (fewer in stores below 4
bytes), `consumers ** _TOGETHER` times as many of several that store at once, and `_BY_THREADS` times where threads store
whole vectors instead of TMA; 128 lanes each do an instruction of an expression in a cycle. `_FILL` cycles pass in a
launch, up to the first stage and after the last; clusters take `_CLUSTER` more, and of those with more than two blocks only
`_OF_LARGE` per cent of the SMs hold some: a GPC's SMs are not always a multiple of four. An H200 runs 30 clusters of four
at once, and 15 of eight.

That is the time at a given clock, and clocks fall where a GPU's power is at its limit. Power then decides the clock: what
switches costs V^2 for each cycle, V rises about as the square root of the clock f there, and so

    energy * f = power * time = power * cycles / f        sustained time = cycles / f ~ sqrt(cycles * energy)

with, for each step of each tile, whether an SM is idle or not,

    energy   = _MULTIPLYING * multiply + read / _READ + filled / _FILLED

where `read` are the bytes that WGMMA reads from shared memory and `filled` those that loads write there, multicast or not.

The named numbers are fitted to `benchmarks/gemm_matrix.py` on an H200, those of energy to times of 19 tiles for six products
after 80 ms each (`gemm_tiles.json`, docs/performance.md): what is minimised is the time lost by the model's first choice,
and to a lesser degree the distance of all times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from cutegen.hardware import Arch

Kind = Literal["cooperative", "ping_pong"]

_PRODUCTS = {1: 4096, 2: 2048, 4: 1024}
_SHARED = 160
_L2 = 82
_STEP = 60
_DRAG = 0.06
_EPILOGUE = 6.5
_TOGETHER = 0.5
_BY_THREADS = 0.5
_WORD_ROW, _WHOLE_ROW = 5.8, 4.5
_LATENCY = 640
_LANES = 128
_FILL = 5500
_MEET = 2000
_CLUSTER = 1400
_OF_LARGE = 91
_OUTSIDE = 3
_STRADDLING = 2.2
_MULTIPLYING, _READ, _FILLED = 0.96, 600, 160
_NEIGHBOUR = 10
CLOCK_GHZ = 1.6
# Accumulators of a thread that leave room for addresses among 232 registers.
_MOST_ACCUMULATORS = 192
# Neighbours along M share the loads of B, neighbours along N those of A.
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4))
_TILES_M = (128, 256, 192, 64)
_TILES_N = (256, 128, 192, 160, 72, 64)


@dataclass(frozen=True)
class Choice:
    """A tile (m, n), the cluster along (M, N), who computes a tile, how many blocks share it along K, and how many
    warpgroups load: one for TMA, two where threads do.
    """

    m: int
    n: int
    cluster: tuple[int, int]
    kind: Kind
    split: int = 1
    producers: int = 1

    def __str__(self) -> str:
        cluster = "" if self.cluster == (1, 1) else f" {self.cluster[0]}x{self.cluster[1]}"
        split = f" split-K {self.split}" if self.split > 1 else ""
        return f"{self.m}x{self.n} {self.kind.replace('_', '-')}{cluster}{split}"

    @property
    def blocks(self) -> int:
        """Blocks of a cluster: neighbours that share loads, or those that share a tile."""
        return self.cluster[0] * self.cluster[1] * self.split

    @property
    def partial_bytes(self) -> int:
        """Shared memory for a block's sums of its part of K, in f32."""
        return 4 * self.m * self.n if self.split > 1 else 0

    @property
    def consumers(self) -> int:
        """Consumer warpgroups of a block."""
        return 2 if self.kind == "ping_pong" else {64: 1, 192: 3}.get(self.m, 2)

    @property
    def rows(self) -> int:
        """Blocks of 64 rows that one warpgroup multiplies."""
        return self.m // 64 if self.kind == "ping_pong" else self.m // 64 // self.consumers

    @property
    def accumulators(self) -> int:
        """f32 accumulators of a thread."""
        return self.rows * self.n // 2

    @property
    def registers(self) -> tuple[int, int] | None:
        """Registers of a producer's and of a consumer's thread; None: as many as the compiler gives to all."""
        if self.producers == 2:
            return {1: (128, 232), 2: (80, 176)}[self.consumers]
        return {1: None, 2: (40, 232), 3: (32, 160)}[self.consumers]

    @property
    def most_accumulators(self) -> int:
        if self.producers == 2:
            return 96
        return {1: 128, 2: _MOST_ACCUMULATORS, 3: 96}[self.consumers]


@dataclass(frozen=True)
class Shape:
    """The problem, bytes of an element of the operands and of C, bytes of C that one store writes, instructions that an
    expression takes for each value of C, whether rows of A and B run along K, whether threads load them, and whether TMA
    stores C.
    """

    m: int
    n: int
    k: int
    batch: int
    size: int
    out_size: int
    store_bytes: int = 16
    instructions: int = 0
    along_k: tuple[bool, bool] = (True, True)
    by_threads: tuple[bool, bool] = (False, False)
    tma_store: bool = True


def residents(blocks: int, arch: Arch) -> int:
    """Clusters of so many blocks, one an SM, that run at once: the SMs of a GPC hold whole ones, and GPCs differ."""
    return arch.sms // blocks if blocks <= 2 else arch.sms * _OF_LARGE // blocks // 100


def _places(choice: Choice, shape: Shape) -> int:
    """Places of C that clusters take, also those that reach out of it: a tile for each of the blocks that share loads."""
    tiles_m, tiles_n = -(-shape.m // (choice.m * choice.cluster[0])), -(-shape.n // (choice.n * choice.cluster[1]))
    return tiles_m * tiles_n * shape.batch


def rounds_of(choice: Choice, shape: Shape, arch: Arch) -> int:
    """Tiles that a block computes one after the other, at most."""
    return -(-_places(choice, shape) // residents(choice.blocks, arch))


def several_rounds(choice: Choice, shape: Shape, arch: Arch) -> bool:
    """Whether more than two blocks share loads and have several tiles each: not measured, so only taken if asked for. Some
    SMs idle then all the time.
    """
    return choice.cluster[0] * choice.cluster[1] > 2 and rounds_of(choice, shape, arch) > 1


def clips(extent: int, tile: int, slices: int, along_k: bool) -> bool:
    """Whether boxes of an operand leave out the rows of a tile that the tensor has not: only rows along K can be left
    out, and blocks of a cluster load equal parts of a tile.
    """
    return extent < tile and slices == 1 and along_k


def held(tile: int, size: int, along_k: bool) -> int:
    """Rows along K, or columns, of an operand's tile in shared memory: columns in whole rows of 128 B."""
    return tile if along_k else -(-tile * size // 128) * 128 // size


@dataclass(frozen=True)
class _Step:
    """What a block does for 128 bytes along K: cycles of the tensor cores, bytes that loads write to shared memory and
    WGMMA reads there, cycles of L2.
    """

    multiply: float
    filled: float
    read: float
    load: float


def _step(choice: Choice, shape: Shape) -> _Step:
    load, outside, filled = 0.0, 0, 0
    for extent, tile, slices, along_k in zip(
        (shape.m, shape.n), (choice.m, choice.n), reversed(choice.cluster), shape.along_k
    ):
        tile = held(tile, shape.size, along_k)
        rows = extent if clips(extent, tile, slices, along_k) else tile
        filled += tile
        straddles = (shape.k if along_k else extent) * shape.size % 128
        load += rows / slices * 128 / _L2 * (_STRADDLING if straddles else 1)
        outside += max(rows - extent, 0)
    multiply = choice.m * choice.n * (128 // shape.size) / _PRODUCTS[shape.size]
    return _Step(multiply, filled * 128, choice.m // 64 * (64 + choice.n) * 128, load + _OUTSIDE * outside)


def _steps(choice: Choice, shape: Shape) -> int:
    """Steps of a block for a tile."""
    return -(-shape.k // (128 // shape.size * choice.split))


def cycles(choice: Choice, shape: Shape, arch: Arch) -> float:
    """The model's time in cycles of an SM."""
    rounds = rounds_of(choice, shape, arch)
    step = _step(choice, shape)
    shared = (step.read + step.filled) / _SHARED
    moved_rows = choice.m * shape.by_threads[0] + choice.n * shape.by_threads[1]
    moved = _LATENCY + moved_rows * (_WORD_ROW if shape.size < 4 else _WHOLE_ROW) if moved_rows else 0
    shares = rounds == 1 or shape.store_bytes < 16 or moved
    drag = _DRAG * (step.load if shares else step.filled / _L2)
    main = _steps(choice, shape) * (max(step.multiply, shared, step.load, moved) + _STEP + drag)
    storing = 1.0 if choice.kind == "ping_pong" else choice.consumers**_TOGETHER
    leaving = _EPILOGUE * storing * (1 if shape.tma_store or shape.store_bytes < 16 else _BY_THREADS)
    epilogue = choice.m * choice.n * shape.out_size / min(leaving, 8 * shape.store_bytes)
    epilogue += choice.m * choice.n * shape.instructions / _LANES
    if choice.split > 1:
        far = (choice.split - 1) / choice.split / _NEIGHBOUR
        epilogue = epilogue / choice.split + choice.partial_bytes * (1 / _SHARED + far) + _MEET
    # In ping-pong only the last epilogue overlaps with nothing; it comes when all has been loaded.
    between = max(main, epilogue) - main if choice.kind == "ping_pong" else epilogue
    busy = rounds * main + (rounds - 1) * between
    traffic = shape.batch * ((shape.m + shape.n) * shape.k * shape.size + shape.m * shape.n * shape.out_size)
    started = _FILL + (_CLUSTER if choice.blocks > 1 else 0)
    return max(busy, traffic / (arch.dram / CLOCK_GHZ)) + epilogue + started


def energy(choice: Choice, shape: Shape, arch: Arch) -> float:
    """The model's energy: the cycles at `CLOCK_GHZ` in which the GPU may spend it."""
    step = _step(choice, shape)
    spent = _MULTIPLYING * step.multiply + step.read / _READ + step.filled / _FILLED
    return _places(choice, shape) * choice.blocks * _steps(choice, shape) * spent / arch.sms


def sustained(choice: Choice, shape: Shape, arch: Arch) -> float:
    """The model's time where a GPU does nothing else for long, in cycles at `CLOCK_GHZ`."""
    busy = cycles(choice, shape, arch)
    return max(busy, math.sqrt(busy * energy(choice, shape, arch)))


def candidates(
    kinds: tuple[Kind, ...],
    asked_n: int | None,
    splits: tuple[int, ...] = (1,),
    by_threads: tuple[bool, bool] = (False, False),
) -> Iterator[Choice]:
    """Every choice that fits the registers, with N as asked if it is; of equals the first wins. Only cooperative
    blocks without neighbours share a tile along K. Where threads load an operand, two warpgroups do so, blocks share
    the other operand only, and one or two warpgroups share a tile.
    """
    producers = 2 if any(by_threads) else 1
    clusters = [c for c in CLUSTERS if not (c[0] > 1 and by_threads[1]) and not (c[1] > 1 and by_threads[0])]
    for split, kind, cluster in product(splits if producers == 1 else (1,), kinds, clusters):
        if split > 1 and (kind, cluster) != ("cooperative", (1, 1)):
            continue
        if producers == 2 and kind != "cooperative":
            continue
        for m, n in product(_TILES_M, _TILES_N if asked_n is None else (asked_n,)):
            choice = Choice(m, n, cluster, kind, split, producers)
            if producers == 2 and choice.consumers > 2:
                continue
            if choice.accumulators <= choice.most_accumulators:
                yield choice


def group_rows(choice: Choice, arch: Arch) -> int:
    """How many rows of tiles run together: a wave of blocks then covers about as many rows as columns of C, and reads
    the least of A and B from L2's other side; a power of two.
    """
    rows = (arch.sms * choice.n / choice.m) ** 0.5 / choice.cluster[0]
    power = 1
    while power * 2 <= rows * 1.1:
        power *= 2
    return power
