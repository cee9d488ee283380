"""What `bench --against` compares a spec with."""

from __future__ import annotations

from typing import Any

import pytest

from cutegen.cli.running import _fused, _rival
from cutegen.errors import ToolchainError
from cutegen.spec import AttentionForwardSpec, GemmSpec

BF16 = {"a": "bf16", "b": "bf16", "c": "bf16"}


class Baselines:
    """In place of `cutegen.bench.baselines`: says what was asked of it."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **keywords: ((name, arguments, keywords), None)


def gemm(**parts: Any) -> GemmSpec:
    return GemmSpec(**{"arch": "sm_90a", "problem": {"m": 512, "n": 512, "k": 512}, "dtypes": BF16, **parts})


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_epilogues_of_torch(activation: str) -> None:
    spec = gemm(epilogue={"out": f"{activation}(alpha * acc + bias[n])"})
    arrays = {"a": 1, "b": 2, "bias": 3}
    assert _rival(Baselines(), spec, arrays) == ("linear", (1, 2, 3, activation), {})


@pytest.mark.parametrize("text", ["tanh(alpha * acc + bias[n])", "gelu(acc) + c", "gelu(alpha * acc + bias[n]) * 2"])
def test_an_epilogue_that_no_library_has(text: str) -> None:
    with pytest.raises(ToolchainError) as caught:
        _fused(None, text, {})
    assert str(caught.value) == f"no library has one call for `{text}`: bench without --against"
    with pytest.raises(ToolchainError, match="no library has one call"):
        _rival(Baselines(), gemm(epilogue={"out": text}), {})


def test_products() -> None:
    arrays = {"a": 1, "b": 2, "ends": 3, "scale_a": 4, "scale_b": 5}
    grouped = gemm(problem={"m": 512, "n": 512, "k": 512, "groups": 4})
    assert _rival(Baselines(), grouped, arrays) == ("grouped", (1, 2, 3), {})
    scaled = gemm(dtypes={"a": "e4m3", "b": "e4m3", "c": "bf16"}, scales={"a": "row", "b": "row"})
    name, _, keywords = _rival(Baselines(), scaled, arrays)
    assert (name, keywords) == ("gemm", {"tf32": False, "scales": (4, 5)})
    tf32 = gemm(dtypes={"a": "f32", "b": "f32", "c": "f32", "multiply": "tf32"})
    name, _, keywords = _rival(Baselines(), tf32, arrays)
    assert (name, keywords) == ("gemm", {"tf32": True, "scales": None})


def test_attention_that_torch_lacks() -> None:
    parts: dict[str, Any] = {
        "problem": {"seqlen_q": 64, "seqlen_k": 64, "head_dim": 64},
        "dtypes": dict.fromkeys("qkvo", "bf16"),
    }
    with pytest.raises(ToolchainError, match="causal masks and no more: bench without --against"):
        _rival(Baselines(), AttentionForwardSpec(**parts, softcap=30.0), {})
