"""cp.async.bulk, with and without tensor maps (PTX ISA, "Data Movement: Bulk copies", "Tensor copies")."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.hardware import TENSOR_MAP_ALIGNMENT, TENSOR_MAP_BYTES
from cutegen.sim.copy_engine import CopyEngine
from cutegen.sim.fences import tensor_map_known
from cutegen.sim.machine import Control, Machine, Step
from cutegen.sim.places import address, shared_place
from cutegen.sim.ptx import Instruction, split_operands
from cutegen.sim.registers import Lanes, one_value
from cutegen.sim.shared import I64

SIZES = {"FLOAT32": 4, "TFLOAT32": 4, "FLOAT16": 2, "BFLOAT16": 2, "UINT8": 1, "UINT16": 2, "UINT32": 4}


@dataclass(frozen=True)
class Box:
    """One box of a tensor map at coordinates: where each of its elements lies in both memories, and which exist."""

    addresses: I64
    inside: NDArray[np.bool_]
    offsets: I64
    size: int

    @property
    def bytes_(self) -> int:
        return len(self.offsets) * self.size


def swizzled(offsets: I64, span: int) -> I64:
    """Byte offsets under TMA's swizzle of 32, 64 or 128 bytes: bits from 4 on XOR as many bits from 7 on."""
    if span == 0:
        return offsets
    return offsets ^ (((offsets >> 7) & (span // 16 - 1)) << 4)


def box_of(spec: Any, coordinates: list[int]) -> Box:
    """The box of a `TensorMapSpec` at `coordinates` (innermost first), which may lie outside the tensor."""
    size = SIZES[spec.data_type]
    counts = spec.box
    grid = np.indices(counts[::-1]).reshape(len(counts), -1)[::-1]  # innermost first, rows of the box in order
    where = grid + np.array(coordinates)[:, None]
    inside = ((where >= 0) & (where < np.array(spec.dims)[:, None])).all(0)
    strides = np.array([size, *spec.strides], np.int64)
    addresses = spec.pointer + (where * strides[:, None]).sum(0)
    offsets = np.arange(grid.shape[1], dtype=np.int64) * size
    return Box(addresses, inside, offsets, size)


def _tensor_operand(m: Machine, operand: str) -> tuple[Callable[[Lanes], Any], list[Callable[[Lanes], Any]]]:
    """`[map, {c0, c1, ...}]`."""
    parts = split_operands(operand.strip("[] "))
    if len(parts) != 2:
        raise SimulationError(f"{m.where()}: tensor operand {operand} is not understood")
    return m.get(parts[0], "u64"), [m.get(c.strip(), "s32") for c in parts[1].strip("{}").split(",")]


def _box(m: Machine, lane: int, map_: Any, coordinates: list[Any]) -> tuple[Any, Box] | None:
    at = np.array([lane])
    where = int(one_value(map_(at)))
    spec = m.parameters.get(f"map:{where}")
    if spec is None:
        m.find("bad-tensor-map", _no_map(m, where), at)
        return None
    if not tensor_map_known(m, int(m.warp[lane]), where):
        text = "a descriptor in global memory is used with no fence.proxy.tensormap::generic.acquire of it in this warp"
        m.find("missing-proxy-fence", text, at)
    if len(coordinates) != len(spec.dims):
        m.find("bad-tensor-map", f"{len(coordinates)} coordinates for a map of {len(spec.dims)} modes", at)
        return None
    place = [one_value(c(at)) for c in coordinates]
    if place[0] * SIZES[spec.data_type] % 16:
        text = f"a box begins {place[0] * SIZES[spec.data_type]} bytes into a row, not at a multiple of 16"
        m.find("misaligned-global", f"{text}: hardware calls the instruction illegal", at)
    return spec, box_of(spec, place)


def _no_map(m: Machine, where: int) -> str:
    """What is wrong with the address of a tensor map."""
    if where % TENSOR_MAP_ALIGNMENT:
        return f"the address {where:#x} of a tensor map is not a multiple of {TENSOR_MAP_ALIGNMENT}"
    arrays = m.parameters.get("descriptors", ())
    for first, last in arrays:
        if first <= where < last:
            if within := (where - first) % TENSOR_MAP_BYTES:
                return f"the address {where:#x} lies {within} bytes into a tensor map of an array"
            return "the tensor has no elements, so that it has no tensor map"
    for first, last in arrays:  # after all that could hold it: arrays may follow each other closely
        if last <= where < last + 4096:
            return f"the address {where:#x} lies beyond an array of {(last - first) // TENSOR_MAP_BYTES} tensor maps"
    return "the address is that of no tensor map of the launch"


def _places(box: Box, swizzle: int, offset: int) -> I64:
    """Bytes of a box relative to `offset`; the swizzle works on the address in shared memory."""
    # Shared memory starts at a multiple of 1024, so that an offset has the address's low bits.
    starts = swizzled(offset + box.offsets, swizzle) - offset
    return (starts[:, None] + np.arange(box.size)).reshape(-1)


def _tensor(m: Machine, ins: Instruction) -> Step:
    copies = m.unit(CopyEngine)
    to_shared = ins.parts[5].startswith("shared")
    _refuse_modes(ins)
    if to_shared:
        target, barrier = address(m, ins.operands[0]), address(m, ins.operands[2])
        map_, coordinates = _tensor_operand(m, ins.operands[1])
        rest = list(ins.operands[3:])
        mask = m.get(rest.pop(0), "b16") if any("multicast" in p for p in ins.parts) else None

        def load(at: Lanes) -> None:
            for lane in m.lanes_of(at):
                one = np.array([lane])
                found = _box(m, int(lane), map_, coordinates)
                if found is None:
                    continue
                spec, box = found
                align = 128 if spec.swizzle else 16
                to = shared_place(m, one, target(one), 1, 1)
                where = shared_place(m, one, barrier(one), 8)
                if not len(to.lanes) or not len(where.lanes):
                    continue
                offset = int(to.offset[0])
                if offset % align:
                    m.find("misaligned-shared", f"TMA to offset {offset}, not a multiple of {align}", one)
                if m.profile:
                    m.profile.bulk(m.index, box.bytes_)
                data = np.zeros((len(box.offsets), box.size), np.uint8)
                which = m.memory.find(box.addresses[box.inside].view(np.uint64), box.size)
                if (which < 0).any():
                    m.find("out-of-bounds-global", "a tensor map reaches beyond its array", one)
                data[box.inside] = m.memory.load(which, box.addresses[box.inside].view(np.uint64), box.size, 1)
                copies.load(
                    int(lane),
                    int(to.block[0]),
                    offset,
                    data.reshape(-1),
                    _places(box, spec.swizzle, offset),
                    (int(where.block[0]), int(where.offset[0])),
                    None if mask is None else one_value(mask(one)),
                )

        return load
    source = address(m, ins.operands[1])
    map_, coordinates = _tensor_operand(m, ins.operands[0])
    if ins.parts[2] == "reduce" or ins.parts[1] == "reduce":
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")

    def store(at: Lanes) -> None:
        for lane in m.lanes_of(at):
            one = np.array([lane])
            found = _box(m, int(lane), map_, coordinates)
            place = shared_place(m, one, source(one), 16, 128)
            if found is None or not len(place.lanes):
                continue
            spec, box = found
            if m.profile:
                m.profile.bulk(m.index, box.bytes_)
            offset = int(place.offset[0])

            def write(data: NDArray[np.uint8], box: Box = box, one: I64 = one) -> None:
                where = box.addresses[box.inside].view(np.uint64)
                which = m.memory.find(where, box.size)
                if (which < 0).any():
                    m.find("out-of-bounds-global", "a tensor map reaches beyond its array", one)
                values = np.ascontiguousarray(data.reshape(-1, box.size)[box.inside]).view(f"u{box.size}")
                m.memory.store(which, where, values)

            copies.store(int(lane), int(place.block[0]), offset, _places(box, spec.swizzle, offset), write)

    return store


def _refuse_modes(ins: Instruction) -> None:
    for part in ins.parts:
        if part in ("im2col", "tile::gather4", "tile::scatter4", "im2col_no_offs", "cta_group::2"):
            raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")


def _plain(m: Machine, ins: Instruction) -> Step:
    """cp.async.bulk without a tensor map: bytes in a row, a multiple of 16."""
    copies = m.unit(CopyEngine)
    to_shared = ins.parts[3].startswith("shared")
    if (not to_shared and not ins.parts[3].startswith("global")) or (ins.parts[4].startswith("shared") and to_shared):
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")
    first, second, size = address(m, ins.operands[0]), address(m, ins.operands[1]), m.get(ins.operands[2], "u32")
    barrier = address(m, ins.operands[3]) if to_shared else None
    if any("multicast" in p for p in ins.parts):
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")

    def step(at: Lanes) -> None:
        for lane in m.lanes_of(at):
            one = np.array([lane])
            count = one_value(size(one))
            near, far = (first(one), second(one)) if to_shared else (second(one), first(one))
            place = shared_place(m, one, near, count, 16)
            which = m.memory.find(far.view(np.uint64), count)
            if count % 16 or int(far[0]) % 16:
                m.find(
                    "misaligned-global",
                    f"a bulk copy of {count} bytes, of which and of whose address 16 is no divisor",
                    one,
                )
            if (which < 0).any():
                m.find("out-of-bounds-global", f"a bulk copy of {count} bytes reaches beyond its array", one)
            if not len(place.lanes):
                continue
            block, offset, places = int(place.block[0]), int(place.offset[0]), np.arange(count)
            if to_shared and barrier is not None:
                where = shared_place(m, one, barrier(one), 8)
                data = m.memory.load(which, far.view(np.uint64), count, 1).reshape(-1)
                if len(where.lanes):
                    copies.load(
                        int(lane), block, offset, data, places, (int(where.block[0]), int(where.offset[0])), None
                    )
            else:

                def write(data: NDArray[np.uint8], which: I64 = which, far: I64 = far) -> None:
                    m.memory.store(which, far.view(np.uint64), data.reshape(1, -1))

                copies.store(int(lane), block, offset, places, write)

    return step


def bulk(m: Machine, ins: Instruction) -> Step:
    """cp.async.bulk other than its waits."""
    if "commit_group" in ins.parts:
        return m.unit(CopyEngine).commit
    if "prefetch" in ins.parts:
        return lambda at: None
    return _tensor(m, ins) if "tensor" in ins.parts else _plain(m, ins)


def wait_control(m: Machine, ins: Instruction) -> Control:
    """cp.async.bulk.wait_group, which may have to wait."""
    copies, left = m.unit(CopyEngine), int(re.sub(r"\D", "", ins.operands[0]) or 0)

    def control(index: int, at: Lanes) -> None:
        m.counter[at] = index + 1
        copies.wait(at, left)

    return control
