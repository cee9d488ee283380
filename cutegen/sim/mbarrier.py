"""mbarrier objects in shared memory (PTX ISA, "Parallel Synchronization and Communication: mbarrier")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.sim.machine import Control, Machine, Step
from cutegen.sim.places import address, shared_place
from cutegen.sim.ptx import Instruction
from cutegen.sim.registers import Lanes
from cutegen.sim.shared import I64

Clock = NDArray[np.int32]


@dataclass
class MBarrier:
    """The phase under way, what it still waits for, and the clocks of this phase and of the completed one."""

    count: int
    pending: int
    clock: Clock
    passed: Clock
    maker: tuple[int, int]  # agent and its clock when it was initialised
    phase: int = 0
    bytes_: int = 0


class MBarriers:
    """The mbarriers of a batch, by block and byte offset."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.objects: dict[tuple[int, int], MBarrier] = {}
        # Arrivals from other blocks of a cluster: (block, agent and its clock, lane, instruction).
        self.signals: list[tuple[int, int, int, int, int]] = []
        m.resets += [self.objects.clear, self.signals.clear]
        m.endings.append(self._awaited)

    def object(self, block: int, offset: int, at: I64) -> MBarrier | None:
        """The mbarrier at a place, which must have been initialised where these lanes know of it."""
        found = self.objects.get((block, offset))
        m = self.m
        if found is None:
            m.find("uninitialised-mbarrier", f"no mbarrier was initialised at offset {offset}", at)
            return None
        warps = m.warp[at]
        agent, made = found.maker
        unknown = (m.clocks[warps, agent] < made) & (m.agent_of_warp[warps] != agent)
        if unknown.any():
            m.find("uninitialised-mbarrier", "another thread initialised it, with no barrier in between", at, unknown)
        return found

    def init(self, place: tuple[int, int], count: int, lane: int) -> None:
        m = self.m
        if not 1 <= count < 2**20:
            m.find("bad-barrier", f"an mbarrier for {count} arrivals", np.array([lane]))
        zero = np.zeros(m.agents, np.int32)
        warp = m.warp[lane]
        agent = int(m.agent_of_warp[warp])
        self.objects[place] = MBarrier(count, count, zero, zero, (agent, int(m.clocks[warp, agent])))

    def arrive(self, place: tuple[int, int], lane: int, arrivals: int, expected: int) -> int:
        """Arrives `arrivals` times and expects so many bytes more; the phase it belongs to."""
        m = self.m
        found = self.object(*place, np.array([lane]))
        if found is None:
            return 0
        warp = m.warp[lane : lane + 1]
        found.clock = np.maximum(found.clock, m.clocks[warp[0]])
        if m.block[lane] != place[0]:
            agent = int(m.agent_of_warp[warp[0]])
            self.signals.append((place[0], agent, int(m.clocks[warp[0], agent]), lane, m.index))
        m.tick(warp)
        found.bytes_ += expected
        phase = found.phase
        found.pending -= arrivals
        if found.pending < 0:
            m.find("mbarrier-overflow", f"more than {found.count} arrivals in one phase", np.array([lane]))
            found.pending = 0
        self._complete(found)
        return phase

    def _awaited(self) -> None:
        """A block must know of every arrival from another before it ends, or that one may find no barrier any more."""
        m = self.m
        for block, agent, clock, lane, index in self.signals:
            warps = np.unique(m.warp[m.block == block])
            if (m.clocks[warps, agent] < clock).all():
                m.index = index
                m.find(
                    "signal-after-exit",
                    "arrives at a block that does not wait for it, and may have ended",
                    np.array([lane]),
                )
        self.signals.clear()

    def bytes_arrived(self, place: tuple[int, int], count: int, clock: Clock, at: I64) -> None:
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
                missing = f"{found.pending} arrivals, {found.bytes_} B missing"
                what = f"phase {wanted} of the mbarrier at offset {offset} ({missing})"
                m.sleep(mine, what, ready, then)


def one_place(m: Machine, at: Lanes, addresses: I64) -> list[tuple[int, tuple[int, int]]]:
    """(lane, (block, offset)) of mbarrier operands."""
    place = shared_place(m, at, addresses, 8)
    return [(int(lane), (int(b), int(o))) for lane, b, o in zip(place.lanes, place.block, place.offset)]


def mbarrier(m: Machine, ins: Instruction) -> Step:
    all_of = m.unit(MBarriers)
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

        def invalidate(at: Lanes) -> None:
            for _, place in one_place(m, at, where(at)):
                all_of.objects.pop(place, None)

        return invalidate
    if action == "expect_tx":
        where, size = address(m, ins.operands[0]), m.get(ins.operands[1], "u32")

        def expect(at: Lanes) -> None:
            for lane, place in one_place(m, at, where(at)):
                all_of.arrive(place, lane, 0, int(size(np.array([lane])).reshape(-1)[0]))

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
                states[i] = all_of.arrive(place, lane, 1 if expecting else value, value if expecting else 0)
            if put:
                put(at, states)

        return arrive
    raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")


def wait_control(m: Machine, ins: Instruction) -> Control:
    """mbarrier.try_wait and test_wait. Both wait here: the loop around them would try until the phase is complete."""
    all_of = m.unit(MBarriers)
    put, where = m.put(ins.operands[0]), address(m, ins.operands[1])
    value = m.get(ins.operands[2], "u32" if "parity" in ins.parts else "u64")

    def control(index: int, at: Lanes) -> None:
        m.counter[at] = index + 1
        put(at, np.True_)
        parity = np.broadcast_to(value(at), (m.count(at),)).astype(np.int64)
        all_of.wait(at, where(at), parity)

    return control
