"""Arrays of any library as pointers, shapes and strides."""

from __future__ import annotations

import types
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cutegen.dtypes import BF16, F32
from cutegen.errors import ArgumentError
from cutegen.kernel import Kernel, dlpack
from cutegen.kernel.tensors import (
    HOST,
    InterfaceAdapter,
    NumpyAdapter,
    TorchAdapter,
    adapter,
    dense_permutation,
    dense_strides,
)
from tests.kernel.conftest import FakeDriver, Tensor, integer


class Interface:
    """An array known by `__cuda_array_interface__` alone."""

    def __init__(self, shape: Any, typestr: str = "<f2", address: int = 0x10000, **extra: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (address, False),
            "version": 3,
            **extra,
        }


@pytest.mark.parametrize(
    ("extra", "strides"),
    [({}, (6, 1)), ({"strides": None}, (6, 1)), ({"strides": (2, 8)}, (1, 4)), ({"stream": 1}, (6, 1))],
)
def test_cuda_array_interface(fake: FakeDriver, extra: dict[str, Any], strides: tuple[int, ...]) -> None:
    view = adapter(Interface((4, 6), **extra)).view(Interface((4, 6), **extra), "x")
    assert (view.pointer, view.shape, view.strides, view.dtype, view.device) == (0x10000, (4, 6), strides, "f16", 0)


def test_interface_waits_for_the_exporters_stream(fake: FakeDriver) -> None:
    waited: list[int] = []
    fake.synchronize = lambda stream, what: waited.append(stream)  # type: ignore[method-assign]
    InterfaceAdapter().view(Interface((4,), stream=0x55), "x")
    assert waited == [0x55]


def test_interface_refusals(fake: FakeDriver) -> None:
    with pytest.raises(ArgumentError, match="x: masked"):
        InterfaceAdapter().view(Interface((4,), mask=np.zeros(4)), "x")
    with pytest.raises(ArgumentError, match="x: a stride of 3 bytes is not a whole number of 2-byte elements"):
        InterfaceAdapter().view(Interface((4,), strides=(3,)), "x")


def test_kernel_takes_interfaces_with_a_given_output(gemm: Kernel, fake: FakeDriver) -> None:
    a, b = Interface((128, 64)), Interface((96, 64), address=0x40000)
    out = Interface((128, 96), "<f4", 0x80000)
    for _ in range(2):
        assert gemm(a, b, out=out) is out
    assert [integer(p) for p in fake.launches[1]["params"][:3]] == [0x10000, 0x40000, 0x80000]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dlpack_capsules_are_read_without_being_consumed(dtype: type) -> None:
    whole = np.zeros((5, 7, 3), dtype)
    array = whole[1:, ::2, :2]
    found = dlpack.read(array, "x")
    assert found.pointer == array.ctypes.data
    assert found.shape == (4, 4, 2)
    assert found.strides == (21, 6, 1)
    assert found.dtype == {np.float16: "f16", np.float32: "f32", np.float64: "float64"}[dtype]
    assert found.device_type == dlpack.CPU
    dlpack.read(array, "x")


def test_dlpack_refusals() -> None:
    class Broken:
        def __dlpack__(self, stream: Any = None) -> Any:
            raise RuntimeError("requires grad")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with pytest.raises(ArgumentError, match="x: its library can't export it by DLPack: requires grad"):
        adapter(Broken()).view(Broken(), "x")


def test_numpy_views() -> None:
    view = NumpyAdapter().view(np.zeros((4, 6), ml_dtypes.bfloat16)[::-1, ::2], "x")
    assert (view.shape, view.strides, view.dtype, view.device) == ((4, 3), (-6, 2), "bf16", HOST)
    with pytest.raises(ArgumentError, match="foreign order"):
        NumpyAdapter().view(np.zeros(4, ">f4"), "x")


@pytest.mark.parametrize(
    ("shape", "strides"), [((2, 3, 4), (12, 4, 1)), ((2, 3, 4), (12, 1, 3)), ((1, 3), (3, 1)), ((0, 3), (3, 1))]
)
def test_allocation_keeps_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    made = NumpyAdapter().allocator(shape, strides, BF16, HOST)()
    assert made.shape == shape
    assert made.dtype == BF16.numpy
    assert all(s == 2 * t for s, t, e in zip(made.strides, strides, shape) if e > 1 and made.size)


def test_dense_strides_and_order() -> None:
    assert dense_strides((2, 3, 4)) == (12, 4, 1)
    assert dense_strides(()) == ()
    assert dense_permutation((12, 1, 3), (2, 3, 4)) == (0, 2, 1)


def test_no_library_to_allocate_with(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("torch", "cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ArgumentError, match="pass out="):
        InterfaceAdapter().allocator((2,), (1,), F32, 0)


def test_torchs_quick_allocation_is_taken_where_it_does_the_same(torch: Any) -> None:
    """torch's own function for compiled code allocates on the current device, and may change: then the public one does."""
    made: list[str] = []

    def quick(shape: Any, strides: Any, dtype: str, device: int = 0) -> Tensor:
        made.append("quick")
        return Tensor(shape, strides, dtype, 0xA00000, device)

    def allocated(function: Any) -> Any:
        torch._C._dynamo = types.SimpleNamespace(guards=types.SimpleNamespace(_empty_strided_cuda=function))
        made.clear()
        return TorchAdapter().allocator((4, 8), (8, 1), F32, 0)()

    def refuses(*_: Any) -> Tensor:
        raise TypeError("not so")

    assert allocated(quick).data_ptr() == 0xA00000 and made == ["quick"] * 2  # one to see what it makes
    for other in (
        refuses,
        partial(quick, device=1),
        lambda shape, strides, dtype: Tensor((8, 4), (4, 1), dtype, 0xB00000, 0),
    ):
        found = allocated(other)
        assert (found.data_ptr(), found.shape, found.get_device()) == (0x900000, (4, 8), 0)


def test_torchs_comparison_sees_what_matters() -> None:
    """With torch itself: its function is not public, so that a release may change it, but not unnoticed."""
    real = pytest.importorskip("torch")
    given = real.zeros(4, 6)
    alike = TorchAdapter().comparison([given, given.clone()])
    if alike is None:
        pytest.skip(f"torch {real.__version__} has no such comparison, or another")
    assert alike(real.ones(4, 6), real.zeros(4, 6))
    for other in (given[:2], given[:, :4], real.zeros(6, 4).t(), given.half(), given.to("meta"), given[None], None, 3):
        assert not alike(given, other)
