"""Shared memory of a batch of blocks, with a shadow that tells who touched what, and when.

Order is kept as happens-before with vector clocks (FastTrack, Flanagan and Freund, PLDI 2009), by *agent*: each warp,
each warpgroup's tensor core (wgmma reads shared memory after it was issued) and each block's copy engine (TMA). An
access is in a race when the agent that made a conflicting one before is not known to have finished it. Within a warp,
lanes are ordered by the warp's own clock, which each barrier advances.

A shared address is 32 bits, as on sm_90: the byte offset in a block's memory plus `BASE`, so that no object lies at 0,
and from bit 24 the rank of the block in its cluster. A block's own addresses have its rank too: what keeps only some
bits of one (a matrix descriptor 18) must mask them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BASE = 1024
RANK_SHIFT = 24
WINDOW = 1 << 56
NEVER = np.iinfo(np.int32).max  # the clock of something that has not been waited for

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


class SharedMemory:
    """`blocks` times `size` bytes. `agents` is their number in a cluster; `grain` the bytes of a shadow cell."""

    def __init__(self, blocks: int, size: int, agents: int, grain: int) -> None:
        self.blocks, self.size, self.grain = blocks, size, grain
        self.room = max(16, -(-size // 16) * 16)
        self.cells = self.room // grain
        self.agents = agents
        self.data = np.zeros((blocks, self.room), np.uint8)
        self.views: dict[int, NDArray[Any]] = {
            1: self.data,
            2: self.data.view(np.uint16),
            4: self.data.view(np.uint32),
            8: self.data.view(np.uint64),
        }
        flat = (blocks * self.cells,)
        self.written = np.zeros(flat, bool)
        self.pending = np.zeros(flat, bool)  # an asynchronous copy is on its way there
        self.generic = np.zeros(flat, bool)  # last written by a thread, not by the copy engine
        self.writer = np.zeros(flat, np.int16)
        self.writer_lane = np.zeros(flat, np.int16)
        self.write_clock = np.zeros(flat, np.int32)
        self.reader_lane = np.full(flat, -1, np.int16)
        self.read_clock = np.zeros((*flat, agents), np.int32)

    def reset(self) -> None:
        """As a new block finds it: nothing written."""
        self.data[:] = 0xCD
        for array in (self.written, self.pending, self.generic, self.writer, self.writer_lane, self.write_clock):
            array[:] = 0
        self.reader_lane[:] = -1
        self.read_clock[:] = 0

    def cells_of(self, block: I64, offset: I64, width: int) -> I64:
        """(n, cells) flat cell numbers of accesses of `width` bytes at `offset` of `block`."""
        first = block * self.cells + offset // self.grain
        count = max(1, width // self.grain)
        return first[:, None] + np.arange(count)

    def load(self, block: I64, offset: I64, width: int, size: int) -> NDArray[Any]:
        """(n, width / size) values of `size` bytes each; offsets are aligned to `size`."""
        view = self.views[size]
        if width == size:
            return np.asarray(view[block, offset // size][:, None])
        return np.asarray(view[block[:, None], (offset // size)[:, None] + np.arange(width // size)])

    def store(self, block: I64, offset: I64, values: NDArray[Any]) -> None:
        """Puts (n, k) values down, k of them side by side for each of n."""
        size = values.dtype.itemsize
        self.views[size][block[:, None], (offset // size)[:, None] + np.arange(values.shape[1])] = values

    # ---- the shadow

    def read_faults(self, cells: I64, agent: I64, lane: I64, clocks: NDArray[np.int32]) -> dict[str, Bools]:
        """What is wrong with a read of `cells` (n, c) by `agent` (n,), whose vector clocks are `clocks` (n, agents)."""
        pending = self.pending[cells]
        rows = np.arange(len(cells))[:, None]
        writer = self.writer[cells]
        seen = clocks[rows, writer]
        when = self.write_clock[cells]
        own = (writer == agent[:, None]) & (self.writer_lane[cells] != lane[:, None]) & (when >= seen)
        written = self.written[cells]
        race = written & ~pending & ((when > seen) | (own & self.generic[cells]))
        return {
            "uninitialised-shared": (~written & ~pending).any(1),
            "read-before-arrival": pending.any(1),
            "shared-race": race.any(1),
        }

    def note_read(self, cells: I64, agent: I64, lane: I64, when: NDArray[np.int32]) -> None:
        """Records a read by `agent` at its clock `when`; `lane` -1 stands for a whole warp."""
        wide = np.broadcast_to(agent[:, None], cells.shape)
        same = self.read_clock[cells, wide] == when[:, None]
        other = self.reader_lane[cells]
        lanes = np.broadcast_to(lane[:, None], cells.shape)
        self.reader_lane[cells] = np.where(same & (other != lanes) & (other != -1), -2, lanes)
        self.read_clock[cells, wide] = when[:, None]

    def write_races(self, cells: I64, agent: I64, lane: I64, clocks: NDArray[np.int32]) -> Bools:
        """Whether a write to `cells` is not ordered after another's read or write."""
        rows = np.arange(len(cells))[:, None]
        writer = self.writer[cells]
        seen = clocks[rows, writer]
        when = self.write_clock[cells]
        mine = writer == agent[:, None]
        lanes = lane[:, None]
        race = self.written[cells] & ((when > seen) | (mine & (self.writer_lane[cells] != lanes) & (when >= seen)))
        reads = self.read_clock[cells]  # (n, cells, agents)
        late = reads > clocks[:, None, :]
        race |= late.any(2)
        own = np.take_along_axis(reads, np.broadcast_to(agent[:, None, None], (*cells.shape, 1)), 2)[..., 0]
        own_clock = clocks[np.arange(len(cells)), agent][:, None]
        reader = self.reader_lane[cells]
        race |= (own >= own_clock) & (own > 0) & (reader != lanes) & (reader != -1)
        return np.asarray(race.any(1) | self.pending[cells].any(1))

    def note_write(self, cells: I64, agent: I64, lane: I64, when: NDArray[np.int32], generic: bool) -> None:
        """Records a write that has arrived."""
        self.written[cells] = True
        self.pending[cells] = False
        self.generic[cells] = generic
        self.writer[cells] = agent[:, None]
        self.writer_lane[cells] = lane[:, None]
        self.write_clock[cells] = when[:, None]

    def unfenced(self, cells: I64, fenced: NDArray[np.int32]) -> Bools:
        """Whether the asynchronous proxy reads what threads wrote without a fence.proxy.async in between.

        `fenced` (n, agents) is up to which clock of each agent a fence has made writes visible.
        """
        rows = np.arange(len(cells))[:, None]
        late = self.write_clock[cells] > fenced[rows, self.writer[cells]]
        return np.asarray((self.generic[cells] & self.written[cells] & late).any(1))
