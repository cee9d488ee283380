"""The machine: a batch of blocks whose threads run as lanes of numpy arrays.

Lanes with the lowest program counter run first, so that paths that part at a branch meet again where they join. A lane
that must wait (at a barrier, for a phase of an mbarrier) sleeps. Asynchronous copies arrive as late as they may: when
somebody waits for them and nobody else can run; so a wait that is missing shows. With a seed, warps take turns at
random and copies arrive at random times.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.sim.global_memory import GlobalMemory
from cutegen.sim.profile import Profile
from cutegen.sim.ptx import Instruction, Program
from cutegen.sim.registers import ALL, Get, Lanes, Put, Registers
from cutegen.sim.shared import NEVER, SharedMemory

Step = Callable[[Lanes], None]
Control = Callable[[int, Lanes], None]
WARP, WARPGROUP = 32, 128
_PATIENCE = 20_000  # instructions in a row after which others get a turn
_EXIT = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Finding:
    """A fault that was seen: what kind, who did it first, where in PTX and `.cu`, and by how many lanes."""

    kind: str
    message: str
    block: int | None = None
    thread: int | None = None
    line: int | None = None
    source: int | None = None
    instruction: str = ""
    count: int = 1

    def __str__(self) -> str:
        if self.line is None:
            return f"{self.kind}: {self.message}"
        where = f".cu line {self.source}, " if self.source else ""
        times = f"; {self.count} times" if self.count > 1 else ""
        who = f"block {self.block}, thread {self.thread}, "
        return f"{self.kind}: {self.message}\n    {who}{where}PTX line {self.line}: {self.instruction}{times}"


@dataclass
class Transfer:
    """Something asynchronous under way: `land` makes it arrive. `key` groups what a wait waits for."""

    land: Callable[[], None]
    key: Any = None
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
        self.counter[idle] = _EXIT
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

    # ---- what decoders use

    def get(self, operand: str, kind: str, raw: bool = False) -> Get:
        """How to read an operand as `kind`: register, special register, symbol or literal."""
        number = self.registers.number(operand, kind)
        if number is not None:
            return lambda at: number
        if operand in self.registers.declared:
            return self.registers.getter(operand, kind, raw)
        if operand in self.special:
            special = self.special[operand]
            return lambda at: special[at] if kind in ("u32", "b32") else special[at].view(np.int32 if kind == "s32" else np.uint32).astype(_dtype(kind))  # fmt: skip
        if operand in ("%clock", "%clock64", "%globaltimer"):
            return lambda at: np.asarray(self.options.budget - self.steps_left).astype(_dtype(kind))
        if operand == "WARP_SZ":
            return lambda at: _dtype(kind).type(WARP)
        address = self.parameters.get(operand)
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
        return self.every if at is ALL else at  # type: ignore[no-any-return]

    def whole_warps(self, at: Lanes) -> NDArray[np.int64]:
        """The warps of a set, which must hold whole ones: an `.aligned` instruction is executed by all of a warp."""
        lanes = self.lanes_of(at)
        warps = np.unique(self.warp[lanes])
        alive = (self.counter[: self.lanes].reshape(-1, WARP)[warps] != _EXIT).sum(1)
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
        self.counter[at] = _EXIT

    @property
    def alive(self) -> NDArray[np.bool_]:
        return self.counter != _EXIT

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

    # ---- running

    def run(self, steps: list[Step | None], controls: dict[int, Control]) -> None:
        """Runs until every lane has ended.

        Raises:
            SimulationError: a deadlock, or the budget is spent.
        """
        boundary = _next(len(steps), controls)
        aligned = {i for i, ins in enumerate(self.program.instructions) if _is_aligned(ins)}
        together = _next(len(steps), aligned)
        last, streak = -1, 0
        while True:
            runnable = ~self.asleep & (self.counter != _EXIT)
            parted = self._parted(runnable)
            if parted is not None:
                # Lanes whose siblings sleep behind them can't execute an aligned instruction yet.
                held = parted & np.isin(self.counter, list(aligned))
                runnable &= ~held
            if not runnable.any():
                if self.wake() or self.land():
                    continue
                if (self.counter == _EXIT).all():
                    break
                raise self._deadlock()
            if self.rng is not None and self.transfers and self.rng.random() < 0.2:
                self.land()
                self.wake()
                continue
            begin, lanes, limit = self._choose(runnable, streak)
            streak = streak + 1 if begin == last else 0
            last = begin
            if parted is not None and parted[lanes].any():
                limit = min(limit, together[begin])
            stop = min(limit, boundary[begin])
            at: Lanes = ALL if len(lanes) == self.lanes else lanes
            for index in range(begin, stop):
                self.index = index
                steps[index](at)  # type: ignore[misc]
            self._spend(stop - begin + 1, begin)
            if stop == limit:
                self.counter[at] = stop
                continue
            self.index = stop
            if stop >= len(steps):
                self.exit(at)
            else:
                controls[stop](stop, at)
                if self.sleeps:
                    self.wake()
        while self.land():
            pass

    def _parted(self, runnable: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """Lanes that run while siblings of their warp sleep at an earlier instruction; None if there are none."""
        if not self.asleep.any():
            return None
        asleep = self.asleep.reshape(-1, WARP)
        mixed = asleep.any(1) & runnable.reshape(-1, WARP).any(1)
        if not mixed.any():
            return None
        behind = np.where(asleep, self.counter.reshape(-1, WARP), _EXIT).min(1)
        found = runnable & np.repeat(mixed, WARP) & (self.counter >= np.repeat(behind, WARP))
        return found if found.any() else None

    def _choose(self, runnable: NDArray[np.bool_], streak: int) -> tuple[int, NDArray[np.int64], int]:
        """(program counter, lanes, where to stop because others wait there) of who goes next."""
        counters = self.counter[runnable]
        lowest = int(counters.min())
        if self.rng is None and streak < _PATIENCE:
            lanes = np.flatnonzero(runnable & (self.counter == lowest))
            above = counters[counters > lowest]
            return lowest, lanes, int(above.min()) if len(above) else _EXIT
        # Random warps among those at one program counter, for a random stretch.
        rng = self.rng if self.rng is not None else np.random.default_rng(0)
        low = np.where(runnable, self.counter, _EXIT).reshape(-1, WARP).min(1)
        # A warp whose lanes have parted runs its lowest first, so that they meet again.
        chosen = int(rng.choice(np.unique(low[low != _EXIT])))
        warps = np.flatnonzero(low == chosen)
        taken = warps[rng.random(len(warps)) < 0.5] if len(warps) > 1 else warps
        taken = taken if len(taken) else warps[:1]
        lanes = np.flatnonzero(runnable & (self.counter == chosen))
        lanes = lanes[np.isin(self.warp[lanes], taken)]
        own = np.where(runnable, self.counter, _EXIT).reshape(-1, WARP)[taken]
        above = own[own > chosen]
        limit = int(above.min()) if len(above) else _EXIT
        return chosen, lanes, min(limit, chosen + 1 + int(rng.integers(400)))

    def _spend(self, count: int, begin: int) -> None:
        self.steps_left -= count
        if self.steps_left < 0:
            self.index = begin
            raise SimulationError(
                f"{self.options.budget} instructions are spent and the kernel has not ended, an endless loop or a "
                f"problem too large for the budget (budget=); now at {self.where()}"
            )

    def _deadlock(self) -> SimulationError:
        lines = []
        for sleep in self.sleeps[:8]:
            self.index = sleep.pc
            first = int(sleep.lanes[0])
            block = int(self.block_ids[self.block[first]])
            lines.append(
                f"  block {block}, threads {_ranges(self.thread[sleep.lanes])}: {sleep.what}, at {self.where()}"
            )
        more = f"\n  and {len(self.sleeps) - 8} more" if len(self.sleeps) > 8 else ""
        return SimulationError("deadlock: every thread that has not ended waits\n" + "\n".join(lines) + more)


def _dtype(kind: str) -> Any:
    from cutegen.sim.registers import NUMPY

    return np.dtype(NUMPY[kind])


def _ranges(threads: NDArray[np.int64]) -> str:
    """0-31, 64-95 instead of every number."""
    threads = np.unique(threads)
    parts = np.split(threads, np.flatnonzero(np.diff(threads) != 1) + 1)
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts[:6]) + (
        " ..." if len(parts) > 6 else ""
    )


def _next(count: int, places: Container[int]) -> list[int]:
    """For each instruction, itself or the next one that is among `places`."""
    found = [count] * (count + 1)
    for index in range(count - 1, -1, -1):
        found[index] = index if index in places else found[index + 1]
    return found


def _is_aligned(ins: Instruction) -> bool:
    """Whether all of a warp must execute it together."""
    return (
        "aligned" in ins.parts or ins.parts[0] == "bar" or ins.parts[0] in ("shfl", "vote", "redux", "match", "elect")
    )


def _grain(program: Program) -> int:
    """Bytes of the narrowest access to shared memory, at most 4."""
    from cutegen.sim.ptx import WIDTHS

    grain = 4
    for ins in program.instructions:
        if ins.parts[0] in ("ld", "st", "atom", "red") and any(p.startswith("shared") for p in ins.parts):
            count = next((int(p[1:]) for p in ins.parts if p in ("v2", "v4", "v8")), 1)
            grain = min(grain, WIDTHS[ins.parts[-1]] * count)
        elif ins.parts[0] in ("ld", "st") and not {"global", "param", "local", "const"} & set(ins.parts):
            grain = min(grain, WIDTHS.get(ins.parts[-1], 4))
    return grain


__all__ = ["ALL", "NEVER", "Finding", "Geometry", "Instruction", "Machine", "Options", "Transfer"]
