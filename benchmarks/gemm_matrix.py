"""GEMM on TMA and WGMMA against cuBLAS over a matrix of problems, all candidates of a problem in one run.

    python benchmarks/gemm_matrix.py [--dtype bf16 f16] [--majors TN NN NT] [--candidates 8]
                                     [--only 8192x8192x8192] [--choice "128x256 cooperative 2x1"] [--save]

The first candidate is what the plan takes by itself; the others are the next of its model, which is fitted to such
runs, or those named by `--choice`, and where threads load an operand the kernel on `mma.sync`. Every candidate's result
is compared with a float64 product of torch before it is timed, at the problem's own size.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import contest  # noqa: E402
from cutegen import api  # noqa: E402
from cutegen.bench import baselines  # noqa: E402
from cutegen.dtypes import DTYPES  # noqa: E402
from cutegen.errors import SpecError  # noqa: E402
from cutegen.plan import plan  # noqa: E402
from cutegen.plan.hopper_gemm import HopperGemmPlan  # noqa: E402
from cutegen.plan.hopper_gemm_checks import ranked  # noqa: E402
from cutegen.plan.hopper_tiles import Choice, cycles  # noqa: E402
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
    """The plan's own choice, under `first`, what its model ranks first where clocks don't fall with power, the plan's
    own in other orders of tiles, and what it ranks next: each tile and schedule with its best cluster and with none; or
    those `named`.
    """
    made = plan(spec)
    found = {"first": spec}
    if not isinstance(made, HopperGemmPlan):
        return found
    seen: set[tuple[Any, ...]] = set()
    if not named:
        brief = ranked(spec, cycles)[0][1]
        seen = {key(made.choice), key(brief)}
        if brief != made.choice and len(found) < limit:
            found[str(brief)] = pinned(spec, brief)
        for rows in (2, 8) if limit > 2 and waves(made) > 2 else ():
            if rows != made.group_m and len(found) < limit:
                found[f"{made.choice} group_m {rows}"] = pinned(spec, made.choice, rows)
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


def judge(given: contest.Arrays) -> Callable[[api.Kernel], str | None]:
    """Against the whole float64 product, and against itself."""
    import torch

    exact = given["a"].double() @ given["b"].double().mT

    def fault(kernel: api.Kernel) -> str | None:
        found = kernel(*given.values())
        error = float((found.double() - exact).norm() / exact.norm())
        if not error < _TOLERANCE:
            return f"WRONG, relative error {error:.2e}"
        return None if torch.equal(found, kernel(*given.values())) else "differs from run to run"

    return fault


def contest_of(
    size: tuple[int, int, int], dtype: str, majors: str, limit: int, named: list[str] | None = None
) -> contest.Contest:
    """One problem: candidates as above, and cuBLAS."""
    return contest.Contest(
        title=f"{'x'.join(map(str, size))} {dtype} {majors}",
        entry={"problem": dict(zip("mnk", size)), "dtype": dtype, "majors": majors},
        specs=candidates(spec_of(size, dtype, majors), limit, named),
        rivals=lambda given: {"cublas": baselines.gemm(given["a"], given["b"], DTYPES[dtype])[0]},
        judge=judge,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = contest.parser(__doc__, "gemm_matrix")
    parser.add_argument("--dtype", nargs="+", default=["bf16", "f16"], choices=["bf16", "f16"])
    parser.add_argument("--majors", nargs="+", default=["TN", "NN", "NT"], choices=["TN", "NN", "NT", "TT"])
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--choice", nargs="+", help="tile, schedule, cluster, split as a run prints them")
    parser.add_argument("--only", nargs="+", default=["x".join(map(str, p)) for p in PROBLEMS])
    options = parser.parse_args(arguments)
    sizes = [tuple(map(int, text.split("x"))) for text in options.only]
    contests = [
        contest_of(size, dtype, majors, options.candidates, options.choice)
        for dtype in options.dtype
        for majors in options.majors
        for size in sizes
    ]
    runs = contest.hold(contests, "gemm_matrix", options)
    for what, named in (("best", ""), ("first", "first")) if runs else ():
        ratios = [contest.best(run, "cublas", named) for run in runs]
        mean = statistics.geometric_mean(ratios)
        print(f"{what} choice: geometric mean {mean:.3f} x cuBLAS, least {min(ratios):.3f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
