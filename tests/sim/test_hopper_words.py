"""GEMM on WGMMA with operands that TMA can't load, run by the simulator: odd extents, padded strides, displaced addresses.

Memory between the rows of an operand is NaN, so that what lies there can't get into a product unseen.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cutegen.sim
from cutegen import api
from cutegen.plan.hopper_gemm import HopperGemmPlan
from cutegen.plan.signature import TensorArg
from cutegen.report import inputs, validate
from cutegen.spec import GemmSpec

BF16 = {"a": "bf16", "b": "bf16", "c": "bf16"}
F16 = {"a": "f16", "b": "f16", "c": "f16"}
TF32 = {"a": "f32", "b": "f32", "c": "f32", "multiply": "tf32"}
FP8 = {"a": "e4m3", "b": "e5m2", "c": "bf16"}

# Parts of a spec, and what to run: (m, n, k, batch, alpha, beta, elements between rows, elements before the first).
Size = tuple[int, int, int, int, float, "float | None", int, int]
VARIANTS: dict[str, tuple[dict[str, Any], tuple[Size, ...]]] = {
    "nn": (
        {"dtypes": BF16, "majors": "NN", "align": {"a": 1, "c": 1}, "tile": {"m": 128, "n": 192}},
        ((129, 127, 200, 1, 1, 0, 0, 0), (127, 1, 136, 3, 0.5, 2, 3, 1)),
    ),
    "nn_cluster": (
        {"dtypes": BF16, "majors": "NN", "align": {"a": 1}, "tile": {"m": 64, "n": 128}, "cluster": (2, 1)},
        ((193, 136, 456, 1, 1, 0, 1, 1), (1000, 8, 64, 1, 1, 1, 0, 0)),
    ),
    "tt_cluster": (
        {"dtypes": BF16, "majors": "TT", "align": {"b": 1, "c": 1}, "tile": {"m": 128, "n": 64}, "cluster": (1, 2)},
        ((129, 199, 456, 1, 1, 0, 1, 1),),
    ),
    "nt": (
        {"dtypes": BF16, "majors": "NT", "align": {"a": 1, "b": 1, "c": 1}, "tile": {"m": 128, "n": 128}},
        ((129, 127, 65, 1, 1, 0, 0, 0), (1, 7, 1000, 1, 0.5, 2, 0, 1), (260, 129, 129, 1, 1, 0, 2, 3), (1, 1, 1, 1, 1, 0, 0, 0)),
    ),
    "nt_wide": (
        {"dtypes": F16, "majors": "NT", "align": {"a": 1, "b": 1}, "tile": {"m": 64, "n": 192}},
        ((129, 200, 127, 1, 1, 0, 1, 1), (64, 392, 7, 3, 1, 1, 0, 0)),
    ),
    "tn": (
        {"dtypes": F16, "align": {"a": 1, "b": 1}, "tile": {"m": 256, "n": 64}},
        ((257, 64, 129, 1, 1, 0, 0, 0), (7, 136, 127, 3, 0.5, 2, 0, 1), (260, 8, 1000, 1, 1, 0, 1, 1), (64, 136, 0, 1, 1, 2, 0, 0)),
    ),
    "tt": (
        {"dtypes": {**BF16, "c": "f32"}, "majors": "TT", "align": {"b": 2, "c": 2}, "tile": {"m": 128, "n": 64}},
        ((129, 126, 200, 1, 1, 0, 0, 0), (1, 130, 72, 1, 0.5, 2, 2, 0)),
    ),
    "tf32": (
        {"dtypes": TF32, "align": {"a": 1, "b": 1}, "tile": {"m": 128, "n": 96}},
        ((129, 100, 127, 1, 1, 0, 0, 0), (7, 4, 64, 3, 0.5, 2, 1, 1), (129, 200, 129, 1, 1, 0, 0, 3)),
    ),
    "fp8": (
        {"dtypes": {**FP8, "promote": 128}, "scales": {"a": "row"}, "align": {"a": 1, "b": 1}, "tile": {"m": 128, "n": 64}},
        ((129, 72, 447, 1, 1, 0, 0, 1), (129, 72, 262, 3, 0.5, 2, 0, 2), (7, 8, 1, 1, 1, 1, 3, 3), (260, 8, 1000, 1, 1, 0, 1, 1)),
    ),
    "expression": (
        {"dtypes": BF16, "align": {"a": 1, "b": 1, "c": 1}, "epilogue": {"out": "gelu(alpha * acc + bias[n]) + c"}, "tile": {"m": 64, "n": 64}},
        ((65, 71, 127, 3, 0.5, None, 0, 1),),
    ),
    "column_major": (
        {"dtypes": BF16, "majors": "NN", "c_major": "M", "align": {"a": 1, "b": 1}, "tile": {"m": 64, "n": 128}},
        ((136, 127, 129, 1, 1, 0, 0, 1), (8, 7, 65, 3, 0.5, 2, 0, 0)),
    ),
    "grouped": (
        {"dtypes": BF16, "problem": {"m": 512, "n": 512, "k": 512, "groups": 4}, "align": {"a": 1, "b": 1}, "tile": {"m": 64, "n": 128}},
        ((300, 200, 129, 1, 0.5, 1, 0, 1), (5, 8, 0, 1, 1, 2, 0, 0)),
    ),
    "grouped_nt": (
        {"dtypes": BF16, "problem": {"m": 512, "n": 512, "k": 512, "groups": 4}, "majors": "NT", "align": {"a": 1, "b": 1, "c": 1}, "tile": {"m": 64, "n": 64}},
        ((301, 129, 127, 1, 1, 0, 1, 0),),
    ),
}  # fmt: skip


@functools.cache
def kernel_of(name: str) -> api.Kernel:
    parts, _ = VARIANTS[name]
    kernel = api.build(GemmSpec(**{"arch": "sm_90a", "problem": {"m": 512, "n": 512, "k": 512}, **parts}))
    assert isinstance(kernel.plan, HopperGemmPlan) and kernel.plan.word_rings
    kernel.arch = replace(kernel.arch, sms=2 * kernel.plan.cluster_size)
    return kernel


def displaced(arg: TensorArg, array: np.ndarray[Any, Any], pad: int, offset: int) -> np.ndarray[Any, Any]:
    """A copy `offset` elements into new memory, `pad` more of them after each row, all of these NaN."""
    axis = arg.modes[-array.ndim :].index(arg.contiguous)
    order = [i for i in range(array.ndim) if i != axis] + [axis]
    strides, step = [0] * array.ndim, 1
    for i in reversed(order):
        strides[i] = step * array.itemsize
        step *= array.shape[i] + (pad if i == axis else 0)
    room = np.full(step + offset + 16, np.nan).astype(array.dtype)
    first = -room.ctypes.data % 16 + offset * array.itemsize
    made = np.ndarray(array.shape, array.dtype, room.view(np.uint8).data, first, strides)
    made[...] = array
    return made


def check(
    kernel: api.Kernel, m: int, n: int, k: int, batch: int, alpha: float, beta: float | None, pad: int, offset: int
) -> None:
    """`beta` None: an expression, which has none."""
    extents = {"m": m, "n": n, "k": k, **({"batch": batch} if batch > 1 else {})}
    if kernel.spec.problem.groups:  # type: ignore[attr-defined]
        extents["groups"] = 4
    arrays = inputs.for_signature(kernel.signature, extents, 1, library="numpy", inouts=beta != 0)
    for name in ("a", "b"):
        arrays[name] = displaced(kernel.signature.tensor(name), arrays[name], pad, offset)
        if kernel.signature.tensor(name).vector > 1:  # TMA's: rows of whole 16 bytes
            arrays[name] = displaced(kernel.signature.tensor(name), arrays[name], 0, 0)
    report = validate(
        functools.partial(kernel, device="sim"),
        api.family(kernel.spec),
        arrays,
        {"alpha": alpha} if beta is None else {"alpha": alpha, "beta": beta},
        strides=kernel._output_strides(arrays),
        numerics=api.numerics(kernel.plan),
        twice=False,
    )
    assert report.ok, str(report)
    assert not kernel._variants, "another kernel was run"


@pytest.mark.parametrize("name", VARIANTS)
def test_odd_sizes(name: str) -> None:
    for size in VARIANTS[name][1]:
        check(kernel_of(name), *size)


@pytest.mark.parametrize("name", VARIANTS)
def test_nothing_spills(name: str) -> None:
    compiled = kernel_of(name).compiled
    assert not compiled.findings and "'setmaxnreg' ignored" not in compiled.log


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_warps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps interleaved at random find races that lockstep hides."""
    monkeypatch.setattr(cutegen.sim, "launch", functools.partial(cutegen.sim.launch, seed=seed))
    check(kernel_of("nt"), 260, 129, 257, 1, 0.5, 1, 1, 1)
    check(kernel_of("nn_cluster"), 260, 136, 456, 1, 1, 0, 0, 0)


