"""atom and red (PTX ISA, "Parallel Synchronization and Communication Instructions")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.sim.access import by_space, space_of
from cutegen.sim.machine import Machine, Step
from cutegen.sim.places import READ_FAULTS, address, global_place, shared_place
from cutegen.sim.ptx import WIDTHS, Instruction
from cutegen.sim.registers import NUMPY, Lanes
from cutegen.sim.shared import I64

_ATOMIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "exch": lambda old, new: new,
}  # fmt: skip


def atomic(m: Machine, ins: Instruction) -> Step:
    """atom and red on global and shared memory, lane after lane."""
    kind, space = ins.parts[-1], space_of(ins)
    name = next((p for p in ins.parts[1:] if p in _ATOMIC or p == "cas"), None)
    if (
        name is None
        or kind not in NUMPY
        or kind.startswith(("f16", "bf16"))
        or space not in ("global", "shared", "generic")
    ):
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")
    returns = ins.parts[0] == "atom"
    put = m.put(ins.operands[0]) if returns else None
    operands = ins.operands[1:] if returns else ins.operands
    read = address(m, operands[0])
    gets = [m.get(operand, kind) for operand in operands[1:]]
    size, dtype = WIDTHS[kind], np.dtype(NUMPY[kind])

    def apply(at: Lanes, view: Callable[[int], NDArray[Any]], slots: list[tuple[int, int] | None]) -> None:
        old = np.zeros(m.count(at), dtype)
        values = [np.broadcast_to(get(at), old.shape) for get in gets]
        for i, slot in enumerate(slots):
            if slot is None:
                continue
            memory = view(slot[0])
            before = memory[slot[1]]
            old[i] = before
            if name == "cas":
                memory[slot[1]] = values[1][i] if before == values[0][i] else before
            else:
                memory[slot[1]] = _ATOMIC[name](before, values[0][i])
        if put:
            put(at, old)

    def shared(at: Lanes, addresses: I64) -> None:
        place = shared_place(m, at, addresses, size)
        cells = m.shared.cells_of(place.block, place.offset, size)
        if not m.shared.written[cells].all():
            m.find("uninitialised-shared", READ_FAULTS["uninitialised-shared"], place.lanes)
        slots: list[tuple[int, int] | None] = [None] * len(addresses)
        for i, block, offset in zip(np.flatnonzero(place.fits), place.block, place.offset):
            slots[i] = (int(block), int(offset) // size)
        apply(at, lambda block: m.shared.views[size][block].view(dtype), slots)

    def far(at: Lanes, addresses: I64) -> None:
        found, where = global_place(m, at, addresses, size, "updates", "out-of-bounds-global")
        arrays = m.memory.allocations
        slots: list[tuple[int, int] | None] = [
            None if f < 0 else (int(f), (int(w) - arrays[f].start) // size) for f, w in zip(found, where)
        ]
        apply(at, lambda which: arrays[which].bytes_.view(dtype), slots)
        for index in np.unique(found[found >= 0]):
            counts = arrays[index].counts
            if counts is not None:
                counts[(where[found == index].astype(np.int64) - arrays[index].base) // arrays[index].itemsize] = 1

    return by_space(m, ins, space, read, shared, far, shared)
