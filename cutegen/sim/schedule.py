"""Who runs next.

Lanes with the lowest program counter go first, so that paths that part at a branch meet again where they join. With a
seed, warps take turns at random and copies arrive at random times."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.layout.banks import WARP
from cutegen.sim.findings import by_line
from cutegen.sim.machine import EXIT, WARPGROUP, Control, Machine, Step
from cutegen.sim.ptx import Instruction
from cutegen.sim.registers import ALL, Lanes

_PATIENCE = 20_000  # instructions in a row after which others get a turn


def run(m: Machine, steps: list[Step | None], controls: dict[int, Control]) -> None:
    """Runs until every lane has ended.

    Raises:
        SimulationError: a deadlock, or the budget is spent.
    """
    boundary = _next(len(steps), controls)
    aligned = {i for i, ins in enumerate(m.program.instructions) if _is_aligned(ins)}
    is_aligned = _flags(len(steps), aligned)
    together = _next(len(steps), aligned)
    grouped = {i for i, ins in enumerate(m.program.instructions) if ins.parts[0] == "wgmma"}
    is_grouped = _flags(len(steps), grouped)
    regrouped = _next(len(steps), grouped)
    last, streak = -1, 0
    while True:
        runnable = ~m.asleep & (m.counter != EXIT)
        parted = _parted(m, runnable)
        if parted is not None:
            # Lanes whose siblings sleep behind them can't execute an aligned instruction yet.
            held = parted & _at(m, is_aligned)
            runnable &= ~held
        alone = _alone(m, runnable, is_grouped) if grouped else None
        if alone is not None:
            runnable &= ~alone
        if not runnable.any():
            if m.wake() or m.land():
                continue
            if (m.counter == EXIT).all():
                break
            raise _deadlock(m, alone)
        if m.rng is not None and m.transfers and m.rng.random() < 0.2:
            m.land()
            m.wake()
            continue
        begin, lanes, limit = _choose(m, runnable, streak, grouped)
        streak = streak + 1 if begin == last else 0
        last = begin
        if parted is not None and parted[lanes].any():
            limit = min(limit, together[begin])
        limit = min(limit, regrouped[begin + 1]) if grouped and regrouped[begin + 1] < len(steps) else limit
        stop = min(limit, boundary[begin])
        at: Lanes = ALL if len(lanes) == m.lanes else lanes
        for index in range(begin, stop):
            m.index = index
            steps[index](at)  # type: ignore[misc]
        _spend(m, stop - begin + 1, begin)
        if stop == limit:
            m.counter[at] = stop
            continue
        m.index = stop
        if stop >= len(steps):
            m.exit(at)
        else:
            controls[stop](stop, at)
            if m.sleeps:
                m.wake()
    while m.land():
        pass
    for ending in m.endings:
        ending()


def _parted(m: Machine, runnable: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Lanes that run while siblings of their warp sleep at an earlier instruction; None if there are none."""
    if not m.asleep.any():
        return None
    asleep = m.asleep.reshape(-1, WARP)
    mixed = asleep.any(1) & runnable.reshape(-1, WARP).any(1)
    if not mixed.any():
        return None
    behind = np.where(asleep, m.counter.reshape(-1, WARP), EXIT).min(1)
    found = runnable & np.repeat(mixed, WARP) & (m.counter >= np.repeat(behind, WARP))
    return found if found.any() else None


