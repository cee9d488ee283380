"""GEMM on TMA and WGMMA, run by the simulator at sizes that divide nothing: every schedule, cluster, major and store.

Two or four SMs are pretended, so that a block takes several tiles, and its stages and buffers go round.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cutegen.sim
from cutegen import api, binary
from cutegen.errors import ArgumentError
from cutegen.kernel.launch import Kernel
from cutegen.report import inputs, validate
from cutegen.report.reference import whole
from cutegen.source import render
from cutegen.spec import GemmSpec

COOPERATIVE, PING_PONG = {"kind": "cooperative"}, {"kind": "ping_pong"}
BF16 = {"a": "bf16", "b": "bf16", "c": "bf16"}
F16 = {"a": "f16", "b": "f16", "c": "f16"}

GELU = {"out": "gelu(alpha * acc + bias[n])", "aux": "alpha * acc + bias[n]"}  # and what its gradient needs

# Parts of a spec, and what to run: (m, n, k, batch, alpha, beta); the strides of what TMA moves are multiples of 16 B.
VARIANTS: dict[str, tuple[dict[str, Any], tuple[tuple[Any, ...], ...]]] = {
    "cooperative_tn": (
        {"dtypes": BF16, "tile": {"m": 128, "n": 256}, "cluster": (1, 1), "schedule": COOPERATIVE},
        ((129, 200, 200, 1, 1, 0), (1, 8, 64, 3, 0.5, 2), (200, 264, 0, 1, 1, 1.5), (7, 136, 8, 1, 1, 0)),
    ),
    "cooperative_cluster_m": (
        {"dtypes": F16, "tile": {"m": 128, "n": 128}, "cluster": (2, 1), "schedule": COOPERATIVE},
        ((129, 200, 200, 1, 1, 0), (300, 136, 456, 3, 0.5, -1), (1, 8, 0, 1, 1, 2)),
    ),
    "cooperative_cluster_n": (
        {"dtypes": BF16, "tile": {"m": 128, "n": 128}, "cluster": (1, 2), "schedule": COOPERATIVE},
        ((127, 136, 200, 3, 1, 0), (64, 520, 448, 1, 2, 1)),
    ),
    "cluster_of_eight_tn": (  # 72 rows of B are loaded in turn, A in halves
        {"dtypes": BF16, "tile": {"m": 128, "n": 72}, "cluster": (4, 2), "schedule": COOPERATIVE},
        ((520, 152, 200, 1, 1, 0), (7, 8, 456, 1, 0.5, 2), (200, 72, 0, 1, 1, 1.5)),
    ),
    "cluster_of_eight_nn_by_tma": (
        {"dtypes": F16, "majors": "NN", "tile": {"m": 128, "n": 72}, "cluster": (2, 4), "schedule": COOPERATIVE, "epilogue": {"store": "tma"}},
        ((264, 200, 200, 1, 1, 0), (72, 296, 392, 3, 0.5, 1)),
    ),
    "cluster_of_four_nt_ping_pong": (
        {"dtypes": BF16, "majors": "NT", "tile": {"m": 64, "n": 112}, "cluster": (2, 2), "schedule": PING_PONG},
        ((264, 200, 200, 1, 1, 0), (72, 296, 392, 3, 0.5, 1)),
    ),
    "odd_width_gelu_aux": (
        {"dtypes": BF16, "tile": {"m": 128, "n": 88}, "cluster": (1, 1), "epilogue": {**GELU, "store": "tma"}},
        ((129, 104, 200, 3, 0.5, None),),
    ),
    "odd_width_by_threads": (
        {"dtypes": BF16, "tile": {"m": 64, "n": 24}, "cluster": (1, 2), "align": {"c": 1}},
        ((129, 37, 200, 1, 0.5, 2),),
    ),
    "three_warpgroups_nn": (
        {"dtypes": BF16, "majors": "NN", "tile": {"m": 192, "n": 128}, "cluster": (1, 1), "schedule": COOPERATIVE},
        ((200, 200, 136, 1, 1, 0), (8, 64, 200, 3, 0.5, 1)),
    ),
    "one_warpgroup_tn": (
        {"dtypes": F16, "tile": {"m": 64, "n": 64}, "cluster": (1, 2), "schedule": COOPERATIVE},
        ((7, 200, 200, 1, 1, 0), (129, 72, 72, 3, 1, 1)),
    ),
    "few_rows_of_a": (
        {"dtypes": BF16, "problem": {"m": 16, "n": 512, "k": 512}, "cluster": (1, 1)},
        ((16, 200, 200, 1, 1, 0), (130, 72, 328, 3, 1, 1), (1, 8, 8, 1, 1, 0)),
    ),
    "few_rows_of_b_split": (
        {"dtypes": F16, "problem": {"m": 512, "n": 40, "k": 512}, "tile": {"m": 128, "n": 128}, "schedule": {"split_k": 2}},
        ((129, 40, 520, 1, 1, 0), (7, 264, 72, 3, 0.5, 1)),
    ),
    "padded_boxes_nt": (
        {"dtypes": BF16, "majors": "NT", "tile": {"m": 128, "n": 160}, "cluster": (2, 1), "schedule": PING_PONG},
        ((264, 200, 136, 1, 1, 0), (8, 328, 200, 3, 0.5, 1)),
    ),
    "padded_boxes_tt": (
        {"dtypes": F16, "majors": "TT", "tile": {"m": 64, "n": 96}, "cluster": (2, 1), "schedule": COOPERATIVE},
        ((129, 200, 136, 1, 1, 0), (7, 96, 72, 3, 0.5, 1)),
    ),
    "written_out_width": (
        {"dtypes": F16, "tile": {"m": 128, "n": 160}, "cluster": (2, 1), "schedule": PING_PONG},
        ((129, 328, 200, 1, 1, 0), (7, 8, 72, 3, 0.5, 1)),
    ),
    "narrow_boxes_nn": (
        {"dtypes": BF16, "majors": "NN", "tile": {"m": 128, "n": 96}, "cluster": (1, 2), "schedule": COOPERATIVE},
        ((136, 200, 136, 1, 1, 0),),
    ),
    "ping_pong_tn": (
        {"dtypes": F16, "tile": {"m": 128, "n": 128}, "cluster": (1, 1), "schedule": PING_PONG},
        ((129, 200, 200, 3, 1, 0), (300, 136, 456, 1, 0.5, -1), (200, 264, 0, 1, 1, 1.5), (1, 8, 64, 1, 1, 0)),
    ),
    "ping_pong_cluster_nt": (
        {"dtypes": BF16, "majors": "NT", "tile": {"m": 64, "n": 256}, "cluster": (2, 1), "schedule": PING_PONG},
        ((136, 200, 129, 1, 1, 0), (200, 264, 7, 3, 0.5, 1), (64, 8, 1, 1, 1, 0)),
    ),
    "ping_pong_cluster_n_nt": (
        {"dtypes": BF16, "majors": "NT", "tile": {"m": 128, "n": 192}, "cluster": (1, 2), "schedule": PING_PONG},
        ((136, 392, 129, 1, 1, 0),),
    ),
    "tt_f32_out": (
        {"dtypes": {**BF16, "c": "f32"}, "majors": "TT", "tile": {"m": 256, "n": 128}, "cluster": (1, 1)},
        ((129, 200, 200, 1, 1, 0), (7, 64, 64, 3, 0.5, 2)),
    ),
    "tf32": (
        {"dtypes": {"a": "f32", "b": "f32", "c": "f32", "multiply": "tf32"}, "tile": {"m": 128, "n": 96}, "cluster": (1, 1)},
        ((129, 200, 132, 1, 1, 0), (7, 4, 64, 3, 0.5, 2)),
    ),
    "e4m3": (
        {"dtypes": {"a": "e4m3", "b": "e4m3", "c": "bf16"}, "tile": {"m": 128, "n": 128}, "cluster": (2, 1)},
        ((129, 200, 208, 1, 1, 0), (7, 8, 128, 3, 0.5, 2)),
    ),
    "e5m2_by_e4m3": (
        {"dtypes": {"a": "e5m2", "b": "e4m3", "c": "f32"}, "tile": {"m": 64, "n": 256}, "schedule": PING_PONG},
        ((129, 200, 208, 1, 1, 0),),
    ),
    "e4m3_scaled": (
        {"dtypes": {"a": "e4m3", "b": "e4m3", "c": "bf16", "promote": 128}, "scales": {"a": "row", "b": "row"}, "tile": {"m": 128, "n": 128}},
        ((129, 200, 464, 1, 1, 0), (7, 8, 128, 3, 0.5, 2), (64, 64, 0, 1, 1, 1)),
    ),
    "bf16_scaled_ping_pong": (
        {"dtypes": {**BF16, "promote": 128}, "scales": {"b": "row"}, "tile": {"m": 64, "n": 192}, "schedule": PING_PONG},
        ((129, 200, 456, 1, 1, 1),),
    ),
    "gelu": (
        {"dtypes": BF16, "epilogue": {"out": "gelu(alpha * acc + bias[n])"}, "tile": {"m": 128, "n": 256}},
        ((129, 200, 200, 1, 1, None), (7, 8, 64, 3, 0.5, None)),
    ),
    "gate_and_residual_ping_pong": (
        {"dtypes": F16, "epilogue": {"out": "silu(alpha * acc * s[m]) * gate[m, n] + c / 3", "operands": "f32"}, "tile": {"m": 64, "n": 128}, "schedule": PING_PONG},
        ((129, 200, 200, 1, 1, None), (7, 8, 0, 3, 0.5, None)),
    ),
    "relu_by_threads": (
        {"dtypes": {"a": "e4m3", "b": "e4m3", "c": "bf16"}, "epilogue": {"out": "relu(acc * alpha) + shift[m]"}, "scales": {"b": "row"}, "align": {"c": 1}},
        ((65, 71, 208, 3, 0.5, None),),
    ),
    "common_path": (
        {"arch": "sm_80", "dtypes": F16, "epilogue": {"out": "clamp(alpha * acc * s[m], -1, 1) - bias[n] + c"}, "c_major": "M"},
        ((64, 72, 40, 3, 0.5, None), (33, 70, 8, 1, 1, None)),
    ),
    "aux": (
        {"dtypes": BF16, "epilogue": GELU, "tile": {"m": 128, "n": 256}, "cluster": (2, 1)},
        ((129, 200, 200, 1, 1, None), (7, 8, 64, 3, 0.5, None), (200, 264, 0, 1, 1, None)),
    ),
    "aux_f32_ping_pong": (
        {"dtypes": {**F16, "aux": "f32"}, "epilogue": {"out": "silu(alpha * acc) * gate[m, n] + c", "aux": "alpha * acc * s[m] - c"}, "tile": {"m": 64, "n": 128}, "schedule": PING_PONG},
        ((129, 200, 200, 3, 0.5, None), (300, 136, 72, 1, 1, None)),
    ),
    "aux_narrower_than_c": (
        {"dtypes": {**BF16, "c": "f32", "aux": "bf16"}, "epilogue": GELU, "tile": {"m": 128, "n": 96}},
        ((129, 200, 136, 3, 0.5, None),),
    ),
    "aux_in_half_rows": (
        {"dtypes": {**BF16, "aux": "f16"}, "epilogue": GELU, "tile": {"m": 64, "n": 96}},
        ((65, 200, 72, 3, 0.5, None),),
    ),
    "aux_split_k_scaled": (
        {"dtypes": {"a": "e4m3", "b": "e4m3", "c": "bf16", "aux": "f16"}, "scales": {"a": "row", "b": "row"}, "epilogue": GELU, "tile": {"m": 128, "n": 128}, "schedule": {"split_k": 2}},
        ((129, 200, 464, 3, 0.5, None),),
    ),
    "aux_by_threads": (
        {"dtypes": {**BF16, "aux": "f32"}, "epilogue": GELU, "tile": {"m": 128, "n": 128}, "align": {"c": 2, "aux": 1}},
        ((129, 126, 200, 3, 0.5, None), (7, 2, 64, 1, 1, None)),
    ),
    "aux_grouped": (
        {"dtypes": {**BF16, "aux": "f16"}, "problem": {"m": 512, "n": 512, "k": 512, "groups": 4}, "tile": {"m": 64, "n": 128},
         "epilogue": {"out": "gelu(alpha * acc + bias[n]) + skip[m, n]", "aux": "(alpha * acc + bias[n]) * s[m] + c"}},
        ((300, 200, 72, 1, 0.5, None), (5, 8, 0, 1, 1, None)),
    ),
    "aux_common_path": (
        {"arch": "sm_80", "dtypes": {**F16, "aux": "f32"}, "epilogue": {"out": "clamp(alpha * acc * s[m], -1, 1) + c", "aux": "alpha * acc - bias[n] * c"}, "c_major": "M"},
        ((64, 72, 40, 3, 0.5, None), (33, 70, 8, 1, 1, None)),
    ),
    "aux_common_path_staged": (
        {"arch": "sm_80", "dtypes": {**BF16, "c": "f32", "aux": "bf16"}, "majors": "NT", "epilogue": GELU, "align": {"aux": 2}},
        ((136, 74, 40, 3, 0.5, None), (8, 2, 8, 1, 1, None)),
    ),
    "aux_common_path_simt": (
        {"arch": "sm_80", "dtypes": {"a": "f32", "b": "f32", "c": "f32", "aux": "bf16"}, "epilogue": GELU},
        ((65, 68, 12, 3, 0.5, None), (3, 4, 4, 1, 1, None)),
    ),
    "e4m3_out": (
        {"dtypes": {"a": "e4m3", "b": "e4m3", "c": "e4m3"}, "scales": {"a": "row"}, "tile": {"m": 128, "n": 128}},
        ((129, 208, 208, 1, 9, 0), (7, 16, 128, 3, 0.5, 2), (64, 144, 0, 1, 1, -1)),
    ),
    "e4m3_out_in_half_rows": (
        {"dtypes": {**F16, "c": "e4m3"}, "tile": {"m": 64, "n": 192}},
        ((65, 208, 72, 1, 1, 1),),
    ),
    "e5m2_out_of_bf16_gelu_aux": (
        {"dtypes": {**BF16, "c": "e5m2", "aux": "bf16"}, "majors": "NT", "epilogue": {"out": "gelu(alpha * acc + bias[n]) + c", "aux": "alpha * acc"}, "tile": {"m": 64, "n": 128}, "schedule": PING_PONG},
        ((136, 208, 72, 3, 0.5, None),),
    ),
    "e4m3_out_by_threads_split_k": (
        {"dtypes": {"a": "e4m3", "b": "e5m2", "c": "e4m3"}, "tile": {"m": 64, "n": 256}, "schedule": {"split_k": 2}, "align": {"c": 1}},
        ((65, 71, 272, 3, 0.5, 1), (1, 1, 16, 1, 1, 0)),
    ),
    "e4m3_out_column_major": (
        {"dtypes": {**F16, "c": "e4m3"}, "c_major": "M", "tile": {"m": 128, "n": 128}, "align": {"c": 4}},
        ((200, 129, 72, 1, 1, 0),),
    ),
    "a_in_registers": (
        {"dtypes": BF16, "mma": {"a_operand": "registers"}, "tile": {"m": 128, "n": 128}, "cluster": (2, 1)},
        ((129, 200, 200, 1, 1, 0), (300, 136, 456, 3, 0.5, -1), (1, 8, 0, 1, 1, 2)),
    ),
    "a_in_registers_tf32_ping_pong": (
        {"dtypes": {"a": "f32", "b": "f32", "c": "f32", "multiply": "tf32"}, "mma": {"a_operand": "registers"}, "tile": {"m": 64, "n": 96}, "schedule": PING_PONG},
        ((129, 200, 132, 3, 1, 0),),
    ),
    "a_in_registers_fp8_promoted": (
        {"dtypes": {"a": "e5m2", "b": "e4m3", "c": "bf16", "promote": 256}, "mma": {"a_operand": "registers"}, "tile": {"m": 128, "n": 128}, "cluster": (1, 2)},
        ((129, 200, 464, 1, 1, 0),),
    ),
    "a_in_registers_tt_split_k": (
        {"dtypes": F16, "majors": "TT", "mma": {"a_operand": "registers"}, "tile": {"m": 256, "n": 128}, "schedule": {"split_k": 2}},
        ((136, 200, 328, 1, 1, 1), (7, 8, 64, 3, 0.5, 0)),
    ),
    "a_in_registers_grouped": (
        {"dtypes": F16, "problem": {"m": 512, "n": 512, "k": 512, "groups": 4}, "mma": {"atom": "SM90_64x128x16_F32F16F16_RS"}},
        ((300, 200, 72, 1, 0.5, 1),),
    ),
    "column_major": (
        {"dtypes": BF16, "majors": "NN", "c_major": "M", "tile": {"m": 128, "n": 128}, "cluster": (2, 1)},
        ((200, 129, 136, 1, 1, 0), (8, 7, 64, 3, 0.5, 2)),
    ),
    "column_major_scaled": (
        {"dtypes": {"a": "e4m3", "b": "e5m2", "c": "f16"}, "scales": {"a": "row"}, "c_major": "M"},
        ((72, 129, 144, 3, 0.5, 1),),
    ),
    "grouped": (
        {"dtypes": BF16, "problem": {"m": 512, "n": 512, "k": 512, "groups": 4}, "tile": {"m": 64, "n": 128}},
        ((300, 200, 72, 1, 0.5, 1), (5, 8, 0, 1, 1, 2), (1, 8, 64, 1, 1, 0)),
    ),
    "grouped_cluster_ping_pong": (
        {"dtypes": F16, "problem": {"m": 512, "n": 512, "k": 512, "groups": 4}, "majors": "TT", "tile": {"m": 128, "n": 128}, "cluster": (2, 1), "schedule": PING_PONG},
        ((300, 200, 136, 1, 0.5, 0),),
    ),
    "split_k_2": (
        {"dtypes": BF16, "tile": {"m": 128, "n": 128}, "schedule": {"split_k": 2}},
        ((129, 200, 200, 1, 1, 0), (7, 136, 8, 3, 0.5, 2), (200, 264, 0, 1, 1, 1.5), (64, 72, 1000, 1, 1, 1)),
    ),
    "split_k_4_nn": (
        {"dtypes": F16, "majors": "NN", "tile": {"m": 64, "n": 256}, "schedule": {"split_k": 4}},
        ((72, 264, 456, 1, 1, 0), (8, 8, 136, 3, 0.5, 2)),
    ),
    "split_k_8_f32_out": (
        {"dtypes": {**BF16, "c": "f32"}, "tile": {"m": 128, "n": 256}, "schedule": {"split_k": 8}, "pipeline": {"stages": 3}},
        ((129, 72, 712, 1, 1, -1),),
    ),
    "split_k_scaled_gelu_by_threads": (
        {"dtypes": {"a": "e4m3", "b": "e4m3", "c": "bf16", "promote": 128}, "scales": {"a": "row", "b": "row"}, "epilogue": {"out": "gelu(alpha * acc + bias[n]) + c"},
         "tile": {"m": 128, "n": 128}, "schedule": {"split_k": 2}, "align": {"c": 1}},
        ((129, 71, 464, 3, 0.5, None),),
    ),
    "split_k_column_major": (
        {"dtypes": BF16, "c_major": "M", "tile": {"m": 192, "n": 128}, "schedule": {"split_k": 2}},
        ((136, 200, 328, 1, 1, 2),),
    ),
    "stores_by_threads": (
        {"dtypes": BF16, "tile": {"m": 128, "n": 128}, "cluster": (1, 1), "align": {"c": 1}},
        ((129, 127, 200, 1, 1, 0), (64, 7, 64, 3, 0.5, 2), (1, 1, 8, 1, 1, 0), (200, 129, 0, 1, 1, 1)),
    ),
    "stores_by_threads_f32": (
        {"dtypes": {**F16, "c": "f32"}, "tile": {"m": 128, "n": 128}, "cluster": (2, 1), "align": {"c": 2}},
        ((129, 126, 200, 1, 1, 2), (64, 2, 64, 3, 0.5, 0)),
    ),
}  # fmt: skip


@functools.cache
def kernel_of(name: str) -> api.Kernel:
    parts, _ = VARIANTS[name]
    kernel = api.build(GemmSpec(**{"arch": "sm_90a", "problem": {"m": 512, "n": 512, "k": 512}, **parts}))
    cluster = kernel.plan.signature.geometry.cluster[0]
    kernel.arch = replace(kernel.arch, sms=max(4, cluster) if cluster > 1 else 2)
    return kernel


def check(name: str, m: int, n: int, k: int, batch: int, alpha: float, beta: float | None) -> None:
    """`beta` None: an expression, which has none."""
    kernel = kernel_of(name)
    extents = {"m": m, "n": n, "k": k, **({"batch": batch} if batch > 1 else {})}
    if kernel.spec.problem.groups:
        extents["groups"] = 4
    arrays = inputs.for_signature(kernel.signature, extents, 1, library="numpy", inouts=beta != 0)
    scalars = {"alpha": alpha} if beta is None else {"alpha": alpha, "beta": beta}
    report = validate(
        functools.partial(kernel, device="sim"),
        api.family(kernel.spec),
        arrays,
        scalars,
        strides=kernel._output_strides(arrays),
        numerics=api.numerics(kernel.plan),
        twice=False,
    )
    assert report.ok, str(report)
    assert "common_path" in name or not kernel._variants, "another kernel was run"


@pytest.mark.parametrize("name", VARIANTS)
def test_odd_sizes(name: str) -> None:
    for size in VARIANTS[name][1]:
        check(name, *size)


@pytest.mark.parametrize(
    "name",
    [
        "cooperative_cluster_m",
        "cluster_of_eight_tn",
        "ping_pong_cluster_nt",
        "ping_pong_tn",
        "split_k_2",
        "a_in_registers",
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_warps(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps interleaved at random find races that lockstep hides."""
    monkeypatch.setattr(cutegen.sim, "launch", functools.partial(cutegen.sim.launch, seed=seed))
    check(name, 264, 264, 200, 1, 0.5, 1)


