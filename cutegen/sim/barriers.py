"""Barriers of blocks and of clusters (PTX ISA, "Parallel Synchronization and Communication Instructions").

Each carries a vector clock: who arrives leaves what it knows, who passes takes it along."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.layout.banks import WARP
from cutegen.sim.machine import Control, Machine, Step
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


class Barriers:
    """The named barriers of each block and the barrier of each cluster."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.named: dict[tuple[int, int], Barrier] = {}
        self.clusters: dict[int, Barrier] = {}
        # The generation of the cluster's barrier that each warp has last arrived for.
        self.reached = np.zeros(m.warps, np.int64)
        m.resets += [self.named.clear, self.clusters.clear, lambda: self.reached.fill(0)]

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

    def cluster_arrive(self, at: Lanes) -> None:
        m = self.m
        warps = m.whole_warps(at)
        for first in np.unique(m.first_block[warps // m.warps_per_block]):
            mine = warps[m.first_block[warps // m.warps_per_block] == first]
            barrier = self.clusters.setdefault(int(first), Barrier())
            known = m.clocks[mine].max(0)
            barrier.clock = known if barrier.clock is None else np.maximum(barrier.clock, known)
            barrier.arrived += len(mine)
            self.reached[mine] = barrier.generation
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
            # Whoever waits has arrived; some may be there again already, for the next generation.
            for generation in np.unique(self.reached[m.warp[mine]]):
                self._cluster_wait(barrier, int(generation), mine[self.reached[m.warp[mine]] == generation])

    def _cluster_wait(self, barrier: Barrier, generation: int, lanes: I64) -> None:
        m = self.m
        warps = np.unique(m.warp[lanes])

        def then() -> None:
            if barrier.opened is not None:
                m.clocks[warps] = np.maximum(m.clocks[warps], barrier.opened)

        m.sleep(lanes, "the barrier of its cluster", lambda: barrier.generation > generation, then)


def barrier_control(m: Machine, ins: Instruction) -> Control | None:
    """bar.sync, bar.arrive, barrier.sync, barrier.cluster.wait; None if the instruction is none of them."""
    all_of = m.unit(Barriers)
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


def warp_barrier(m: Machine, ins: Instruction) -> Step:
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
