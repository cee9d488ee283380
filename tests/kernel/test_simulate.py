"""The simulator's side of a call, with a stand-in for the simulator that computes from its arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutegen import sim
from cutegen.errors import ArgumentError
from cutegen.hardware import ARCHS
from cutegen.kernel import Kernel
from cutegen.kernel.tensormap import TensorMapSpec
from tests.kernel.conftest import GEMM, SCORES


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def launch(ptx: str, kernel: str, **keywords: Any) -> None:
        found.append({"ptx": ptx, "kernel": kernel, **keywords})
        if kernel == "gemm_test":
            a, b, c = keywords["args"][:3]
            c[...] = np.float32(keywords["args"][10]) * (a.astype(np.float32) @ b.astype(np.float32).T)

    monkeypatch.setattr(sim, "launch", launch)
    return found


def test_arguments_follow_the_signature(calls: list[dict[str, Any]]) -> None:
    kernel = Kernel(GEMM, b"", ARCHS["sm_90"], ptx="PTX")
    a, b = np.ones((16, 8), np.float16), np.ones((24, 8), np.float16)
    out = kernel(a, b, device="sim", alpha=0.5)
    assert np.array_equal(out, np.full((16, 24), 4.0, np.float32))
    (call,) = calls
    assert call["ptx"] == "PTX" and call["grid"] == (1, 1, 1) and call["block"] == (256, 1, 1)
    assert call["shared_bytes"] == 98304 and call["cluster"] == (1, 1, 1)
    args = call["args"]
    assert args[0] is a and args[1] is b and args[2].ctypes.data % 256 == 0
    assert [type(x) for x in args[3:7]] == [np.int32] * 3 + [np.int64] and type(args[10]) is np.float32
    assert [int(x) for x in args[3:10]] == [16, 24, 8, 0, 8, 0, 24]


def test_views_are_used_in_place_and_output_is_written_in_place(calls: list[dict[str, Any]]) -> None:
    kernel = Kernel(GEMM, b"", ARCHS["sm_90"], ptx=lambda: "PTX")
    a = np.ones((16, 32), np.float16)[:, :8]
    b = np.ones((24, 8), np.float16)
    room = np.full((16, 40), np.nan, np.float32)
    out = room[:, :24]
    assert kernel(a, b, out=out, device="sim") is out
    assert (room[:, :24] == 8).all() and np.isnan(room[:, 24:]).all()
    assert calls[0]["args"][0] is a and int(calls[0]["args"][7]) == 32


def test_unusable_strides_are_copied(calls: list[dict[str, Any]]) -> None:
    kernel = Kernel(GEMM, b"", ARCHS["sm_90"], ptx="PTX")
    a = np.arange(128, dtype=np.float16).reshape(8, 16).T
    out = kernel(a, np.eye(8, dtype=np.float16)[::-1], device="sim")
    assert np.array_equal(out, a.astype(np.float32)[:, ::-1])


def test_descriptor_is_passed_as_its_description(calls: list[dict[str, Any]]) -> None:
    kernel = Kernel(SCORES, b"", ARCHS["sm_90a"], ptx="PTX")
    q, k = np.zeros((2, 6, 200, 64), np.float16), np.zeros((2, 3, 100, 64), np.float16)
    kernel(q, k, device="sim")
    spec = calls[0]["args"][1]
    assert isinstance(spec, TensorMapSpec) and spec.dims == (64, 200, 6, 2) and spec.pointer == q.ctypes.data


def test_nothing_to_do_runs_nothing(calls: list[dict[str, Any]]) -> None:
    kernel = Kernel(GEMM, b"", ARCHS["sm_90"], ptx="PTX")
    assert kernel(np.ones((0, 8), np.float16), np.ones((24, 8), np.float16), device="sim").shape == (0, 24)
    assert calls == []


def test_refusals(calls: list[dict[str, Any]]) -> None:
    kernel = Kernel(GEMM, b"", ARCHS["sm_90"], ptx="PTX")
    a, b = np.ones((16, 8), np.float16), np.ones((24, 8), np.float16)
    with pytest.raises(ArgumentError, match="c is missing"):
        kernel(a, b, beta=1, device="sim")
    with pytest.raises(ArgumentError, match="expected 'cuda', 'sim' or 'auto', got 'tpu'"):
        kernel(a, b, device="tpu")
    with pytest.raises(ArgumentError, match="made without PTX"):
        Kernel(GEMM, b"", ARCHS["sm_90"])(a, b, device="sim")