@pytest.mark.parametrize("dtypes", [BF16, FP8])
def test_a_kernel_for_tma_gets_a_variant_that_loads_by_threads(dtypes: dict[str, str]) -> None:
    kernel = api.build(GemmSpec(arch="sm_90a", problem={"m": 512, "n": 512, "k": 512}, dtypes=dtypes, cluster=(2, 1)))
    arrays = inputs.for_signature(kernel.signature, {"m": 65, "n": 8, "k": 135}, 1, library="numpy")
    run = functools.partial(kernel, device="sim")
    assert validate(run, api.family(kernel.spec), arrays, numerics=api.numerics(kernel.plan), twice=False).ok
    (variant,) = kernel._variants.values()
    assert isinstance(variant.plan, HopperGemmPlan) and variant.plan.by_threads == (True, True)


@pytest.mark.parametrize("name", ["nt", "tn"])
def test_rows_that_are_all_the_same(name: str) -> None:
    """A stride of 0 broadcasts a row: no word before the first row exists, wherever a tile is."""
    kernel = kernel_of(name)
    extents = {"m": 264, "n": 136, "k": 130}
    arrays = inputs.for_signature(kernel.signature, extents, 1, library="numpy", inouts=False)
    b = kernel.signature.tensor("b")
    row = displaced(b, arrays["b"][:1] if b.contiguous == "k" else arrays["b"][:, :1], 0, 1)
    arrays["b"] = np.broadcast_to(row, arrays["b"].shape)
    run = functools.partial(kernel, device="sim")
    assert validate(run, api.family(kernel.spec), arrays, numerics=api.numerics(kernel.plan), twice=False).ok
