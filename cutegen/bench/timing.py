"""The timing protocol: CUDA events around each launch, cold L2, median and spread.

Kernels first run for `warmup_ms`, so that the clocks have risen. Then each launch stands between two events. What it
reads is not in L2: either L2 is flushed before each launch, outside the events, or launches take turns among several
input sets that together exceed L2 by far. Work is queued ahead of the GPU, so that no interval contains the host's
launch time.

A flush writes more than L2 holds and leaves it full of lines that are written back while the kernel runs; turns among
input sets leave what a real caller would. Compare only figures that were taken alike, in one run.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cutegen.errors import LaunchError
from cutegen.kernel.driver import Driver, driver

Call = Callable[[], Any]
_BATCH = 50
# Host time that a launch and its events may take, to be covered by work queued before them.
_HOST_MS = 0.025


@dataclass(frozen=True)
class Timing:
    """Times of single launches in milliseconds: median, and the 20th and 80th percentile. `inputs` says what was
    read."""

    name: str
    median_ms: float
    p20_ms: float
    p80_ms: float
    min_ms: float
    launches: int
    inputs: str

    def tflops(self, flops: float) -> float:
        """Rate at the median for `flops` operations a launch."""
        return flops / self.median_ms / 1e9

    def gbps(self, size: float) -> float:
        """GB/s at the median for `size` bytes a launch."""
        return size / self.median_ms / 1e6

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.median_ms:.4f} ms (p20 {self.p20_ms:.4f}, p80 {self.p80_ms:.4f}, "
            f"{self.launches} launches, {self.inputs})"
        )


class Clock(Protocol):
    """A device's queue and its events; replaced where there is no GPU."""

    l2_bytes: int

    def flush(self) -> None:
        """Queues a write of more memory than L2 holds."""

    def mark(self) -> Any:
        """Queues an event."""

    def finish(self) -> None:
        """Waits for all that is queued."""

    def elapsed(self, start: Any, end: Any) -> float:
        """Milliseconds between two events."""

    def close(self) -> None: ...


class CudaClock:
    """Events and flushes on a stream (an address) of a GPU.

    Raises:
        ToolchainError: no driver or no GPU.
    """

    def __init__(self, ordinal: int = 0, stream: int = 0) -> None:
        self._driver: Driver = driver()
        self._device = self._driver.device(ordinal)
        self._stream = stream
        self.l2_bytes = self._device.l2_bytes
        self._entered = self._driver.enter(self._device)
        self._size = max(2 * self.l2_bytes, 64 << 20)
        self._scratch = self._driver.allocate(self._size)
        self._free: list[Any] = []
        self._used: list[Any] = []

    def flush(self) -> None:
        self._driver.check(self._driver.api.cuMemsetD8Async(self._scratch, 0, self._size, self._stream), "flushing L2")

    def mark(self) -> Any:
        api = self._driver.api
        event = self._free.pop() if self._free else self._driver.check(api.cuEventCreate(0), "cuEventCreate")
        self._driver.check(api.cuEventRecord(event, self._stream), "cuEventRecord")
        self._used.append(event)
        return event

    def finish(self) -> None:
        self._driver.synchronize(self._stream, "the kernel being timed")

    def elapsed(self, start: Any, end: Any) -> float:
        return float(self._driver.check(self._driver.api.cuEventElapsedTime(start, end), "cuEventElapsedTime"))

    def recycle(self) -> None:
        """Events whose times have been read may be used again."""
        self._free += self._used
        self._used = []

    def close(self) -> None:
        for event in (*self._free, *self._used):
            self._driver.check(self._driver.api.cuEventDestroy(event), "cuEventDestroy")
        self._free, self._used = [], []
        self._driver.free(self._scratch)
        if self._entered:
            self._driver.leave()


