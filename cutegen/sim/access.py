"""Loads and stores of threads, cp.async, atomics (PTX ISA, "Data Movement and Conversion Instructions")."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.sim.arithmetic import Decoder, predicate
from cutegen.sim.machine import Machine, Step
from cutegen.sim.ptx import WIDTHS, Instruction, names_of
from cutegen.sim.registers import NUMPY, Lanes
from cutegen.sim.shared import BASE, I64, RANK_SHIFT, WINDOW

_ADDRESS = re.compile(r"\[\s*([%\w$~.]+)\s*(?:\+\s*(-?\w+))?\s*\]")


@dataclass(frozen=True)
class Place:
    """Where in shared memory accesses go: of the lanes that fit, their block and byte offset, and who they are."""

    lanes: I64
    block: I64
    offset: I64
    fits: NDArray[np.bool_]  # over all lanes of the access


def address(m: Machine, operand: str, kind: str = "u64") -> Callable[[Lanes], NDArray[np.int64]]:
    """`[register+offset]` as int64 for each lane."""
    match = _ADDRESS.fullmatch(operand)
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
    high = addresses >> RANK_SHIFT
    if high.any():
        rank = high - 1
        wrong = (rank >= m.geometry.cluster_size) | (rank < -1)
        m.find("out-of-bounds-shared", "the address names no block of the cluster", at, wrong)
        block = np.where((high > 0) & ~wrong, m.first_block[block] + rank, block)
    offset = (addresses & ((1 << RANK_SHIFT) - 1)) - BASE
    fits = (offset >= 0) & (offset + width <= m.shared.size) & (high <= m.geometry.cluster_size)
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


def read_shared(m: Machine, place: Place, width: int, size: int, whole_warp: bool = False) -> NDArray[Any]:
    """Values of a read by threads, checked against the shadow. `whole_warp`: every lane of the warp receives it."""
    warp = m.warp[place.lanes]
    agent = m.agent_of_warp[warp]
    lane = np.full(len(warp), -1) if whole_warp else m.lane[place.lanes]
    cells = m.shared.cells_of(place.block, place.offset, width)
    clocks = m.clocks[warp]
    for kind, where in m.shared.read_faults(cells, agent, lane, clocks).items():
        if where.any():
            m.find(kind, _READ_FAULTS[kind], place.lanes, where)
    m.shared.note_read(cells, agent, lane, clocks[np.arange(len(warp)), agent])
    return m.shared.load(place.block, place.offset, width, size)


_READ_FAULTS = {
    "uninitialised-shared": "shared memory is read that nobody wrote",
    "read-before-arrival": "shared memory is read while an asynchronous copy to it may still be under way",
    "shared-race": "shared memory is read that another thread wrote, with no barrier in between",
}


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
        m.find(kind, f"{what} {width} bytes at {_nearest(m, first)}", at, found < 0)
    skew = (addresses % width != 0) & (found >= 0)
    if skew.any():
        m.find("misaligned-global", f"{what} {width} bytes at an address that is not a multiple of it", at, skew)
        found = np.where(skew, -1, found)
    return found, where


def _nearest(m: Machine, address_: int) -> str:
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


def _vector(ins: Instruction) -> int:
    return next((int(p[1:]) for p in ins.parts if p in ("v2", "v4", "v8")), 1)


def _space(ins: Instruction) -> str:
    for part in ins.parts[1:]:
        if part.split("::")[0] in ("global", "shared", "param", "local", "const"):
            return part.split("::")[0]
    return "generic"


def _load(m: Machine, ins: Instruction) -> Step:
    kind, count, space = ins.parts[-1], _vector(ins), _space(ins)
    size = WIDTHS[kind]
    width = size * count
    puts = [m.put(name) for name in names_of(ins.operands[0])]
    extend: Any = {"s8": np.int16, "u8": np.uint16, "b8": np.uint16}.get(kind)
    if space == "param":
        return _load_parameter(m, ins, puts[0], kind)
    read = address(m, ins.operands[1])

    def give(at: Lanes, values: NDArray[Any]) -> None:
        if extend:
            values = values.view(NUMPY[kind]).astype(extend)
        for i, put in enumerate(puts):
            put(at, values[:, i])

    def shared(at: Lanes, addresses: I64) -> None:
        place = shared_place(m, at, addresses, width)
        if m.profile:
            m.profile.shared(m.index, m.warp[m.lanes_of(at)], addresses, width)
        values = read_shared(m, place, width, size)
        if len(values) < len(addresses):
            whole = np.zeros((len(addresses), count), values.dtype)
            whole[place.fits] = values
            values = whole
        give(at, values)

    def far(at: Lanes, addresses: I64) -> None:
        found, where = global_place(m, at, addresses, width, "reads", "out-of-bounds-global")
        if m.profile:
            m.profile.far(m.index, m.warp[m.lanes_of(at)], addresses, width)
        give(at, m.memory.load(found, where, width, size))

    def local(at: Lanes, addresses: I64) -> None:
        lanes = m.lanes_of(at)
        give(at, m.local[lanes[:, None], addresses[:, None] + np.arange(width)].view(f"u{size}"))

    return _by_space(m, ins, space, read, shared, far, local)


Access = Callable[[Lanes, I64], None]


def _by_space(
    m: Machine, ins: Instruction, space: str, read: Callable[[Lanes], I64], shared: Access, far: Access, local: Access
) -> Step:
    """The access of a state space; a generic address says by its window which it means."""
    if space in ("shared", "global", "local", "const"):
        access = {"shared": shared, "global": far, "const": far, "local": local}[space]
        return lambda at: access(at, read(at))

    def generic(at: Lanes) -> None:
        addresses = read(at)
        window = addresses >= WINDOW
        if window.all():
            shared(at, addresses - WINDOW)
        elif not window.any():
            far(at, addresses)
        else:
            lanes = m.lanes_of(at)
            shared(lanes[window], addresses[window] - WINDOW)
            far(lanes[~window], addresses[~window])

    return generic


def _load_parameter(m: Machine, ins: Instruction, put: Any, kind: str) -> Step:
    match = _ADDRESS.fullmatch(ins.operands[1])
    name, offset = (match[1], int(match[2] or "0", 0)) if match else ("", 0)
    value = m.parameters.get(f"value:{name}")
    if value is None:
        raise SimulationError(f"{m.where()}: parameter {ins.operands[1]} is not understood")
    raw = np.asarray(value).tobytes()
    size = WIDTHS[kind]
    if len(raw) < offset + size:
        raise SimulationError(f"{m.where()}: {size} bytes at {offset} of a parameter of {len(raw)} bytes")
    number = np.frombuffer(raw[offset : offset + size], NUMPY[kind])[0]
    return lambda at: put(at, number)


def _store(m: Machine, ins: Instruction) -> Step:
    kind, count, space = ins.parts[-1], _vector(ins), _space(ins)
    size = WIDTHS[kind]
    width = size * count
    gets = [m.get(name, f"b{max(16, 8 * size)}") for name in names_of(ins.operands[1])]
    read = address(m, ins.operands[0])
    dtype = np.dtype(f"u{size}")

    def values(at: Lanes) -> NDArray[Any]:
        found = np.empty((m.count(at), count), dtype)
        for i, get in enumerate(gets):
            found[:, i] = get(at)
        return found

    def shared(at: Lanes, addresses: I64) -> None:
        place = shared_place(m, at, addresses, width)
        if m.profile:
            m.profile.shared(m.index, m.warp[m.lanes_of(at)], addresses, width)
        write_shared(m, place, values(at)[place.fits])

    def far(at: Lanes, addresses: I64) -> None:
        found, where = global_place(m, at, addresses, width, "writes", "out-of-bounds-global")
        if m.profile:
            m.profile.far(m.index, m.warp[m.lanes_of(at)], addresses, width)
        m.memory.store(found, where, values(at))

    def local(at: Lanes, addresses: I64) -> None:
        lanes = m.lanes_of(at)
        m.local[lanes[:, None], addresses[:, None] + np.arange(width)] = values(at).view(np.uint8)

    return _by_space(m, ins, space, read, shared, far, local)


class AsyncCopies:
    """cp.async of all lanes: data is fetched when issued, arrives when its thread waits for its group."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.open = np.zeros(m.lanes, np.int64)  # copies of the group not committed yet
        self.group = np.zeros(m.lanes, np.int64)  # groups committed
        self.flying: list[tuple[I64, I64, Place, NDArray[np.uint8], I64]] = []
        m.resets.append(self.reset)

    def reset(self) -> None:
        self.open[:] = 0
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
        """Lets all but the last `left` groups of these lanes arrive."""
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


