"""Launching a kernel on the simulator."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.hardware import TENSOR_MAP_ALIGNMENT, TENSOR_MAP_BYTES
from cutegen.sim.decode import decode
from cutegen.sim.findings import Finding, by_line
from cutegen.sim.global_memory import GlobalMemory
from cutegen.sim.machine import Geometry, Machine, Options
from cutegen.sim.profile import Profile
from cutegen.sim.ptx import WIDTHS, Program, Variable, parse
from cutegen.sim.registers import NUMPY
from cutegen.sim.schedule import run
from cutegen.sim.shared import BASE

_LANES = 2048  # about so many threads run at once


@dataclass(frozen=True)
class Result:
    """What a run showed: faults, counters if they were asked for, and instructions executed."""

    findings: tuple[Finding, ...]
    profile: Profile | None
    instructions: int

    def raise_findings(self) -> None:
        """
        Raises:
            SimulationError: there are findings; `findings` of the error holds them.
        """
        if self.findings:
            faults = by_line(self.findings)
            shown = "\n".join(f"  {finding}" for finding in faults[:10])
            more = f"\n  and {len(faults) - 10} more" if len(faults) > 10 else ""
            count = f"{len(faults)} faults" if len(faults) > 1 else "a fault"
            error = SimulationError(f"the simulator found {count}:\n{shown}{more}")
            error.findings = self.findings
            raise error


def launch(
    ptx: str,
    kernel: str,
    *,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: Sequence[Any],
    shared_bytes: int = 0,
    cluster: tuple[int, int, int] = (1, 1, 1),
    tensors: Mapping[str, NDArray[Any]] | None = None,
    outputs: Collection[str] = (),
    seed: int | None = None,
    budget: int = 20_000_000,
    profile: bool = False,
    muted: frozenset[str] = frozenset(),
) -> Result:
    """Runs a kernel's PTX over numpy arrays, in place.

    Args:
        ptx: the module; `kernel` names its entry.
        grid, block, cluster: blocks, threads of a block, blocks of a cluster, along x, y, z.
        args: numpy arrays for pointers, numpy scalars of the parameter's width, `TensorMapSpec` for descriptors, lists
            of them for arrays of descriptors in global memory.
        tensors: arrays by name, for messages and for those that only a descriptor points to.
        shared_bytes: dynamic shared memory of a block.
        outputs: names of `tensors` whose every element must be written exactly once.
        seed: None runs threads in step; a number interleaves warps at random, the same for the same number.
        budget: instructions after which an endless loop is assumed.
        profile: counts bank conflicts, sectors, bytes and operations.
        muted: kinds of findings to leave out.

    Raises:
        SimulationError: an unknown instruction, a deadlock, an endless loop, arguments that don't fit. What the
            checkers find is in the result instead.
    """
    program = parse(ptx, kernel)
    memory = GlobalMemory()
    for name, array in (tensors or {}).items():
        memory.add(array, name, name in outputs)
    parameters = _parameters(program, memory, args)
    shared = _variables(program, memory, parameters, shared_bytes)
    geometry = Geometry(grid, block, cluster, shared)
    options = Options(seed, budget, profile, muted=muted)
    size = geometry.cluster_size
    total = grid[0] * grid[1] * grid[2]
    if any(g % c for g, c in zip(grid, cluster)):
        raise SimulationError(f"a grid of {grid} is not made of clusters of {cluster}")
    at_once = max(1, min(_LANES // (geometry.threads * size), -(-total // size))) * size
    machine = Machine(program, memory, geometry, at_once, parameters, options)
    machine.local = np.zeros((machine.lanes, parameters.get("local_bytes", 0)), np.uint8)
    steps, controls = decode(machine)
    clusters = np.arange(total // size)
    if machine.rng is not None:
        clusters = machine.rng.permutation(clusters)
    order = (clusters[:, None] * size + np.arange(size)).reshape(-1)
    with np.errstate(all="ignore"):
        for first in range(0, total, at_once):
            ids = order[first : first + at_once]
            machine.start(np.concatenate([ids, np.full(at_once - len(ids), -1, np.int64)]))
            run(machine, steps, controls)
    findings = list(machine.findings.values())
    for kind, message, _ in memory.coverage():
        if kind not in muted:
            findings.append(Finding(kind, message))
    instructions = budget - machine.steps_left
    machine.release()
    return Result(tuple(findings), machine.profile, instructions)


def _parameters(program: Program, memory: GlobalMemory, args: Sequence[Any]) -> dict[str, Any]:
    """Values of `ld.param` by name, and tensor maps by the address that stands for them."""
    if len(args) != len(program.parameters):
        raise SimulationError(f"{program.kernel} takes {len(program.parameters)} parameters, got {len(args)}")
    found: dict[str, Any] = {}
    for place, ((name, kind), value) in enumerate(zip(program.parameters, args)):
        if isinstance(value, np.ndarray):
            found[f"value:{name}"] = np.uint64(memory.add(value, f"argument {place}", False))
        elif isinstance(value, (list, tuple)):
            found[f"value:{name}"] = np.uint64(_descriptors(memory, found, f"argument {place}", value))
        elif kind == "bytes":
            address = (1 << 55) + 4096 * place
            found[name] = address
            found[f"map:{address}"] = value
        else:
            scalar = np.asarray(value)
            if scalar.dtype.itemsize != WIDTHS[kind]:
                raise SimulationError(f"parameter {name} is a .{kind}, got {scalar.dtype}")
            found[f"value:{name}"] = scalar
    return found


def _descriptors(memory: GlobalMemory, found: dict[str, Any], name: str, maps: Sequence[Any]) -> int:
    """Places descriptors of 128 bytes one after the other in global memory, and enters each under its address."""
    room = np.full(TENSOR_MAP_BYTES * (len(maps) + 1), 0xFF, np.uint8)
    start = -room.ctypes.data % TENSOR_MAP_ALIGNMENT
    address = memory.add(room[start : start + TENSOR_MAP_BYTES * len(maps)], name, False)
    for index, value in enumerate(maps):
        found[f"map:{address + TENSOR_MAP_BYTES * index}"] = value
    found.setdefault("descriptors", []).append((address, address + TENSOR_MAP_BYTES * len(maps)))
    return address


def _variables(program: Program, memory: GlobalMemory, parameters: dict[str, Any], dynamic: int) -> int:
    """Gives variables their addresses; static shared memory lies before the dynamic part. Bytes of shared memory."""
    top, local = 0, 0
    dynamic_at: list[str] = []
    used = {word for ins in program.instructions for operand in ins.operands for word in _words(operand)}
    for name, variable in program.variables.items():
        if name not in used:
            continue
        if variable.space == "shared" and variable.size == 0:
            dynamic_at.append(name)
        elif variable.space == "shared":
            top = -(-top // variable.align) * variable.align
            parameters[f"shared:{name}"] = parameters[name] = BASE + top
            top += variable.size
        elif variable.space == "local":
            local = -(-local // variable.align) * variable.align
            parameters[name] = local
            local += variable.size
        else:
            array = _initial(variable)
            parameters[f"array:{name}"] = array
            parameters[name] = memory.add(array, name, False)
    top = -(-top // 1024) * 1024
    for name in dynamic_at:
        parameters[f"shared:{name}"] = parameters[name] = BASE + top
    parameters["local_bytes"] = local
    return top + dynamic


def _words(operand: str) -> list[str]:
    return [w.strip() for w in operand.replace("[", " ").replace("]", " ").replace("+", " ").split()]


def _initial(variable: Variable) -> Any:
    dtype = np.dtype(NUMPY[variable.kind])
    array = np.zeros(max(1, variable.size // dtype.itemsize), dtype)
    for place, text in enumerate(variable.values):
        array[place] = np.array(int(text, 0) & ((1 << 8 * dtype.itemsize) - 1), f"u{dtype.itemsize}").view(dtype)
    return array
