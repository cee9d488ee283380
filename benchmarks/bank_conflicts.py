"""Shared-memory wavefronts as `ncu` counts them on a GPU beside those that the simulator counts, kernel by kernel.

python benchmarks/bank_conflicts.py            needs a GPU and ncu; writes benchmarks/results/bank_conflicts.json
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
# What cp.async writes has no counter of its own, and TMA's writes don't pass this pipe.
METRICS = {
    "loads": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "stores": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
}
OPCODES = {"loads": ("ld.shared", "ldmatrix"), "stores": ("st.shared", "stmatrix")}
# Specs with whole tiles, each as shipped and with the swizzle of one operand taken away.
CASES = [
    ("gemm/sm80_f16_tn", []),
    ("gemm/sm80_f16_tn", ["smem.a.swizzle=Sw<0,3,3>"]),
    ("gemm/sm80_bf16_nn", []),
    ("gemm/sm80_bf16_nn", ["smem.b.swizzle=Sw<0,3,3>"]),
    ("gemm/simt_f32_nt", []),
    ("attention/scores_sm80_f16_d64", []),
    ("attention/scores_sm80_f16_d64", ["smem.q.swizzle=Sw<0,3,3>"]),
    ("attention/scores_sm80_tf32_d64", []),
    ("gemm/simt_f32_tn", []),
    ("gemm/sm90_wgmma_bf16_tn", []),
    ("gemm/sm90_wgmma_e4m3_out", []),
    ("attention/scores_sm90_f16_d64", []),
]


def kernel_and_inputs(name: str, overrides: list[str]):  # type: ignore[no-untyped-def]
    """The kernel, for the GPU that is here, and whole tiles of inputs."""
    import cutegen as cg
    from cutegen import api
    from cutegen.cli.running import native, the_gpu
    from cutegen.report import inputs

    kernel = cg.build(native(cg.load(ROOT / "specs" / f"{name}.yaml", overrides), the_gpu()[1], quiet=True))
    gemm = {"m": 256, "n": 256, "k": 256, "batch": 1}
    scores = {"batch": 1, "heads": 1, "heads_kv": 1, "seqlen_q": 256, "seqlen_k": 256}
    extents = {**api.problem(kernel.spec), **(gemm if name.startswith("gemm") else scores)}
    extents = {k: v for k, v in extents.items() if k != "batch" or not name.startswith("gemm")}
    arrays = inputs.for_signature(kernel.signature, extents, 0)
    return kernel, [arrays[t.name] for t in kernel.signature.tensors if t.name in arrays]


def measured(name: str, overrides: list[str]) -> dict[str, int]:
    """ncu's counts for one launch."""
    tool = shutil.which("ncu")
    assert tool, "ncu is not on the PATH"
    options = ["--metrics", ",".join(METRICS.values()), "--csv", "--clock-control", "none"]
    command = [tool, *options, sys.executable, __file__, name, *overrides]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    table = output[output.index('"ID"') :]
    rows = list(csv.DictReader(io.StringIO(table)))
    return {
        what: sum(int(float(row["Metric Value"].replace(",", ""))) for row in rows if row["Metric Name"] == metric)
        for what, metric in METRICS.items()
    }


def main() -> int:
    """Without arguments, the table; with a spec and overrides, one launch for ncu to look at."""
    if len(sys.argv) > 1:
        kernel, given = kernel_and_inputs(sys.argv[1], sys.argv[2:])
        kernel(*given)
        return 0
    from cutegen.bench import results

    rows = []
    for name, overrides in CASES:
        kernel, given = kernel_and_inputs(name, overrides)
        _, seen = kernel.simulate(*given, profile=True)
        simulated = {what: seen.profile.of(*opcodes).wavefronts for what, opcodes in OPCODES.items()}
        row = {"spec": name, "overrides": overrides, "simulated": simulated, "ncu": measured(name, overrides)}
        rows.append(row)
        print(f"{name:<34} {' '.join(overrides):<28} simulated {simulated}   ncu {row['ncu']}", flush=True)
    results.save(ROOT / "benchmarks" / "results" / "bank_conflicts.json", metrics=METRICS, rows=rows)
    return 0 if all(row["simulated"] == row["ncu"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
