"""Checked places in memory: addresses of an instruction's lanes, what may be read or written there, and the shadow."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.sim.machine import Machine
from cutegen.sim.registers import Lanes
from cutegen.sim.shared import BASE, I64, RANK_SHIFT

ADDRESS = re.compile(r"\[\s*([%\w$~.]+)\s*(?:\+\s*(-?\w+))?\s*\]")


@dataclass(frozen=True)
class Place:
    """Where in shared memory accesses go: of the lanes that fit, their block and byte offset, and who they are."""

    lanes: I64
    block: I64
    offset: I64
    fits: NDArray[np.bool_]  # over all lanes of the access


def address(m: Machine, operand: str, kind: str = "u64") -> Callable[[Lanes], NDArray[np.int64]]:
    """`[register+offset]` as int64 for each lane."""
    match = ADDRESS.fullmatch(operand)
    if match is None:
        raise SimulationError(f"{m.where()}: address {operand} is not understood")
    offset = int(match[2], 0) if match[2] else 0
    base = match[1]
    wide = m.registers.kind.get(base, "64")
    get = m.get(base, "u32" if wide == "32" else "u64")

    def read(at: Lanes) -> NDArray[np.int64]:
        value = np.broadcast_to(get(at), (m.count(at),)).astype(np.int64)
        return value + offset if offset else value

    return read


def shared_place(m: Machine, at: Lanes, addresses: I64, width: int, align: int | None = None) -> Place:
    """Checks a shared access of `width` bytes a lane: inside, aligned."""
    lanes = m.lanes_of(at)
    block = m.block[lanes]
    rank = addresses >> RANK_SHIFT
    wrong = (rank >= m.geometry.cluster_size) | (rank < 0)
    if wrong.any():
        m.find("out-of-bounds-shared", "the address names no block of the cluster", at, wrong)
    if m.geometry.cluster_size > 1:
        block = np.where(wrong, block, m.first_block[block] + rank)
    offset = (addresses & ((1 << RANK_SHIFT) - 1)) - BASE
    fits = (offset >= 0) & (offset + width <= m.shared.size) & ~wrong
    if not fits.all():
        first = int(offset[~fits][0])
        m.find(
            "out-of-bounds-shared",
            f"{width} bytes at offset {first} of {m.shared.size} bytes of shared memory",
            at,
            ~fits,
        )
    align = align or width
    skew = fits & (offset % align != 0)
    if skew.any():
        m.find(
            "misaligned-shared", f"{width} bytes at offset {int(offset[skew][0])}, not a multiple of {align}", at, skew
        )
        fits = fits & ~skew
    if fits.all():
        return Place(lanes, block, offset, fits)
    return Place(lanes[fits], block[fits], offset[fits], fits)


READ_FAULTS = {
    "uninitialised-shared": "shared memory is read that nobody wrote",
    "read-before-arrival": "shared memory is read while an asynchronous copy to it may still be under way",
    "shared-race": "shared memory is read that another thread wrote, with no barrier in between",
}


def read_shared(m: Machine, place: Place, width: int, size: int, whole_warp: bool = False) -> NDArray[Any]:
    """Values of a read by threads, checked against the shadow. `whole_warp`: every lane of the warp receives it."""
    warp = m.warp[place.lanes]
    agent = m.agent_of_warp[warp]
    lane = np.full(len(warp), -1) if whole_warp else m.lane[place.lanes]
    cells = m.shared.cells_of(place.block, place.offset, width)
    clocks = m.clocks[warp]
    for kind, where in m.shared.read_faults(cells, agent, lane, clocks).items():
        if where.any():
            m.find(kind, READ_FAULTS[kind], place.lanes, where)
    m.shared.note_read(cells, agent, lane, clocks[np.arange(len(warp)), agent])
    return m.shared.load(place.block, place.offset, width, size)


def write_shared(m: Machine, place: Place, values: NDArray[Any], whole_warp: bool = False) -> None:
    """A write by threads."""
    warp = m.warp[place.lanes]
    agent = m.agent_of_warp[warp]
    lane = m.lane[place.lanes]
    width = values.dtype.itemsize * values.shape[1]
    cells = m.shared.cells_of(place.block, place.offset, width)
    clocks = m.clocks[warp]
    check_write(m, place.lanes, cells, agent, lane, clocks)
    m.shared.note_write(cells, agent, lane, clocks[np.arange(len(warp)), agent], True)
    m.shared.store(place.block, place.offset, values)
    if len(np.unique(cells[:, 0])) < len(cells):
        m.find("shared-race", "several threads write one place with one instruction", place.lanes)


def check_write(m: Machine, lanes: I64, cells: I64, agent: I64, lane: I64, clocks: NDArray[np.int32]) -> None:
    """Reports a write that is not ordered after others' accesses."""
    race = m.shared.write_races(cells, agent, lane, clocks)
    if race.any():
        m.find("shared-race", "shared memory is written that another may still read or write", lanes, race)


def global_place(
    m: Machine, at: Lanes, addresses: I64, width: int, what: str, kind: str
) -> tuple[I64, NDArray[np.uint64]]:
    """Checks a global access; the allocation of each lane, or -1."""
    where = addresses.view(np.uint64)
    found = m.memory.find(where, width)
    if (found < 0).any():
        first = int(where[found < 0][0])
        m.find(kind, f"{what} {width} bytes at {nearest(m, first)}", at, found < 0)
    skew = (addresses % width != 0) & (found >= 0)
    if skew.any():
        m.find("misaligned-global", f"{what} {width} bytes at an address that is not a multiple of it", at, skew)
        found = np.where(skew, -1, found)
    return found, where


def nearest(m: Machine, address_: int) -> str:
    """An address in terms of the nearest array."""
    arrays = m.memory.allocations
    if not arrays:
        return hex(address_)
    near = min(arrays, key=lambda a: min(abs(address_ - a.base), abs(address_ - a.end)))
    if address_ >= near.end:
        return f"{address_ - near.end} bytes after the end of {near.name}"
    if address_ < near.base:
        return f"{near.base - address_} bytes before the start of {near.name}"
    return f"{near.end - address_} bytes before the end of {near.name}"
