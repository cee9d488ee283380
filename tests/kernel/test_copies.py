"""Operands copied to aligned rows: which, to where, and the kernel that does it, on the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cutegen import api
from cutegen.dtypes import BF16, DTYPES, F16, F32, DType
from cutegen.kernel.arguments import bind
from cutegen.kernel.copies import copied, nested, pack_rows, padded
from cutegen.kernel.tensors import NumpyAdapter, TensorView, TorchAdapter
from cutegen.spec import GemmSpec

TORCH: Any = object.__new__(TorchAdapter)


def view(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str = "bf16", pointer: int = 256) -> TensorView:
    return TensorView(pointer, shape, strides, dtype, 0)


def plan_of(m: int, n: int, k: int, majors: str = "NT", **parts: Any) -> Any:
    problem = {"m": m, "n": n, "k": k}
    types = {"a": "bf16", "b": "bf16", "c": "bf16"}
    return api.resolve(GemmSpec(arch="sm_90a", problem=problem, dtypes=types, majors=majors, **parts))


@pytest.mark.parametrize("dtype", [F16, F32, DTYPES["e4m3"]])
@pytest.mark.parametrize(("batch", "rows", "columns", "pitch", "offset"), [(2, 11, 301, 303, 1), (1, 8, 1, 5, 3), (1, 3, 1025, 1025, 0)])  # fmt: skip
def test_rows_are_packed(dtype: DType, batch: int, rows: int, columns: int, pitch: int, offset: int) -> None:
    kernel = pack_rows(dtype.name, "sm_90a")
    memory = (np.arange(batch * rows * pitch + offset) % 97).astype(np.float32).astype(dtype.numpy)
    x = memory[offset:].reshape(batch, rows, pitch)[:, :, :columns]
    wide = -(-columns // 16) * 16
    y = np.full((batch, rows, wide), 7, dtype.numpy)[:, :, :columns]
    seen = kernel.simulate(x, out=y)[1]
    assert seen is not None and not seen.findings
    assert np.array_equal(y, x)


def test_rows_are_padded_in_the_order_they_have() -> None:
    a, b, _ = plan_of(8191, 8191, 8192).signature.tensors
    assert padded(view((8191, 8192), (1, 8191)), a).strides == (1, 8192)
    assert padded(view((3, 8191, 8192), (8191 * 8192, 1, 8191)), b).strides == (8192 * 8192, 1, 8192)
    assert nested(view((3, 5, 1), (5, 1, 1)), replace(a, modes=("batch", "m", "k"), contiguous="k")) == [0, 1, 2]


@pytest.mark.parametrize(
    ("m", "n", "k", "adapter", "given"),
    [
        (8191, 8191, 8192, TORCH, ["a", "b"]),
        (8192, 8191, 8192, TORCH, ["b"]),
        (8192, 8192, 8192, TORCH, []),
        (8191, 8191, 8192, NumpyAdapter(), []),
    ],
)
def test_what_is_copied(m: int, n: int, k: int, adapter: Any, given: list[str]) -> None:
    signature = plan_of(m, n, k).signature
    views = {"a": view((m, k), (1, m)), "b": view((n, k), (1, n))}
    found = copied(signature, bind(signature, views), views, dict.fromkeys(views, adapter))
    assert list(found) == given
    assert all(vector == 8 for _, vector in bind(signature, {**views, **found}).vectors[:2]) or not given


def test_a_broadcast_and_a_small_product_are_not_copied() -> None:
    signature = plan_of(1024, 1024, 2048).signature
    broadcast = {"a": view((4, 2047, 2048), (0, 1, 2047)), "b": view((2047, 2048), (1, 2047))}
    assert not copied(signature, bind(signature, broadcast), broadcast, dict.fromkeys(broadcast, TORCH))
    small = {"a": view((513, 512), (1, 513)), "b": view((513, 512), (1, 513))}
    assert not copied(signature, bind(signature, small), small, dict.fromkeys(small, TORCH))


def test_the_plan_leaves_large_operands_to_the_launcher() -> None:
    assert plan_of(8191, 8191, 8192).by_threads == (False, False)
    assert plan_of(511, 513, 512).by_threads == (True, True)
    assert plan_of(8191, 8191, 8192, align={"a": 1, "b": 1}).by_threads == (True, True)
    assert BF16.bytes == 2
