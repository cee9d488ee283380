"""Lists of tensors: arrays of pointers and descriptors reach the GPU, and stay there while a launch may read them."""

from __future__ import annotations

import ctypes
import gc
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cutegen.dtypes import F16, F32
from cutegen.errors import ArgumentError
from cutegen.hardware import ARCHS
from cutegen.kernel import Kernel, tables
from cutegen.kernel.arguments import bind
from cutegen.kernel.lists import Addresses, adapter
from cutegen.kernel.tensors import TensorView
from cutegen.plan.signature import (
    Extent,
    Geometry,
    Pointer,
    PointerArray,
    Signature,
    Stride,
    TensorArg,
    TensorMapArray,
    TensorMapParam,
)
from tests.kernel.conftest import FakeDriver, Tensor, integer

BATCHED = Signature(
    symbol="gemm_ptr_test",
    tensors=(
        TensorArg("a", F16, ("m", "k"), "k", 8, listed="batch"),
        TensorArg("b", F16, ("n", "k"), "k", 8, listed="batch"),
        TensorArg("bias", F32, ("batch", "n"), "n", 1, optional=frozenset({"batch"})),
        TensorArg("c", F32, ("m", "n"), "n", 4, "output", listed="batch"),
    ),
    scalars=(),
    params=(
        TensorMapArray(TensorMapParam("a", ("k", "m"), (64, 128), 128)),
        PointerArray("b"),
        Pointer("bias"),
        PointerArray("c"),
        Extent("batch"),
        Stride("c", "m"),
    ),
    geometry=Geometry((("batch", 1), ("m", 128), ("n", 128)), 256, 98304),
)
SIZES = (8, 8, 8, 8, 4, 8)


@pytest.fixture
def batched(fake: FakeDriver) -> Kernel:
    fake.layout = SIZES
    return Kernel(BATCHED, b"cubin", ARCHS["sm_90a"])


def operands(start: int = 0x10000, count: int = 3) -> tuple[list[Tensor], list[Tensor], Tensor]:
    a = [Tensor((128, 64), address=start + 0x4000 * index) for index in range(count)]
    b = [Tensor((96, 64), address=0x8000 + start + 0x4000 * index) for index in range(count)]
    return a, b, Tensor((96,), dtype="torch.float32", address=0x200)


def results(count: int = 3, start: int = 0x800000) -> list[Tensor]:
    return [Tensor((128, 96), dtype="torch.float32", address=start + 0xC000 * index) for index in range(count)]


def table(launched: dict[str, Any], place: int, size: int) -> bytes:
    return ctypes.string_at(integer(launched["params"][place]), size)


def test_arrays_of_pointers_and_of_descriptors(batched: Kernel, fake: FakeDriver, torch: Any) -> None:
    a, b, bias = operands()
    out = batched(a, b, bias)
    assert [x.shape for x in out] == [(128, 96)] * 3
    (launched,) = fake.launches
    assert launched["grid"] == (3, 1, 1) and launched["stream"] == 0x77
    assert table(launched, 0, 3 * 128) == b"".join(bytes([index]) * 128 for index in (1, 2, 3))
    assert [spec.pointer for spec in fake.encoded] == [x.data_ptr() for x in a]
    assert fake.encoded[0].dims == (64, 128) and fake.encoded[0].box == (64, 128)
    assert integer(launched["params"][0]) % 64 == 0
    assert struct.unpack("<3Q", table(launched, 1, 24)) == tuple(x.data_ptr() for x in b)
    assert struct.unpack("<3Q", table(launched, 3, 24)) == (0x900000,) * 3
    assert integer(launched["params"][2]) == 0x200 and integer(launched["params"][4]) == 3


def test_arrays_are_kept_for_the_same_addresses_and_never_rewritten(
    batched: Kernel, fake: FakeDriver, torch: Any
) -> None:
    for start in (0x10000, 0x10000, 0x80000, 0x10000):
        batched(*operands(start), out=results())
    first, second, third, fourth = (integer(launched["params"][0]) for launched in fake.launches)
    assert first == second == fourth != third and len(fake.memory) == 2
    assert len(batched._entries) == 1 and len(fake.encoded) == 6
    a, b, bias = operands()
    batched([a[0]] * 3, b, bias, out=results())  # the same tensor several times
    assert table(fake.launches[-1], 0, 384) == bytes([1]) * 384