def test_two_outputs_in_any_order_of_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutegen.sim, "launch", functools.partial(cutegen.sim.launch, seed=1))
    check("aux_f32_ping_pong", 136, 264, 72, 1, 0.5, None)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("warpgroup_wait<K_STEPS{} - 1>();", "warpgroup_wait<K_STEPS{}>();", "register-before-wait"),
        ("lane == 0) { arrive_barrier(smem.empty", "tid % 128 < 4) { arrive_barrier(smem.empty", "shared-race"),
    ],
    ids=["loaded-too-early", "one-warp-speaks-for-all"],
)
def test_faults_of_a_in_registers_are_found(old: str, new: str, kind: str) -> None:
    """Registers that a WGMMA still reads are not loaded, and a stage is free when every warp has loaded its rows."""
    parts = {
        "mma": {"a_operand": "registers"},
        "tile": {"m": 64, "n": 64},
        "cluster": (1, 1),
        "pipeline": {"stages": 2},
    }
    plan = api.resolve(GemmSpec(arch="sm_90a", problem={"m": 512, "n": 512, "k": 512}, dtypes=BF16, **parts))
    source = render(plan)
    assert old in source
    made = binary.compile(source.replace(old, new), stem=plan.symbol, arch="sm_90a", kernel=plan.symbol)
    kernel = Kernel(plan.signature, made.cubin, plan.arch, ptx=made.ptx)
    arrays = inputs.for_signature(plan.signature, {"m": 64, "n": 64, "k": 520}, 1)
    _, seen = kernel.simulate(*arrays.values())
    assert seen is not None and kind in {finding.kind for finding in seen.findings}


