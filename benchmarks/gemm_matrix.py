"""GEMM on TMA and WGMMA against cuBLAS over a matrix of problems, all candidates of a problem in one run.

    python benchmarks/gemm_matrix.py [--dtype bf16 f16] [--majors TN NN NT] [--candidates 8]
                                     [--only 8192x8192x8192] [--choice "128x256 cooperative 2x1"] [--save]

The first candidate is what the plan takes by itself; the others are the next of its model, which is fitted to such
runs, or those named by `--choice`, and where threads load an operand the kernel on `mma.sync`. Every candidate's result
is compared with a float64 product of torch before it is timed, at the problem's own size.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cutegen import api  # noqa: E402
from cutegen.bench import baselines, timing  # noqa: E402
from cutegen.bench.results import environment  # noqa: E402
from cutegen.cli.running import kernel_l2  # noqa: E402
from cutegen.dtypes import DTYPES  # noqa: E402
from cutegen.errors import CutegenError, SpecError  # noqa: E402
from cutegen.plan import plan  # noqa: E402
from cutegen.plan.hopper_gemm import HopperGemmPlan  # noqa: E402
from cutegen.plan.hopper_gemm_checks import ranked  # noqa: E402
from cutegen.plan.hopper_tiles import Choice  # noqa: E402
from cutegen.plan.preflight import work_and_traffic  # noqa: E402
from cutegen.report import inputs  # noqa: E402
from cutegen.spec import GemmSpec  # noqa: E402
from cutegen.tune import pinned  # noqa: E402

PROBLEMS = (
    (8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (1024, 1024, 1024), (16, 8192, 8192),
    (128, 8192, 8192), (8192, 8192, 512), (4096, 11008, 4096), (5120, 5120, 5120), (8191, 8191, 8192),
    (4095, 4097, 4096), (1000, 1000, 1000),
)  # fmt: skip
# Relative error in the Frobenius norm that rounding to C's type explains (2^-9 for bf16, uniform), doubled.
_TOLERANCE = 4e-3


def spec_of(size: tuple[int, int, int], dtype: str, majors: str) -> GemmSpec:
    m, n, k = size
    return GemmSpec(
        arch="sm_90a", problem={"m": m, "n": n, "k": k}, dtypes={"a": dtype, "b": dtype, "c": dtype}, majors=majors
    )


def candidates(spec: GemmSpec, limit: int, named: list[str] | None = None) -> dict[str, GemmSpec]:
    """The plan's own choice, under `first`, the same in other orders of tiles, and what its model ranks next: each tile
    and schedule with its best cluster and with none; or those `named`.
    """
    made = plan(spec)
    found = {"first": spec}
    if not isinstance(made, HopperGemmPlan):
        return found
    for rows in (2, 8) if limit > 2 and not named and waves(made) > 2 else ():
        if rows != made.group_m:
            found[f"{made.choice} group_m {rows}"] = pinned(spec, made.choice, rows)
    seen = set() if named else {key(made.choice)}
    for _, choice in ranked(spec):
        if len(found) >= limit:
            break
        if choice == made.choice or (str(choice) not in named if named else key(choice) in seen):
            continue
        seen.add(key(choice))
        candidate = pinned(spec, choice)
        try:
            plan(candidate)
        except SpecError:
            continue
        found[str(choice)] = candidate
    if made.word_rings:  # what any arch can do
        atom = f"SM80_16x8x16_F32{spec.dtypes.a.upper() * 2}F32_TN"
        found["mma.sync"] = spec.model_copy(update={"mma": spec.mma.model_copy(update={"atom": atom})})
    return found


def key(choice: Choice) -> tuple[Any, ...]:
    return choice.m, choice.n, choice.kind, choice.split, choice.cluster == (1, 1)


def waves(made: HopperGemmPlan) -> float:
    """Tiles for each block that runs at once."""
    pieces = made.signature.geometry.work(api.problem(made.spec))
    return pieces * made.choice.blocks / made.arch.sms


def compile_one(spec: GemmSpec) -> str | None:
    try:
        made = api.compile(spec)
    except CutegenError as error:
        return str(error)
    return made.findings[0].message if made.findings else None


def title(name: str, kernel: api.Kernel) -> str:
    choice = getattr(kernel.plan, "choice", None)
    return f"{name}: {choice if choice else kernel.signature.symbol}" if name == "first" else name


def measure(
    size: tuple[int, int, int], dtype: str, majors: str, specs: dict[str, GemmSpec], ms: float
) -> dict[str, Any]:
    """Times of every candidate and of cuBLAS on one problem."""
    import torch

    kernels = {}
    for name, spec in specs.items():
        try:
            kernels[name] = api.build(spec)
        except CutegenError as error:
            print(f"  {name}: {str(error).splitlines()[0]}")
    first = kernels["first"]
    flop, traffic = work_and_traffic(specs["first"])
    extents = api.problem(specs["first"])
    sets = timing.input_sets(int(traffic), kernel_l2())
    given = [inputs.for_signature(first.signature, extents, seed, library="torch") for seed in range(sets)]
    exact = given[0]["a"].double() @ given[0]["b"].double().mT
    calls: dict[str, list[Any]] = {}
    for name, kernel in kernels.items():
        shown = title(name, kernel)
        found = kernel(*given[0].values())
        error = float((found.double() - exact).norm() / exact.norm())
        if not error < _TOLERANCE:
            print(f"  {shown}: WRONG, relative error {error:.2e}")
            continue
        if not torch.equal(found, kernel(*given[0].values())):
            print(f"  {shown}: differs from run to run")
            continue
        calls[shown] = [kernel.prepare(*arrays.values()) for arrays in given]
    del exact
    calls["cublas"] = [baselines.gemm(a["a"], a["b"], DTYPES[dtype])[0] for a in given]
    times = timing.compare(calls, working_sets=dict.fromkeys(calls, int(traffic) * sets), measure_ms=ms)
    rival = times["cublas"].median_ms
    rows = {
        name: {"median_ms": t.median_ms, "tflops": flop / t.median_ms / 1e9, "ratio": rival / t.median_ms}
        for name, t in times.items()
    }
    return {"problem": dict(zip("mnk", size)), "dtype": dtype, "majors": majors, "candidates": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", default=["bf16", "f16"], choices=["bf16", "f16"])
    parser.add_argument("--majors", nargs="+", default=["TN", "NN", "NT"], choices=["TN", "NN", "NT", "TT"])
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--choice", nargs="+", help="tile, schedule, cluster, split as a run prints them")
    parser.add_argument("--only", nargs="+", default=["x".join(map(str, p)) for p in PROBLEMS])
    parser.add_argument("--measure-ms", type=float, default=100.0)
    parser.add_argument("--compile-only", action="store_true", help="fill the cache and stop")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/gemm_matrix.json")
    options = parser.parse_args()
    sizes = [tuple(map(int, text.split("x"))) for text in options.only]
    jobs = [
        (size, dtype, majors, candidates(spec_of(size, dtype, majors), options.candidates, options.choice))
        for dtype in options.dtype
        for majors in options.majors
        for size in sizes
    ]
    with ProcessPoolExecutor() as pool:
        every = {spec.model_dump_json(): spec for job in jobs for spec in job[3].values()}
        for problem in pool.map(compile_one, every.values()):
            if problem:
                print(problem)
    if options.compile_only:
        return 0
    found, best, first = [], [], []
    for size, dtype, majors, specs in jobs:
        gc.collect()
        result = measure(size, dtype, majors, specs, options.measure_ms)
        found.append(result)
        if options.save:
            save(found)
        order = sorted(result["candidates"].items(), key=lambda item: item[1]["median_ms"])
        print(f"{'x'.join(map(str, size))} {dtype} {majors}")
        for name, row in order:
            print(f"  {name:<44} {row['median_ms'] * 1e3:9.1f} us {row['tflops']:7.1f} TFLOP/s  {row['ratio']:.3f} x")
        mine = {name: row["ratio"] for name, row in order if name != "cublas"}
        best.append(max(mine.values(), default=0.01))
        first.append(next((ratio for name, ratio in mine.items() if name.startswith("first")), 0.01))
    for what, ratios in (("best", best), ("first", first)):
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{what} choice: geometric mean {mean:.3f} x cuBLAS, least {min(ratios):.3f} x")
    return 0


def save(runs: list[dict[str, Any]]) -> None:
    """After each problem, so that a run that is ended keeps what it has."""
    path = ROOT / "benchmarks" / "results" / "gemm_matrix.json"
    path.write_text(json.dumps({"environment": environment(), "runs": runs}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
