"""Every static check refuses what it should, by field, with a remedy; cases of public fault reports among them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cutegen import api
from cutegen.errors import SpecError
from cutegen.spec import AttentionScoresSpec, GemmSpec

F16 = {"a": "f16", "b": "f16", "c": "f32"}
F32 = {"a": "f32", "b": "f32", "c": "f32"}
SIZE = {"m": 512, "n": 512, "k": 512}


def gemm(**parts: Any) -> GemmSpec:
    return GemmSpec(**{"problem": SIZE, "dtypes": F16, **parts})


def scores(**parts: Any) -> AttentionScoresSpec:
    given = {
        "problem": {"seqlen_q": 64, "seqlen_k": 64, "head_dim": 64},
        "dtypes": {"q": "f16", "k": "f16", "scores": "f16"},
    }
    return AttentionScoresSpec(**{**given, **parts})


@pytest.mark.parametrize(
    ("parts", "field", "words"),
    [
        ({"tile": {"k": 24}}, "tile.k", ["16", "nearest: 16 or 32"]),
        ({"tile": {"m": 100}}, "tile.m", ["nearest: 96 or 128"]),
        ({"pipeline": {"stages": 9}}, "pipeline.stages", ["294912 B", "166912 B", "5 stages would fit"]),
        ({"arch": "sm_86", "pipeline": {"stages": 4}}, "pipeline.stages", ["101376 B", "3 stages would fit"]),
        ({"tile": {"m": 256, "n": 256}}, "tile", ["registers a thread, of 255", "more warps"]),
        ({"mma": {"atom": "SM80_16x8x16_F32BF16BF16F32_TN"}}, "mma.atom", ["bf16", "SM80_16x8x16_F32F16F16F32_TN would do"]),
        ({"mma": {"atom": "SM80_16x8x16_F32F16F16F32_TM"}}, "mma.atom", ["did you mean SM80_16x8x16_F32F16F16F32_TN"]),
        ({"mma": {"warps": [2, 2, 2]}}, "mma.warps", ["third count must be 1"]),
        ({"mma": {"threads": [16, 16, 1]}}, "mma.threads", ["write mma.warps"]),
        ({"dtypes": F32, "mma": {"warps": [2, 2, 1]}}, "mma.warps", ["write mma.threads"]),
        ({"dtypes": F32, "mma": {"threads": [3, 16, 1]}}, "tile.m", ["nearest"]),
        ({"smem": {"a": {"atom": "(8,64)"}}}, "smem.a.atom", ["static stride"]),
        ({"smem": {"a": {"atom": "(24,64):(64,1)"}}}, "smem.a.atom", ["does not divide", "120 or 144"]),
        ({"smem": {"a": {"atom": "(8,64):(1,1)"}}}, "smem.a.atom", ["two elements in one place"]),
        ({"smem": {"b": {"atom": "(8,64):(64,1)", "swizzle": "Sw<3,1,3>"}}}, "smem.b.swizzle", ["ldmatrix", "base of at least 3"]),
        ({"smem": {"a": {"swizzle": "off"}}}, "smem.a.swizzle", ["Sw<bits,base,shift>"]),
        ({"copy": {"a": {"threads": "(16,4):(4,1)"}}}, "copy.a.threads", ["number the 128 threads"]),
        ({"copy": {"a": {"threads": "(128,1):(1,0)", "values": "(8,1):(1,0)"}}}, "copy.a.values", ["run along the contiguous mode"]),
        ({"copy": {"a": {"threads": "(1,128):(0,1)", "values": "(1,8):(0,1)"}}}, "copy.a.threads", ["does not divide the tile (128,64)"]),
        ({"copy": {"b": {"atom": "SM80_CP_ASYNC_CACHEGLOBAL_8B"}}}, "copy.b.atom", ["unknown copy atom"]),
        ({"copy": {"b": {"atom": "SM80_CP_ASYNC_CACHEALWAYS_8B", "values": "(1,8):(0,1)"}}}, "copy.b.values", ["copies 8 B", "4 values"]),
        ({"dtypes": F32, "copy": {"a": {"atom": "SM80_CP_ASYNC_CACHEGLOBAL_16B", "values": "(1,4):(0,1)"}}}, "copy.a.atom", ["can't transpose a vector", "UniversalCopy_16B, which goes through registers"]),
        ({"align": {"a": 3}}, "align.a", ["power of two"]),
    ],
)  # fmt: skip
def test_gemm_is_refused_by_field(parts: dict[str, Any], field: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        api.resolve(gemm(**parts))
    assert field in [fault.field for fault in error.value.faults], str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("parts", "field", "words"),
    [
        ({"arch": "sm_80", "mma": {"atom": "SM90_64x128x16_F32F16F16_SS"}}, "mma.atom", ["needs sm_90a"]),
        ({"arch": "sm_90", "mma": {"atom": "SM90_64x128x16_F32F16F16_SS"}}, "mma.atom", ["needs sm_90a", "got sm_90"]),
        ({"arch": "sm_90a", "mma": {"atom": "SM90_64x128x16_F32BF16BF16_SS"}}, "mma.atom", ["F32F16F16_SS would do"]),
        ({"arch": "sm_90a", "tile": {"n": 100}}, "tile.n", ["nearest: 96"]),
        ({"arch": "sm_90a", "tile": {"n": 160}}, "tile.n", ["[32, 64, 96, 128, 192, 256]"]),
        ({"arch": "sm_90a", "tile": {"m": 64}}, "tile.m", ["must be 128"]),
        (
            {"arch": "sm_90a", "tile": {"n": 128}, "pipeline": {"stages": 16}},
            "tile.n",
            ["B of shared memory", "fewer stages"],
        ),
        (
            {"arch": "sm_90a", "epilogue": {"store": "tma"}, "align": {"scores": 1}},
            "epilogue.store",
            ["aligned to 16 B", "store: vector"],
        ),
    ],
)
def test_scores_are_refused_by_field(parts: dict[str, Any], field: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        api.resolve(scores(**parts))
    assert field in [fault.field for fault in error.value.faults], str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("dtypes", "field"),
    [
        ({"a": "f16", "b": "bf16", "c": "f32"}, "dtypes.b"),
        ({"a": "bf16", "b": "bf16", "c": "bf16", "accumulate": "f16"}, "dtypes.accumulate"),
        ({"a": "f16", "b": "f16", "c": "bf16"}, "dtypes.c"),
        ({"a": "f16", "b": "f16", "c": "f16", "multiply": "tf32"}, "dtypes.multiply"),
        ({"a": "f32", "b": "f32", "c": "f16"}, "dtypes.c"),
    ],
)
def test_types_that_no_atom_multiplies(dtypes: dict[str, str], field: str) -> None:
    with pytest.raises(SpecError) as error:
        gemm(dtypes=dtypes)
    assert error.value.faults[0].field == field


def test_heads_must_be_grouped_evenly() -> None:
    for heads, heads_kv in ((6, 4), (2, 6)):
        with pytest.raises(SpecError, match="must be a multiple of heads_kv"):
            scores(problem={"seqlen_q": 8, "seqlen_k": 8, "head_dim": 64, "heads": heads, "heads_kv": heads_kv})


def test_shared_memory_limits_per_arch() -> None:
    """Exactly the limit fits: 227 KiB on sm_90, 163 KiB on sm_80, 99 KiB on sm_86 and sm_89."""
    from cutegen.hardware import ARCHS

    assert [ARCHS[a].smem_per_block for a in ("sm_80", "sm_86", "sm_89", "sm_90a")] == [166912, 101376, 101376, 232448]


@pytest.mark.parametrize(
    ("operand", "tile", "message"),
    [
        ("b", {"m": 96}, "copy.b: Sw<3,4,3> bends steps of 132 elements, of which there are 4"),
        ("a", {"m": 96, "n": 16}, "copy.a: Sw<3,4,3> bends steps of 100 elements, of which there are 4"),
    ],
)
def test_a_swizzle_over_padded_rows_is_refused_before_cute_does(
    operand: str, tile: dict[str, int], message: str
) -> None:
    spec = GemmSpec(
        problem={"m": 256, "n": 256, "k": 256},
        dtypes={"a": "f32", "b": "f32", "c": "f32"},
        arch="sm_90",
        tile=tile,
        smem={operand: {"swizzle": "Sw<3,4,3>"}},
        pipeline={"stages": 1},
        align={"c": 8},
        c_major="M",
    )
    with pytest.raises(SpecError, match=re.escape(message)):
        api.check(spec)
