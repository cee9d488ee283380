"""The copy engine: bulk copies under way, and their groups.

A load's bytes are fetched when it is issued and arrive later, when the machine says so; then the mbarrier is told.
A store's bytes are read from shared memory when it lands, since they may be changed until its group has been read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cutegen.sim.fences import fenced
from cutegen.sim.machine import Machine, Transfer
from cutegen.sim.mbarrier import MBarriers
from cutegen.sim.places import check_write
from cutegen.sim.registers import Lanes
from cutegen.sim.shared import I64, NEVER


class CopyEngine:
    """Bulk copies of a batch, and the groups of its threads."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.groups: dict[int, list[list[Transfer]]] = {}
        self.open: dict[int, list[Transfer]] = {}
        m.resets.append(self.reset)

    def reset(self) -> None:
        self.groups.clear()
        self.open.clear()

    def load(
        self,
        lane: int,
        block: int,
        offset: int,
        data: NDArray[np.uint8],
        places: I64,
        barrier: tuple[int, int],
        mask: int | None,
    ) -> None:
        """Bytes on their way to `offset + places` of a block, or of each block of the cluster that `mask` names."""
        m = self.m
        ranks = [None] if mask is None else [r for r in range(m.geometry.cluster_size) if mask >> r & 1]
        for rank in ranks:
            to = block if rank is None else int(m.first_block[block]) + rank
            whose = barrier if rank is None else (int(m.first_block[block]) + rank, barrier[1])
            self._fly(lane, to, offset, data, places, whose)

    def _fly(
        self, lane: int, block: int, offset: int, data: NDArray[np.uint8], places: I64, barrier: tuple[int, int]
    ) -> None:
        m = self.m
        lanes = np.array([lane])
        target = offset + places
        cells = self._cells(lane, block, target)
        if cells is None:
            return
        warp = m.warp[lane]
        agent = np.full(len(cells), m.copy_agent[block])
        clocks = np.broadcast_to(m.clocks[warp], (len(cells), m.agents))
        check_write(m, np.full(len(cells), lane), cells, agent, np.zeros(len(cells), np.int64), clocks)
        late = m.shared.unfenced(cells, np.broadcast_to(fenced(m, int(warp)), (len(cells), m.agents)))
        if late.any():
            text = "the copy engine writes where threads wrote, with no fence.proxy.async in between"
            m.find("missing-proxy-fence", text, np.full(len(cells), lane), late)
        m.shared.pending[cells] = True
        issued = m.clocks[warp].copy()
        m.tick(np.array([warp]))
        index = m.index

        def land() -> None:
            m.index = index
            _still_there(m, block, lane)
            m.copy_clock[block] += 1
            when = int(m.copy_clock[block])
            m.shared.note_write(
                cells, agent, np.zeros(len(cells), np.int64), np.full(len(cells), when, np.int32), False
            )
            m.shared.data[block, target] = data
            clock = issued.copy()
            clock[m.copy_agent[block]] = when
            m.unit(MBarriers).bytes_arrived(barrier, len(data), clock, lanes)

        m.transfers.append(Transfer(land))

    def store(
        self, lane: int, block: int, offset: int, places: I64, write: Callable[[NDArray[np.uint8]], None]
    ) -> None:
        """Bytes at `offset + places` of a block go to global memory through `write`, some time."""
        m = self.m
        source = offset + places
        cells = self._cells(lane, block, source)
        if cells is None:
            return
        warp = int(m.warp[lane])
        read_async(m, lane, warp, cells)
        agent = np.full(len(cells), m.copy_agent[block])
        m.shared.read_clock[cells, agent[:, None]] = NEVER
        index = m.index

        def land() -> None:
            m.index = index
            _still_there(m, block, lane)
            m.copy_clock[block] += 1
            m.shared.read_clock[cells, agent[:, None]] = m.copy_clock[block]
            write(m.shared.data[block, source])

        transfer = Transfer(land)
        m.transfers.append(transfer)
        self.open.setdefault(lane, []).append(transfer)

    def _cells(self, lane: int, block: int, target: I64) -> I64 | None:
        """Shadow cells of bytes of a block, or None where they lie outside its memory."""
        shared = self.m.shared
        if len(target) and int(target.max()) >= shared.size:
            text = f"a copy of {len(target)} bytes up to offset {int(target.max())} of {shared.size}"
            self.m.find("out-of-bounds-shared", text, np.array([lane]))
            return None
        return np.unique(block * shared.cells + target // shared.grain)[:, None]

    def commit(self, at: Lanes) -> None:
        for lane in self.m.lanes_of(at):
            self.groups.setdefault(int(lane), []).append(self.open.pop(int(lane), []))

    def wait(self, at: Lanes, left: int) -> None:
        """Lanes sleep until all but their last `left` groups are done."""
        m = self.m
        for lane in m.lanes_of(at):
            groups = self.groups.get(int(lane), [])
            waited = [t for group in groups[: len(groups) - left] for t in group]

            def ready(waited: list[Transfer] = waited) -> bool:
                return all(t.landed for t in waited)

            def then(lane: int = int(lane), done: int = max(0, len(groups) - left)) -> None:
                block = int(m.block[lane])
                agent = m.copy_agent[block]
                m.clocks[m.warp[lane], agent] = max(m.clocks[m.warp[lane], agent], m.copy_clock[block])
                del self.groups.get(lane, [])[:done]

            if ready():
                then()
            else:
                m.sleep(np.array([lane]), f"all but {left} of its bulk copies", ready, then)


def _still_there(m: Machine, block: int, lane: int) -> None:
    """A block's shared memory is another's once all its threads have ended."""
    if not m.alive[block * m.padded : (block + 1) * m.padded].any():
        m.find("copy-after-exit", "a bulk copy was not waited for: its block may have ended", np.array([lane]))


def read_async(m: Machine, lane: int, warp: int, cells: I64) -> None:
    """Checks a read by the asynchronous proxy that `warp` issues."""
    lanes = np.full(len(cells), lane)
    agent = np.full(len(cells), m.agent_of_warp[warp])
    clocks = np.broadcast_to(m.clocks[warp], (len(cells), m.agents))
    faults = m.shared.read_faults(cells, agent, np.full(len(cells), m.lane[lane]), clocks)
    for kind, where in faults.items():
        if where.any():
            m.find(kind, "the asynchronous proxy reads shared memory that is not there yet", lanes, where)
    reach = np.broadcast_to(fenced(m, warp), (len(cells), m.agents))
    late = m.shared.unfenced(cells, reach)
    if late.any():
        m.find(
            "missing-proxy-fence",
            "the asynchronous proxy reads what threads wrote, with no fence.proxy.async in between",
            lanes,
            late,
        )
