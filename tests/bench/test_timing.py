"""The protocol on a clock that is made up: what is inside an interval, what is not, and the figures made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cutegen.bench.overhead import host_time
from cutegen.bench.results import write
from cutegen.bench.timing import bench, compare, summary
from cutegen.errors import LaunchError


class FakeClock:
    """A queue whose time passes by what is put into it: 1 ms a flush, and what a kernel says it takes."""

    l2_bytes = 1000

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def flush(self) -> None:
        self.now += 1.0
        self.log.append("flush")

    def mark(self) -> float:
        self.log.append("mark")
        return self.now

    def finish(self) -> None:
        self.log.append("finish")

    def elapsed(self, start: float, end: float) -> float:
        return end - start

    def close(self) -> None:
        raise AssertionError("who made the clock closes it")

    def kernel(self, name: str, *times: float) -> Callable[[], None]:
        turn = iter(range(10**9))

        def run() -> None:
            self.now += times[next(turn) % len(times)]
            self.log.append(name)

        return run


def test_flush_is_before_each_launch_and_not_counted() -> None:
    clock = FakeClock()
    timing = bench(clock.kernel("k", 0.25), clock=clock)
    assert timing.median_ms == pytest.approx(0.25) and timing.launches == 800
    assert "L2 flushed" in timing.inputs
    marks = [i for i, what in enumerate(clock.log) if what == "mark"]
    for start, end in zip(marks[::2], marks[1::2]):
        assert clock.log[start - 1 : end + 1] == ["flush", "mark", "k", "mark"]


def test_input_sets_take_turns_without_a_flush_between() -> None:
    clock = FakeClock()
    calls = [clock.kernel(f"k{i}", 0.5) for i in range(3)]
    timing = bench(calls, working_set=3000, clock=clock)
    assert "3 input sets in turn" in timing.inputs and timing.median_ms == pytest.approx(0.5)
    ran = [what for what in clock.log if what.startswith("k")]
    assert ran[-6:] in ([f"k{(i + s) % 3}" for i in range(6)] for s in range(3))
    last = len(clock.log) - 1 - clock.log[::-1].index("flush")
    assert "mark" in clock.log[last:]


def test_input_sets_that_fit_l2_are_refused() -> None:
    clock = FakeClock()
    with pytest.raises(LaunchError, match="2 input sets of 2000 bytes.*use at least 3 sets"):
        bench([clock.kernel("a", 1), clock.kernel("b", 1)], working_set=2000, clock=clock)


def test_a_call_that_does_nothing_is_refused() -> None:
    with pytest.raises(LaunchError, match="takes no time"):
        bench(lambda: None, clock=FakeClock())


def test_candidates_alternate_each_after_a_warm_up_of_its_own() -> None:
    clock = FakeClock()
    found = compare({"a": clock.kernel("a", 0.2), "b": clock.kernel("b", 0.4)}, rounds=4, measure_ms=80, clock=clock)
    assert found["a"].median_ms == pytest.approx(0.2) and found["b"].median_ms == pytest.approx(0.4)
    tail = "".join(what for what in clock.log if what in "ab")[-(4 * (150 + 75)) :]
    # Every other round goes backwards.
    assert tail == ("a" * 150 + "b" * 150 + "a" * 150) * 2


def test_a_turn_settles_before_it_counts() -> None:
    clock = FakeClock()
    kernels = {"a": clock.kernel("a", 0.2), "b": clock.kernel("b", 0.4)}
    found = compare(kernels, rounds=2, measure_ms=40, settle_ms=60, clock=clock)
    tail = "".join(what for what in clock.log if what in "ab")[-(2 * (400 + 200)) :]
    assert tail == "a" * 400 + "b" * 400 + "a" * 400 and found["a"].launches == 200


def test_long_kernels_are_still_launched_twenty_times() -> None:
    clock = FakeClock()
    assert bench(clock.kernel("k", 500.0), clock=clock).launches == 20


def test_summary_and_rates() -> None:
    timing = summary("k", [float(i) for i in range(1, 11)], "some inputs")
    assert (timing.median_ms, timing.p20_ms, timing.p80_ms, timing.min_ms) == (5.5, 3.0, 9.0, 1.0)
    assert timing.tflops(11e9) == pytest.approx(2.0) and timing.gbps(11e6) == pytest.approx(2.0)
    assert "p20 3.0000" in str(timing)


def test_host_time_excludes_waiting() -> None:
    import time

    found = host_time(lambda: None, "nothing", finish=lambda: time.sleep(0.002), batch=50, repeats=3)
    assert found.median_us < 20 and found.calls == 150


def test_result_file(tmp_path: Path) -> None:
    path = write(tmp_path / "results", "gemm sm_90/f16", "abc123", {"ms": 0.5})
    assert path.name == "gemm_sm_90_f16.json" and [p.name for p in path.parent.iterdir()] == [path.name]
    data = json.loads(path.read_text())
    assert data["spec_digest"] == "abc123" and data["results"] == {"ms": 0.5}
    assert data["versions"]["numpy"] and data["date"].endswith("+00:00")
