"""Instructions on bit fields and bytes (PTX ISA, "Integer Arithmetic Instructions", "Logic and Shift Instructions")."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutegen.errors import SimulationError
from cutegen.sim.arithmetic import Decoder
from cutegen.sim.machine import Machine, Step
from cutegen.sim.ptx import Instruction
from cutegen.sim.registers import Lanes


def _wide(value: Any) -> Any:
    return np.asarray(value).astype(np.uint64)


def _field_insert(m: Machine, ins: Instruction) -> Step:
    """bfi f, a, b, start, length: the low bits of a put into b."""
    kind = ins.parts[-1]
    a, b = m.get(ins.operands[1], kind), m.get(ins.operands[2], kind)
    start, length, put = m.get(ins.operands[3], "u32"), m.get(ins.operands[4], "u32"), m.put(ins.operands[0])
    bits = 64 if kind == "b64" else 32

    def step(at: Lanes) -> None:
        first = np.minimum(_wide(start(at)) & 0xFF, np.uint64(bits))
        count = np.minimum(_wide(length(at)) & 0xFF, np.uint64(bits) - first)
        mask = _ones(count) << np.minimum(first, np.uint64(63))
        mask = np.where(first >= bits, np.uint64(0), mask)
        whole = (_wide(b(at)) & ~mask) | ((_wide(a(at)) << np.minimum(first, np.uint64(63))) & mask)
        put(at, whole if bits == 64 else whole.astype(np.uint32))

    return step


def _ones(count: Any) -> Any:
    """`count` low bits set, 64 too."""
    return np.where(count >= 64, ~np.uint64(0), (np.uint64(1) << np.minimum(count, np.uint64(63))) - np.uint64(1))


def _field_extract(m: Machine, ins: Instruction) -> Step:
    """bfe d, a, start, length; signed ones extend the field's top bit."""
    kind = ins.parts[-1]
    bits = int(kind[1:])
    a, put = m.get(ins.operands[1], kind), m.put(ins.operands[0])
    start, length = m.get(ins.operands[2], "u32"), m.get(ins.operands[3], "u32")

    def step(at: Lanes) -> None:
        value = np.asarray(a(at))
        first, count = _wide(start(at)) & 0xFF, _wide(length(at)) & 0xFF
        raw = value.astype(np.int64).astype(np.uint64) if kind[0] == "s" else value.astype(np.uint64)
        raw = raw if bits == 64 else raw & np.uint64(0xFFFFFFFF)
        field = np.where(first >= bits, np.uint64(0), raw >> np.minimum(first, np.uint64(63))) & _ones(count)
        if kind[0] == "s":
            last = np.minimum(first + count - np.uint64(1), np.uint64(bits - 1))
            negative = (count > 0) & (((raw >> last) & np.uint64(1)) == 1)
            width = np.minimum(count, np.uint64(bits) - np.minimum(first, np.uint64(bits)))
            field = np.where(negative, field | ~_ones(width), field)
        put(at, field.astype(np.uint64 if bits == 64 else np.uint32))

    return step


def _permute(m: Machine, ins: Instruction) -> Step:
    """prmt: each byte of the result is chosen from eight, with its sign spread where the selector's top bit says so."""
    if len(ins.parts) > 2:
        raise SimulationError(f"PTX line {ins.line}: the modes of prmt are not modelled")
    a, b, selector = (m.get(operand, "b32") for operand in ins.operands[1:4])
    put = m.put(ins.operands[0])

    def step(at: Lanes) -> None:
        eight = (_wide(b(at)) << np.uint64(32)) | _wide(a(at))
        chosen = np.asarray(selector(at)).astype(np.uint64)
        result: Any = np.uint64(0)
        for byte in range(4):
            pick = (chosen >> np.uint64(4 * byte)) & np.uint64(0xF)
            value = (eight >> ((pick & np.uint64(7)) * np.uint64(8))) & np.uint64(0xFF)
            spread = np.where(value >= 0x80, np.uint64(0xFF), np.uint64(0))
            result = result | (np.where(pick >= 8, spread, value) << np.uint64(8 * byte))
        put(at, np.asarray(result).astype(np.uint32))

    return step


def _logic(m: Machine, ins: Instruction) -> Step:
    """lop3: any function of three bits, by its truth table."""
    a, b, c = (m.get(operand, "b32") for operand in ins.operands[1:4])
    table, put = int(ins.operands[4], 0), m.put(ins.operands[0])

    def step(at: Lanes) -> None:
        x, y, z = a(at), b(at), c(at)
        result: Any = np.uint32(0)
        for index in range(8):
            if table >> index & 1:
                terms = (x if index & 4 else ~x) & (y if index & 2 else ~y) & (z if index & 1 else ~z)
                result = result | terms
        put(at, np.asarray(result, np.uint32))

    return step


def _funnel(m: Machine, ins: Instruction) -> Step:
    """shf: 32 bits out of 64, the amount wrapped or clamped."""
    low, high, amount = (m.get(operand, "b32") for operand in ins.operands[1:4])
    put, left, wrap = m.put(ins.operands[0]), ins.parts[1] == "l", ins.parts[2] == "wrap"

    def step(at: Lanes) -> None:
        n = _wide(amount(at))
        n = n & np.uint64(31) if wrap else np.minimum(n, np.uint64(32))
        both = (_wide(high(at)) << np.uint64(32)) | _wide(low(at))
        moved = (both << n) >> np.uint64(32) if left else both >> n
        put(at, np.asarray(moved).astype(np.uint32))

    return step


def _count(m: Machine, ins: Instruction) -> Step:
    """popc, clz, bfind (of unsigned), brev."""
    kind = ins.parts[-1]
    bits = int(kind[1:])
    get, put, name = m.get(ins.operands[1], kind), m.put(ins.operands[0]), ins.parts[0]

    def step(at: Lanes) -> None:
        value = np.asarray(get(at))
        spread = (_wide(value)[..., None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)  # lowest bit first
        if name == "popc":
            result: Any = spread.sum(-1)
        elif name == "brev":
            result = (spread << np.arange(bits - 1, -1, -1, dtype=np.uint64)).sum(-1)
            put(at, np.asarray(result).astype(np.uint64 if bits == 64 else np.uint32))
            return
        else:
            top = np.where(spread.any(-1), bits - 1 - np.argmax(spread[..., ::-1], -1), -1)
            result = bits - 1 - top if name == "clz" else top
        put(at, np.asarray(result).astype(np.int64).astype(np.uint32))

    return step


BITS: dict[str, Decoder] = {
    "bfi": _field_insert, "bfe": _field_extract, "prmt": _permute, "lop3": _logic, "shf": _funnel,
    "popc": _count, "clz": _count, "bfind": _count, "brev": _count,
}  # fmt: skip
