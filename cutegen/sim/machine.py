"""The machine: a batch of blocks whose threads run as lanes of numpy arrays.

A lane that must wait (at a barrier, for a phase of an mbarrier) sleeps. Asynchronous copies arrive as late as they may:
when somebody waits for them and nobody else can run; so a wait that is missing shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.layout.banks import WARP
from cutegen.sim.findings import Finding
from cutegen.sim.global_memory import GlobalMemory
from cutegen.sim.profile import Profile
from cutegen.sim.ptx import WIDTHS, Program
from cutegen.sim.registers import ALL, NUMPY, Get, Lanes, Put, Registers
from cutegen.sim.shared import RANK_SHIFT, SharedMemory

Step = Callable[[Lanes], None]
Control = Callable[[int, Lanes], None]
Unit = TypeVar("Unit", bound=Any)
WARPGROUP = 4 * WARP
EXIT = np.iinfo(np.int64).max


@dataclass
class Transfer:
    """Something asynchronous under way: `land` makes it arrive."""

    land: Callable[[], None]
    landed: bool = False


@dataclass
class Sleep:
    """Why lanes wait: a description, and what tells that they may go on."""

    lanes: NDArray[np.int64]
    what: str
    ready: Callable[[], bool]
    then: Callable[[], None]
    pc: int


@dataclass
class Geometry:
    """A launch. `cluster` is blocks a cluster along x, y, z."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def cluster_size(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]


@dataclass
class Options:
    """How to run. `seed` None runs lanes in step; `budget` is instructions (of all lanes at once) of one launch."""

    seed: int | None = None
    budget: int = 20_000_000
    profile: bool = False
    most_findings: int = 50
    muted: frozenset[str] = field(default_factory=frozenset)


