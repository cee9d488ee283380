"""The search with a stand-in for the GPU's clock; compilation in real processes, and on a real local Dask cluster."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cutegen import api
from cutegen.binary import Binary
from cutegen.cli.tuning import executor_of
from cutegen.plan.hopper_gemm_checks import ranked
from cutegen.spec import AttentionScoresSpec, GemmSpec, KernelSpec
from cutegen.spec.dump import to_yaml
from cutegen.spec.yaml import build_spec, read
from cutegen.tune import Journal, compile_all, pinned, space, tune

BF16 = {"a": "bf16", "b": "bf16", "c": "bf16"}


def spec_of(**parts: Any) -> GemmSpec:
    return GemmSpec(**{"arch": "sm_90a", "problem": {"m": 512, "n": 512, "k": 512}, "dtypes": BF16, **parts})


class Here(Executor):
    """Runs each job at once, in this process."""

    def submit(self, function: Any, /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **keywords))
        return future


def test_space_keeps_what_is_asked_and_differs() -> None:
    found = space(spec_of(tile={"n": 128}), limit=12)
    plans = [api.resolve(spec) for spec in found]
    assert len(found) == 12 and all(plan.tile_n == 128 for plan in plans)
    assert len({(plan.symbol, plan.group_m) for plan in plans}) == 12
    # The default comes first, and what the model ranks first is among the next.
    assert found[0] == spec_of(tile={"n": 128})


def test_space_has_all_that_the_model_ranks() -> None:
    """A ping-pong kernel can be launched just as a cooperative one is."""
    spec = spec_of(problem={"m": 1024, "n": 1024, "k": 1024})
    found = {str(api.resolve(candidate).choice) for candidate in space(spec, limit=60)}
    expected = [str(choice) for _, choice in ranked(spec)][:40]
    assert "128x64 ping-pong" in expected and set(expected) <= found


def test_space_has_each_kernel_once() -> None:
    """What the plan takes by itself, written down, is the same kernel."""
    spec = spec_of()
    own = api.resolve(spec)
    again = pinned(spec, own.choice, own.group_m)
    assert again != spec and api.emit(again) != api.emit(spec)
    found = [api.resolve(candidate) for candidate in space(spec, limit=60)]
    assert sum((plan.choice, plan.group_m) == (own.choice, own.group_m) for plan in found) == 1


def test_pinned_keeps_what_is_asked() -> None:
    spec = spec_of(tile={"n": 128}, cluster=[1, 1])
    choice = next(choice for _, choice in ranked(spec_of()) if choice.cluster != (1, 1))
    made = pinned(spec, choice, 4)
    assert (made.tile.m, made.tile.n, made.cluster) == (choice.m, 128, (1, 1))
    assert (made.schedule.kind, made.schedule.split_k, made.schedule.group_m) == (choice.kind, choice.split, 4)


@pytest.mark.parametrize(
    "spec",
    [
        GemmSpec(problem={"m": 512, "n": 512, "k": 512}, dtypes={"a": "f16", "b": "f16", "c": "f32"}),
        AttentionScoresSpec(
            arch="sm_90a",
            problem={"seqlen_q": 256, "seqlen_k": 256, "head_dim": 64},
            dtypes={"q": "f16", "k": "f16", "scores": "f16"},
        ),
    ],
)
def test_every_family_has_a_space(spec: KernelSpec) -> None:
    found = space(spec, limit=8)
    assert len(found) == 8 and all(api.emit(candidate) for candidate in found)


def test_a_candidate_survives_yaml(tmp_path: Path) -> None:
    for candidate in space(spec_of(), limit=5):
        path = tmp_path / "spec.yaml"
        path.write_text(to_yaml(candidate))
        assert api.resolve(build_spec(read(path))).symbol == api.resolve(candidate).symbol


def test_search_and_resume(tmp_path: Path) -> None:
    candidates = space(spec_of(tile={"m": 128, "n": 128}), limit=4)
    times = {to_yaml(spec): float(10 - place) for place, spec in enumerate(candidates)}
    asked: list[int] = []

    def measure(kernels: Sequence[api.Kernel]) -> list[float | str]:
        asked.append(len(kernels))
        found: list[float | str] = [times[to_yaml(kernel.spec)] for kernel in kernels]
        return [time if time != 9.0 else "two runs differ in their bits" for time in found]

    journal = Journal(tmp_path / "journal.jsonl")
    told: list[str] = []
    found = tune(candidates, Here(), measure, journal, device="GPU", finalists=2, tell=told.append)
    assert [one.median_ms for one in found] == [7.0, 8.0] and asked == [4, 2]
    assert found[0].spec == candidates[3] and any("differ in their bits" in text for text in told)
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert len(lines) == 4 and sum(line["median_ms"] is None for line in lines) == 1

    # Cut short while it wrote the last line: that candidate alone is measured again, besides the final.
    text = journal.path.read_text()
    journal.path.write_text(text[: text.rindex('{"device"') + 20] + "\n")
    asked.clear()
    again = tune(candidates, Here(), measure, journal, device="GPU", finalists=2)
    assert [one.spec for one in again] == [one.spec for one in found] and asked == [1, 2]
    assert journal.entries("another GPU") == {}


def test_processes_compile() -> None:
    candidates = [*space(spec_of(tile={"m": 128, "n": 128}), limit=2)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = dict(compile_all(candidates, pool))
    assert sorted(found) == [0, 1] and all(isinstance(made, Binary) and made.cubin for made in found.values())


def test_a_dask_cluster_compiles() -> None:
    distributed = pytest.importorskip("distributed")
    candidates = space(spec_of(tile={"m": 128, "n": 128}), limit=2)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        executor_of(cluster.scheduler_address, None) as pool,
    ):
        found = dict(compile_all(candidates, pool))
    assert sorted(found) == [0, 1] and all(isinstance(made, Binary) and made.cubin for made in found.values())
