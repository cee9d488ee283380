"""The search: compile what is not in the journal, measure it, and measure the best again in one run.

Times of different runs can't be compared to a few per cent (docs/performance.md), so the first round only sorts: the
winner is the fastest of a final in which the best take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from cutegen import api
from cutegen.binary import Binary
from cutegen.plan import plan
from cutegen.source import render
from cutegen.spec import KernelSpec
from cutegen.spec.dump import to_yaml
from cutegen.tune.farm import compile_all
from cutegen.tune.journal import Entry, Journal

# Times kernels in one run: milliseconds, or what is wrong with one (a wrong result, a launch that failed).
Measure = Callable[[Sequence[api.Kernel]], Sequence[float | str]]
_TURN = 6


@dataclass(frozen=True)
class Measured:
    """A candidate of the final, with its time there."""

    spec: KernelSpec
    kernel: api.Kernel
    median_ms: float


def tune(
    candidates: Sequence[KernelSpec],
    executor: Executor,
    measure: Measure,
    journal: Journal,
    *,
    device: str,
    finalists: int = 4,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Measured]:
    """The final's candidates, fastest first; empty if none could be measured.

    Args:
        candidates: specs that compute the same.
        executor: compiles them.
        measure: times kernels; called with a few at once.
        journal: what is known already; gets what is found.
        device: the device's name, under which the journal keeps times.
        finalists: how many are measured again together.
        tell: is told of progress.
    """
    texts = [to_yaml(spec) for spec in candidates]
    known = journal.entries(device)
    kernels: dict[int, api.Kernel] = {}
    waiting: list[int] = []

    def note(index: int, time: float | str) -> None:
        symbol = plan(candidates[index]).symbol
        fault = time if isinstance(time, str) else None
        entry = Entry(device, texts[index], symbol, None if isinstance(time, str) else time, fault)
        journal.add(entry)
        known[texts[index]] = entry
        tell(f"{symbol}: {fault}" if fault else f"{symbol}: {entry.median_ms:.4f} ms")

    def measure_waiting() -> None:
        for index, time in zip(waiting, measure([kernels[index] for index in waiting])):
            note(index, time)
        waiting.clear()

    new = [index for index, text in enumerate(texts) if text not in known]
    tell(f"{len(candidates)} candidates, {len(candidates) - len(new)} of them measured before")
    for place, made in compile_all([candidates[index] for index in new], executor):
        index = new[place]
        if isinstance(made, str):
            note(index, made)
        elif made.findings:
            note(index, made.findings[0].message)
        else:
            kernels[index] = _kernel(candidates[index], made)
            waiting.append(index)
            if len(waiting) == _TURN:
                measure_waiting()
    if waiting:
        measure_waiting()

    timed = [(time, i) for i, text in enumerate(texts) if (time := known[text].median_ms) is not None]
    best = [index for _, index in sorted(timed)[:finalists]]
    for index in best:
        if index not in kernels:
            kernels[index] = api.build(candidates[index])
    final = measure([kernels[index] for index in best]) if best else []
    found = [
        Measured(candidates[index], kernels[index], time)
        for index, time in zip(best, final)
        if not isinstance(time, str)
    ]
    return sorted(found, key=lambda one: one.median_ms)


def _kernel(spec: KernelSpec, made: Binary) -> api.Kernel:
    plan_of = plan(spec)
    return api.Kernel(plan_of, render(plan_of), made)