def _alone(m: Machine, runnable: NDArray[np.bool_], grouped: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Lanes at a wgmma that the rest of their warpgroup has not reached yet; None if there are none."""
    there = runnable & _at(m, grouped)
    if not there.any():
        return None
    whole = -(-m.padded // WARPGROUP) * WARPGROUP  # the last warpgroup of a block may be short
    counters = np.full((m.blocks, whole), EXIT)
    counters[:, : m.padded] = np.where(m.asleep, -1, m.counter).reshape(m.blocks, m.padded)
    counters = counters.reshape(-1, WARPGROUP)
    alive = counters != EXIT
    low = np.where(alive, counters, EXIT).min(1)
    high = np.where(alive, counters, -1).max(1)
    apart = np.repeat(low != high, WARPGROUP).reshape(m.blocks, whole)[:, : m.padded].reshape(-1)
    found = there & apart
    return found if found.any() else None


def _choose(
    m: Machine, runnable: NDArray[np.bool_], streak: int, grouped: set[int]
) -> tuple[int, NDArray[np.int64], int]:
    """(program counter, lanes, where to stop because others wait there) of who goes next."""
    counters = m.counter[runnable]
    lowest = int(counters.min())
    if m.rng is None and streak < _PATIENCE:
        lanes = np.flatnonzero(runnable & (m.counter == lowest))
        above = counters[counters > lowest]
        return lowest, lanes, int(above.min()) if len(above) else EXIT
    # Random warps among those at one program counter, for a random stretch.
    rng = m.rng if m.rng is not None else np.random.default_rng(0)
    low = np.where(runnable, m.counter, EXIT).reshape(-1, WARP).min(1)
    # A warp whose lanes have parted runs its lowest first, so that they meet again.
    chosen = int(rng.choice(np.unique(low[low != EXIT])))
    warps = np.flatnonzero(low == chosen)
    taken = warps[rng.random(len(warps)) < 0.5] if len(warps) > 1 else warps
    taken = taken if len(taken) else warps[:1]
    if chosen in grouped:  # a warpgroup goes together
        per, number = m.warps_per_block, warps // m.warps_per_block * m.warps_per_block + warps % m.warps_per_block // 4
        mine = taken // per * per + taken % per // 4
        taken = warps[np.isin(number, mine)]
    lanes = np.flatnonzero(runnable & (m.counter == chosen))
    lanes = lanes[np.isin(m.warp[lanes], taken)]
    own = np.where(runnable, m.counter, EXIT).reshape(-1, WARP)[taken]
    above = own[own > chosen]
    limit = int(above.min()) if len(above) else EXIT
    return chosen, lanes, min(limit, chosen + 1 + int(rng.exponential(500)))


def _spend(m: Machine, count: int, begin: int) -> None:
    m.steps_left -= count
    if m.steps_left < 0:
        m.index = begin
        raise SimulationError(
            f"{m.options.budget} instructions are spent and the kernel has not ended, an endless loop or a "
            f"problem too large for the budget (budget=); now at {m.where()}"
        )


def _deadlock(m: Machine, alone: NDArray[np.bool_] | None) -> SimulationError:
    lines = []
    if alone is not None:
        lanes = np.flatnonzero(alone)
        m.index = int(m.counter[lanes[0]])
        lanes = lanes[(m.counter[lanes] == m.index) & (m.block[lanes] == m.block[lanes[0]])]
        block = int(m.block_ids[m.block[lanes[0]]])
        threads = _ranges(m.thread[lanes])
        lines.append(f"  block {block}, threads {threads}: the rest of their warpgroup, at {m.where()}")
    for sleep in m.sleeps[:8]:
        m.index = sleep.pc
        first = int(sleep.lanes[0])
        block = int(m.block_ids[m.block[first]])
        lines.append(f"  block {block}, threads {_ranges(m.thread[sleep.lanes])}: {sleep.what}, at {m.where()}")
    more = f"\n  and {len(m.sleeps) - 8} more" if len(m.sleeps) > 8 else ""
    seen = [f"  {finding}" for finding in by_line(m.findings.values())[:3]]
    before = "\nfaults found before:\n" + "\n".join(seen) if seen else ""
    error = SimulationError("deadlock: every thread that has not ended waits\n" + "\n".join(lines) + more + before)
    error.findings = tuple(m.findings.values())
    return error


def _flags(count: int, places: Container[int]) -> NDArray[np.bool_]:
    """For each instruction, whether it is among `places`; the last stands for lanes that have ended."""
    return np.array([index in places for index in range(count)] + [False])


def _at(m: Machine, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which lanes are at a flagged instruction."""
    return np.asarray(flags[np.minimum(m.counter, len(flags) - 1)])


def _next(count: int, places: Container[int]) -> list[int]:
    """For each instruction, itself or the next one that is among `places`."""
    found = [count] * (count + 1)
    for index in range(count - 1, -1, -1):
        found[index] = index if index in places else found[index + 1]
    return found


def _is_aligned(ins: Instruction) -> bool:
    """Whether all of a warp must execute it together."""
    return (
        "aligned" in ins.parts or ins.parts[0] == "bar" or ins.parts[0] in ("shfl", "vote", "redux", "match", "elect")
    )


def _ranges(threads: NDArray[np.int64]) -> str:
    """0-31, 64-95 instead of every number."""
    threads = np.unique(threads)
    parts = np.split(threads, np.flatnonzero(np.diff(threads) != 1) + 1)
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts[:6]) + (
        " ..." if len(parts) > 6 else ""
    )
