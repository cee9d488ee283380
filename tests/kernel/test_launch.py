from __future__ import annotations

import struct
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cutegen.dtypes import F16, F32
from cutegen.errors import ArgumentError, LaunchError, ToolchainError
from cutegen.hardware import ARCHS
from cutegen.kernel import Kernel
from cutegen.kernel.tensors import TorchAdapter, stream_pointer
from cutegen.plan.signature import Pointer, TensorArg
from tests.kernel.conftest import (
    GEMM,
    GEMM_SIZES,
    SCORES_SIZES,
    FakeDriver,
    Tensor,
    TensorGuards,
    integer,
    number,
)

A, B = (3, 256, 64), (3, 384, 64)


def operands(**keywords: Any) -> tuple[Tensor, Tensor]:
    return Tensor(A, address=0x10000, **keywords), Tensor(B, address=0x20000, **keywords)


def test_a_call_allocates_launches_and_returns(gemm: Kernel, fake: FakeDriver, torch: Any) -> None:
    out = gemm(*operands())
    (launched,) = fake.launches
    assert out.shape == (3, 256, 384) and out.dtype == "torch.float32"
    assert launched["grid"] == (18, 1, 1) and launched["block"] == (256, 1, 1) and launched["smem"] == 98304
    assert launched["stream"] == 0x77 and launched["kernel"] == 0xBEEF and launched["attribute"] == b""
    assert [integer(p) for p in launched["params"][:6]] == [0x10000, 0x20000, 0x900000, 256, 384, 64]
    assert [number(p) for p in launched["params"][-2:]] == [1.0, 0.0]
    assert fake.configured == [("gemm_test", 0, 98304, (1, 1, 1))]


def test_a_persistent_grid_has_the_clusters_that_run_at_once(fake: FakeDriver, torch: Any) -> None:
    """Clusters of four: a GPC whose SMs are no multiple of four leaves some without one."""
    geometry = replace(GEMM.geometry, axes=(("m", 8), ("n", 8)), persistent=True, cluster=(4, 1, 1))
    Kernel(replace(GEMM, geometry=geometry), b"cubin", ARCHS["sm_90"])(*operands())
    Kernel(replace(GEMM, geometry=replace(geometry, cluster=(2, 1, 1))), b"cubin", ARCHS["sm_90"])(*operands())
    assert [launched["grid"] for launched in fake.launches] == [(120, 1, 1), (132, 1, 1)]


def test_only_addresses_change_from_call_to_call(gemm: Kernel, fake: FakeDriver, torch: Any) -> None:
    gemm(*operands())
    a = Tensor(A, address=0x50000)
    torch.current = 0x99
    gemm(a, operands()[1], alpha=2.5)
    gemm(a, operands()[1], alpha=np.float32(3.5))
    gemm(a, operands()[1])
    assert [number(launch["params"][-2]) for launch in fake.launches] == [1.0, 2.5, 3.5, 1.0]
    assert integer(fake.launches[-1]["params"][0]) == 0x50000 and fake.launches[-1]["stream"] == 0x99
    assert len(gemm._entries) == 2 and len(fake.configured) == 1


def test_torchs_comparison_stands_for_the_key(gemm: Kernel, fake: FakeDriver, comparing: Any) -> None:
    """The second call of a kind asks torch alone; whatever differs, the address's low bits and scalars too, is another."""
    gemm(*operands())
    gemm(*operands())  # found by its key
    asked, peeks, gemm._peeks = TensorGuards.asked, gemm._peeks, {}
    moved = Tensor(A, address=0x50000)
    gemm(moved, operands()[1])
    assert TensorGuards.asked == asked + 1 and integer(fake.launches[-1]["params"][0]) == 0x50000
    gemm._peeks = peeks
    wide = operands(dtype="torch.bfloat16")
    with pytest.raises(ArgumentError, match="bf16"):
        gemm(*wide)
    assert gemm(Tensor((3, 128, 64)), operands()[1]).shape == (3, 128, 384)
    assert gemm(*operands()).shape == (3, 256, 384)
    gemm(*operands(), alpha=2.0)
    assert number(fake.launches[-1]["params"][-2]) == 2.0
    gemm(*operands())
    assert number(fake.launches[-1]["params"][-2]) == 1.0
    with pytest.raises(ArgumentError, match="align"):
        gemm(Tensor(A, address=0x10002), operands()[1])
    c = Tensor((3, 256, 384), dtype="torch.float32", address=0x800000)
    assert gemm(*operands(), c) is c and gemm(*operands(), out=c) is c and gemm(*operands()) is not c
    assert gemm(*operands(), stream=5) is not None and fake.launches[-1]["stream"] == 5