def current_stream(ordinal: int = 0) -> int:
    """The stream that torch or cupy would launch on now, the legacy default stream without them."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_stream(ordinal).cuda_stream)
    cupy: Any = sys.modules.get("cupy")
    return int(cupy.cuda.get_current_stream().ptr) if cupy is not None else 0


def input_sets(size: int, l2_bytes: int) -> int:
    """How many input sets of `size` bytes a launch must take turns, so that none is found in L2."""
    return max(2, math.ceil(3 * l2_bytes / max(size, 1)))


def bench(
    calls: Call | Sequence[Call],
    name: str = "kernel",
    *,
    working_set: int | None = None,
    warmup_ms: float = 50.0,
    measure_ms: float = 200.0,
    clock: Clock | None = None,
) -> Timing:
    """Times a call that queues work on the current stream.

    Args:
        calls: one call, before each of which L2 is flushed, or several that do the same on input sets of their own and
            take turns without a flush.
        working_set: bytes that all the calls together read and write; several calls must exceed L2 three times.
        warmup_ms, measure_ms: GPU time to spend, at least 5 and 20 launches.
        clock: the device's; by default GPU 0 with the current stream.

    Raises:
        LaunchError: several input sets that fit L2, a call that takes no time, or a kernel that failed.
        ToolchainError: no driver or no GPU.
    """
    return compare({name: calls}, working_sets=None if working_set is None else {name: working_set}, rounds=1,
                   warmup_ms=warmup_ms, measure_ms=measure_ms, clock=clock)[name]  # fmt: skip


def compare(
    candidates: Mapping[str, Call | Sequence[Call]],
    *,
    working_sets: Mapping[str, int] | None = None,
    rounds: int = 5,
    warmup_ms: float = 50.0,
    measure_ms: float = 200.0,
    settle_ms: float | None = None,
    clock: Clock | None = None,
) -> dict[str, Timing]:
    """Times several candidates in alternating rounds, so that clocks and temperature favour none. See `bench`.

    Args:
        settle_ms: GPU time of the launches with which each turn begins and which don't count, half as many as count if
            left out. The clocks a GPU runs at follow its power draw of the last tens of milliseconds: kernels that are
            bound by power need 100 ms to be independent of who ran before.

    Raises:
        LaunchError, ToolchainError: as `bench` does.
    """
    made = clock is None
    timer: Any = CudaClock(0, current_stream()) if clock is None else clock
    try:
        turns = {name: [calls] if callable(calls) else list(calls) for name, calls in candidates.items()}
        described = {
            name: _describe(name, len(calls), (working_sets or {}).get(name), timer.l2_bytes)
            for name, calls in turns.items()
        }
        counts = {name: _warm(calls, timer, warmup_ms, measure_ms / rounds, rounds) for name, calls in turns.items()}
        samples: dict[str, list[float]] = {name: [] for name in turns}
        share = 0.5 if settle_ms is None else settle_ms * rounds / measure_ms
        for number in range(rounds):
            # Every other round goes backwards: nobody always comes after the same.
            for name, calls in list(turns.items())[:: -1 if number % 2 else 1]:
                _measure(calls, timer, max(1, int(counts[name] * share)))
                samples[name] += _measure(calls, timer, counts[name])
        return {name: summary(name, found, described[name]) for name, found in samples.items()}
    finally:
        if made:
            timer.close()


def _describe(name: str, count: int, working_set: int | None, l2_bytes: int) -> str:
    if count == 1:
        return "one input set, L2 flushed before each launch"
    if working_set is not None and working_set < 3 * l2_bytes:
        raise LaunchError(
            f"{name}: {count} input sets of {working_set} bytes in all, less than three times L2 ({l2_bytes} bytes): "
            f"use at least {math.ceil(3 * l2_bytes * count / max(working_set, 1))} sets"
        )
    size = "" if working_set is None else f", {working_set / 1e6:.0f} MB in all"
    return f"{count} input sets in turn{size}"


def _warm(calls: Sequence[Call], clock: Clock, warmup_ms: float, measure_ms: float, rounds: int) -> int:
    """Runs the calls for a while; returns how many launches fit a round."""
    for call in calls:
        call()
    clock.finish()
    estimate = statistics.median(_measure(calls, clock, 5))
    if estimate <= 0:
        raise LaunchError("the call takes no time on the GPU: does it launch on the current stream?")
    spent = 0.0
    while spent < warmup_ms:
        spent += sum(_measure(calls, clock, min(_BATCH, max(5, int(warmup_ms / estimate)))))
    return max(math.ceil(20 / rounds), min(5000, int(measure_ms / estimate)))


def _measure(calls: Sequence[Call], clock: Clock, count: int) -> list[float]:
    found: list[float] = []
    flush = len(calls) == 1
    turn = 0
    while len(found) < count:
        marks = []
        batch = min(_BATCH, count - len(found))
        # The host falls behind a short kernel; work queued first keeps the GPU busy until the batch is queued.
        for _ in range(_head_start(batch, flush)):
            clock.flush()
        for _ in range(batch):
            if flush:
                clock.flush()
            start = clock.mark()
            calls[turn % len(calls)]()
            marks.append((start, clock.mark()))
            turn += 1
        clock.finish()
        found += [clock.elapsed(start, end) for start, end in marks]
        recycle = getattr(clock, "recycle", None)
        if recycle is not None:
            recycle()
    return found


def _head_start(batch: int, flush: bool) -> int:
    """Flushes to queue before a batch. One takes about 30 us on an H200, as long as a launch takes the host."""
    return 8 if flush else math.ceil(batch * _HOST_MS / 0.03)


def summary(name: str, samples: Sequence[float], inputs: str) -> Timing:
    """Median and spread of the times of launches."""
    ordered = sorted(samples)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Timing(name, statistics.median(ordered), at(0.2), at(0.8), ordered[0], len(ordered), inputs)
