"""Fences, addresses across a cluster, and hints that change speed only (PTX ISA, "membar/fence", "mapa")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.sim.machine import Machine, Step
from cutegen.sim.places import address
from cutegen.sim.ptx import Instruction
from cutegen.sim.registers import Lanes
from cutegen.sim.shared import RANK_SHIFT


def fence(m: Machine, ins: Instruction) -> Step:
    """fence.proxy.async shows the asynchronous proxy what these warps know of; other fences order, as clocks do."""
    if "proxy" in ins.parts and any(part.startswith("tensormap") for part in ins.parts):
        return _acquire_map(m, ins)
    if "proxy" not in ins.parts or ("async" not in ins.parts and not any(p.startswith("async") for p in ins.parts)):
        return lambda at: None

    def step(at: Lanes) -> None:
        warps = np.unique(m.warp[m.lanes_of(at)])
        m.fenced[warps] = m.clocks[warps]
        m.tick(warps)

    return step


class AcquiredMaps:
    """(warp, address) of the descriptors in global memory that warps have acquired."""

    def __init__(self, m: Machine) -> None:
        self.known: set[tuple[int, int]] = set()
        m.resets.append(self.known.clear)


def _acquire_map(m: Machine, ins: Instruction) -> Step:
    """fence.proxy.tensormap::generic.acquire: the descriptor at an address may be used as it is in memory now (PTX ISA,
    "membar/fence"; its size is always 128). The host writes descriptors, which takes the scope .sys.
    """
    if "acquire" not in ins.parts:
        return lambda at: None
    if ins.parts[-1] != "sys":
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode}: descriptors come from the host here: scope .sys")
    get, units = address(m, ins.operands[0]), m.unit(AcquiredMaps)

    def step(at: Lanes) -> None:
        places = np.broadcast_to(get(at), (m.count(at),))
        units.known.update((int(warp), int(place)) for warp, place in zip(m.warp[m.lanes_of(at)], places))

    return step


def tensor_map_known(m: Machine, warp: int, where: int) -> bool:
    """Whether a warp may use the descriptor at an address: a parameter of the kernel, or one that it has acquired."""
    if not any(first <= where < last for first, last in m.parameters.get("descriptors", ())):
        return True
    return (warp, where) in m.unit(AcquiredMaps).known


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
    return np.asarray(reach)


def map_address(m: Machine, ins: Instruction) -> Step:
    """mapa: the address of the same place in another block of the cluster."""
    kind = ins.parts[-1]
    get, rank, put = m.get(ins.operands[1], kind), m.get(ins.operands[2], "u32"), m.put(ins.operands[0])
    dtype = np.uint32 if kind == "u32" else np.uint64
    offset = dtype((1 << RANK_SHIFT) - 1)

    def step(at: Lanes) -> None:
        put(at, np.asarray((get(at) & offset) + (np.asarray(rank(at)).astype(dtype) << dtype(RANK_SHIFT))))

    return step


def nothing(m: Machine, ins: Instruction) -> Step:
    """Changes nothing that can be seen here."""
    return lambda at: None
