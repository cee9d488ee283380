"""Runs every shipped spec once on a few tiles, partial ones among them; for compute-sanitizer.

    python benchmarks/sanitizer_target.py [I/N]        only each N-th spec, beginning with I

Holds its inputs in plain CUDA memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import cutegen as cg
from cutegen import api
from cutegen.cli.commands import shipped
from cutegen.cli.running import given_scalars, native, reads_c
from cutegen.kernel.driver import driver
from cutegen.plan.reduced import reduced
from cutegen.report import inputs


def main() -> int:
    capability = driver().device(0).capability
    count = 0
    start, step = map(int, sys.argv[1].split("/")) if len(sys.argv) > 1 else (0, 1)
    for path in [*shipped().values()][start::step]:
        spec = native(cg.load(path), capability, quiet=True)
        kernel = cg.build(spec)
        arrays = inputs.for_signature(
            kernel.signature, reduced(kernel.signature, api.problem(spec)), 1, inouts=reads_c(spec)
        )
        results = kernel(*arrays.values(), **given_scalars(spec))
        for result in results if isinstance(results, tuple) else (results,):
            if np.isnan(np.asarray(result, dtype=np.float32)).any():
                raise SystemExit(f"{path}: NaN")
        count += 1
    print(f"{count} launches right")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
