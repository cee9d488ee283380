"""The host's share of a launch: how long Python takes before it may go on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cutegen.kernel import Kernel
from cutegen.kernel.driver import driver


@dataclass(frozen=True)
class Overhead:
    """Microseconds of host time a call: median and least of the batches' means."""

    name: str
    median_us: float
    min_us: float
    calls: int


def host_time(
    call: Callable[[], Any], name: str, *, finish: Callable[[], Any], batch: int = 200, repeats: int = 25
) -> Overhead:
    """Times batches of calls, waiting for the GPU (`finish`) between them, outside the time.

    A batch must be small enough for the launch queue (1,024 on current drivers), or the GPU's time is measured.
    """
    for _ in range(batch):
        call()
    finish()
    means = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        for _ in range(batch):
            call()
        means.append((time.perf_counter_ns() - start) / batch / 1000)
        finish()
    return Overhead(name, statistics.median(means), min(means), batch * repeats)


def launch_overhead(kernel: Kernel, *tensors: Any, **scalars: Any) -> tuple[Overhead, Overhead]:
    """Host time of `kernel(*tensors)`, output allocated, and of a prepared launch. Use tensors so small that the GPU
    keeps up.

    Raises:
        ArgumentError, LaunchError, ToolchainError: as a call does.
    """
    api = driver()

    def finish() -> None:
        api.check(api.api.cuCtxSynchronize(), f"running {kernel.signature.symbol}")

    prepared = kernel.prepare(*tensors, **scalars)
    return (
        host_time(lambda: kernel(*tensors, **scalars), "call", finish=finish),
        host_time(prepared, "prepared launch", finish=finish),
    )
