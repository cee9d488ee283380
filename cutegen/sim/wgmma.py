"""wgmma: a warpgroup's matrix multiply, with operands in shared memory described by 64-bit descriptors.

PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": matrix-descriptor format, canonical layouts, register
fragments. The product is computed when it is issued; until wgmma.wait_group the accumulator may not be touched, and
shared memory counts as being read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.layout.banks import WARP
from cutegen.sim import floats, fragments
from cutegen.sim.arithmetic import Decoder, predicate
from cutegen.sim.copy_engine import read_async
from cutegen.sim.machine import WARPGROUP, Control, Machine, Step
from cutegen.sim.ptx import Instruction, names_of
from cutegen.sim.registers import Lanes, one_value
from cutegen.sim.shared import BASE, I64, NEVER
from cutegen.sim.warp import BITS, elements, words

_SPANS = {0: 0, 1: 128, 2: 64, 3: 32}


@dataclass(frozen=True)
class Descriptor:
    """Fields of a matrix descriptor, in bytes."""

    start: int
    leading: int
    stride: int
    base: int
    span: int


def descriptor(bits: int) -> Descriptor:
    """Decodes 64 bits (PTX ISA, "Matrix-descriptor format")."""
    return Descriptor(
        (bits & 0x3FFF) << 4,
        (bits >> 16 & 0x3FFF) << 4,
        (bits >> 32 & 0x3FFF) << 4,
        bits >> 49 & 7,
        _SPANS[bits >> 62],
    )


@lru_cache(maxsize=4096)
def offsets(rows: int, k: int, size: int, major: str, leading: int, stride: int, span: int) -> I64:
    """(rows, k) byte offsets from the start of an operand before the swizzle; rows run along M or N.

    K-major: rows of `span` bytes (16 without swizzle) in groups of eight, groups `stride` apart; without swizzle the
    16-byte columns are `leading` apart. MN-major: `span` bytes along M or N for each of eight values of k; the next
    span is `leading` away, the next eight k `stride` (without swizzle the two change places).
    """
    r, c = np.arange(rows)[:, None], np.arange(k)[None, :]
    per = 16 // size
    if major == "K":
        if span:
            return np.asarray((r % 8) * span + r // 8 * stride + c * size)
        return np.asarray((r % 8) * 16 + r // 8 * stride + c // per * leading + c % per * size)
    if span:
        wide = span // size
        return np.asarray(r % wide * size + r // wide * leading + c % 8 * span + c // 8 * stride)
    return np.asarray(r % per * size + r // per * stride + c % 8 * 16 + c // 8 * leading)


def operand(
    m: Machine, block: int, bits: int, rows: int, k: int, kind: str, major: str
) -> tuple[NDArray[np.float32], I64]:
    """(rows, k) of an operand in shared memory, and the byte offsets it was read from."""
    size = BITS[kind] // 8
    found = descriptor(bits)
    places = found.start + offsets(rows, k, size, major, found.leading, found.stride, found.span)
    if found.span:
        places = places ^ (((places >> 7) + found.base & (found.span // 16 - 1)) << 4)
    places = places - BASE
    inside = (places >= 0) & (places + size <= m.shared.size)
    if not inside.all():
        lanes = np.array([block * m.padded])
        m.find("out-of-bounds-shared", "a wgmma descriptor reaches beyond shared memory", lanes)
        places = np.where(inside, places, 0)
    raw = m.shared.views[size][block][places // size]
    if size == 1:
        return floats.decode(raw, kind), places
    return floats.decode(np.ascontiguousarray(raw), kind), places


def _shape(ins: Instruction) -> tuple[int, int]:
    for part in ins.parts:
        if match := re.fullmatch(r"m64n(\d+)k(\d+)", part):
            return int(match[1]), int(match[2])
    raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not understood")


class Tensor:
    """Groups of wgmma of each warpgroup."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.open: dict[int, list[Any]] = {}
        self.groups: dict[int, list[list[Any]]] = {}
        m.resets.append(self.reset)

    def reset(self) -> None:
        self.open.clear()
        self.groups.clear()


