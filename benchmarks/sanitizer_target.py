"""Runs every shipped spec once at a small, odd problem; for compute-sanitizer. Holds its inputs in plain CUDA
memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import cutegen as cg
from cutegen.cli.commands import shipped
from cutegen.cli.running import given_scalars, native, reads_c
from cutegen.dtypes import DTYPES
from cutegen.kernel.driver import driver
from cutegen.report import inputs
from cutegen.spec import GemmSpec


def main() -> int:
    capability = driver().device(0).capability
    count = 0
    for path in shipped().values():
        spec = native(cg.load(path), capability, quiet=True)
        kernel = cg.build(spec)
        if isinstance(spec, GemmSpec):
            d = spec.dtypes
            # What only TMA can load needs rows of whole 16 bytes.
            aligned = spec.problem.groups or spec.scales.rows or d.promote or DTYPES[d.a].bits == 8
            problems = [{"m": 136, "n": 264, "k": 208, "batch": 2}, {"m": 9, "n": 130, "k": 48 if aligned else 33}]
            if spec.problem.groups:
                problems = [{**problem, "groups": 2} for problem in problems]
        else:
            head_dim = spec.problem.head_dim
            problems = [
                {"batch": 1, "heads": 2, "heads_kv": 1, "seqlen_q": 136, "seqlen_k": 264, "head_dim": head_dim},
                {"batch": 1, "heads": 1, "heads_kv": 1, "seqlen_q": 70, "seqlen_k": 67, "head_dim": head_dim},
            ]
        for extents in problems:
            arrays = inputs.for_signature(kernel.signature, extents, 1, inouts=reads_c(spec))
            result = kernel(*arrays.values(), **given_scalars(spec))
            if np.isnan(np.asarray(result, dtype=np.float32)).any():
                raise SystemExit(f"{path}: NaN at {extents}")
            count += 1
    print(f"{count} launches right")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
