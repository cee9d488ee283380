"""The same verdicts on torch tensors, where torch is installed; the CPU is enough."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cutegen.dtypes import BF16, F16, F32
from cutegen.kernel.simulate import from_host_array, to_torch
from cutegen.kernel.tensors import HOST, adapter
from cutegen.report import FAMILIES, Numerics, validate
from cutegen.report.inputs import packed, random

torch = pytest.importorskip("torch")


def made(*shape: int, seed: int = 0, **keywords: Any) -> Any:
    return random(shape, F16, seed, library="torch", device="cpu", **keywords)


def gemm(a: Any, b: Any, *, out: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
    product = alpha * (a.float() @ b.float().mT)
    return out.copy_(product + beta * out if beta else product)


@pytest.mark.parametrize("limit", [10**9, 0], ids=["full", "rows"])
@pytest.mark.parametrize("strides", [None, (90 * 70, 64, 1), (70 * 50, 1, 70)])
@pytest.mark.parametrize("scalars", [{}, {"alpha": 0.5, "beta": 2.0}])
def test_gemm(limit: int, strides: tuple[int, ...] | None, scalars: dict[str, float]) -> None:
    arrays = {"a": made(3, 70, 40, pad=3), "b": made(50, 40, seed=1, offset=1), "c": torch.randn(3, 70, 50)}
    options: dict[str, Any] = {
        "numerics": Numerics(F16, F32, F32),
        "strides": strides,
        "full_limit": limit,
        "sampled": 0,
    }
    report = validate(gemm, FAMILIES["gemm"](), arrays, scalars, **options)
    assert report.ok, str(report)

    def wrong(*inputs: Any, out: Any, **scalars: float) -> Any:
        gemm(*inputs, out=out, **scalars)
        out[2, 33, 7] = float("nan")
        return out

    report = validate(wrong, FAMILIES["gemm"](), arrays, scalars, **options)
    assert not report.ok
    assert report.first is not None
    assert report.first.coordinate == (2, 33, 7)
    nothing = validate(lambda *inputs, out, **scalars: out, FAMILIES["gemm"](), arrays, **options)
    assert nothing.unwritten == 3 * 70 * 50


@pytest.mark.parametrize("limit", [10**9, 0], ids=["full", "rows"])
def test_causal_scores_of_packed_bf16(limit: int) -> None:
    q, k, _ = packed(3, 2, 33, 3, 16, BF16, library="torch", device="cpu")

    def scores(q: Any, k: Any, *, out: Any, scale: float) -> Any:
        s = scale * q.float() @ k.float().mT
        return out.copy_(s.masked_fill(~torch.ones(33, 33, dtype=torch.bool).tril(), -torch.inf))

    report = validate(
        scores,
        FAMILIES["attention_scores"](causal=True),
        {"q": q, "k": k},
        {"scale": 0.25},
        numerics=Numerics(BF16, F32, BF16),
        full_limit=limit,
    )
    assert report.ok, str(report)


def test_inputs_are_surrounded_by_nan() -> None:
    x = made(4, 6, inner=0, pad=3, offset=1)
    assert x.stride() == (1, 7)
    assert x.storage_offset() == 1
    assert torch.isfinite(x).all()
    assert torch.isnan(x.as_strided((3,), (1,), 5)).all()


def test_host_tensors_of_the_simulator_share_memory() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(4, 6).to(dtype)[:, ::2]
        array = from_host_array(x, "x")
        assert array.ctypes.data == x.data_ptr()
        assert np.array_equal(array.astype(np.float64), x.double().numpy())
    back = to_torch(np.arange(4).astype(ml_dtypes.bfloat16))
    assert back.dtype == torch.bfloat16
    assert back.tolist() == [0, 1, 2, 3]


def test_adapter_reads_tensors() -> None:
    x = made(4, 6, pad=2)
    found = adapter(x)
    view = found.view(x, "x")
    assert (view.shape, view.strides, view.dtype, view.device) == ((4, 6), (8, 1), "f16", HOST)
    assert found.peek(x)[0] == x.data_ptr()
    new = found.allocator((2, 3), (1, 2), F32, HOST)()
    assert new.stride() == (1, 2)
    assert new.dtype == torch.float32
