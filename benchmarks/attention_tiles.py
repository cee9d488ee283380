"""Tiles of `attention_forward` against each other and against FlashAttention-2, all candidates of a problem in one run.

    python benchmarks/attention_tiles.py [--head-dim 64 128 256] [--seqlen 1024 4096 16384] [--best 3] [--save]

batch x seqlen is 16k tokens and heads x head_dim 2048, causal and not; and llm.c's own size. Every candidate is
validated before it is timed. Kernels are compiled beforehand, on all cores. The tiles stand in the order that they had
at a length of 4096 on an H200; `--best` takes the first of them.
"""

from __future__ import annotations

import argparse
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
from cutegen.cli.running import kernel_l2, native  # noqa: E402
from cutegen.errors import CutegenError, SpecError  # noqa: E402
from cutegen.kernel.driver import driver  # noqa: E402
from cutegen.plan.preflight import work_and_traffic  # noqa: E402
from cutegen.report import inputs  # noqa: E402
from cutegen.spec import AttentionForwardSpec  # noqa: E402

# (m, n, warps, where Q stays, stages): rows a warp, keys a block, registers and barriers are traded against each other.
Tile = tuple[int, int, int, str, int]
TILES: dict[int, list[Tile]] = {
    64: [(128, 128, 4, "shared", 1), (128, 64, 4, "registers", 1), (128, 128, 4, "shared", 2),
         (128, 64, 4, "registers", 2), (64, 64, 4, "registers", 1), (128, 96, 4, "shared", 1),
         (128, 64, 4, "shared", 1), (128, 64, 8, "registers", 1), (256, 64, 8, "registers", 1),
         (128, 128, 8, "registers", 1)],
    128: [(128, 64, 4, "shared", 1), (128, 64, 4, "shared", 2), (128, 48, 4, "shared", 1), (64, 128, 4, "registers", 1),
          (128, 32, 4, "shared", 1), (128, 32, 4, "shared", 2), (128, 128, 8, "registers", 1),
          (64, 64, 4, "registers", 1), (128, 64, 8, "registers", 1)],
    256: [(64, 64, 4, "shared", 1), (128, 64, 8, "shared", 1), (64, 32, 4, "shared", 2), (64, 32, 4, "shared", 1),
          (128, 32, 8, "shared", 1)],
}  # fmt: skip


def spec_of(problem: dict[str, int], causal: bool, tile: Tile | None) -> AttentionForwardSpec:
    parts: dict[str, Any] = {}
    if tile is not None:
        parts = {
            "tile": {"m": tile[0], "n": tile[1]},
            "warps": tile[2],
            "q_operand": tile[3],
            "pipeline": {"stages": tile[4]},
        }
    return AttentionForwardSpec(problem=problem, dtypes=dict.fromkeys("qkvo", "bf16"), causal=causal, **parts)


def problems(options: argparse.Namespace) -> list[tuple[dict[str, int], bool]]:
    found = []
    for head_dim in options.head_dim:
        for seqlen in options.seqlen:
            heads, batch = 2048 // head_dim, max(1, 16384 // seqlen)
            size = {"batch": batch, "heads": heads, "seqlen_q": seqlen, "seqlen_k": seqlen, "head_dim": head_dim}
            found += [(size, causal) for causal in (False, True)]
    if 64 in options.head_dim:
        found.append(({"batch": 8, "heads": 12, "seqlen_q": 1024, "seqlen_k": 1024, "head_dim": 64}, True))
    return found


def compile_one(spec: AttentionForwardSpec) -> str | None:
    try:
        api.compile(spec)
    except SpecError as error:
        return str(error)
    return None


def measure(
    problem: dict[str, int], causal: bool, capability: tuple[int, int], best: int | None, ms: float
) -> dict[str, Any]:
    """Times of every tile and of FlashAttention-2 on one problem."""
    tiles = TILES[problem["head_dim"]][:best]
    specs = {"x".join(map(str, t)): native(spec_of(problem, causal, t), capability, quiet=True) for t in tiles}
    first = next(iter(specs.values()))
    flop, traffic = work_and_traffic(first)
    sets = timing.input_sets(int(traffic), kernel_l2())
    kernels = {}
    for name, spec in specs.items():
        try:
            kernels[name] = api.build(spec)
        except SpecError as error:
            print(f"  {name}: {error}")
    extents = api.problem(first)
    signature = next(iter(kernels.values())).signature
    given = [inputs.for_signature(signature, extents, seed, library="torch") for seed in range(sets)]
    calls: dict[str, list[Any]] = {}
    for name, kernel in kernels.items():
        report = kernel.validate(given[0], twice=False, sampled=16)
        if not report.ok:
            print(f"  {name}: {report}")
            continue
        calls[name] = [kernel.prepare(*arrays.values()) for arrays in given]
    calls["flash_attention_2"] = [baselines.attention_forward(a["q"], a["k"], a["v"], causal=causal)[0] for a in given]
    times = timing.compare(calls, working_sets=dict.fromkeys(calls, int(traffic) * sets), measure_ms=ms)
    rival = times["flash_attention_2"].median_ms
    rows = {
        name: {
            "median_ms": t.median_ms,
            "tflops": flop / t.median_ms / 1e9,
            "ratio": rival / t.median_ms,
            "registers": kernels[name].compiled.resources.registers if name in kernels else None,
            "spilled": kernels[name].compiled.resources.spill_stores if name in kernels else None,
        }
        for name, t in times.items()
    }
    return {"problem": problem, "causal": causal, "candidates": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128, 256], choices=list(TILES))
    parser.add_argument("--seqlen", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--best", type=int, help="only so many tiles of each head dimension")
    parser.add_argument("--measure-ms", type=float, default=100.0)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/attention_tiles.json")
    options = parser.parse_args()
    try:
        capability = driver().device(0).capability
    except CutegenError as error:
        print(f"needs a GPU: {error}", file=sys.stderr)
        return error.exit_status
    small = {"seqlen_q": 64, "seqlen_k": 64}
    jobs = [
        native(spec_of({**small, "head_dim": d}, causal, tile), capability, quiet=True)
        for d in options.head_dim
        for causal in (False, True)
        for tile in TILES[d][: options.best]
    ]
    with ProcessPoolExecutor() as pool:
        for problem in pool.map(compile_one, jobs):
            if problem:
                print(problem)
    found, best = [], []
    for size, causal in problems(options):
        result = measure(size, causal, capability, options.best, options.measure_ms)
        found.append(result)
        order = sorted(result["candidates"].items(), key=lambda item: item[1]["median_ms"])
        print(f"{size} {'causal' if causal else 'full'}")
        for name, row in order:
            spilled = f", {row['spilled']} B spilled" if row["spilled"] else ""
            time, rate = f"{row['median_ms'] * 1e3:9.1f} us", f"{row['tflops']:7.1f} TFLOP/s"
            print(f"  {name:<24} {time} {rate}  {row['ratio']:.3f} x{spilled}")
        best.append(max(row["ratio"] for name, row in order if name != "flash_attention_2"))
    print(f"geometric mean of the best tiles: {math.exp(sum(map(math.log, best)) / len(best)):.3f} x FlashAttention-2")
    if options.save:
        path = ROOT / "benchmarks" / "results" / "attention_tiles.json"
        path.write_text(json.dumps({"environment": environment(), "runs": found}, indent=2) + "\n", "utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