def test_arrays_used_longest_ago_are_freed(
    batched: Kernel, fake: FakeDriver, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_CACHED_SETS", 4)
    for index in (1, 2, 3, 4, 1, 5):  # the fifth set drives out the second and the third
        batched(*operands(0x100000 * index), out=results())
    assert len(fake.memory) == 3
    places = {integer(launched["params"][0]) for launched in fake.launches}
    for index in (1, 4, 5):
        batched(*operands(0x100000 * index), out=results())
    assert {integer(launched["params"][0]) for launched in fake.launches} == places and len(fake.memory) == 3
    launch = batched.prepare(*operands(), out=results())
    launch()
    kept = integer(fake.launches[-1]["params"][0])
    for index in range(6):
        batched(*operands(0x100000 * (index + 1)), out=results())
    launch()
    assert integer(fake.launches[-1]["params"][0]) == kept and kept in fake.memory
    assert [x.data_ptr() for x in launch.out] == [x.data_ptr() for x in results()]
    del launch
    gc.collect()
    assert kept not in fake.memory


def test_another_length_is_another_kind_of_call(batched: Kernel, fake: FakeDriver, torch: Any) -> None:
    for count in (1, 3, 3):
        batched(*operands(count=count))
    assert [launched["grid"][0] for launched in fake.launches] == [1, 3, 3] and len(batched._entries) == 2


def test_empty_products_upload_nothing(batched: Kernel, fake: FakeDriver, torch: Any) -> None:
    bias = operands()[2]
    out = batched([Tensor((0, 64))] * 2, [Tensor((96, 64))] * 2, bias)
    assert [x.shape for x in out] == [(0, 96)] * 2 and not fake.launches and not fake.memory
    batched([Tensor((128, 0), address=0)] * 2, [Tensor((96, 0), address=0)] * 2, bias, out=results(2))
    assert not fake.encoded and table(fake.launches[0], 0, 256) == bytes(256)


def test_outputs_that_share_memory_are_refused_on_every_call(batched: Kernel, fake: FakeDriver, torch: Any) -> None:
    a, b, bias = operands()
    out = results()
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"c\[0\] and c\[2\] share memory"):
            batched(a, b, bias, out=[out[0], out[1], out[0]])
        with pytest.raises(ArgumentError, match=r"c\[1\] and b\[2\] share memory"):
            batched(a, b, bias, out=[out[0], Tensor((128, 96), dtype="torch.float32", address=b[2].data_ptr()), out[2]])
    batched(a, b, bias, out=out)
    # Columns of one matrix
    columns = [Tensor((128, 96), (288, 1), "torch.float32", 0x800000 + 4 * 96 * index) for index in range(3)]
    assert batched(a, b, bias, out=columns) is columns and len(fake.launches) == 2
    with pytest.raises(ArgumentError, match=r"c\[0\] and c\[1\] share memory"):
        batched(a, b, bias, out=[columns[0], Tensor((128, 96), (288, 1), "torch.float32", 0x800010), columns[2]])


