"""Instructions that a warp executes together: mma.sync, ldmatrix, stmatrix, shuffles, votes.

PTX ISA, "Warp Level Matrix Instructions" and "Parallel Synchronization and Communication Instructions". The sum of an
`mma` is taken exactly (float64) and rounded once to the accumulator's format; hardware truncates inside its sum, so
the last bits differ (docs/simulator.md). tf32 operands lose their low 13 bits, as hardware ignores them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.layout.banks import WARP
from cutegen.sim import floats, fragments
from cutegen.sim.arithmetic import Decoder, predicate
from cutegen.sim.machine import Machine, Step
from cutegen.sim.places import address, read_shared, shared_place, write_shared
from cutegen.sim.ptx import Instruction, names_of
from cutegen.sim.registers import ALL, Get, Lanes
from cutegen.sim.shared import I64

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}


def warp_lanes(m: Machine, at: Lanes) -> tuple[Lanes, I64]:
    """The lanes of the whole warps of a set, and these warps."""
    warps = m.whole_warps(at)
    if len(warps) == m.warps:
        return ALL, warps
    return (warps[:, None] * WARP + np.arange(WARP)).reshape(-1), warps


def words(gets: list[Get], lanes: Lanes, count: int) -> NDArray[np.uint32]:
    """(lanes, registers) as 32-bit words."""
    found = np.empty((count, len(gets)), np.uint32)
    for i, get in enumerate(gets):
        found[:, i] = get(lanes)
    return found


def elements(bits: NDArray[np.uint32], kind: str) -> NDArray[Any]:
    """Words (warps, 32, registers) as numbers (warps, 32, elements)."""
    if kind in ("s8", "u8"):
        return bits.view(np.int8 if kind == "s8" else np.uint8).astype(np.float32)
    if BITS[kind] == 32:
        return floats.decode(bits, kind)
    return floats.decode(bits.view(f"u{BITS[kind] // 8}"), kind)


def _mma(m: Machine, ins: Instruction) -> Step:
    shape = next((s for p in ins.parts if (s := re.fullmatch(r"m(\d+)n(\d+)k(\d+)", p))), None)
    types = ins.parts[-4:]
    a_kind, b_kind, c_kind, d_kind = types[1], types[2], types[3], types[0]
    known = shape and shape[1] == "16" and shape[2] == "8" and a_kind in BITS and b_kind in BITS
    if not known or d_kind not in ("f32", "f16", "s32") or d_kind != c_kind or "sp" in ins.parts:
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")
    assert shape is not None
    k, bits = int(shape[3]), BITS[a_kind]
    a, b, c = ([m.get(name, "b32") for name in names_of(operand)] for operand in ins.operands[1:])
    puts = [m.put(name) for name in names_of(ins.operands[0])]
    place_a, place_b, place_c = fragments.mma_a(k, bits), fragments.mma_b(k, bits), fragments.accumulator(8)

    def step(at: Lanes) -> None:
        lanes, warps = warp_lanes(m, at)
        count = len(warps)
        if not count:
            return
        left = elements(words(a, lanes, count * WARP).reshape(count, WARP, -1), a_kind)
        right = elements(words(b, lanes, count * WARP).reshape(count, WARP, -1), b_kind)
        add = words(c, lanes, count * WARP).reshape(count, WARP, -1)
        product = np.matmul(
            fragments.gather(left, place_a, (16, k)).astype(np.float64),
            fragments.gather(right, place_b, (k, 8)).astype(np.float64),
        )[:, place_c[0], place_c[1]]
        if d_kind == "s32":
            result: Any = (product.astype(np.int64) + add.view(np.int32)).astype(np.int32).view(np.uint32)
        elif d_kind == "f16":
            result = floats.rounded(product + floats.decode(add.view(np.uint16), "f16"), "f16").view(np.uint32)
        else:
            result = (product + add.view(np.float32)).astype(np.float32).view(np.uint32)
        result = result.reshape(count * WARP, -1)
        for i, put in enumerate(puts):
            put(lanes, result[:, i])
        if m.profile:
            m.profile.tensor(m.index, count, 2 * 16 * 8 * k)

    return step


def _matrix_count(ins: Instruction) -> int:
    if "m8n8" not in ins.parts or ins.parts[-1] != "b16":
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")
    return next(int(p[1:]) for p in ins.parts if p in ("x1", "x2", "x4"))


def _load_matrix(m: Machine, ins: Instruction) -> Step:
    """ldmatrix: lane 8j + r gives the address of row r of matrix j; lane l receives two neighbours of row l / 4."""
    count, transposed = _matrix_count(ins), "trans" in ins.parts
    puts = [m.put(name) for name in names_of(ins.operands[0])]
    read = address(m, ins.operands[1])

    def step(at: Lanes) -> None:
        lanes, warps = warp_lanes(m, at)
        if not len(warps):
            return
        every = m.lanes_of(lanes).reshape(-1, WARP)
        givers = every[:, : 8 * count].reshape(-1)
        addresses = read(givers)
        place = shared_place(m, givers, addresses, 16)
        if m.profile:
            m.profile.shared(m.index, givers, addresses, 16, rows=True)
        rows = np.zeros((len(givers), 8), np.uint16)
        rows[place.fits] = read_shared(m, place, 16, 4, whole_warp=True).view(np.uint16)
        matrices = rows.reshape(len(warps), count, 8, 8)
        if transposed:
            matrices = matrices.swapaxes(2, 3)
        received = np.ascontiguousarray(matrices).view(np.uint32).reshape(len(warps), count, WARP)
        for i, put in enumerate(puts):
            put(lanes, np.ascontiguousarray(received[:, i]).reshape(-1))

    return step


def _store_matrix(m: Machine, ins: Instruction) -> Step:
    """stmatrix: the inverse of ldmatrix."""
    count, transposed = _matrix_count(ins), "trans" in ins.parts
    read = address(m, ins.operands[0])
    gets = [m.get(name, "b32") for name in names_of(ins.operands[1])]

    def step(at: Lanes) -> None:
        lanes, warps = warp_lanes(m, at)
        if not len(warps):
            return
        held = words(gets, lanes, len(warps) * WARP).reshape(len(warps), WARP, count)
        matrices = np.ascontiguousarray(held.swapaxes(1, 2)).view(np.uint16).reshape(len(warps), count, 8, 8)
        if transposed:
            matrices = np.ascontiguousarray(matrices.swapaxes(2, 3))
        givers = m.lanes_of(lanes).reshape(-1, WARP)[:, : 8 * count].reshape(-1)
        addresses = read(givers)
        place = shared_place(m, givers, addresses, 16)
        if m.profile:
            m.profile.shared(m.index, givers, addresses, 16, rows=True)
        write_shared(m, place, matrices.reshape(len(givers), 8).view(np.uint32)[place.fits])

    return step


def _shuffle(m: Machine, ins: Instruction) -> Step:
    """shfl.sync: a lane reads another's register; `c` holds the clamp and the segment mask."""
    mode = ins.parts[2]
    targets = ins.operands
    two = len(targets) == 6
    put = m.put(targets[0])
    put_p = m.put(targets[1]) if two else None
    value, b, c = (m.get(o, "b32") for o in targets[2 if two else 1 :][:3])

    def step(at: Lanes) -> None:
        lanes, warps = warp_lanes(m, at)
        if not len(warps):
            return
        count = len(warps) * WARP
        a = np.broadcast_to(value(lanes), (count,)).reshape(-1, WARP)
        shift = np.broadcast_to(b(lanes), (count,)).astype(np.int64).reshape(-1, WARP) & 31
        control = np.broadcast_to(c(lanes), (count,)).astype(np.int64).reshape(-1, WARP)
        clamp, segment = control & 31, control >> 8 & 31
        lane = np.arange(WARP)
        highest = (lane & segment) | (clamp & ~segment)
        lowest = lane & segment
        source = {"up": lane - shift, "down": lane + shift, "bfly": lane ^ shift, "idx": lowest | (shift & ~segment)}[
            mode
        ]
        inside = source >= highest if mode == "up" else source <= highest
        source = np.where(inside, source, lane)
        put(lanes, np.take_along_axis(a, source, 1).reshape(-1))
        if put_p:
            put_p(lanes, inside.reshape(-1))

    return step


