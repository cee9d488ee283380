"""Launching on a real GPU: what arrives there, from each library, at the limits."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest

from cutegen.dtypes import F16, F32
from cutegen.errors import ArgumentError, LaunchError
from cutegen.kernel import Kernel
from cutegen.kernel.driver import driver
from cutegen.report import FAMILIES, Numerics, gemm, validate
from cutegen.report.inputs import random
from tests.gpu import kernels

NUMERICS = Numerics(F16, F32, F32, tensor_cores=False)


@pytest.fixture(scope="module")
def product() -> Kernel:
    return kernels.kernel(kernels.GEMM, kernels.GEMM_SIGNATURE)


def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return module


@pytest.mark.parametrize("shape", [(64, 48, 32), (1, 1, 1), (7, 129, 65), (5, 3, 0), (0, 4, 8)])
def test_numpy(product: Kernel, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    arrays = {"a": random((m, k), F16, 1), "b": random((n, k), F16, 2)}
    assert validate(product, FAMILIES["gemm"](), arrays, numerics=NUMERICS).ok
    assert product(arrays["a"], arrays["b"]).shape == (m, n)


@pytest.mark.parametrize("limit", [10**9, 0], ids=["full", "rows"])
@pytest.mark.parametrize("scalars", [{}, {"alpha": 0.5, "beta": -2.0}, {"alpha": 0.0}])
def test_torch(product: Kernel, scalars: dict[str, float], limit: int) -> None:
    t = torch()
    arrays = {
        "a": random((3, 100, 40), F16, 1, library="torch", pad=8),
        "b": random((77, 40), F16, 2, library="torch", offset=1),
        "c": t.randn(3, 100, 77, device="cuda"),
    }
    report = validate(
        product, FAMILIES["gemm"](), arrays, scalars, numerics=NUMERICS, strides=(100 * 90, 90, 1), full_limit=limit
    )
    assert report.ok, str(report)


def test_a_wrong_kernel_is_found_on_the_gpu(product: Kernel) -> None:
    torch()

    def wrong(a: Any, b: Any, *, out: Any) -> Any:
        product(a, b, out=out)
        out[70, 5] += 1.0
        return out

    arrays = {"a": random((100, 40), F16, 1, library="torch"), "b": random((77, 40), F16, 2, library="torch")}
    for limit in (10**9, 0):
        report = validate(wrong, FAMILIES["gemm"](), arrays, numerics=NUMERICS, full_limit=limit, sampled=0)
        assert not report.ok and report.first is not None and report.first.coordinate == (70, 5)


def test_cupy(product: Kernel) -> None:
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.Stream(non_blocking=True):  # the copies to the GPU are this stream's work too
        a, b = cupy.asarray(random((30, 40), F16, 1)), cupy.asarray(random((20, 40), F16, 2))
        out = product(a, b)
        assert isinstance(out, cupy.ndarray)
        assert np.allclose(out.get(), gemm(a.get(), b.get()), atol=1e-3)
    assert validate(product, FAMILIES["gemm"](), {"a": a, "b": b}, numerics=NUMERICS).ok


def test_dlpack_and_interface(product: Kernel) -> None:
    t = torch()
    a, b = random((30, 40), F16, 1, library="torch"), random((20, 40), F16, 2, library="torch")

    class Capsule:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack__(self, stream: Any = None) -> Any:
            return self.tensor.__dlpack__(stream=stream)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    class Interface:
        def __init__(self, tensor: Any) -> None:
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__
            self.tensor = tensor

    expected = product(a, b)
    for wrap in (Capsule, Interface):
        for _ in range(2):
            assert t.equal(product(wrap(a), wrap(b)), expected)


def test_streams_and_threads(product: Kernel) -> None:
    t = torch()
    a, b = random((300, 400), F16, 1, library="torch"), random((200, 400), F16, 2, library="torch")
    expected = product(a, b)
    t.cuda.synchronize()
    side = t.cuda.Stream()
    with t.cuda.stream(side):
        inside = product(a, b)
    given = product(a, b, stream=side)
    side.synchronize()
    assert t.equal(inside, expected) and t.equal(given, expected)
    results: list[Any] = []

    def work() -> None:  # a new thread has no current context
        out = product(a, b)
        t.cuda.synchronize()
        results.append(t.equal(out, expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_prepared_and_graph(product: Kernel) -> None:
    t = torch()
    a, b = random((300, 400), F16, 1, library="torch"), random((200, 400), F16, 2, library="torch")
    expected = product(a, b)
    launch = product.prepare(a, b)
    launch()
    t.cuda.synchronize()
    assert t.equal(launch.out, expected)
    graph = t.cuda.CUDAGraph()
    with t.cuda.graph(graph):
        launch()
    launch.out.zero_()
    graph.replay()
    t.cuda.synchronize()
    assert t.equal(launch.out, expected)


def test_scalars_arrive_exactly() -> None:
    call = kernels.kernel(kernels.SCALARS, kernels.scalars_signature())
    out = call(np.zeros(2, np.float32), f=np.float16(1.5), l=-(2**40), i=np.int64(-7), u=2**64 - 1, v=2**32 - 1)
    words = out.reshape(-1).view(np.int64)
    assert words.tolist() == [0x3FC00000, -(2**40), -7, -1, 2**32 - 1, 2]


@pytest.mark.parametrize("dynamic", [1, 49136, 49137, 49151, 49152, 49153, 65536, "limit"])
def test_shared_memory_up_to_the_limit(dynamic: Any) -> None:
    limit = driver().device(0).smem_per_block
    size = limit - 16 if dynamic == "limit" else dynamic
    out = kernels.kernel(kernels.SHARED, kernels.shared_signature(size))(np.zeros(5, np.float32))
    assert np.array_equal(out, np.zeros(5))


def test_shared_memory_beyond_the_limit_is_refused() -> None:
    limit = driver().device(0).smem_per_block
    with pytest.raises(LaunchError, match=f"needs {limit + 1} bytes .*{limit - 15} dynamic, 16 static.*allows {limit}"):
        kernels.kernel(kernels.SHARED, kernels.shared_signature(limit - 15))(np.zeros(5, np.float32))


def hopper() -> None:
    if driver().device(0).capability[0] < 9:
        pytest.skip("needs compute capability 9.0")


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_clusters(size: int) -> None:
    hopper()
    call = kernels.kernel(kernels.SHARED, kernels.shared_signature(1024, (size, 1, 1)))
    out = call(np.zeros(size * 3, np.float32))
    assert np.array_equal(out, np.tile(np.arange(size), 3))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_clusters_at_once(size: int) -> None:
    """Of blocks that each take an SM's shared memory. SMs come in pairs, but a GPC need not have a multiple of four."""
    hopper()
    device = driver().device(0)
    call = kernels.kernel(kernels.SHARED, kernels.shared_signature(device.smem_per_block - 16, (size, 1, 1)))
    call(np.zeros(size, np.float32))  # loads and configures it
    found = driver().active_clusters(call._loaded, "shared", device, call.signature.geometry)
    assert found == device.sms // size if size < 4 else 0 < found <= device.sms // size


