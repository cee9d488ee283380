"""`cutegen tune`: measures candidates of a spec on this machine's GPU and writes the fastest."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import multiprocessing
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from cutegen import api
from cutegen.cli.running import given_scalars, kernel_l2, native, reads_c, the_gpu
from cutegen.errors import CutegenError, ToolchainError
from cutegen.plan.preflight import work_and_traffic
from cutegen.report import inputs
from cutegen.spec import KernelSpec
from cutegen.spec.dump import to_yaml
from cutegen.tune import Journal, space, tune


@contextlib.contextmanager
def executor_of(scheduler: str | None, jobs: int | None) -> Iterator[Executor]:
    """Processes of this machine, or a Dask cluster's workers.

    Raises:
        ToolchainError: dask.distributed is missing.
    """
    if scheduler is None:
        # CUDA does not survive a fork.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs or os.cpu_count() or 1, mp_context=context) as pool:
            yield pool
        return
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise ToolchainError(f"a cluster needs dask.distributed ({error}): pip install 'cutegen[dask]'") from None
    with distributed.Client(scheduler) as client, client.get_executor(pure=False) as pool:
        yield pool


def tune_spec(path: Path, spec: KernelSpec, options: Namespace) -> dict[str, Any]:
    """Searches, and writes the fastest spec.

    Raises:
        ToolchainError: no GPU, or no torch to hold the inputs.
    """
    name, capability = the_gpu()
    if name is None or importlib.util.find_spec("torch") is None:
        raise ToolchainError("tune needs a GPU and torch: `cutegen doctor` says what is missing")
    spec = native(spec, capability, options.json)
    digest = hashlib.sha256(to_yaml(spec).encode()).hexdigest()[:16]
    journal = Journal(Path(options.journal) / f"{path.stem}-{digest}.jsonl")

    def tell(text: str) -> None:
        if not options.json:
            print(f"  {text}", file=sys.stderr, flush=True)

    with executor_of(options.scheduler, options.jobs) as pool:
        found = tune(space(spec, options.limit), pool, Measurer(spec), journal, device=name, tell=tell)
    if not found:
        return {"spec": str(path), "ok": False, "journal": str(journal.path)}
    target = Path(options.output or f"{path.stem}.tuned.yaml")
    target.write_text(to_yaml(found[0].spec), "utf-8")
    flop, _ = work_and_traffic(spec)
    outcome = {
        "spec": str(path),
        "ok": True,
        "best": str(target),
        "journal": str(journal.path),
        "final": [
            {"kernel": one.kernel.signature.symbol, "median_ms": one.median_ms, "tflops": flop / one.median_ms / 1e9}
            for one in found
        ],
    }
    if not options.json:
        for one in found:
            tflops = flop / one.median_ms / 1e9
            print(f"{one.kernel.signature.symbol:<60} {one.median_ms * 1e3:9.1f} us  {tflops:7.1f} TFLOP/s")
        print(f"wrote {target}")
    return outcome


class Measurer:
    """Validates each kernel, then times them in alternating rounds of one run, on input sets that don't stay in L2."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec
        self.extents = api.problem(spec)
        self.traffic = int(work_and_traffic(spec)[1])

    def __call__(self, kernels: Sequence[api.Kernel]) -> list[float | str]:
        from cutegen.bench import timing

        found: list[float | str] = [""] * len(kernels)
        sets = timing.input_sets(self.traffic, kernel_l2())
        calls: dict[str, list[Any]] = {}
        for index, kernel in enumerate(kernels):
            try:
                report = kernel.validate(self._arrays(kernel, 0), given_scalars(self.spec))
                if not report.ok:
                    found[index] = str(report)
                    continue
                calls[str(index)] = [self._prepared(kernel, seed) for seed in range(sets)]
            except CutegenError as error:
                found[index] = str(error)
        if calls:
            sizes = dict.fromkeys(calls, self.traffic * sets)
            for name, timed in timing.compare(calls, working_sets=sizes).items():
                found[int(name)] = timed.median_ms
        return found

    def _arrays(self, kernel: api.Kernel, seed: int) -> dict[str, Any]:
        return inputs.for_signature(kernel.signature, self.extents, seed, library="torch", inouts=reads_c(self.spec))

    def _prepared(self, kernel: api.Kernel, seed: int) -> Any:
        arrays = self._arrays(kernel, seed)
        return kernel.prepare(*arrays.values(), **given_scalars(self.spec))