def test_two_outputs_are_allocated_on_the_short_way_too(fake: FakeDriver, comparing: Any) -> None:
    c = TensorArg("c", F32, ("batch", "m", "n"), "n", 4, "output", frozenset({"batch"}))
    signature = replace(
        GEMM,
        tensors=(*GEMM.tensors[:2], c, replace(c, name="aux", dtype=F16)),
        params=(*GEMM.params[:3], Pointer("aux"), *GEMM.params[3:-2]),
        scalars=(),
    )
    fake.layout = (8, *GEMM_SIZES[:-2])
    kernel = Kernel(signature, b"cubin", ARCHS["sm_90"])
    for _ in range(3):
        first, second = kernel(*operands())
        assert (first.shape, first.dtype, second.dtype) == ((3, 256, 384), "torch.float32", "torch.float16")
        assert [integer(p) for p in fake.launches[-1]["params"][2:4]] == [first.data_ptr(), second.data_ptr()]
    (entry,) = kernel._entries.values()
    assert len(entry.plain) == 2
    given = Tensor((3, 256, 384), dtype="torch.float32", address=0x800000)
    assert kernel(*operands(), out=given)[0] is given


def test_a_comparison_that_overlooks_something_is_not_used(gemm: Kernel, fake: FakeDriver, comparing: Any) -> None:
    for blind in ("shape", "stride", "dtype", "device"):
        TensorGuards.blind = (blind,)
        assert TorchAdapter().comparison(operands()) is None
    TensorGuards.blind = ()
    assert TorchAdapter().comparison(operands()) is not None
    assert TorchAdapter().comparison([operands()[0], np.zeros(3)]) is None


@pytest.mark.parametrize("by", ["position", "out", "name"])
def test_output_given(gemm: Kernel, fake: FakeDriver, torch: Any, by: str) -> None:
    a, b = operands()
    c = Tensor((3, 256, 384), dtype="torch.float32", address=0x800000)
    for _ in range(2):
        if by == "position":
            result = gemm(a, b, c, beta=0.5)
        else:
            result = gemm(a, b, out=c, beta=0.5) if by == "out" else gemm(b=b, a=a, c=c, beta=0.5)
        assert result is c
    assert [integer(launch["params"][2]) for launch in fake.launches] == [0x800000] * 2
    assert number(fake.launches[1]["params"][-1]) == 0.5
    assert len(gemm._entries) == 1


def test_beta_without_c_is_refused_each_time(gemm: Kernel, fake: FakeDriver, torch: Any) -> None:
    gemm(*operands(), beta=0)
    for _ in range(2):
        with pytest.raises(ArgumentError, match="c is missing: beta is 0.5"):
            gemm(*operands(), beta=0.5)
    assert len(fake.launches) == 1


def test_zero_grid_launches_nothing_and_k_zero_launches(gemm: Kernel, fake: FakeDriver, torch: Any) -> None:
    assert gemm(Tensor((0, 64)), Tensor((8, 64))).shape == (0, 8)
    assert gemm(Tensor((3, 0, 64)), Tensor((3, 8, 64))).shape == (3, 0, 8)
    assert fake.launches == []
    assert gemm(Tensor((128, 0), address=0), Tensor((8, 0), address=0)).shape == (128, 8)
    assert len(fake.launches) == 1


def test_bool_none_and_wrong_scalars_are_refused_on_every_call(gemm: Kernel, torch: Any) -> None:
    gemm(*operands(), alpha=1.0)
    for wrong in (True, None, "1", 1e39):
        with pytest.raises(ArgumentError, match="alpha"):
            gemm(*operands(), alpha=wrong)


def test_output_that_shares_memory_is_refused_on_every_call(gemm: Kernel, fake: FakeDriver, torch: Any) -> None:
    a, b = operands()
    for address in (0x10000, 0x10000):
        with pytest.raises(ArgumentError, match="c and a share memory"):
            gemm(a, b, out=Tensor((3, 256, 384), dtype="torch.float32", address=address))
    gemm(a, b, out=Tensor((3, 256, 384), dtype="torch.float32", address=0x800000))
    with pytest.raises(ArgumentError, match="share memory"):
        gemm(a, b, out=Tensor((3, 256, 384), dtype="torch.float32", address=0x20000))
    assert len(fake.launches) == 1


def test_null_stream_of_another_context(gemm: Kernel, fake: FakeDriver, torch: Any) -> None:
    fake.current = 0xBAD
    gemm(*operands())
    assert len(fake.launches) == 1 and fake.entered == 0


