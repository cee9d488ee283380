"""Large products of operands that TMA can't load: copied to aligned rows first."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

import cutegen as cg
from cutegen.report import inputs
from cutegen.spec import GemmSpec

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _torch() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch holds the inputs")


def kernel_of(majors: str, dtype: str = "bf16", **problem: int) -> Any:
    types = {"a": dtype, "b": dtype, "c": dtype if dtype != "e4m3" else "bf16"}
    return cg.build(GemmSpec(arch="sm_90a", problem=problem, dtypes=types, majors=majors))


@pytest.mark.parametrize(("majors", "dtype"), [("NT", "bf16"), ("NN", "f16"), ("TN", "bf16"), ("TN", "e4m3")])
def test_products_of_copies(majors: str, dtype: str) -> None:
    problem = {"m": 1031, "n": 1543, "k": 2049}
    kernel = kernel_of(majors, dtype, **problem)
    assert not any(kernel.plan.by_threads)
    for pads, offsets in (({}, {}), ({"a": 3, "b": 1}, {"a": 1, "b": 3}), ({"a": 16 - 1031 % 16}, {})):
        given = inputs.for_signature(kernel.signature, problem, 1, library="torch", pads=pads, offsets=offsets)
        report = kernel.validate(given, sampled=16)
        assert report.ok, f"{majors} {pads} {offsets}: {report}"


def test_a_batch_a_stream_and_a_prepared_launch() -> None:
    import torch

    problem = {"m": 1031, "n": 1037, "k": 2056, "batch": 2}
    kernel = kernel_of("NT", **problem)
    given = inputs.for_signature(kernel.signature, problem, 2, library="torch")
    want = kernel(*given.values())
    exact = given["a"].double() @ given["b"].double().mT
    assert float((want.double() - exact).norm() / exact.norm()) < 4e-3
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    found = kernel(*given.values(), stream=stream)
    stream.synchronize()
    assert torch.equal(found, want)
    launch = kernel.prepare(*given.values())
    for array in given.values():
        array.mul_(2)  # a launch reads what the operands hold by then
    assert torch.equal(launch(), kernel(*given.values()))