def test_a_call_returns_both_outputs() -> None:
    kernel = kernel_of("aux_narrower_than_c")
    arrays = inputs.for_signature(kernel.signature, {"m": 40, "n": 72, "k": 64}, 1, library="numpy")
    c, aux = kernel(*arrays.values(), alpha=0.5, device="sim")
    assert (c.shape, str(c.dtype), aux.shape, str(aux.dtype)) == ((40, 72), "float32", (40, 72), "bfloat16")
    given = np.full_like(c, np.nan), np.full_like(aux, np.nan)
    made = kernel(**arrays, out=given[0], aux=given[1], alpha=0.5, device="sim")
    assert made[0] is given[0] and made[1] is given[1]
    assert np.array_equal(c, given[0]) and np.array_equal(aux, given[1])
    with pytest.raises(ArgumentError, match="c and aux share memory|aux and c share memory"):
        kernel(**arrays, out=given[0], aux=given[0].view(aux.dtype)[:, :72], device="sim")


def test_fp8_outputs_saturate() -> None:
    """Beyond 448 e4m3 has NaN alone: a kernel that did not saturate would give that."""
    kernel = kernel_of("e4m3_out")
    arrays = inputs.for_signature(kernel.signature, {"m": 64, "n": 128, "k": 128}, 1, library="numpy")
    wanted = 1000 * whole(api.family(kernel.spec).product(arrays, {}))
    out = kernel(*arrays.values(), alpha=1000.0, device="sim").astype(np.float64)
    beyond = np.abs(wanted) > 480
    assert beyond.mean() > 0.8 and np.array_equal(out[beyond], 448 * np.sign(wanted[beyond]))


def test_the_variant_for_unaligned_operands_keeps_the_epilogue() -> None:
    spec = GemmSpec(
        arch="sm_90a",
        problem={"m": 512, "n": 512, "k": 512},
        dtypes=BF16,
        epilogue={"out": "relu(acc + bias[n])", "store": "tma"},
    )
    kernel = api.build(spec)
    arrays = inputs.for_signature(kernel.signature, {"m": 65, "n": 72, "k": 80}, 1, pads={"a": 1, "b": 3})
    report = kernel.validate(arrays, device="sim", twice=False)
    assert report.ok, str(report)
    assert next(iter(kernel._variants.values())).spec.epilogue.out == "relu(acc + bias[n])"