def test_refused_launch_names_kernel_and_error(gemm: Kernel, fake: FakeDriver, torch: Any) -> None:
    fake.status = 701
    with pytest.raises(LaunchError, match=r"gemm_test \(grid \(18, 1, 1\), 256 threads, 98304 B.*CUDA_ERROR_701"):
        gemm(*operands())


def test_arch_mismatch_quotes_both(gemm: Kernel, fake: FakeDriver, torch: Any) -> None:
    fake.capability = (8, 9)
    with pytest.raises(LaunchError, match="compiled for sm_90, but GPU 0 .* is sm_89"):
        gemm(*operands())


def test_host_tensor_is_refused(gemm: Kernel, torch: Any) -> None:
    with pytest.raises(ArgumentError, match=r"a is on the host: pass a.cuda\(\)"):
        gemm(*operands(device=-1))


@pytest.mark.parametrize("wrong", [3, None, "q", [1.0]])
def test_not_an_array(gemm: Kernel, torch: Any, wrong: object) -> None:
    with pytest.raises(ArgumentError, match="b: expected an array|b is missing|b: .* takes one tensor, got a list"):
        gemm(operands()[0], wrong)


def test_grid_limits(gemm: Kernel, torch: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{2**48} blocks along grid x, at most {2**31 - 1}"):
        gemm(Tensor((2**31 - 8, 8)), Tensor((2**31 - 8, 8)))


# ---- alignment


def test_misaligned_without_variants_is_refused(gemm: Kernel, torch: Any) -> None:
    with pytest.raises(ArgumentError, match=r"a: gemm_test moves 8 elements at once \(16 bytes\).*multiples of 1 only"):
        gemm(Tensor(A, address=0x10002), operands()[1])


def test_variants_are_built_once_for_each_alignment(fake: FakeDriver, torch: Any) -> None:
    built: list[Any] = []

    def variants(vectors: tuple[tuple[str, int], ...]) -> Kernel:
        built.append(vectors)
        narrow = dict(vectors)
        tensors = tuple(replace(t, vector=narrow[t.name]) for t in GEMM.tensors)
        return Kernel(replace(GEMM, symbol="narrow", tensors=tensors), b"narrow", ARCHS["sm_90"])

    fake.layout = GEMM_SIZES
    kernel = Kernel(GEMM, b"cubin", ARCHS["sm_90"], variants=variants)
    b = operands()[1]
    for address in (0x10000, 0x10002, 0x10004, 0x20002, 0x10000, 0x10002):
        kernel(Tensor(A, address=address), b)
    assert built == [(("a", 1), ("b", 8), ("c", 4)), (("a", 2), ("b", 8), ("c", 4))]
    assert [name for name, *_ in fake.configured] == ["gemm_test", "narrow", "narrow"]


# ---- prepared launches, streams, threads


def test_prepared_launch(gemm: Kernel, fake: FakeDriver, torch: Any) -> None:
    launch = gemm.prepare(*operands(), alpha=0.25)
    assert fake.launches == []
    assert launch() is launch.out and launch.out.shape == (3, 256, 384)
    torch.current = 5
    launch()
    assert [x["stream"] for x in fake.launches] == [0x77, 5]
    assert number(fake.launches[0]["params"][-2]) == 0.25
    assert integer(fake.launches[0]["params"][2]) == 0x900000
    gemm(*operands(), alpha=9.0)
    launch()
    assert number(fake.launches[-1]["params"][-2]) == 0.25
    with pytest.raises(ArgumentError, match="c is missing"):
        gemm.prepare(*operands(), beta=1.0)
    with pytest.raises(ArgumentError, match="keeps its arrays on the GPU"):
        gemm.prepare(np.zeros(A, np.float16), np.zeros(B, np.float16))


class CudaStream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 0x42)


class Property:
    __cuda_stream__ = (0, 0x43)


class TorchStream:
    cuda_stream = 0x44


class CupyStream:
    ptr = 0x45


@pytest.mark.parametrize(
    ("stream", "address"),
    [(0, 0), (7, 7), (CudaStream(), 0x42), (Property(), 0x43), (TorchStream(), 0x44), (CupyStream(), 0x45)],
)
def test_streams(gemm: Kernel, fake: FakeDriver, torch: Any, stream: Any, address: int) -> None:
    """An output is memory of the launch's stream, kept until the current one, on which the caller goes on, is done too."""
    out = gemm(*operands(), stream=stream)
    assert fake.launches[0]["stream"] == address and (out.pool, out.recorded) == (address, [torch.current])
    prepared = gemm.prepare(*operands(), stream=stream)
    assert (prepared.out.pool, prepared.out.recorded) == (address, [torch.current])
    assert (plain := gemm(*operands())).pool == torch.current and not plain.recorded


