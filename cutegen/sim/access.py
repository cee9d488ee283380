"""Loads and stores of threads, and addresses (PTX ISA, "Data Movement and Conversion Instructions")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.sim.arithmetic import Decoder
from cutegen.sim.fences import nothing
from cutegen.sim.machine import Machine, Step
from cutegen.sim.places import ADDRESS, address, global_place, read_shared, shared_place, write_shared
from cutegen.sim.ptx import WIDTHS, Instruction, names_of
from cutegen.sim.registers import NUMPY, Lanes
from cutegen.sim.shared import I64, WINDOW


def _vector(ins: Instruction) -> int:
    return next((int(p[1:]) for p in ins.parts if p in ("v2", "v4", "v8")), 1)


def space_of(ins: Instruction) -> str:
    for part in ins.parts[1:]:
        if part.split("::")[0] in ("global", "shared", "param", "local", "const"):
            return part.split("::")[0]
    return "generic"


def _load(m: Machine, ins: Instruction) -> Step:
    kind, count, space = ins.parts[-1], _vector(ins), space_of(ins)
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
            m.profile.shared(m.index, m.lanes_of(at), addresses, width)
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

    return by_space(m, ins, space, read, shared, far, local)


Access = Callable[[Lanes, I64], None]


def by_space(
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
    match = ADDRESS.fullmatch(ins.operands[1])
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
    kind, count, space = ins.parts[-1], _vector(ins), space_of(ins)
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
            m.profile.shared(m.index, m.lanes_of(at), addresses, width)
        write_shared(m, place, values(at)[place.fits])

    def far(at: Lanes, addresses: I64) -> None:
        found, where = global_place(m, at, addresses, width, "writes", "out-of-bounds-global")
        if m.profile:
            m.profile.far(m.index, m.warp[m.lanes_of(at)], addresses, width)
        m.memory.store(found, where, values(at))

    def local(at: Lanes, addresses: I64) -> None:
        lanes = m.lanes_of(at)
        m.local[lanes[:, None], addresses[:, None] + np.arange(width)] = values(at).view(np.uint8)

    return by_space(m, ins, space, read, shared, far, local)


def _policy(m: Machine, ins: Instruction) -> Step:
    """A cache policy changes speed only."""
    put = m.put(ins.operands[0])
    return lambda at: put(at, np.uint64(0))


def _to_space(m: Machine, ins: Instruction) -> Step:
    """cvta: between generic and shared addresses; global and parameter ones are the same in both."""
    kind, space = ins.parts[-1], space_of(ins)
    get, put = m.get(ins.operands[1], kind), m.put(ins.operands[0])
    if space != "shared":
        return lambda at: put(at, np.asarray(get(at)))
    shift = np.uint64(WINDOW)
    if "to" in ins.parts:
        return lambda at: put(at, np.asarray(get(at) - shift))
    return lambda at: put(at, np.asarray(get(at) + shift))


ACCESS: dict[str, Decoder] = {
    "ld": _load, "st": _store, "prefetch": nothing, "prefetchu": nothing,
    "applypriority": nothing, "discard": nothing, "createpolicy": _policy, "cvta": _to_space,
}  # fmt: skip
