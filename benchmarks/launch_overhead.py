"""CPU time of a call and of a prepared launch for a kernel of each family, beside torch's `add_`, in one run.

    python benchmarks/launch_overhead.py [--save]

Tensors are so small that the GPU keeps up.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import cutegen as cg  # noqa: E402
from cutegen import api  # noqa: E402
from cutegen.bench import results  # noqa: E402
from cutegen.bench.overhead import host_time, launch_overhead  # noqa: E402
from cutegen.cli.running import given_scalars, native, the_gpu  # noqa: E402
from cutegen.errors import CutegenError  # noqa: E402
from cutegen.report import inputs  # noqa: E402

SPECS = (
    "gemm/sm80_f16_tn", "gemm/sm90_wgmma_bf16_tn", "attention/scores_sm80_f16_d64", "attention/scores_sm90_f16_d64",
    "attention/scores_sm90_bf16_d128", "attention/forward_sm80_f16_d64",
)  # fmt: skip
ROUNDS = 8
SMALL = {"m": 64, "n": 64, "k": 64, "batch": 1, "heads": 1, "heads_kv": 1, "seqlen_q": 64, "seqlen_k": 64}


def least(rows: dict[str, dict[str, float]], name: str, **found: float) -> None:
    """Keeps the least of each figure."""
    row = rows.setdefault(name, found)
    rows[name] = {what: min(row[what], value) for what, value in found.items()}


def main() -> int:
    try:
        capability = the_gpu()[1]
    except CutegenError as error:
        print(f"needs a GPU: {error}", file=sys.stderr)
        return error.exit_status
    import torch

    asked = {}
    for name in SPECS:
        spec = native(cg.load(ROOT / "specs" / f"{name}.yaml"), capability, quiet=True)
        kernel = cg.build(spec)
        extents = {mode: SMALL.get(mode, extent) for mode, extent in api.problem(spec).items()}
        if name.startswith("gemm"):
            extents.pop("batch", None)
        arrays = inputs.for_signature(kernel.signature, extents, 0, library="torch")
        asked[name] = partial(launch_overhead, kernel, *arrays.values(), **given_scalars(spec))
    x = torch.zeros(64, device="cuda")
    add = partial(host_time, lambda: x.add_(1), "add_", finish=torch.cuda.synchronize)
    rows: dict[str, dict[str, float]] = {}
    # Other work slows a host down for longer than one measurement takes: each kernel is measured every so often.
    for _ in range(ROUNDS):
        for name, measured in asked.items():
            call, prepared = measured()
            least(rows, name, call_us=call.min_us, prepared_us=prepared.min_us)
        least(rows, "torch add_", call_us=add().min_us)
    for name, row in rows.items():
        print(f"{name:<34} {' '.join(f'{what} {value:5.1f}' for what, value in row.items())}")
    if "--save" in sys.argv:
        print(results.save(ROOT / "benchmarks" / "results" / "launch_overhead.json", rows=rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