def _warpgroups(m: Machine, at: Lanes) -> list[I64]:
    """Lanes of each warpgroup in a set; all four warps must take part."""
    lanes = m.lanes_of(at)
    first = m.thread[lanes] // WARPGROUP + m.block[lanes] * (-(-m.padded // WARPGROUP))
    found = []
    for group in np.unique(first):
        mine = lanes[first == group]
        if len(mine) != WARPGROUP:
            m.find("divergent-warpgroup", "a wgmma is executed by part of a warpgroup", mine)
            continue
        found.append(mine)
    return found


def _multiply(m: Machine, ins: Instruction) -> Step:
    n, k = _shape(ins)
    kinds = ins.parts[-3:]
    accumulate, a_kind, b_kind = kinds
    if accumulate not in ("f32", "f16") or a_kind not in BITS or b_kind not in BITS or "sp" in ins.parts:
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")
    names = names_of(ins.operands[0])
    puts = [m.put(name, raw=True) for name in names]
    olds = [m.get(name, "b32", raw=True) for name in names]
    from_registers = ins.operands[1].startswith("{")
    a_names = names_of(ins.operands[1])
    a_gets = [m.get(name, "b32" if from_registers else "b64") for name in a_names]
    b_get = m.get(ins.operands[2], "b64")
    scale = predicate(m, ins.operands[3])
    signs = [int(o) for o in ins.operands[4:6]]
    majors = [int(o) for o in ins.operands[6:]]  # 0: K-major, 1: MN-major; absent for 32- and 8-bit types
    if from_registers:
        majors = [0, *majors]
    a_major, b_major = ("MN" if x else "K" for x in (*majors, 0, 0)[:2])
    registers = m.registers
    for name in [*names, *(a_names if from_registers else [])]:
        registers.unfenced.setdefault(name, np.zeros(m.lanes, bool))
    place_a, place_c = fragments.mma_a(k, BITS[a_kind]), fragments.accumulator(n)
    tensor = m.unit(Tensor)

    def step(at: Lanes) -> None:
        for mine in _warpgroups(m, at):
            _check_registers(m, mine, [*names, *(a_names if from_registers else [])])
            block = int(m.block[mine[0]])
            b, b_places = operand(m, block, one_value(b_get(mine)), n, k, b_kind, b_major)
            if from_registers:
                held = elements(words(a_gets, mine, WARPGROUP).reshape(4, WARP, -1), a_kind)
                a = fragments.gather(held, place_a, (16, k)).reshape(64, k)
                places = [b_places]
            else:
                a, a_places = operand(m, block, one_value(a_gets[0](mine)), 64, k, a_kind, a_major)
                places = [a_places, b_places]
            product = (a.astype(np.float64) * signs[0]) @ (b.astype(np.float64) * signs[1]).T
            result = product.reshape(4, 16, n)[:, place_c[0], place_c[1]]  # (4, 32, n / 2)
            keep = bool(np.broadcast_to(scale(mine), (WARPGROUP,))[0])
            old = words(olds, mine, WARPGROUP).reshape(4, WARP, -1) if keep else None
            if accumulate == "f32":
                added = result if old is None else result + old.view(np.float32)
                bits = added.astype(np.float32).view(np.uint32)
            else:
                added = result if old is None else result + floats.decode(old.view(np.uint16), "f16")
                bits = floats.rounded(added, "f16").view(np.uint32)
            bits = bits.reshape(WARPGROUP, -1)
            for i, put in enumerate(puts):
                put(mine, bits[:, i])
            _issue(m, tensor, mine, places, names, a_names if from_registers else [])
            if m.profile:
                m.profile.tensor(m.index, 1, 2 * 64 * n * k)

    return step


