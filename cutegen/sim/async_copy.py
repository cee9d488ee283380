"""cp.async: copies of 4 to 16 bytes by threads, in groups (PTX ISA, "Non-bulk asynchronous copy")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cutegen.sim.arithmetic import predicate
from cutegen.sim.machine import Machine, Step, Transfer
from cutegen.sim.mbarrier import MBarriers, one_place
from cutegen.sim.places import Place, address, check_write, nearest, shared_place
from cutegen.sim.ptx import Instruction
from cutegen.sim.registers import Lanes
from cutegen.sim.shared import I64


class AsyncCopies:
    """cp.async of all lanes: data is fetched when issued, arrives when its thread waits for its group."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.group = np.zeros(m.lanes, np.int64)  # groups committed
        self.flying: list[tuple[I64, I64, Place, NDArray[np.uint8], I64]] = []
        m.resets.append(self.reset)

    def reset(self) -> None:
        self.group[:] = 0
        self.flying.clear()

    def issue(self, at: Lanes, place: Place, data: NDArray[np.uint8]) -> None:
        m = self.m
        width = data.shape[1]
        cells = m.shared.cells_of(place.block, place.offset, width)
        warp = m.warp[place.lanes]
        check_write(m, place.lanes, cells, m.agent_of_warp[warp], m.lane[place.lanes], m.clocks[warp])
        m.shared.pending[cells] = True
        self.flying.append((place.lanes, self.group[place.lanes].copy(), place, data, cells))

    def commit(self, at: Lanes) -> None:
        self.group[at] += 1

    def wait(self, at: Lanes, left: int) -> None:
        """Lets all but the last `left` groups of these lanes arrive; -1 counts what is not committed yet, too."""
        m = self.m
        reach = np.full(m.lanes, -1, np.int64)
        reach[at] = self.group[at] - left
        kept = []
        for lanes, group, place, data, cells in self.flying:
            done = group < reach[lanes]
            if done.any():
                warp = m.warp[lanes[done]]
                agent = m.agent_of_warp[warp]
                m.shared.store(place.block[done], place.offset[done], data[done].view(np.uint32))
                when = m.clocks[warp, agent]
                m.shared.note_write(cells[done], agent, m.lane[lanes[done]], when, True)
            if not done.all():
                rest = ~done
                narrowed = Place(lanes[rest], place.block[rest], place.offset[rest], rest)
                kept.append((lanes[rest], group[rest], narrowed, data[rest], cells[rest]))
        self.flying = kept

    def unfinished(self) -> None:
        """Copies that nobody waited for when their thread ended."""
        for lanes, *_ in self.flying:
            self.m.find("copy-never-awaited", "a cp.async was never waited for", lanes)
        self.flying.clear()


def _arrive_when_there(m: Machine, ins: Instruction, copies: AsyncCopies) -> Step:
    """cp.async.mbarrier.arrive: arrives at an mbarrier once the thread's copies so far are there."""
    where, counted = address(m, ins.operands[0]), "noinc" not in ins.parts
    barriers = m.unit(MBarriers)

    def step(at: Lanes) -> None:
        for lane, place in one_place(m, at, where(at)):
            one = np.array([lane])
            if counted and (found := barriers.object(*place, one)):
                found.pending += 1

            def land(one: I64 = one, lane: int = lane, place: tuple[int, int] = place, index: int = m.index) -> None:
                m.index = index
                copies.wait(one, -1)
                barriers.arrive(place, lane, 1, 0)

            m.transfers.append(Transfer(land))

    return step


def copy_async(m: Machine, ins: Instruction) -> Step:
    """cp.async.{ca,cg}: 4, 8 or 16 bytes from global to shared memory; what lies beyond the source size is zero."""
    copies = m.unit(AsyncCopies)
    if "wait_all" in ins.parts:

        def wait_all(at: Lanes) -> None:
            copies.commit(at)
            copies.wait(at, 0)

        return wait_all
    if "commit_group" in ins.parts:
        return copies.commit
    if "wait_group" in ins.parts:
        left = int(ins.operands[0], 0)
        return lambda at: copies.wait(at, left)
    if "mbarrier" in ins.parts:
        return _arrive_when_there(m, ins, copies)
    target, origin = address(m, ins.operands[0]), address(m, ins.operands[1])
    size = int(ins.operands[2], 0)
    hint = any("cache_hint" in p for p in ins.parts)
    rest = ins.operands[3 : len(ins.operands) - int(hint)]
    given = m.get(rest[0], "u32") if rest and m.registers.kind.get(rest[0]) != "pred" else None
    ignored = predicate(m, rest[0]) if rest and given is None else None

    def step(at: Lanes) -> None:
        to, where = target(at), origin(at)
        count = np.full(len(to), size) if given is None else np.broadcast_to(given(at), (len(to),)).astype(np.int64)
        if ignored is not None:
            count = np.where(ignored(at), 0, count)
        if (count > size).any():
            m.find("bad-copy-size", f"more than the {size} bytes of the copy are asked for", at, count > size)
            count = np.minimum(count, size)
        data = np.zeros((len(to), size), np.uint8)
        for length in np.unique(count[count > 0]):
            some = np.flatnonzero(count == length)
            lanes = m.lanes_of(at)[some]
            source = where[some]
            found = m.memory.find(source.view(np.uint64), int(length))
            if (found < 0).any():
                first = nearest(m, int(source[found < 0][0]))
                m.find("out-of-bounds-global", f"copies {length} bytes from {first}", lanes, found < 0)
            skew = (source % size != 0) & (found >= 0)
            if skew.any():
                m.find("misaligned-global", f"copies {size} bytes from an address that is not a multiple", lanes, skew)
                found = np.where(skew, -1, found)
            unit = size if length == size and size <= 8 else (8 if length % 8 == 0 else 1)
            data[some, :length] = m.memory.load(found, source.view(np.uint64), int(length), unit).view(np.uint8)
        place = shared_place(m, at, to, size)
        if m.profile:
            lanes = m.lanes_of(at)
            m.profile.far(m.index, m.warp[lanes[count > 0]], where[count > 0], size)
            m.profile.shared(m.index, lanes, to, size)
        copies.issue(at, place, data[place.fits])

    return step