@pytest.mark.parametrize(("rows", "columns", "pad"), [(64, 64, 0), (100, 200, 0), (1, 8, 0), (65, 72, 24), (0, 8, 0)])
def test_tma(rows: int, columns: int, pad: int) -> None:
    hopper()
    t = torch()
    call = kernels.kernel(kernels.TMA, kernels.TMA_SIGNATURE)
    for seed in range(2):
        x = random((rows, columns), F16, seed, library="torch", pad=pad)
        assert t.equal(call(x), x.float())


def test_what_the_gpu_would_refuse_is_refused_before(product: Kernel) -> None:
    t = torch()
    a, b = random((30, 40), F16, 1, library="torch"), random((20, 40), F16, 2, library="torch")
    for wrong, words in [
        (a.float(), "expected dtype f16, got f32"),
        (a.cpu(), "a is on the host|b is on GPU 0"),
        (a.t(), r"m must be contiguous|k must be contiguous|b: k is 40"),
        (a[:, ::2], "k must be contiguous"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            product(wrong, b[:, : wrong.shape[1]])
    with pytest.raises(ArgumentError, match="overlap"):
        product(a, b, out=t.empty(20, device="cuda").expand(30, 20))


def test_overhead(product: Kernel) -> None:
    """A call costs at most 12 us of host time, a prepared launch 7."""
    from cutegen.bench.overhead import launch_overhead

    if os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.skip("other tests take the time that is measured: run without -n")
    torch()
    a, b = random((16, 16), F16, 1, library="torch"), random((16, 16), F16, 2, library="torch")
    gc.collect()
    call, prepared = launch_overhead(product, a, b)
    print(call, prepared)
    assert call.min_us < 12 and prepared.min_us < 7


def test_timing_on_the_gpu(product: Kernel) -> None:
    from cutegen.bench.timing import bench, compare

    torch()
    times = []
    for size in (256, 512):
        a, b = (random((size, size), F16, i, library="torch") for i in range(2))
        times.append(bench(product.prepare(a, b), measure_ms=20).median_ms)
    assert 3 < times[1] / times[0] < 16
    launch = product.prepare(a, b)
    found = compare({"one": launch, "same": launch}, rounds=3, measure_ms=30)
    assert 0.8 < found["one"].median_ms / found["same"].median_ms < 1.25


def test_cublas_baselines() -> None:
    from cutegen.bench import baselines

    t = torch()
    a, b = random((64, 32), F16, 1, library="torch"), random((48, 32), F16, 2, library="torch")
    for out in (F16, F32):
        call, result = baselines.gemm(a, b, out, alpha=0.5)
        call()
        assert t.allclose(result.float(), 0.5 * a.float() @ b.float().T, atol=2e-2)
    q, k = random((2, 6, 20, 32), F16, 1, library="torch"), random((2, 2, 30, 32), F16, 2, library="torch")
    call, result = baselines.attention_scores(q, k, F16, scale=0.25)
    call()
    expected = 0.25 * q.float() @ k.repeat_interleave(3, 1).float().mT
    assert result.shape == (2, 6, 20, 30) and t.allclose(result.float(), expected, atol=2e-2)


def test_baselines_of_groups_and_of_an_epilogue() -> None:
    from cutegen.bench import baselines

    t = torch()
    a, b = random((70, 32), F16, 1, library="torch"), random((3, 48, 32), F16, 2, library="torch")
    call, result = baselines.loop(a, b, t.tensor([30, 30, 70], dtype=t.int32, device="cuda"))
    expected = t.cat([a[:30].float() @ b[0].float().T, a[30:].float() @ b[2].float().T])
    result.zero_()
    call()
    assert t.allclose(result.float(), expected, atol=2e-2)
    bias = random((48,), F16, 3, library="torch")
    for activation in ("gelu", "relu", "silu"):
        call, first = baselines.linear(a, b[0], bias, activation)
        expected = getattr(t.nn.functional, activation)(a.float() @ b[0].float().T + bias.float())
        assert t.allclose(first.float(), expected, atol=2e-2) and t.equal(call(), first)
