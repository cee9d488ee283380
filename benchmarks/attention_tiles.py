"""Tiles of `attention_forward` against each other and against FlashAttention-2, all candidates of a problem in one run.

    python benchmarks/attention_tiles.py [--head-dim 64 128 256] [--seqlen 1024 4096 16384] [--best 3] [--save]

batch x seqlen is 16k tokens and heads x head_dim 2048, causal and not; and llm.c's own size. Every candidate is
validated before it is timed. Kernels are compiled beforehand, on all cores. The tiles stand in the order that they had
at a length of 4096 on an H200; `--best` takes the first of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import contest  # noqa: E402
from cutegen import api  # noqa: E402
from cutegen.bench import baselines  # noqa: E402
from cutegen.cli.running import native  # noqa: E402
from cutegen.errors import CutegenError  # noqa: E402
from cutegen.kernel.driver import driver  # noqa: E402
from cutegen.spec import AttentionForwardSpec  # noqa: E402

RIVAL = "flash_attention_2"
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


def registers(kernel: api.Kernel | None) -> dict[str, Any]:
    """What ptxas says of a tile."""
    found = kernel.compiled.resources if kernel else None
    return {
        "registers": found.registers if found else None,
        "spilled": found.spill_stores if found else None,
    }


def contest_of(
    problem: dict[str, int], causal: bool, capability: tuple[int, int] | None, best: int | None
) -> contest.Contest:
    """One problem: the tiles of its head dimension, and FlashAttention-2."""
    return contest.Contest(
        title=f"{problem} {'causal' if causal else 'full'}",
        entry={"problem": problem, "causal": causal},
        specs={
            "x".join(map(str, tile)): native(spec_of(problem, causal, tile), capability, quiet=True)
            for tile in TILES[problem["head_dim"]][:best]
        },
        rivals=lambda given: {RIVAL: baselines.attention_forward(given["q"], given["k"], given["v"], causal=causal)[0]},
        judge=contest.sampled(16),
        figures=registers,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = contest.parser(__doc__, "attention_tiles")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128, 256], choices=list(TILES))
    parser.add_argument("--seqlen", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--best", type=int, help="only so many tiles of each head dimension")
    options = parser.parse_args(arguments)
    try:
        capability = driver().device(0).capability
    except CutegenError as error:
        if not options.compile_only:
            print(f"needs a GPU: {error}", file=sys.stderr)
            return error.exit_status
        capability = None
    contests = [contest_of(size, causal, capability, options.best) for size, causal in problems(options)]
    runs = contest.hold(contests, "attention_tiles", options)
    if runs:
        mean = statistics.geometric_mean([contest.best(run, RIVAL) for run in runs])
        print(f"geometric mean of the best tiles: {mean:.3f} x FlashAttention-2")
    return 0


if __name__ == "__main__":
    sys.exit(main())