def _over_warp(
    m: Machine, ins: Instruction, give: Callable[[NDArray[Any], NDArray[np.bool_]], Any], get: Any, member: Get
) -> Step:
    """A value of all lanes to one result for the warp; lanes outside the member mask do not count."""
    put = m.put(ins.operands[0])

    def step(at: Lanes) -> None:
        lanes = m.lanes_of(at)
        for warp in np.unique(m.warp[lanes]):
            mine = lanes[m.warp[lanes] == warp]
            mask = int(np.broadcast_to(member(mine), (len(mine),))[0])
            named = np.array([mask >> int(lane) & 1 for lane in m.lane[mine]], bool)
            absent = mask & ~int(sum(1 << int(lane) for lane in m.lane[mine]))
            alive = m.counter[warp * WARP : (warp + 1) * WARP] != np.iinfo(np.int64).max
            if any(absent >> i & 1 and alive[i] for i in range(WARP)) or not named.all():
                m.find("divergent-warp", f"the lanes that execute it are not those of its mask {mask:#010x}", mine)
            put(mine, give(np.broadcast_to(get(mine), (len(mine),)), m.lane[mine]))

    return step


def _vote(m: Machine, ins: Instruction) -> Step:
    mode = ins.parts[2]
    test = predicate(m, ins.operands[1])

    def give(values: NDArray[Any], lane: NDArray[Any]) -> Any:
        if mode == "ballot":
            return np.uint32(int((values.astype(np.int64) << lane).sum()))
        return np.asarray({"all": values.all(), "any": values.any(), "uni": (values == values[0]).all()}[mode])

    return _over_warp(m, ins, give, test, m.get(ins.operands[2], "u32"))