class Machine:
    """The state of one batch of `blocks` blocks, reused from batch to batch."""

    def __init__(
        self,
        program: Program,
        memory: GlobalMemory,
        geometry: Geometry,
        blocks: int,
        parameters: dict[str, Any],
        options: Options,
    ) -> None:
        self.program, self.memory, self.geometry, self.options = program, memory, geometry, options
        self.parameters = parameters
        self.blocks = blocks
        self.padded = -(-geometry.threads // WARP) * WARP
        self.lanes = blocks * self.padded
        self.warps = self.lanes // WARP
        self.warps_per_block = self.padded // WARP
        self.block = np.repeat(np.arange(blocks), self.padded)
        self.thread = np.tile(np.arange(self.padded), blocks)
        self.lane = np.arange(self.lanes) % WARP
        self.warp = np.arange(self.lanes) // WARP
        self.every = np.arange(self.lanes)
        self.rng = None if options.seed is None else np.random.default_rng(options.seed)
        self.profile = Profile(program) if options.profile else None
        self.findings: dict[tuple[str, int], Finding] = {}
        self.index = 0
        self.steps_left = options.budget
        self._agents()
        self.shared = SharedMemory(blocks, geometry.shared_bytes, self.agents, _grain(program))
        self.registers = Registers(self, program.registers, self.lanes)
        self.special = self._special()
        self.local = np.zeros((self.lanes, 0), np.uint8)
        self.block_ids = np.zeros(blocks, np.int64)
        self.counter = np.zeros(self.lanes, np.int64)
        self.asleep = np.zeros(self.lanes, bool)
        self.sleeps: list[Sleep] = []
        self.transfers: list[Transfer] = []
        self.resets: list[Callable[[], None]] = []
        self.endings: list[Callable[[], None]] = []  # what is looked at when every thread has ended
        self._units: dict[type[Any], Any] = {}

    # ---- who is who

    def _agents(self) -> None:
        """Agents of a cluster: its warps, then its warpgroups' tensor cores, then each block's copy engine."""
        size = self.geometry.cluster_size
        warps = self.warps_per_block * size
        groups = -(-self.warps_per_block // 4)
        self.agents = warps + groups * size + size
        rank = np.arange(self.blocks) % size
        self.rank = rank
        self.first_block = np.arange(self.blocks) - rank
        warp_rank = np.repeat(rank, self.warps_per_block)
        in_block = np.tile(np.arange(self.warps_per_block), self.blocks)
        self.agent_of_warp = warp_rank * self.warps_per_block + in_block
        self.tensor_agent = warps + warp_rank * groups + in_block // 4
        self.copy_agent = warps + groups * size + rank
        self.clocks = np.zeros((self.warps, self.agents), np.int32)
        self.fenced = np.zeros((self.warps, self.agents), np.int32)
        self.tensor_clock = np.zeros((self.blocks, self.agents), np.int32)
        self.copy_clock = np.zeros(self.blocks, np.int32)

    def tick(self, warps: NDArray[np.int64]) -> None:
        """Advances the own clocks of warps: what they did before is from now on distinguishable."""
        self.clocks[warps, self.agent_of_warp[warps]] += 1

    def _special(self) -> dict[str, NDArray[np.uint32]]:
        x, y, _ = self.geometry.block
        zeros = np.zeros(self.lanes, np.uint32)
        found = {
            "%tid.x": (self.thread % x).astype(np.uint32),
            "%tid.y": (self.thread // x % y).astype(np.uint32),
            "%tid.z": (self.thread // (x * y)).astype(np.uint32),
            "%laneid": self.lane.astype(np.uint32),
            "%warpid": (self.thread // WARP).astype(np.uint32),
            "%nwarpid": zeros + self.warps_per_block,
            "%cluster_ctarank": self.rank[self.block].astype(np.uint32),
            "%cluster_nctarank": zeros + self.geometry.cluster_size,
            "%is_explicit_cluster": zeros + int(self.geometry.cluster_size > 1),
            "%dynamic_smem_size": zeros + self.geometry.shared_bytes,
            "%smid": zeros.copy(),
            "%lanemask_lt": ((1 << self.lane) - 1).astype(np.uint32),
            "%lanemask_le": ((2 << self.lane) - 1).astype(np.uint32),
            "%lanemask_eq": (1 << self.lane).astype(np.uint32),
        }
        for axis, name in enumerate("xyz"):
            found[f"%ntid.{name}"] = zeros + self.geometry.block[axis]
            found[f"%nctaid.{name}"] = zeros + self.geometry.grid[axis]
            found[f"%cluster_nctaid.{name}"] = zeros + self.geometry.cluster[axis]
            found[f"%nclusterid.{name}"] = zeros + self.geometry.grid[axis] // self.geometry.cluster[axis]
            for register in ("ctaid", "cluster_ctaid", "clusterid"):
                found[f"%{register}.{name}"] = zeros.copy()
        return found

    def start(self, block_ids: NDArray[np.int64]) -> None:
        """Puts the machine at the beginning of these blocks; -1 stands for no block."""
        self.block_ids = block_ids
        gx, gy, _ = self.geometry.grid
        cx, cy, cz = self.geometry.cluster
        size = self.geometry.cluster_size
        ids = np.maximum(block_ids, 0)
        cluster, rank = ids // size, ids % size
        inside = (rank % cx, rank // cx % cy, rank // (cx * cy))
        across = (gx // cx, gy // cy)
        of = (cluster % across[0], cluster // across[0] % across[1], cluster // (across[0] * across[1]))
        for axis, name in enumerate("xyz"):
            place = of[axis] * (cx, cy, cz)[axis] + inside[axis]
            self.special[f"%ctaid.{name}"][:] = place[self.block]
            self.special[f"%cluster_ctaid.{name}"][:] = inside[axis][self.block]
            self.special[f"%clusterid.{name}"][:] = of[axis][self.block]
        self.special["%smid"][:] = (ids % 132)[self.block]
        self.registers.reset()
        self.shared.reset()
        self.counter[:] = 0
        idle = (self.thread >= self.geometry.threads) | (block_ids < 0)[self.block]
        self.counter[idle] = EXIT
        self.asleep[:] = False
        self.sleeps.clear()
        self.transfers.clear()
        self.clocks[:] = 0
        self.clocks[np.arange(self.warps), self.agent_of_warp] = 1
        self.fenced[:] = 0
        self.tensor_clock[:] = 0
        self.copy_clock[:] = 0
        for reset in self.resets:
            reset()

    def release(self) -> None:
        """Lets go of registers and memory now: they refer to the machine in circles, which Python breaks late."""
        self.resets.clear()
        self.endings.clear()
        self._units.clear()
        self.sleeps.clear()
        self.transfers.clear()
        del self.registers, self.shared

    # ---- what decoders use

    def unit(self, kind: type[Unit]) -> Unit:
        """The machine's one object of a class, made when first asked for: its barriers, its copy engine."""
        if kind not in self._units:
            self._units[kind] = kind(self)
        found: Unit = self._units[kind]
        return found

    def get(self, operand: str, kind: str, raw: bool = False) -> Get:
        """How to read an operand as `kind`: register, special register, symbol or literal."""
        number = self.registers.number(operand, kind)
        if number is not None:
            return lambda at: number
        if operand in self.registers.declared:
            return self.registers.getter(operand, kind, raw)
        if operand in self.special:
            special, dtype = self.special[operand], _dtype(kind)
            if dtype.itemsize == 4:
                same = special.view(dtype)
                return lambda at: same[at]
            return lambda at: special[at].astype(dtype)
        if operand in ("%clock", "%clock64", "%globaltimer"):
            return lambda at: np.asarray(self.options.budget - self.steps_left).astype(_dtype(kind))
        if operand == "WARP_SZ":
            return lambda at: _dtype(kind).type(WARP)
        address = self.parameters.get(operand)
        shared = self.parameters.get(f"shared:{operand}")
        if shared is not None and self.geometry.cluster_size > 1:
            # An object in shared memory lies at another address in each block of a cluster.
            rank = self.rank[self.block].astype(np.uint64)
            own = (np.uint64(shared) + (rank << np.uint64(RANK_SHIFT))).astype(_dtype(kind))
            return lambda at: own[at]
        if isinstance(address, int):
            symbol = np.uint64(address).astype(_dtype(kind))
            return lambda at: symbol
        raise SimulationError(f"{self.where()}: operand {operand} is not understood")

    def put(self, operand: str, raw: bool = False) -> Put:
        """How to write a register."""
        return self.registers.setter(operand, raw)

    def count(self, at: Lanes) -> int:
        return self.lanes if at is ALL else len(at)

    def lanes_of(self, at: Lanes) -> NDArray[np.int64]:
        """Lane numbers of a set."""
        return self.every if at is ALL else at

    def whole_warps(self, at: Lanes) -> NDArray[np.int64]:
        """The warps of a set, which must hold whole ones: an `.aligned` instruction is executed by all of a warp."""
        lanes = self.lanes_of(at)
        warps = np.unique(self.warp[lanes])
        alive = (self.counter.reshape(-1, WARP)[warps] != EXIT).sum(1)
        here = np.bincount(self.warp[lanes], minlength=self.warps)[warps]
        if (here != alive).any():
            self.find("divergent-warp", "an .aligned instruction is executed by part of a warp", at)
        if (here != WARP).any():
            warps = warps[here == WARP]
        return warps

    def where(self) -> str:
        """The current instruction, for messages."""
        ins = self.program.instructions[self.index]
        source = f" (.cu line {ins.source})" if ins.source else ""
        return f"PTX line {ins.line}{source}: {ins}"

    def find(self, kind: str, message: str, at: Lanes, where: Any = None) -> None:
        """Notes a fault of the lanes `at`, or of those for which `where` holds."""
        lanes = self.lanes_of(at)
        if where is not None:
            lanes = lanes[np.broadcast_to(where, lanes.shape)]
        if len(lanes) == 0 or kind in self.options.muted:
            return
        key = (kind, self.index)
        ins = self.program.instructions[self.index]
        before = self.findings.get(key)
        if before is None and len(self.findings) >= self.options.most_findings:
            return
        first = int(lanes[0])
        self.findings[key] = Finding(
            kind,
            message if before is None else before.message,
            int(self.block_ids[self.block[first]]) if before is None else before.block,
            int(self.thread[first]) if before is None else before.thread,
            ins.line,
            ins.source,
            str(ins),
            len(lanes) + (before.count if before else 0),
        )

    def sleep(self, lanes: NDArray[np.int64], what: str, ready: Callable[[], bool], then: Callable[[], None]) -> None:
        """Puts lanes to sleep until `ready()`; `then` runs when they wake."""
        self.asleep[lanes] = True
        self.sleeps.append(Sleep(lanes, what, ready, then, self.index))

    def wake(self) -> bool:
        """Wakes whoever may go on; True if anybody did."""
        left: list[Sleep] = []
        woken = False
        waiting, self.sleeps = self.sleeps, []
        for sleep in waiting:
            if sleep.ready():
                self.asleep[sleep.lanes] = False
                sleep.then()
                woken = True
            else:
                left.append(sleep)
        self.sleeps = left + self.sleeps
        return woken

    def exit(self, at: Lanes) -> None:
        """Ends lanes."""
        self.counter[at] = EXIT

    @property
    def alive(self) -> NDArray[np.bool_]:
        return np.asarray(self.counter != EXIT)

    def land(self) -> bool:
        """Makes one asynchronous transfer arrive: the oldest, or with a seed any."""
        self.transfers = [t for t in self.transfers if not t.landed]
        if not self.transfers:
            return False
        chosen = 0 if self.rng is None else int(self.rng.integers(len(self.transfers)))
        transfer = self.transfers[chosen]
        transfer.landed = True
        transfer.land()
        return True


def _dtype(kind: str) -> Any:
    return np.dtype(NUMPY[kind])


def _grain(program: Program) -> int:
    """Bytes of the narrowest access to shared memory, at most 4."""
    grain = 4
    for ins in program.instructions:
        if ins.parts[0] in ("ld", "st", "atom", "red") and any(p.startswith("shared") for p in ins.parts):
            count = next((int(p[1:]) for p in ins.parts if p in ("v2", "v4", "v8")), 1)
            grain = min(grain, WIDTHS[ins.parts[-1]] * count)
        elif ins.parts[0] in ("ld", "st") and not {"global", "param", "local", "const"} & set(ins.parts):
            grain = min(grain, WIDTHS.get(ins.parts[-1], 4))
    return grain
