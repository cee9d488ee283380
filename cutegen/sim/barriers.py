"""Barriers of blocks and clusters, mbarriers, fences (PTX ISA, "Parallel Synchronization and Communication").

Each barrier carries a vector clock: who arrives leaves what it knows, who passes takes it along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.sim.access import address, shared_place
from cutegen.sim.arithmetic import Decoder
from cutegen.sim.machine import WARP, Control, Machine, Step
from cutegen.sim.ptx import Instruction
from cutegen.sim.registers import Lanes
from cutegen.sim.shared import I64

Clock = NDArray[np.int32]


@dataclass
class Barrier:
    """A barrier of threads, with who has arrived since it last opened."""

    arrived: int = 0
    expected: int = 0
    generation: int = 0
    clock: Clock | None = None
    opened: Clock | None = None
    warps: list[I64] = field(default_factory=list)


@dataclass
class MBarrier:
    """An mbarrier object (PTX ISA, "Parallel Synchronization and Communication: mbarrier"): the phase under way, arrivals
    and bytes it still waits for, and the clocks of this phase and of the completed one.
    """

    count: int
    pending: int
    clock: Clock
    passed: Clock
    phase: int = 0
    bytes_: int = 0


class Barriers:
    """All barriers of a batch."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.named: dict[tuple[int, int], Barrier] = {}
        self.clusters: dict[int, Barrier] = {}
        self.objects: dict[tuple[int, int], MBarrier] = {}
        m.resets.append(self.reset)

    def reset(self) -> None:
        self.named.clear()
        self.clusters.clear()
        self.objects.clear()

    # ---- bar.sync and its kin

    def arrive(self, at: Lanes, number: Callable[[Lanes], Any], count: Any, waits: bool) -> None:
        """Whole warps of lanes arrive at named barriers, and wait there unless they only arrive."""
        m = self.m
        warps = m.whole_warps(at)
        for block in np.unique(warps // m.warps_per_block):
            mine = warps[warps // m.warps_per_block == block]
            lanes = (mine[:, None] * WARP + np.arange(WARP)).reshape(-1)
            numbers = np.unique(np.broadcast_to(number(lanes), (len(lanes),)))
            for which in numbers:
                some = lanes[np.broadcast_to(number(lanes), (len(lanes),)) == which]
                self._arrive(int(block), int(which), some, None if count is None else int(np.max(count(some))), waits)

    def _arrive(self, block: int, which: int, lanes: I64, count: int | None, waits: bool) -> None:
        m = self.m
        barrier = self.named.setdefault((block, which), Barrier())
        if which > 15:
            m.find("bad-barrier", f"barrier {which}: there are 16", lanes)
        warps = np.unique(m.warp[lanes])
        if count is not None and count % WARP:
            m.find("bad-barrier", f"{count} threads are not a multiple of a warp", lanes)
        expected = m.padded if count is None else count
        if barrier.arrived and barrier.expected != expected:
            m.find("bad-barrier", f"{expected} threads are expected, by earlier ones {barrier.expected}", lanes)
        barrier.expected = expected
        known = m.clocks[warps].max(0)
        barrier.clock = known if barrier.clock is None else np.maximum(barrier.clock, known)
        barrier.arrived += len(warps) * WARP
        barrier.warps.append(warps)
        generation = barrier.generation
        m.tick(warps)
        if waits:

            def ready() -> bool:
                return barrier.generation != generation or self._open(block, barrier, count)

            def then() -> None:
                assert barrier.opened is not None
                m.clocks[warps] = np.maximum(m.clocks[warps], barrier.opened)

            m.sleep(lanes, f"barrier {which}, where {expected} threads are expected", ready, then)
        else:
            self._open(block, barrier, count)

    def _open(self, block: int, barrier: Barrier, count: int | None) -> bool:
        m = self.m
        gone = 0
        if count is None:
            lanes = slice(block * m.padded, (block + 1) * m.padded)
            ended = ~m.alive[lanes]
            gone = int(ended.sum())
        if barrier.arrived + gone < barrier.expected:
            return False
        if gone > m.padded - m.geometry.threads and barrier.arrived < barrier.expected:
            m.find("barrier-after-exit", f"{gone} threads ended without reaching this barrier", barrier.warps[0] * WARP)
        barrier.generation += 1
        barrier.opened, barrier.clock = barrier.clock, None
        barrier.arrived = 0
        barrier.warps = []
        return True

    # ---- clusters

    def cluster_arrive(self, at: Lanes) -> None:
        m = self.m
        warps = m.whole_warps(at)
        for first in np.unique(m.first_block[warps // m.warps_per_block]):
            mine = warps[m.first_block[warps // m.warps_per_block] == first]
            barrier = self.clusters.setdefault(int(first), Barrier())
            known = m.clocks[mine].max(0)
            barrier.clock = known if barrier.clock is None else np.maximum(barrier.clock, known)
            barrier.arrived += len(mine)
            if barrier.arrived == m.warps_per_block * m.geometry.cluster_size:
                barrier.generation += 1
                barrier.arrived = 0
                barrier.opened, barrier.clock = barrier.clock, None
        m.tick(warps)

    def cluster_wait(self, at: Lanes) -> None:
        m = self.m
        lanes = m.lanes_of(at)
        for first in np.unique(m.first_block[m.block[lanes]]):
            mine = lanes[m.first_block[m.block[lanes]] == first]
            barrier = self.clusters.setdefault(int(first), Barrier())
            # Whoever waits has arrived: the barrier opens when the arrivals under way are complete.
            generation = barrier.generation if barrier.arrived else barrier.generation - 1
            warps = np.unique(m.warp[mine])

            def then(warps: I64 = warps, barrier: Barrier = barrier) -> None:
                if barrier.opened is not None:
                    m.clocks[warps] = np.maximum(m.clocks[warps], barrier.opened)

            def ready(barrier: Barrier = barrier, generation: int = generation) -> bool:
                return barrier.generation > generation

            m.sleep(mine, "the barrier of its cluster", ready, then)

    # ---- mbarriers

    def object(self, block: int, offset: int, at: Lanes) -> MBarrier | None:
        found = self.objects.get((block, offset))
        if found is None:
            self.m.find("uninitialised-mbarrier", f"no mbarrier was initialised at offset {offset}", at)
        return found

    def init(self, place: tuple[int, int], count: int, lane: int) -> None:
        m = self.m
        if not 1 <= count < 2**20:
            m.find("bad-barrier", f"an mbarrier for {count} arrivals", np.array([lane]))
        zero = np.zeros(m.agents, np.int32)
        self.objects[place] = MBarrier(count, count, zero, zero)

    def arrive_object(self, place: tuple[int, int], lane: int, arrivals: int, expected: int) -> int:
        """Arrives `arrivals` times and expects so many bytes more; the phase it belongs to."""
        m = self.m
        found = self.object(*place, np.array([lane]))
        if found is None:
            return 0
        warp = m.warp[lane : lane + 1]
        found.clock = np.maximum(found.clock, m.clocks[warp[0]])
        m.tick(warp)
        found.bytes_ += expected
        phase = found.phase
        found.pending -= arrivals
        if found.pending < 0:
            m.find("mbarrier-overflow", f"more than {found.count} arrivals in one phase", np.array([lane]))
            found.pending = 0
        self._complete(found)
        return phase

    def bytes_arrived(self, place: tuple[int, int], count: int, clock: Clock, at: Lanes) -> None:
        """An asynchronous copy tells of bytes that are there."""
        found = self.object(*place, at)
        if found is None:
            return
        found.clock = np.maximum(found.clock, clock)
        found.bytes_ -= count
        self._complete(found)

    def _complete(self, found: MBarrier) -> None:
        if found.pending == 0 and found.bytes_ == 0:
            found.phase += 1
            found.pending = found.count
            found.passed, found.clock = found.clock, np.zeros_like(found.clock)

    def wait(self, at: Lanes, addresses: I64, parity: I64) -> None:
        """try_wait: lanes sleep until the phase of this parity is complete."""
        m = self.m
        place = shared_place(m, at, addresses, 8)
        parities = parity[place.fits]
        for block, offset in {(int(b), int(o)) for b, o in zip(place.block, place.offset)}:
            here = (place.block == block) & (place.offset == offset)
            mine = place.lanes[here]
            found = self.object(block, offset, mine)
            if found is None:
                continue
            wanted = int(parities[here][0]) & 1
            warps = np.unique(m.warp[mine])

            def ready(found: MBarrier = found, wanted: int = wanted) -> bool:
                return found.phase % 2 != wanted

            def then(warps: I64 = warps, found: MBarrier = found) -> None:
                m.clocks[warps] = np.maximum(m.clocks[warps], found.passed)

            if ready():
                then()
            else:
                what = f"phase {wanted} of the mbarrier at offset {offset} ({found.pending} arrivals, {found.bytes_} B missing)"
                m.sleep(mine, what, ready, then)


def barriers(m: Machine) -> Barriers:
    """The barriers of a machine."""
    if not hasattr(m, "barriers"):
        m.barriers = Barriers(m)  # type: ignore[attr-defined]
    return m.barriers  # type: ignore[attr-defined, no-any-return]


def one_place(m: Machine, at: Lanes, addresses: I64) -> list[tuple[int, tuple[int, int]]]:
    """(lane, (block, offset)) of mbarrier operands."""
    place = shared_place(m, at, addresses, 8)
    return [(int(lane), (int(b), int(o))) for lane, b, o in zip(place.lanes, place.block, place.offset)]


def _mbarrier(m: Machine, ins: Instruction) -> Step:
    all_of = barriers(m)
    action = ins.parts[1]
    if action == "init":
        where, count = address(m, ins.operands[0]), m.get(ins.operands[1], "u32")

        def init(at: Lanes) -> None:
            counts = np.broadcast_to(count(at), (m.count(at),))
            for (lane, place), number in zip(one_place(m, at, where(at)), counts):
                all_of.init(place, int(number), lane)

        return init
    if action == "inval":
        where = address(m, ins.operands[0])
        return lambda at: [all_of.objects.pop(place, None) for _, place in one_place(m, at, where(at))] and None
    if action == "expect_tx":
        where, size = address(m, ins.operands[0]), m.get(ins.operands[1], "u32")

        def expect(at: Lanes) -> None:
            for lane, place in one_place(m, at, where(at)):
                all_of.arrive_object(place, lane, 0, int(size(np.array([lane])).reshape(-1)[0]))

        return expect
    if action == "arrive" and "noinc" not in ins.parts:
        remote = any("shared::cluster" in p for p in ins.parts)
        first = 0 if remote and ins.operands[0].startswith("[") else 1
        put = m.put(ins.operands[0]) if first else None
        where = address(m, ins.operands[first])
        rest = ins.operands[first + 1 :]
        number = m.get(rest[0], "u32") if rest else None
        expecting = "expect_tx" in ins.parts

        def arrive(at: Lanes) -> None:
            states = np.zeros(m.count(at), np.uint64)
            given = None if number is None else np.broadcast_to(number(at), states.shape)
            for i, (lane, place) in enumerate(one_place(m, at, where(at))):
                value = 1 if given is None else int(given[i])
                states[i] = all_of.arrive_object(place, lane, 1 if expecting else value, value if expecting else 0)
            if put:
                put(at, states)

        return arrive
    raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")


def wait_control(m: Machine, ins: Instruction) -> Control:
    """mbarrier.try_wait and test_wait. Both wait here: the loop around them would try until the phase is complete."""
    all_of = barriers(m)
    put, where = m.put(ins.operands[0]), address(m, ins.operands[1])
    value = m.get(ins.operands[2], "u32" if "parity" in ins.parts else "u64")

    def control(index: int, at: Lanes) -> None:
        m.counter[at] = index + 1
        put(at, np.True_)
        parity = np.broadcast_to(value(at), (m.count(at),)).astype(np.int64)
        all_of.wait(at, where(at), parity)

    return control


def barrier_control(m: Machine, ins: Instruction) -> Control | None:
    """bar.sync, bar.arrive, barrier.sync, barrier.cluster.wait; None if the instruction is none of them."""
    all_of = barriers(m)
    parts = ins.parts
    if parts[0] == "barrier" and parts[1] == "cluster":
        if parts[2] == "arrive":

            def arrive(index: int, at: Lanes) -> None:
                m.counter[at] = index + 1
                all_of.cluster_arrive(at)

            return arrive

        def wait(index: int, at: Lanes) -> None:
            m.counter[at] = index + 1
            all_of.cluster_wait(at)

        return wait
    action = next((p for p in parts[1:] if p in ("sync", "arrive", "red", "warp")), None)
    if action in (None, "warp"):
        return None
    if action == "red":
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")
    number = m.get(ins.operands[0], "u32")
    count = m.get(ins.operands[1], "u32") if len(ins.operands) > 1 else None

    def control(index: int, at: Lanes) -> None:
        m.counter[at] = index + 1
        all_of.arrive(at, number, count, action == "sync")

    return control


def _warp_barrier(m: Machine, ins: Instruction) -> Step:
    """bar.warp.sync: what a warp's lanes wrote is visible to its others."""
    member = m.get(ins.operands[0], "u32")

    def step(at: Lanes) -> None:
        lanes = m.lanes_of(at)
        warps = np.unique(m.warp[lanes])
        here = np.zeros(m.warps, np.int64)
        np.add.at(here, m.warp[lanes], 1 << m.lane[lanes])
        wanted = np.zeros(m.warps, np.int64)
        wanted[m.warp[lanes]] = np.broadcast_to(member(at), lanes.shape)
        alive = (m.alive.reshape(-1, WARP).astype(np.int64) << np.arange(WARP)).sum(1)
        apart = (wanted & alive)[warps] & ~here[warps]
        if apart.any():
            m.find("divergent-warp", "lanes of the mask are elsewhere", warps[apart != 0] * WARP)
        m.tick(warps)

    return step


def _fence(m: Machine, ins: Instruction) -> Step:
    """fence.proxy.async makes what these warps know of visible to the asynchronous proxy; others order, as clocks do."""
    if "proxy" not in ins.parts or ("async" not in ins.parts and not any(p.startswith("async") for p in ins.parts)):
        return lambda at: None

    def step(at: Lanes) -> None:
        warps = np.unique(m.warp[m.lanes_of(at)])
        m.fenced[warps] = m.clocks[warps]
        m.tick(warps)

    return step


def fenced(m: Machine, warp: int) -> NDArray[np.int32]:
    """Up to which clock of each agent of its cluster a fence made writes visible to copies that `warp` issues.

    The writer's own fence counts, if the warp knows of it through a barrier, and a fence by the warp itself.
    """
    block = warp // m.warps_per_block
    first = m.first_block[block] * m.warps_per_block
    reach = m.fenced[warp].copy()
    for other in range(first, first + m.warps_per_block * m.geometry.cluster_size):
        agent = m.agent_of_warp[other]
        reach[agent] = max(reach[agent], min(m.fenced[other, agent], m.clocks[warp, agent]))
    return reach


def _map(m: Machine, ins: Instruction) -> Step:
    """mapa: the address of the same place in another block of the cluster."""
    kind = ins.parts[-1]
    get, rank, put = m.get(ins.operands[1], kind), m.get(ins.operands[2], "u32"), m.put(ins.operands[0])
    dtype = np.uint32 if kind == "u32" else np.uint64
    return lambda at: put(at, np.asarray(get(at) + ((np.asarray(rank(at)).astype(dtype) + dtype(1)) << dtype(24))))


def _nothing(m: Machine, ins: Instruction) -> Step:
    return lambda at: None


BARRIERS: dict[str, Decoder] = {
    "mbarrier": _mbarrier, "bar": _warp_barrier, "fence": _fence, "membar": _nothing, "mapa": _map,
    "griddepcontrol": _nothing, "setmaxnreg": _nothing, "nanosleep": _nothing,
}  # fmt: skip