def test_the_least_aligned_member_decides(fake: FakeDriver, torch: Any) -> None:
    fake.layout = SIZES
    asked: list[Any] = []

    def variants(vectors: Any) -> Kernel:
        asked.append(dict(vectors))
        given = dict(vectors)
        narrow = tuple(replace(t, vector=given[t.name]) for t in BATCHED.tensors)
        params = (PointerArray("a"), *BATCHED.params[1:])
        return Kernel(replace(BATCHED, tensors=narrow, params=params), b"cubin", ARCHS["sm_90a"])

    kernel = Kernel(BATCHED, b"cubin", ARCHS["sm_90a"], variants=variants)
    a, b, bias = operands()
    a[1] = Tensor((128, 64), address=0x14002)
    kernel(a, b, bias, out=results())
    assert asked == [{"a": 1, "b": 8, "bias": 1, "c": 4}]
    assert struct.unpack("<3Q", table(fake.launches[0], 0, 24)) == (0x10000, 0x14002, 0x18000)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": Tensor((3, 128, 64))}, [r"a: gemm_ptr_test takes a list of tensors", "got Tensor: pass list(a)"]),
        ({"bias": [Tensor((96,), dtype="torch.float32")] * 3}, ["bias: gemm_ptr_test takes one tensor, got a list"]),
        ({"b": operands(count=2)[1]}, ["b: the list has 2 tensors, but a has batch 3"]),
        ({"b": operands(count=1)[1]}, ["b: the list has 1 tensors", "name b[0] 3 times"]),
        ({"a": []}, ["a: the list is empty", "skip the call"]),
        ({"a": [*operands()[0][:2], Tensor((128, 32))]}, ["a[2]: its shape is (128, 32), but a[0] has (128, 64)"]),
        ({"a": [*operands()[0][:2], Tensor((128, 64), (72, 1))]}, ["a[2]: its strides are (72, 1)", "(64, 1)"]),
        ({"a": [*operands()[0][:2], Tensor((128, 64), dtype="torch.bfloat16")]}, ["a[2]: its dtype is bf16"]),
        ({"a": [*operands()[0][:2], Tensor((128, 64), device=1)]}, ["a[2]: its device is 1, but a[0] has 0"]),
        ({"a": [*operands()[0][:2], np.zeros((128, 64), np.float16)]}, ["a[2]: is an array of numpy, but a[0] of torch"]),
        ({"a": [*operands()[0][:2], 3]}, ["a[2]: expected an array", "got int"]),
        ({"a": [Tensor((128, 64), device=-1)] * 3, "b": [Tensor((96, 64), device=-1)] * 3,
          "bias": Tensor((96,), dtype="torch.float32", device=-1)}, ["a is on the host: pass .cuda() of each"]),
        ({"a": [*operands()[0][:2], Tensor((128, 64), address=0x1001)]}, ["a: the address 0x1001 is not a multiple"]),
        ({"out": results(2)}, ["c: the list has 2 tensors, but a has batch 3"]),
        ({"out": results()[0]}, ["c: gemm_ptr_test takes a list of tensors"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    batched: Kernel, fake: FakeDriver, torch: Any, change: dict[str, Any], words: list[str]
) -> None:
    given = {**dict(zip(("a", "b", "bias"), operands())), **change}
    batched(*operands())
    with pytest.raises(ArgumentError) as error:
        batched(given["a"], given["b"], given["bias"], out=given.get("out"))
    for word in words:
        assert word in str(error.value)
    assert len(fake.launches) == 1


def test_prepared_lists_are_on_the_gpu(batched: Kernel, torch: Any) -> None:
    _, b, bias = operands()
    with pytest.raises(ArgumentError, match="pass torch or cupy arrays, not numpy's"):
        batched.prepare([np.zeros((128, 64), np.float16)] * 3, b, bias)


def test_numpy_lists_are_copied_there_and_back(batched: Kernel, fake: FakeDriver) -> None:
    rng = np.random.default_rng(0)
    a = [rng.standard_normal((128, 64)).astype(np.float16) for _ in range(2)]
    b = [np.asfortranarray(rng.standard_normal((96, 64)).astype(np.float16)) for _ in range(2)]
    bias = np.zeros(96, np.float32)
    seen: list[Any] = []
    record = fake.launch

    def launch(*given: Any) -> int:
        record(*given)
        launched = fake.launches[-1]
        for pointer in struct.unpack("<2Q", table(launched, 1, 16)):
            seen.append(np.frombuffer(ctypes.string_at(pointer, 96 * 64 * 2), np.float16).reshape(96, 64))
        for index, pointer in enumerate(struct.unpack("<2Q", table(launched, 3, 16))):
            data = np.full(128 * 96, index + 1, np.float32).tobytes()
            ctypes.memmove(pointer, data, len(data))
        return 0

    fake.launch = launch  # type: ignore[method-assign]
    out = batched(a, b, bias)
    assert all(np.array_equal(x, y) for x, y in zip(seen, b))
    assert [float(c[0, 0]) for c in out] == [1.0, 2.0] and out[0].shape == (128, 96)
    given = [np.zeros((128, 96), np.float32) for _ in range(2)]
    assert batched(a, b, bias, out=given) is given and (given[1] == 2).all()
    with pytest.raises(ArgumentError, match=r"c\[0\] and c\[1\] share memory"):
        batched(a, b, bias, out=[given[0]] * 2)
    gc.collect()
    assert not fake.memory


def test_views_of_lists() -> None:
    arrays = [np.zeros((4, 8), np.float16) for _ in range(3)]
    view = adapter(arrays).view(arrays, "a")
    assert isinstance(view.pointer, Addresses) and view.pointer.members == tuple(x.ctypes.data for x in arrays)
    assert view.shape == (4, 8) and Addresses([16, 24]) % 16 == 8 and Addresses([16, 24]) % 8 == 0
    single = [np.zeros((1, 8), np.float16), np.zeros((1, 16), np.float16)[:, :8]]
    adapter(single).view(single, "a")  # the stride of one row is never used


def test_a_listed_mode_binds_the_batch() -> None:
    many = Addresses((4096, 8192))
    views = {
        "a": TensorView(many, (128, 64), (64, 1), "f16", 0),
        "b": TensorView(many, (96, 64), (64, 1), "f16", 0),
        "bias": TensorView(64, (2, 96), (96, 1), "f32", 0),
    }
    bound = bind(BATCHED, views)
    assert bound.extents == {"m": 128, "k": 64, "batch": 2, "n": 96} and bound.missing[0].count == 2
    with pytest.raises(ArgumentError, match="bias: batch is 3, but a has batch 2"):
        bind(BATCHED, {**views, "bias": TensorView(64, (3, 96), (96, 1), "f32", 0)})
