"""Batches whose matrices lie anywhere, on a GPU: arrays of pointers and of descriptors, as addresses come and go."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from cutegen import api
from cutegen.bench import baselines
from cutegen.cli.running import native
from cutegen.dtypes import BF16
from cutegen.kernel import tables
from cutegen.kernel.driver import driver
from cutegen.report import inputs
from cutegen.spec import GemmSpec

PROBLEM = {"m": 256, "n": 256, "k": 256, "batch": 4, "pointers": True}
PARTS: dict[str, dict[str, Any]] = {
    "simt": {"arch": "sm_80", "dtypes": {"a": "f32", "b": "f32", "c": "f32"}},
    "mma": {"arch": "sm_80", "dtypes": {"a": "bf16", "b": "bf16", "c": "bf16"}},
    "wgmma": {"arch": "sm_90a", "dtypes": {"a": "bf16", "b": "bf16", "c": "bf16"}},
    "wgmma_aux": {
        "arch": "sm_90a",
        "dtypes": {"a": "bf16", "b": "bf16", "c": "bf16"},
        "epilogue": {"out": "gelu(acc + bias[n])", "aux": "acc + bias[n]"},
    },
}
every_kernel = pytest.mark.parametrize("name", PARTS)


@functools.cache
def kernel_of(name: str) -> api.Kernel:
    capability = driver().device(0).capability
    if PARTS[name]["arch"] == "sm_90a" and capability != (9, 0):
        pytest.skip("needs an sm_90 GPU")
    return api.build(native(GemmSpec(problem=PROBLEM, **PARTS[name]), capability, quiet=True))


@pytest.fixture
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return module


def arrays_of(name: str, seed: int = 1, batch: int = 4, **options: Any) -> dict[str, Any]:
    extents = {"m": 136, "n": 200, "k": 264, "batch": batch}
    return inputs.for_signature(kernel_of(name).signature, extents, seed, library="torch", **options)


def products(torch: Any, arrays: dict[str, Any]) -> list[Any]:
    return [torch.matmul(a, b.mT) for a, b in zip(arrays["a"], arrays["b"])]


@every_kernel
@pytest.mark.parametrize("batch", [1, 3, 100])
def test_right(name: str, torch: Any, batch: int) -> None:
    for options in ({}, {"pads": {"a": 8, "b": 16}}, {"pads": {"a": 1}, "offsets": {"b": 1}}):
        report = kernel_of(name).validate(arrays_of(name, batch=batch, **options))
        assert report.ok, str(report)


@pytest.mark.parametrize("name", ["simt", "mma", "wgmma"])
def test_beta_and_a_shared_operand(name: str, torch: Any) -> None:
    arrays = arrays_of(name, inouts=True)
    arrays["b"] = [arrays["b"][0]] * 4
    report = kernel_of(name).validate(arrays, {"alpha": 0.5, "beta": -2.0})
    assert report.ok, str(report)


@pytest.mark.parametrize("name", ["simt", "mma", "wgmma"])
def test_addresses_come_and_go(name: str, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays are freed and their memory is used again for others: no descriptor of before may be taken for one of now."""
    monkeypatch.setattr(tables, "_CACHED_SETS", 2)
    kernel, side = kernel_of(name), torch.cuda.Stream()
    sets = [arrays_of(name, seed, integers=True) for seed in range(5)]
    expected = [products(torch, arrays) for arrays in sets]
    torch.cuda.synchronize()
    for turn in range(60):
        which = turn * 3 % 5
        with torch.cuda.stream(side if turn % 2 else torch.cuda.current_stream()):
            out = kernel(*sets[which].values())
            torch.cuda.current_stream().synchronize()
        assert all(torch.equal(c, wanted) for c, wanted in zip(out, expected[which])), turn


@pytest.mark.parametrize("name", ["simt", "wgmma"])
def test_in_a_graph(name: str, torch: Any) -> None:
    kernel, arrays = kernel_of(name), arrays_of(name, integers=True)
    expected = products(torch, arrays)
    launch = kernel.prepare(*arrays.values())
    launch()
    torch.cuda.synchronize()
    graph, whole = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    with torch.cuda.graph(whole):  # the arrays are made while the graph is captured
        made = kernel(*arrays.values())
    for out, replayed in ((launch.out, graph), (made, whole)):
        for c in out:
            c.zero_()
        replayed.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(c, wanted) for c, wanted in zip(out, expected))


def test_numpy_lists(torch: Any) -> None:
    kernel = kernel_of("simt")
    arrays = inputs.for_signature(kernel.signature, {"m": 65, "n": 33, "k": 20, "batch": 3}, 1)
    report = kernel.validate(arrays)
    assert report.ok, str(report)


def test_the_baseline(torch: Any) -> None:
    arrays = arrays_of("wgmma", integers=True)
    call, found = baselines.one_by_one(arrays["a"], arrays["b"], BF16)
    call()
    torch.cuda.synchronize()
    assert all(torch.equal(c, wanted) for c, wanted in zip(found, products(torch, arrays)))
