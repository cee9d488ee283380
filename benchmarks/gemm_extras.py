"""GEMMs beyond one product of bf16: fp8, tf32, a fused epilogue, groups, pointers; candidates and rivals in one run.

    python benchmarks/gemm_extras.py [--candidates 6] [--save]

Rivals: `torch._scaled_mm`; cuBLAS with tf32; `gelu(linear(a, b, bias))` and this kernel's own plain product; torch's
grouped product and a loop of cuBLAS calls; such a loop, and cuBLAS's strided batch. Candidates are validated (sampled
rows) before they are timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import contest  # noqa: E402
from benchmarks.contest import Arrays, Rivals  # noqa: E402
from benchmarks.gemm_matrix import candidates  # noqa: E402
from cutegen import api  # noqa: E402
from cutegen.bench import baselines  # noqa: E402
from cutegen.dtypes import DTYPES  # noqa: E402
from cutegen.spec import GemmSpec  # noqa: E402


def library(spec: GemmSpec) -> Rivals:
    kind, tf32 = DTYPES[spec.dtypes.c], spec.dtypes.multiply == "tf32"

    def calls(given: Arrays) -> dict[str, Callable[[], Any]]:
        return {"library": baselines.gemm(given["a"], given["b"], kind, tf32=tf32)[0]}

    return calls


def fused(given: Arrays) -> dict[str, Callable[[], Any]]:
    return {"library": baselines.linear(given["a"], given["b"], given["bias"], "gelu")[0]}


def unfused(given: Arrays) -> dict[str, Callable[[], Any]]:
    """The product alone, by the kernel that the plan takes for it."""
    kernel = api.build(spec_of((4096,) * 3, "bf16"))
    return {f"product alone: {kernel.signature.symbol}": kernel.prepare(given["a"], given["b"])}


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
        "bf16 4096 bias gelu beside the product alone": (gelu, unfused),
        "bf16 4096": (plain, library(plain)),
        "bf16 grouped": (experts, groups),
        "bf16 pointers": (spec_of((512,) * 3, "bf16", problem={"batch": 64, "pointers": True}), pointers),
        "fp8 8192": (fp8, library(fp8)),
    }


# Candidates beyond what the model ranks first.
NAMED = ["256x128 cooperative 2x1", "128x256 cooperative 2x1", "128x256 cooperative"]


def specs_of(name: str, spec: GemmSpec, limit: int) -> dict[str, GemmSpec]:
    return {**candidates(spec, limit), **(candidates(spec, 3, NAMED) if "gelu" in name else {})}


def main(arguments: list[str] | None = None) -> int:
    parser = contest.parser(__doc__, "gemm_extras")
    parser.add_argument("--candidates", type=int, default=6)
    options = parser.parse_args(arguments)
    contests = [
        contest.Contest(name, {"case": name}, specs_of(name, spec, options.candidates), rivals, contest.sampled(8))
        for name, (spec, rivals) in cases().items()
    ]
    contest.hold(contests, "gemm_extras", options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