def _reduce(m: Machine, ins: Instruction) -> Step:
    kind, name = ins.parts[-1], ins.parts[2]
    functions: dict[str, Any] = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }  # fmt: skip
    if name not in functions or len(ins.parts) > 4:
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")

    def give(values: NDArray[Any], lane: NDArray[Any]) -> Any:
        return np.asarray(functions[name].reduce(values), values.dtype)

    return _over_warp(m, ins, give, m.get(ins.operands[1], kind), m.get(ins.operands[2], "u32"))


def _match(m: Machine, ins: Instruction) -> Step:
    """match.any: which lanes hold the same value."""
    if ins.parts[1] != "any":
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")

    def give(values: NDArray[Any], lane: NDArray[Any]) -> Any:
        same = values[:, None] == values[None, :]
        return (same.astype(np.int64) << lane).sum(1).astype(np.uint32)

    return _over_warp(m, ins, give, m.get(ins.operands[1], ins.parts[-1]), m.get(ins.operands[2], "u32"))


def _elect(m: Machine, ins: Instruction) -> Step:
    """elect.sync: the lowest lane of the warp is chosen."""
    put_lane, put = m.put(ins.operands[0]), m.put(ins.operands[1])

    def step(at: Lanes) -> None:
        lanes = m.lanes_of(at)
        warps, first = np.unique(m.warp[lanes], return_index=True)
        chosen = np.zeros(len(lanes), bool)
        chosen[first] = True
        leader = m.lane[lanes[first]][np.searchsorted(warps, m.warp[lanes])]
        put_lane(at, leader.astype(np.uint32))
        put(at, chosen)

    return step


def _active_mask(m: Machine, ins: Instruction) -> Step:
    put = m.put(ins.operands[0])

    def step(at: Lanes) -> None:
        lanes = m.lanes_of(at)
        masks = np.zeros(m.warps, np.int64)
        np.add.at(masks, m.warp[lanes], 1 << m.lane[lanes])
        put(at, masks[m.warp[lanes]].astype(np.uint32))

    return step


WARPWIDE: dict[str, Decoder] = {
    "mma": _mma, "ldmatrix": _load_matrix, "stmatrix": _store_matrix, "shfl": _shuffle, "vote": _vote, "redux": _reduce,
    "match": _match, "elect": _elect, "activemask": _active_mask,
}  # fmt: skip
