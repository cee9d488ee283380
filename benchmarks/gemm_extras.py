"""GEMMs beyond one product of bf16: fp8, tf32, a fused epilogue, groups, pointers; candidates and rivals in one run.

    python benchmarks/gemm_extras.py [--candidates 6] [--save]

Rivals: `torch._scaled_mm`; cuBLAS with tf32; `gelu(linear(a, b, bias))` and this kernel's own plain product; torch's
grouped product and a loop of cuBLAS calls; such a loop, and cuBLAS's strided batch. Candidates are validated (sampled
rows) before they are timed.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gemm_matrix import candidates, compile_one, title  # noqa: E402

from cutegen import api  # noqa: E402
from cutegen.bench import baselines, timing  # noqa: E402
from cutegen.bench.results import environment  # noqa: E402
from cutegen.cli.running import kernel_l2  # noqa: E402
from cutegen.dtypes import DTYPES  # noqa: E402
from cutegen.errors import CutegenError  # noqa: E402
from cutegen.plan.preflight import work_and_traffic  # noqa: E402
from cutegen.report import inputs  # noqa: E402
from cutegen.spec import GemmSpec  # noqa: E402

Arrays = dict[str, Any]
Rivals = Callable[[Arrays], dict[str, Callable[[], Any]]]


def library(spec: GemmSpec) -> Rivals:
    kind, tf32 = DTYPES[spec.dtypes.c], spec.dtypes.multiply == "tf32"

    def calls(given: Arrays) -> dict[str, Callable[[], Any]]:
        return {"library": baselines.gemm(given["a"], given["b"], kind, tf32=tf32)[0]}

    return calls


def fused(given: Arrays) -> dict[str, Callable[[], Any]]:
    return {"library": baselines.linear(given["a"], given["b"], given["bias"], "gelu")[0]}


def groups(given: Arrays) -> dict[str, Callable[[], Any]]:
    loop = baselines.loop(given["a"], given["b"], given["ends"])[0]
    return {"torch grouped": baselines.grouped(given["a"], given["b"], given["ends"])[0], "cublas loop": loop}


def pointers(given: Arrays) -> dict[str, Callable[[], Any]]:
    """A loop of cuBLAS calls, and cuBLAS on the same matrices stacked: what arrays of pointers cost."""
    stacked = {name: given[name][0].new_empty((len(given[name]), *given[name][0].shape)) for name in ("a", "b")}
    for name, whole in stacked.items():
        for index, matrix in enumerate(given[name]):
            whole[index].copy_(matrix)
    strided = baselines.gemm(stacked["a"], stacked["b"], DTYPES["bf16"])[0]
    loop = baselines.one_by_one(given["a"], given["b"], DTYPES["bf16"])[0]
    return {"cublas loop": loop, "cublas strided": strided}


def spec_of(size: tuple[int, int, int], dtype: str, **parts: Any) -> GemmSpec:
    types = {"a": dtype, "b": dtype, "c": "bf16" if dtype == "e4m3" else dtype} | parts.pop("dtypes", {})
    problem = dict(zip("mnk", size)) | parts.pop("problem", {})
    return GemmSpec(arch="sm_90a", problem=problem, dtypes=types, **parts)


def cases() -> dict[str, tuple[GemmSpec, Rivals]]:
    fp8, tf32 = spec_of((8192,) * 3, "e4m3"), spec_of((4096,) * 3, "f32", dtypes={"multiply": "tf32"})
    plain = spec_of((4096,) * 3, "bf16")
    gelu = spec_of((4096,) * 3, "bf16", epilogue={"out": "gelu(alpha * acc + bias[n])"})
    experts = spec_of((32768, 7168, 4096), "bf16", problem={"groups": 8})
    return {
        "tf32 4096": (tf32, library(tf32)),
        "bf16 4096 bias gelu": (gelu, fused),
        "bf16 4096": (plain, library(plain)),
        "bf16 grouped": (experts, groups),
        "bf16 pointers": (spec_of((512,) * 3, "bf16", problem={"batch": 64, "pointers": True}), pointers),
        "fp8 8192": (fp8, library(fp8)),
    }


def measure(name: str, specs: dict[str, GemmSpec], rivals: Rivals, ms: float) -> dict[str, Any]:
    kernels: dict[str, api.Kernel] = {}
    for choice, spec in specs.items():
        try:
            kernels[choice] = api.build(spec)
        except CutegenError as error:
            print(f"  {choice}: {str(error).splitlines()[0]}")
    first, spec = kernels["first"], specs["first"]
    flop, traffic = work_and_traffic(spec)
    sets = timing.input_sets(int(traffic), kernel_l2())
    given = [inputs.for_signature(first.signature, api.problem(spec), s, library="torch") for s in range(sets)]
    calls: dict[str, list[Any]] = {}
    for choice, kernel in kernels.items():
        report = kernel.validate(given[0], twice=False, sampled=8)
        if report.ok:
            calls[title(choice, kernel)] = [kernel.prepare(*arrays.values()) for arrays in given]
        else:
            print(f"  {choice}: {report}")
    mine = list(calls)
    for arrays in given:
        for rival, call in rivals(arrays).items():
            calls.setdefault(rival, []).append(call)
    times = timing.compare(calls, working_sets=dict.fromkeys(calls, int(traffic) * sets), measure_ms=ms)
    best = min(t.median_ms for n, t in times.items() if n not in mine)
    rows = {
        n: {"median_ms": t.median_ms, "tflops": flop / t.median_ms / 1e9, "ratio": best / t.median_ms}
        for n, t in times.items()
    }
    return {"case": name, "candidates": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=6)
    parser.add_argument("--measure-ms", type=float, default=100.0)
    parser.add_argument("--compile-only", action="store_true", help="fill the cache and stop")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/gemm_extras.json")
    options = parser.parse_args()
    every = {name: (candidates(spec, options.candidates), rivals) for name, (spec, rivals) in cases().items()}
    with ProcessPoolExecutor() as pool:
        for problem in pool.map(compile_one, [spec for specs, _ in every.values() for spec in specs.values()]):
            if problem:
                print(problem)
    if options.compile_only:
        return 0
    found = []
    for name, (specs, rivals) in every.items():
        gc.collect()
        found.append(measure(name, specs, rivals, options.measure_ms))
        if options.save:
            save(found)
        print(name)
        for choice, row in sorted(found[-1]["candidates"].items(), key=lambda item: item[1]["median_ms"]):
            print(f"  {choice:<44} {row['median_ms'] * 1e3:9.1f} us {row['tflops']:7.1f} TFLOP/s  {row['ratio']:.3f} x")
    return 0


def save(runs: list[dict[str, Any]]) -> None:
    """After each case, so that a run that is ended keeps what it has."""
    path = ROOT / "benchmarks" / "results" / "gemm_extras.json"
    path.write_text(json.dumps({"environment": environment(), "runs": runs}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