def _check_registers(m: Machine, mine: I64, names: list[str]) -> None:
    for name in names:
        touched = m.registers.unfenced[name][mine]
        if touched.any():
            m.find("missing-wgmma-fence", f"{name} was written since the last wgmma.fence", mine, touched)
            m.registers.unfenced[name][mine] = False


def _issue(m: Machine, tensor: Tensor, mine: I64, places: list[I64], names: list[str], reads: list[str]) -> None:
    """Shared memory and `reads` are being read, the accumulator written, until the group is waited for."""
    lane = int(mine[0])
    block = int(m.block[lane])
    warp = int(m.warp[lane])
    touched = np.unique(np.concatenate([p.reshape(-1) for p in places]) // m.shared.grain) + block * m.shared.cells
    cells = touched[:, None]
    read_async(m, lane, warp, cells)
    agent = int(m.tensor_agent[warp])
    m.shared.read_clock[touched, agent] = NEVER
    for name in names:
        flags = m.registers.in_flight.setdefault(name, np.zeros(m.lanes, bool))
        flags[mine] = True
        kind = m.registers.kind[name]
        m.registers.complete[kind][m.registers.rows[name]] = False
    for name in reads:
        m.registers.held.setdefault(name, np.zeros(m.lanes, bool))[mine] = True
    tensor.open.setdefault(warp, []).append((touched, names, reads, mine))


def _fence(m: Machine, ins: Instruction) -> Step:
    def step(at: Lanes) -> None:
        for lanes in m.registers.unfenced.values():
            lanes[at] = False

    return step


def _commit(m: Machine, ins: Instruction) -> Step:
    tensor = m.unit(Tensor)

    def step(at: Lanes) -> None:
        for mine in _warpgroups(m, at):
            warp = int(m.warp[mine[0]])
            tensor.groups.setdefault(warp, []).append(tensor.open.pop(warp, []))

    return step


def wait_control(m: Machine, ins: Instruction) -> Control:
    """wgmma.wait_group: the oldest groups are complete, their reads done and their accumulators usable."""
    tensor, left = m.unit(Tensor), int(ins.operands[0], 0)

    def control(index: int, at: Lanes) -> None:
        m.counter[at] = index + 1
        for mine in _warpgroups(m, at):
            warp = int(m.warp[mine[0]])
            groups = tensor.groups.get(warp, [])
            done, kept = groups[: max(0, len(groups) - left)], groups[max(0, len(groups) - left) :]
            tensor.groups[warp] = kept
            agent = int(m.tensor_agent[warp])
            block = int(m.block[mine[0]])
            m.tensor_clock[block, agent] += 1
            when = m.tensor_clock[block, agent]
            later = [part for group in [*kept, tensor.open.get(warp, [])] for part in group]
            busy = {name for _, names, reads, _ in later for name in (*names, *reads)}
            again = [touched for touched, _, _, _ in later]
            for group in done:
                for touched, names, reads, lanes in group:
                    m.shared.read_clock[touched, agent] = when
                    for name in names:
                        if name not in busy:
                            _usable(m, name, lanes)
                    for name in reads:
                        if name not in busy:
                            m.registers.held[name][lanes] = False
            for touched in again:
                m.shared.read_clock[touched, agent] = NEVER
            m.clocks[m.warp[mine], agent] = when

    return control


def _usable(m: Machine, name: str, lanes: I64) -> None:
    flags = m.registers.in_flight.get(name)
    if flags is None:
        return
    flags[lanes] = False
    kind, row = m.registers.kind[name], m.registers.rows[name]
    m.registers.defined[kind][row][lanes] = True
    if not flags.any():
        del m.registers.in_flight[name]


def wgmma(m: Machine, ins: Instruction) -> Step:
    """wgmma.mma_async, fence, commit_group."""
    decoders: dict[str, Decoder] = {"mma_async": _multiply, "fence": _fence, "commit_group": _commit}
    if ins.parts[1] not in decoders:
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")
    return decoders[ins.parts[1]](m, ins)