def async_copies(m: Machine) -> AsyncCopies:
    """The copies of a machine."""
    if not hasattr(m, "copies"):
        m.copies = AsyncCopies(m)  # type: ignore[attr-defined]
    return m.copies  # type: ignore[attr-defined, no-any-return]


def _copy_async(m: Machine, ins: Instruction) -> Step:
    """cp.async.{ca,cg}: 4, 8 or 16 bytes from global to shared memory; what lies beyond the source size is zero."""
    copies = async_copies(m)
    if "wait_all" in ins.parts:
        return lambda at: (copies.commit(at), copies.wait(at, 0))[1]
    if "commit_group" in ins.parts:
        return copies.commit
    if "wait_group" in ins.parts:
        left = int(ins.operands[0], 0)
        return lambda at: copies.wait(at, left)
    if "mbarrier" in ins.parts:
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")
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
                first = _nearest(m, int(source[found < 0][0]))
                m.find("out-of-bounds-global", f"copies {length} bytes from {first}", lanes, found < 0)
            skew = (source % size != 0) & (found >= 0)
            if skew.any():
                m.find("misaligned-global", f"copies {size} bytes from an address that is not a multiple", lanes, skew)
                found = np.where(skew, -1, found)
            unit = size if length == size and size <= 8 else (8 if length % 8 == 0 else 1)
            data[some, :length] = m.memory.load(found, source.view(np.uint64), int(length), unit).view(np.uint8)
        place = shared_place(m, at, to, size)
        if m.profile:
            warp = m.warp[m.lanes_of(at)]
            m.profile.far(m.index, warp[count > 0], where[count > 0], size)
            m.profile.shared(m.index, warp, to, size)
        copies.issue(at, place, data[place.fits])

    return step


_ATOMIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "exch": lambda old, new: new,
}  # fmt: skip


def _atomic(m: Machine, ins: Instruction) -> Step:
    """atom and red on global and shared memory, lane after lane."""
    kind, space = ins.parts[-1], _space(ins)
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
            m.find("uninitialised-shared", _READ_FAULTS["uninitialised-shared"], place.lanes)
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

    return _by_space(m, ins, space, read, shared, far, shared)


def _nothing(m: Machine, ins: Instruction) -> Step:
    return lambda at: None


def _policy(m: Machine, ins: Instruction) -> Step:
    """A cache policy changes speed only."""
    put = m.put(ins.operands[0])
    return lambda at: put(at, np.uint64(0))


def _to_space(m: Machine, ins: Instruction) -> Step:
    """cvta: between generic and shared addresses; global and parameter ones are the same in both."""
    kind, space = ins.parts[-1], _space(ins)
    get, put = m.get(ins.operands[1], kind), m.put(ins.operands[0])
    if space != "shared":
        return lambda at: put(at, np.asarray(get(at)))
    shift = np.uint64(WINDOW)
    if "to" in ins.parts:
        return lambda at: put(at, np.asarray(get(at) - shift))
    return lambda at: put(at, np.asarray(get(at) + shift))


ACCESS: dict[str, Decoder] = {
    "ld": _load, "st": _store, "atom": _atomic, "red": _atomic, "prefetch": _nothing, "prefetchu": _nothing,
    "applypriority": _nothing, "discard": _nothing, "createpolicy": _policy, "cvta": _to_space,
}  # fmt: skip
COPY_ASYNC: Decoder = _copy_async
