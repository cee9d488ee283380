"""From instructions to Python functions: what runs straight on, and what decides where to go on."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutegen.errors import SimulationError
from cutegen.sim import barriers, bulk, fences, mbarrier, wgmma
from cutegen.sim.access import ACCESS
from cutegen.sim.arithmetic import ARITHMETIC, Decoder, predicate
from cutegen.sim.async_copy import AsyncCopies, copy_async
from cutegen.sim.atomics import atomic
from cutegen.sim.bits import BITS
from cutegen.sim.convert import convert
from cutegen.sim.machine import Control, Machine, Step
from cutegen.sim.ptx import Instruction
from cutegen.sim.registers import Lanes
from cutegen.sim.warp import WARPWIDE


def _cp(m: Machine, ins: Instruction) -> Step:
    return bulk.bulk(m, ins) if "bulk" in ins.parts else copy_async(m, ins)


DECODERS: dict[str, Decoder] = {
    **ARITHMETIC, **BITS, **ACCESS, **WARPWIDE, "cvt": convert, "atom": atomic, "red": atomic, "cp": _cp,
    "wgmma": wgmma.wgmma, "bar": barriers.warp_barrier, "mbarrier": mbarrier.mbarrier, "mapa": fences.map_address,
    "fence": fences.fence, "membar": fences.nothing, "griddepcontrol": fences.nothing, "setmaxnreg": fences.nothing,
    "nanosleep": fences.nothing,
}  # fmt: skip


def decode(m: Machine) -> tuple[list[Step | None], dict[int, Control]]:
    """Every instruction of the machine's program.

    Raises:
        SimulationError: an instruction is not known; the message has its line.
    """
    steps: list[Step | None] = []
    controls: dict[int, Control] = {}
    for index, ins in enumerate(m.program.instructions):
        m.index = index
        control = _control(m, ins)
        if control is not None:
            controls[index] = _guarded_control(m, ins, control)
            steps.append(None)
            continue
        decoder = DECODERS.get(ins.parts[0])
        if decoder is None:
            raise SimulationError(f"the simulator does not know this instruction: {m.where()}")
        try:
            step = decoder(m, ins)
        except (IndexError, KeyError, ValueError, StopIteration) as error:
            raise SimulationError(f"the simulator does not know this form: {m.where()} ({error!r})") from error
        steps.append(_guarded(m, ins, step))
    return steps, controls


def _guarded(m: Machine, ins: Instruction, step: Step) -> Step:
    """Only the lanes whose predicate holds execute."""
    if ins.guard is None:
        return step
    test = predicate(m, ("!" if ins.guard[1] else "") + ins.guard[0])

    def guarded(at: Lanes) -> None:
        chosen = np.broadcast_to(test(at), (m.count(at),))
        if chosen.all():
            step(at)
        elif chosen.any():
            step(m.lanes_of(at)[chosen])

    return guarded


def _guarded_control(m: Machine, ins: Instruction, control: Control) -> Control:
    if ins.guard is None:
        return control
    test = predicate(m, ("!" if ins.guard[1] else "") + ins.guard[0])

    def guarded(index: int, at: Lanes) -> None:
        chosen = np.broadcast_to(test(at), (m.count(at),))
        lanes: Any = m.lanes_of(at)
        if not chosen.all():
            m.counter[lanes[~chosen]] = index + 1
        if chosen.any():
            control(index, at if chosen.all() else lanes[chosen])

    return guarded


def _control(m: Machine, ins: Instruction) -> Control | None:
    parts = ins.parts
    if parts[0] == "bra":
        target = m.program.labels[ins.operands[0]]

        def branch(index: int, at: Lanes) -> None:
            m.counter[at] = target

        return branch
    if parts[0] in ("ret", "exit"):
        copies = m.unit(AsyncCopies)

        def leave(index: int, at: Lanes) -> None:
            m.exit(at)
            if copies.flying and not m.alive.any():
                copies.unfinished()

        return leave
    if parts[0] == "trap":

        def trap(index: int, at: Lanes) -> None:
            m.find("trap", "the kernel gave up by itself", at)
            m.exit(at)

        return trap
    if parts[0] in ("bar", "barrier"):
        return barriers.barrier_control(m, ins)
    if parts[0] == "mbarrier" and parts[1] in ("try_wait", "test_wait"):
        return mbarrier.wait_control(m, ins)
    if parts[0] == "wgmma" and parts[1] == "wait_group":
        return wgmma.wait_control(m, ins)
    if parts[:3] == ("cp", "async", "bulk") and "wait_group" in parts:
        return bulk.wait_control(m, ins)
    return None
