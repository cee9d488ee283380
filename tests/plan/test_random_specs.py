"""A spec that `check` accepts compiles and computes right; any other is refused by field. A few here, many by hand.

`CUTEGEN_RANDOM_SPECS=300 pytest tests/plan/test_random_specs.py` is the long run, whose figures are in docs/compile.md.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutegen import api
from cutegen.cli.running import reads_c
from cutegen.errors import SpecError
from cutegen.report import inputs
from cutegen.spec import AttentionScoresSpec, GemmSpec

COUNT = int(os.environ.get("CUTEGEN_RANDOM_SPECS", "8"))

extent = st.sampled_from([16, 32, 48, 64, 96, 128, 192, 256])
maybe = lambda strategy: st.one_of(st.none(), strategy)
arch = st.sampled_from(["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"])
tile = st.fixed_dictionaries(
    {"m": maybe(extent), "n": maybe(extent), "k": maybe(st.sampled_from([8, 16, 24, 32, 64, 128]))}
)
warps = maybe(st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.just(1)))
pipeline = st.fixed_dictionaries({"stages": maybe(st.integers(1, 6))})
power = maybe(st.sampled_from([1, 2, 4, 8]))
swizzle = maybe(st.sampled_from(["none", "Sw<1,3,3>", "Sw<2,3,3>", "Sw<3,3,3>", "Sw<3,2,3>", "Sw<2,3,2>", "Sw<3,4,3>"]))
smem = st.fixed_dictionaries(
    {"a": st.fixed_dictionaries({"swizzle": swizzle}), "b": st.fixed_dictionaries({"swizzle": swizzle})}
)
types = st.sampled_from(
    [
        {"a": "f16", "b": "f16", "c": "f16"},
        {"a": "f16", "b": "f16", "c": "f32"},
        {"a": "f16", "b": "f16", "c": "f16", "accumulate": "f16"},
        {"a": "bf16", "b": "bf16", "c": "bf16"},
        {"a": "f32", "b": "f32", "c": "f32"},
        {"a": "f32", "b": "f32", "c": "f32", "multiply": "tf32"},
    ]
)
gemm = st.fixed_dictionaries(
    {
        "problem": st.just({"m": 256, "n": 256, "k": 256}),
        "dtypes": types,
        "arch": arch,
        "majors": st.sampled_from(["TN", "NT", "NN", "TT"]),
        "c_major": st.sampled_from(["M", "N"]),
        "tile": tile,
        "mma": st.fixed_dictionaries({"warps": warps}),
        "smem": smem,
        "pipeline": pipeline,
        "epilogue": st.fixed_dictionaries({"staged": maybe(st.booleans())}),
        "align": st.fixed_dictionaries({"a": power, "b": power, "c": power}),
    }
)
_NARROW = [
    {"a": "e4m3", "b": "e5m2", "c": "bf16"},
    {"a": "e4m3", "b": "e4m3", "c": "e4m3"},
    {"a": "bf16", "b": "bf16", "c": "e5m2"},
]
_EXPRESSIONS = [
    {},
    {"out": "gelu_tanh(alpha * acc + bias[n])"},
    {"out": "min(acc, 6) * s[m] + rest[m, n] / c"},
    {"out": "gelu_tanh(alpha * acc + bias[n])", "aux": "alpha * acc + bias[n]"},
    {"out": "max(acc, 0) + rest[m, n]", "aux": "acc * s[m] - c"},
]
hopper_gemm = st.fixed_dictionaries(
    {
        "problem": st.sampled_from(
            [
                {"m": 256, "n": 256, "k": 256},
                {"m": 256, "n": 256, "k": 256, "groups": 4},
                {"m": 256, "n": 256, "k": 256, "batch": 4, "pointers": True},
            ]
        ),
        "c_major": st.sampled_from(["M", "N"]),
        "scales": st.fixed_dictionaries(
            {"a": st.sampled_from(["tensor", "row"]), "b": st.sampled_from(["tensor", "row"])}
        ),
        "dtypes": st.one_of(types, st.sampled_from(_NARROW)),
        "mma": st.sampled_from([{}, {}, {"a_operand": "registers"}]),
        "arch": st.just("sm_90a"),
        "majors": st.sampled_from(["TN", "NT", "NN", "TT"]),
        "tile": st.fixed_dictionaries(
            {
                "m": maybe(extent),
                "n": maybe(st.sampled_from([8, 24, 32, 64, 72, 88, 96, 128, 144, 160, 192, 200, 224, 256])),
            }
        ),
        "pipeline": pipeline,
        "cluster": maybe(st.sampled_from([[1, 1], [2, 1], [1, 2], [2, 2], [4, 2], [2, 4]])),
        "schedule": st.fixed_dictionaries({"kind": maybe(st.sampled_from(["cooperative", "ping_pong"]))}),
        "epilogue": st.builds(
            lambda store, expressions: {"store": store, **expressions},
            maybe(st.sampled_from(["vector", "tma"])),
            st.sampled_from(_EXPRESSIONS),
        ),
        "align": st.fixed_dictionaries({"c": power}),
    }
)
scores = st.fixed_dictionaries(
    {
        "problem": st.fixed_dictionaries(
            {"seqlen_q": st.just(64), "seqlen_k": st.just(64), "head_dim": st.sampled_from([8, 40, 64, 96, 128, 256])}
        ),
        "dtypes": types.map(
            lambda d: {{"a": "q", "b": "k", "c": "scores"}.get(key, key): value for key, value in d.items()}
        ),
        "arch": arch,
        "causal": st.booleans(),
        "tile": tile,
        "pipeline": pipeline,
        "epilogue": st.fixed_dictionaries({"store": maybe(st.sampled_from(["vector", "tma"]))}),
        "align": st.fixed_dictionaries({"q": power, "k": power, "scores": power}),
    }
)
# Partial tiles of most, and whole vectors.
SMALL: dict[Any, dict[str, int]] = {
    GemmSpec: {"m": 80, "n": 176, "k": 80},
    AttentionScoresSpec: {"seqlen_q": 80, "seqlen_k": 176},
}
_counts = {"accepted": 0, "refused": 0}


def check(family: Any, parts: dict[str, Any]) -> None:
    try:
        spec = family(**parts)
        api.check(spec)
    except SpecError as error:
        assert all(fault.field for fault in error.faults), str(error)
        _counts["refused"] += 1
        return
    _counts["accepted"] += 1
    kernel = api.build(spec)
    extents = {**api.problem(spec), **SMALL[family]}
    arrays = inputs.for_signature(kernel.signature, extents, 1, inouts=reads_c(spec))
    report = kernel.validate(arrays, {}, device="sim", twice=False)
    assert report.ok, str(report)


@pytest.mark.slow
@given(parts=gemm)
@settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck), derandomize=COUNT <= 8)
def test_random_gemms(parts: dict[str, Any]) -> None:
    check(GemmSpec, parts)


@pytest.mark.slow
@given(parts=scores)
@settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck), derandomize=COUNT <= 8)
def test_random_scores(parts: dict[str, Any]) -> None:
    check(AttentionScoresSpec, parts)


@pytest.mark.slow
@given(parts=hopper_gemm)
@settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck), derandomize=COUNT <= 8)
def test_random_hopper_gemms(parts: dict[str, Any]) -> None:
    check(GemmSpec, parts)


@given(parts=st.one_of(gemm, hopper_gemm))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_gemm_is_planned_and_rendered_or_refused_by_field(parts: dict[str, Any]) -> None:
    try:
        assert api.emit(GemmSpec(**parts))
    except SpecError as error:
        assert all(fault.field for fault in error.faults), str(error)


def test_print_counts() -> None:
    print(_counts)
