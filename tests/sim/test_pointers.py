"""Batches whose matrices lie anywhere, run by the simulator: on every path, at sizes that divide nothing."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cutegen.sim
from cutegen import api, binary
from cutegen.errors import ArgumentError, SimulationError
from cutegen.kernel.launch import Kernel
from cutegen.report import inputs
from cutegen.sim import bulk
from cutegen.source import render
from cutegen.spec import GemmSpec

F32 = {"a": "f32", "b": "f32", "c": "f32"}
F16 = {"a": "f16", "b": "f16", "c": "f16"}
BF16 = {"a": "bf16", "b": "bf16", "c": "bf16"}
PROBLEM = {"m": 512, "n": 512, "k": 512, "batch": 8, "pointers": True}
TILE = {"m": 128, "n": 128}

# Parts of a spec, and what to run: (m, n, k, batch, beta); beta None: an expression, which has none.
VARIANTS: dict[str, tuple[dict[str, Any], tuple[tuple[Any, ...], ...]]] = {
    "simt": ({"arch": "sm_80", "dtypes": F32}, ((65, 68, 12, 3, 0), (3, 4, 4, 1, 2))),
    "mma_nt_column_major": (
        {"arch": "sm_80", "dtypes": F16, "majors": "NT", "c_major": "M"},
        ((136, 72, 41, 3, -1), (8, 8, 0, 2, 1)),
    ),
    "mma_bias_aux": (
        {"arch": "sm_80", "dtypes": BF16, "epilogue": {"out": "relu(acc + bias[n]) + c", "aux": "alpha * acc"}},
        ((33, 72, 40, 3, None),),
    ),
    "cooperative": (
        {"dtypes": F16, "tile": TILE, "cluster": (1, 1), "schedule": {"kind": "cooperative"}},
        ((129, 200, 200, 3, 0), (7, 136, 8, 1, 2), (64, 264, 0, 2, 1.5)),
    ),
    "ping_pong_cluster_nt": (
        {"dtypes": BF16, "majors": "NT", "tile": TILE, "cluster": (2, 1), "schedule": {"kind": "ping_pong"}},
        ((136, 200, 129, 3, 1),),
    ),
    "split_k_column_major": (
        {"dtypes": BF16, "c_major": "M", "tile": TILE, "schedule": {"split_k": 2}},
        ((136, 72, 328, 3, 2),),
    ),
    "rows_of_a_by_threads": ({"dtypes": BF16, "majors": "NN", "tile": TILE, "align": {"a": 1}}, ((129, 72, 200, 3, 1),)),
    "all_by_threads": ({"dtypes": F16, "tile": {"m": 64, "n": 64}, "align": {"a": 1, "b": 1, "c": 1}}, ((65, 71, 99, 3, 1),)),
    "few_rows": ({"dtypes": BF16, "problem": {**PROBLEM, "m": 16}}, ((16, 72, 328, 3, 1),)),
    "e4m3_scaled_bias_aux": (
        {"dtypes": {"a": "e4m3", "b": "e4m3", "c": "bf16"}, "scales": {"a": "row"}, "tile": TILE,
         "epilogue": {"out": "gelu(alpha * acc + bias[n])", "aux": "alpha * acc"}},
        ((129, 72, 208, 3, None),),
    ),
}  # fmt: skip
ON_HOPPER = [name for name, (parts, _) in VARIANTS.items() if "arch" not in parts]


@functools.cache
def kernel_of(name: str) -> api.Kernel:
    parts, _ = VARIANTS[name]
    kernel = api.build(GemmSpec(**{"arch": "sm_90a", "problem": PROBLEM, **parts}))
    kernel.arch = replace(kernel.arch, sms=2 * kernel.plan.signature.geometry.cluster[0])  # so that blocks take several
    return kernel


def arrays_of(name: str, m: int, n: int, k: int, batch: int, beta: float | None, **options: Any) -> dict[str, Any]:
    extents = {"m": m, "n": n, "k": k, "batch": batch}
    return inputs.for_signature(kernel_of(name).signature, extents, 1, inouts=beta != 0, **options)


def check(name: str, arrays: dict[str, Any], beta: float | None) -> None:
    scalars = {"alpha": 0.5} if beta is None else {"alpha": 0.5, "beta": beta}
    report = kernel_of(name).validate(arrays, scalars, device="sim", twice=False)
    assert report.ok, str(report)
    assert not kernel_of(name)._variants, "another kernel was run"


@pytest.mark.parametrize("name", VARIANTS)
def test_odd_sizes(name: str) -> None:
    for *sizes, beta in VARIANTS[name][1]:
        check(name, arrays_of(name, *sizes, beta), beta)


@pytest.mark.parametrize("name", ["cooperative", "split_k_column_major", "rows_of_a_by_threads"])
def test_any_order_of_warps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutegen.sim, "launch", functools.partial(cutegen.sim.launch, seed=1))
    check(name, arrays_of(name, 136, 136, 136, 3, 1), 1)


@pytest.mark.parametrize("name", ["simt", "cooperative"])
def test_a_shared_operand_padded_rows_and_outputs_in_one_matrix(name: str) -> None:
    kernel = kernel_of(name)
    arrays = arrays_of(name, 40, 64, 72, 3, 0, pads={"a": 8, "b": 16}, integers=True)
    arrays["b"] = [arrays["b"][0]] * 3
    check(name, arrays, 0)
    room = np.full((40, 3 * 64), np.nan, kernel.plan.signature.output.dtype.numpy)
    out = [room[:, 64 * i : 64 * (i + 1)] for i in range(3)]
    made = kernel(*arrays.values(), out=out, device="sim")
    assert made is out
    b = arrays["b"][0].astype(np.float32).T
    assert all(np.array_equal(c, a.astype(np.float32) @ b) for a, c in zip(arrays["a"], out))
    assert not np.isnan(room.astype(np.float32)).any()


def test_the_least_aligned_of_a_list_decides() -> None:
    """One member that begins anywhere gets the kernel whose threads load that operand."""
    kernel = api.build(GemmSpec(arch="sm_90a", problem={**PROBLEM, "batch": 2}, dtypes=BF16, tile=TILE))
    arrays = inputs.for_signature(kernel.signature, {"m": 40, "n": 64, "k": 64, "batch": 2}, 1)
    odd = inputs.random((40, 64), kernel.signature.tensors[0].dtype, 7, offset=1)
    arrays["a"] = [arrays["a"][0], odd]
    report = kernel.validate(arrays, device="sim", twice=False)
    assert report.ok, str(report)
    (variant,) = kernel._variants.values()
    assert variant.plan.by_threads == (True, False)
    assert variant.spec.problem.pointers


def test_a_call_returns_lists() -> None:
    kernel = kernel_of("mma_bias_aux")
    arrays = arrays_of("mma_bias_aux", 8, 16, 8, 2, None)
    c, aux = kernel(*arrays.values(), alpha=1.0, device="sim")
    assert c is arrays["c"] and [x.shape for x in (*c, *aux)] == [(8, 16)] * 4
    assert aux[0].dtype == np.dtype(ml_dtypes.bfloat16)
    (single,) = kernel_of("simt")([np.ones((4, 4), np.float32)], [np.ones((8, 4), np.float32)], device="sim")
    assert (single == 4).all() and single.shape == (4, 8)


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("a", "b", "out", "message"),
    [
        (ones(2, 4, 4), [ones(8, 4)] * 2, None, r"a: .* takes a list of tensors, .* got ndarray: pass list\(a\)"),
        ([ones(4, 4)] * 2, [ones(8, 4)], None, r"b: the list has 1 tensors, but a has batch 2: name b\[0\] 2 times"),
        ([ones(4, 4)] * 2, [ones(8, 4)] * 3, None, "b: the list has 3 tensors, but a has batch 2$"),
        ([ones(4, 4), ones(5, 4)], [ones(8, 4)] * 2, None, r"a\[1\]: its shape is \(5, 4\), but a\[0\] has \(4, 4\)"),
        ([ones(4, 4), ones(4, 8)[:, :4]], [ones(8, 4)] * 2, None, r"a\[1\]: its strides are \(8, 1\), but a\[0\]"),
        ([ones(4, 4), ones(4, 4).astype(np.float16)], [ones(8, 4)] * 2, None, r"a\[1\]: its dtype is f16, but"),
        ([ones(4, 4), [1.0]], [ones(8, 4)] * 2, None, r"a: the simulator takes numpy arrays"),
        ([], [], None, "a: the list is empty"),
        ([ones(4, 4)] * 2, [ones(8, 4)] * 2, [ones(4, 8)], "c: the list has 1 tensors, but a has batch 2$"),
        ([ones(4, 4)] * 2, [ones(8, 4)] * 2, [ones(4, 8)] * 2, r"c\[0\] and c\[1\] share memory"),
        ([ones(4, 4)] * 2, [ones(8, 4)] * 2, ones(2, 4, 8), r"c: .* takes a list of tensors"),
    ],
)  # fmt: skip
def test_lists_that_do_not_fit(a: Any, b: Any, out: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        kernel_of("simt")(a, b, out=out, device="sim")


def test_an_output_that_shares_memory_with_an_operand() -> None:
    room = ones(3, 8, 8)
    with pytest.raises(ArgumentError, match=r"c\[1\] and a\[2\] share memory"):
        kernel_of("simt")(
            [room[0], room[1], room[2]], [ones(8, 8)] * 3, out=[ones(8, 8), room[2], ones(8, 8)], device="sim"
        )


def test_descriptors_of_the_host_are_acquired_in_the_scope_of_the_system() -> None:
    plan = api.resolve(GemmSpec(arch="sm_90a", problem=PROBLEM, dtypes=BF16, tile={"m": 64, "n": 64}, cluster=(1, 1)))
    source = render(plan).replace("acquire.sys", "acquire.gpu")
    made = binary.compile(source, stem=plan.symbol, arch="sm_90a", kernel=plan.symbol)
    kernel = Kernel(plan.signature, made.cubin, plan.arch, ptx=made.ptx)
    arrays = inputs.for_signature(plan.signature, {"m": 8, "n": 8, "k": 8, "batch": 1}, 1)
    with pytest.raises(SimulationError, match=r"scope \.sys"):
        kernel.simulate(*arrays.values())


@pytest.mark.parametrize(
    ("old", "new", "kind", "text"),
    [
        ("acquire(tma_A + batch);", "", "missing-proxy-fence", "descriptor in global memory"),
        ("acquire(tma_C + batch);", "", "missing-proxy-fence", "descriptor in global memory"),
        ("::copy(tma_B + batch,", "::copy(tma_B + batch + 2,", "bad-tensor-map", "beyond an array of 2 tensor maps"),
        ("::copy(tma_B + batch,", "::copy((TmaDescriptor const*)((char const*)tma_B + 64),", "bad-tensor-map", "64 bytes into"),
        ("::copy(tma_B + batch,", "::copy((TmaDescriptor const*)((char const*)tma_B + 8),", "bad-tensor-map", "not a multiple of 64"),
    ],
)  # fmt: skip
def test_faults_of_descriptors_are_found(old: str, new: str, kind: str, text: str) -> None:
    plan = api.resolve(GemmSpec(arch="sm_90a", problem=PROBLEM, dtypes=BF16, tile={"m": 64, "n": 64}, cluster=(1, 1)))
    source = render(plan)
    assert old in source
    made = binary.compile(source.replace(old, new), stem=plan.symbol, arch="sm_90a", kernel=plan.symbol)
    kernel = Kernel(plan.signature, made.cubin, plan.arch, ptx=made.ptx)
    arrays = inputs.for_signature(plan.signature, {"m": 64, "n": 64, "k": 64, "batch": 2}, 1)
    try:
        _, seen = kernel.simulate(*arrays.values())
    except SimulationError as error:  # what never arrives is waited for
        findings = error.findings
        assert text in str(error)
    else:
        assert seen is not None
        findings = seen.findings
    assert any(finding.kind == kind and text in str(finding) for finding in findings), findings


@pytest.mark.parametrize(
    ("where", "text"),
    [(0x11C0, "64 bytes into a tensor map"), (0x1180, "no elements"), (0x1100, "beyond an array of 2")],
)
def test_an_array_of_descriptors_that_follows_another_closely(where: int, text: str) -> None:
    machine: Any = SimpleNamespace(parameters={"descriptors": [(0x1000, 0x1100), (0x1180, 0x1380)]})
    assert text in bulk._no_map(machine, where)