def test_not_a_stream() -> None:
    for wrong in (True, "0", object()):
        with pytest.raises(ArgumentError, match="stream: expected"):
            stream_pointer(wrong)


def test_threads_do_not_mix_their_addresses(gemm: Kernel, fake: FakeDriver, torch: Any) -> None:
    b = operands()[1]

    def work(index: int) -> None:
        a = Tensor(A, address=0x100000 * index)
        for _ in range(50):
            gemm(a, b, alpha=float(index))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake.launches) == 200
    for launched in fake.launches:
        assert integer(launched["params"][0]) == 0x100000 * number(launched["params"][-2])


# ---- TMA and clusters


def test_descriptor_and_cluster(scores: Kernel, fake: FakeDriver, torch: Any) -> None:
    q, k = Tensor((2, 6, 200, 64), address=0x10000), Tensor((2, 3, 100, 64), address=0x20000)
    scores(q, k)
    scores(q, k)
    (encoded,) = fake.encoded
    assert encoded.dims == (64, 200, 6, 2) and encoded.strides == (128, 200 * 128, 6 * 200 * 128)
    assert encoded.box == (64, 128, 1, 1) and encoded.swizzle == 128 and encoded.pointer == 0x10000
    assert encoded.data_type == "FLOAT16"
    scores(Tensor((2, 6, 200, 64), address=0x30000), k)
    assert len(fake.encoded) == 2
    first, _, third = fake.launches
    assert first["params"][1] == b"\x01" * 128 and third["params"][1] == b"\x02" * 128
    assert first["addresses"][1] % 64 == 0
    assert struct.unpack("<I4x3I52x", first["attribute"]) == (4, 2, 1, 1)
    assert number(first["params"][3]) == 0.125
    assert fake.layout == SCORES_SIZES


def test_scalar_default_follows_extents_and_can_be_given(scores: Kernel, fake: FakeDriver, torch: Any) -> None:
    q = Tensor((1, 1, 8, 64), address=0x10000)
    scores(q, q, scale=2)
    assert number(fake.launches[0]["params"][3]) == 2.0


# ---- numpy


def test_numpy_is_copied_there_and_back(gemm: Kernel, fake: FakeDriver) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((256, 64)).astype(np.float16)
    b = np.asfortranarray(rng.standard_normal((384, 64)).astype(np.float16))[::-1]
    seen: dict[str, Any] = {}
    record = fake.launch

    def launch(config: int, kernel: int, table: int, extra: Any) -> int:
        record(config, kernel, table, extra)
        import ctypes

        pa, pb, pc = (integer(p) for p in fake.launches[-1]["params"][:3])
        seen["a"] = np.frombuffer(ctypes.string_at(pa, a.nbytes), np.float16).reshape(a.shape)
        seen["b"] = np.frombuffer(ctypes.string_at(pb, b.nbytes), np.float16).reshape(b.shape)
        c = (np.arange(256 * 384, dtype=np.float32)).tobytes()
        ctypes.memmove(pc, c, len(c))
        return 0

    fake.launch = launch  # type: ignore[method-assign]
    out = gemm(a, b)
    assert np.array_equal(seen["a"], a) and np.array_equal(seen["b"], b)
    assert out.dtype == np.float32 and np.array_equal(out.reshape(-1), np.arange(256 * 384))
    given = np.zeros((256, 2 * 384), np.float32)[:, ::2]
    assert gemm(a, b, out=given) is given and np.array_equal(given, out)
    assert fake.memory == {}
    readonly = np.zeros((256, 384), np.float32)
    readonly.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        gemm(a, b, out=readonly)
    with pytest.raises(ArgumentError, match="overlap"):
        gemm(a, b, out=np.lib.stride_tricks.as_strided(np.zeros(400, np.float32), (256, 384), (0, 4)))
    with pytest.raises(ArgumentError, match="b: expected dtype f16, got float64"):
        gemm(a, b.astype(np.float64))


def test_numpy_beside_torch_is_refused(gemm: Kernel, torch: Any) -> None:
    with pytest.raises(ArgumentError, match="b is on the host, but a on GPU 0"):
        gemm(operands()[0], np.zeros(B, np.float16))


# ---- what is missing


def test_without_a_driver_the_message_says_what_to_do(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver as api

    from cutegen.kernel.driver import Driver

    def missing(flags: int) -> Any:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    monkeypatch.setattr(api, "cuInit", missing)
    with pytest.raises(ToolchainError, match="no CUDA driver .*libcuda.*device='sim'"):
        Driver()
