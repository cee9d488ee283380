"""Candidates and rivals of one problem, all in one run: what the benchmarks of GEMM and attention have in common.

All candidates are compiled beforehand, on all cores. Each is validated before it is timed, in alternating rounds with
the rivals, which are what a user would call instead. The result file is written after each problem, so that a run that
is ended keeps what it has.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutegen import api
from cutegen.bench import results, timing
from cutegen.binary.nvrtc import significant
from cutegen.cli.running import kernel_l2
from cutegen.errors import CutegenError, SpecError
from cutegen.plan.preflight import work_and_traffic
from cutegen.report import inputs
from cutegen.spec import KernelSpec

RESULTS = Path(__file__).parent / "results"

Arrays = dict[str, Any]
# The calls of one set of inputs, by name.
Rivals = Callable[[Arrays], dict[str, Callable[[], Any]]]
# Given inputs, what looks at a kernel with them and says what is wrong with it, if anything.
Judge = Callable[[Arrays], Callable[[api.Kernel], "str | None"]]


def no_figures(kernel: api.Kernel | None) -> dict[str, Any]:
    """Of a kernel about which the times say everything."""
    return {}


@dataclass(frozen=True)
class Contest:
    """One problem. `entry` is what the result file says of it beside the times; `figures` are further ones of a
    candidate, and those that a rival's row shows, for None.
    """

    title: str
    entry: dict[str, Any]
    specs: Mapping[str, KernelSpec]
    rivals: Rivals
    judge: Judge
    figures: Callable[[api.Kernel | None], dict[str, Any]] = no_figures


def sampled(rows: int) -> Judge:
    """Compares so many rows with the float64 reference."""

    def judge(given: Arrays) -> Callable[[api.Kernel], str | None]:
        def fault(kernel: api.Kernel) -> str | None:
            report = kernel.validate(given, twice=False, sampled=rows)
            return None if report.ok else str(report)

        return fault

    return judge


def parser(description: str | None, name: str) -> argparse.ArgumentParser:
    """The options that all have; `name` is the result file's."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--measure-ms", type=float, default=100.0)
    made.add_argument(
        "--settle-ms",
        type=float,
        help="GPU time of each turn before it counts (100 where power is the bound); saved as NAME_settled.json",
    )
    made.add_argument("--compile-only", action="store_true", help="fill the cache and stop")
    made.add_argument("--save", action="store_true", help=f"write benchmarks/results/{name}.json")
    return made


def hold(contests: Sequence[Contest], name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Compiles, then times problem by problem; `options` are those of `parser`. Returns the runs as the result file
    `name` has them, none if nothing was to be timed.
    """
    compile_all(spec for contest in contests for spec in contest.specs.values())
    found: list[dict[str, Any]] = []
    for contest in () if options.compile_only else contests:
        gc.collect()
        print(contest.title, flush=True)
        found.append(measure(contest, options.measure_ms, options.settle_ms))
        if options.save:
            settled = "" if options.settle_ms is None else "_settled"
            results.save(RESULTS / f"{name}{settled}.json", runs=found)
        show(found[-1]["candidates"])
    return found


def compile_all(specs: Iterable[KernelSpec]) -> None:
    """Compiles each kernel once, whatever problems it is for; prints what can't be compiled or is less than it should
    be.
    """
    kernels: dict[tuple[str, str], KernelSpec] = {}
    for spec in specs:
        try:
            kernels.setdefault((spec.arch, significant(api.emit(spec))), spec)
        except SpecError as error:
            print(error)
    with ProcessPoolExecutor() as pool:
        for finding in pool.map(compile_one, kernels.values()):
            if finding:
                print(finding)


def compile_one(spec: KernelSpec) -> str | None:
    """What a worker runs."""
    try:
        made = api.compile(spec)
    except CutegenError as error:
        return str(error)
    return made.findings[0].message if made.findings else None


def measure(contest: Contest, ms: float, settle_ms: float | None) -> dict[str, Any]:
    """Times of every right candidate and of every rival, as an entry of the result file. `ratio` is how many times as
    fast as the fastest rival.
    """
    kernels = built(contest.specs)
    if not kernels:
        return {**contest.entry, "candidates": {}}
    first = next(iter(kernels.values()))
    flop, traffic = work_and_traffic(first.spec)
    sets = timing.input_sets(int(traffic), kernel_l2())
    extents = api.problem(first.spec)
    given = [inputs.for_signature(first.signature, extents, seed, library="torch") for seed in range(sets)]
    kernels = right(kernels, contest.judge(given[0]))
    calls = {name: [kernel.prepare(*arrays.values()) for arrays in given] for name, kernel in kernels.items()}
    for arrays in given:
        for rival, call in contest.rivals(arrays).items():
            calls.setdefault(rival, []).append(call)
    sizes = dict.fromkeys(calls, int(traffic) * sets)
    times = timing.compare(calls, working_sets=sizes, measure_ms=ms, settle_ms=settle_ms)
    best = min(time.median_ms for name, time in times.items() if name not in kernels)
    rows = {
        name: {
            "median_ms": time.median_ms,
            "tflops": flop / time.median_ms / 1e9,
            "ratio": best / time.median_ms,
            **contest.figures(kernels.get(name)),
        }
        for name, time in times.items()
    }
    return {**contest.entry, "candidates": rows}


def built(specs: Mapping[str, KernelSpec]) -> dict[str, api.Kernel]:
    """The kernels under the names that are shown; prints what can't be built."""
    kernels = {}
    for name, spec in specs.items():
        try:
            kernel = api.build(spec)
        except CutegenError as error:
            print(f"  {name}: {str(error).splitlines()[0]}")
            continue
        kernels[title(name, kernel)] = kernel
    return kernels


def title(name: str, kernel: api.Kernel) -> str:
    """A candidate's name; for the plan's own choice, under `first`, with what it chose."""
    choice = getattr(kernel.plan, "choice", None)
    return f"{name}: {choice if choice else kernel.signature.symbol}" if name == "first" else name


def right(kernels: dict[str, api.Kernel], fault_of: Callable[[api.Kernel], str | None]) -> dict[str, api.Kernel]:
    """The kernels without a fault; prints those of the others."""
    found = {}
    for name, kernel in kernels.items():
        fault = fault_of(kernel)
        if fault is None:
            found[name] = kernel
        else:
            print(f"  {name}: {fault}")
    return found


def show(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """A line for each candidate and rival, the fastest first."""
    for name, row in sorted(rows.items(), key=lambda item: item[1]["median_ms"]):
        spilled = f", {row['spilled']} B spilled" if row.get("spilled") else ""
        time, rate = f"{row['median_ms'] * 1e3:9.1f} us", f"{row['tflops']:7.1f} TFLOP/s"
        print(f"  {name:<44} {time} {rate}  {row['ratio']:.3f} x{spilled}", flush=True)


def best(run: Mapping[str, Any], rival: str, named: str = "") -> float:
    """The best ratio of a run's candidates whose names begin so; 0.01 where none was right."""
    rows = run["candidates"].items()
    return max((row["ratio"] for name, row in rows if name != rival and name.startswith(named)), default=0.01)
