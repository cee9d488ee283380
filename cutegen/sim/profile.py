"""Counters of a run, for each instruction and for each line of the `.cu`.

Shared memory: wavefronts as `layout.banks` counts them (32 banks of 4 bytes; 16-byte accesses in phases of 8 lanes,
8-byte ones of 16, two in one where lanes share addresses). Global memory: sectors of 32 bytes for each warp's request.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.layout.banks import WARP, phase_ways, sectors
from cutegen.sim.ptx import Program

I64 = NDArray[np.int64]


@dataclass
class Counts:
    """What an instruction, or a line, did: executions by a warp, shared wavefronts and what they would be without
    conflicts, global sectors and the fewest possible, bytes moved at each level, tensor-core operations.
    """

    executed: int = 0
    wavefronts: int = 0
    wavefronts_ideal: int = 0
    sectors: int = 0
    sectors_ideal: int = 0
    shared_bytes: int = 0
    global_bytes: int = 0
    bulk_bytes: int = 0
    tensor_flop: int = 0

    def add(self, other: Counts) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Profile:
    """Collects counts."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.counts: dict[int, Counts] = defaultdict(Counts)

    def shared(self, index: int, lanes: I64, addresses: I64, width: int, *, rows: bool = False) -> None:
        """A shared access: `addresses` of `lanes`, counted through all warps; `rows` of matrices are not paired."""
        counts = self.counts[index]
        warp = lanes // WARP
        for one in np.unique(warp):
            mine = addresses[warp == one]
            ways = phase_ways(mine, width, lanes=lanes[warp == one] % WARP, rows=rows)
            counts.executed += 1
            counts.wavefronts += sum(ways)
            counts.wavefronts_ideal += len(ways)
            counts.shared_bytes += len(mine) * width

    def far(self, index: int, warp: I64, addresses: I64, width: int) -> None:
        """A global access."""
        counts = self.counts[index]
        for one in np.unique(warp):
            mine = addresses[warp == one]
            touched, ideal = sectors(mine, width)
            counts.executed += 1
            counts.sectors += touched
            counts.sectors_ideal += ideal
            counts.global_bytes += len(mine) * width

    def bulk(self, index: int, size: int) -> None:
        """A copy of the copy engine."""
        self.counts[index].executed += 1
        self.counts[index].bulk_bytes += size

    def tensor(self, index: int, count: int, flop: int) -> None:
        """`count` matrix instructions of `flop` operations each."""
        self.counts[index].executed += count
        self.counts[index].tensor_flop += count * flop

    def by_line(self) -> dict[int | None, Counts]:
        """Sums for each line of the `.cu`."""
        found: dict[int | None, Counts] = defaultdict(Counts)
        for index, counts in self.counts.items():
            found[self.program.instructions[index].source].add(counts)
        return dict(sorted(found.items(), key=lambda item: item[0] or 0))

    def total(self) -> Counts:
        """Sums over the kernel."""
        return self.of("")

    def of(self, *opcodes: str) -> Counts:
        """Sums over the instructions whose opcodes begin so."""
        found = Counts()
        for index, counts in self.counts.items():
            if self.program.instructions[index].opcode.startswith(opcodes):
                found.add(counts)
        return found

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "total": asdict(self.total()),
            "lines": {str(line): asdict(counts) for line, counts in self.by_line().items()},
        }
