"""What a `gemm` spec whose matrices lie anywhere becomes."""

from __future__ import annotations

from typing import Any

import pytest

from cutegen import api
from cutegen.errors import SpecError
from cutegen.plan.signature import PointerArray, Stride, TensorMapArray
from tests.plan.test_hopper_gemm import GELU, gemm, hopper

POINTERS = {"m": 512, "n": 512, "k": 512, "batch": 4, "pointers": True}


def test_matrices_that_lie_anywhere() -> None:
    plan = hopper(problem=POINTERS, epilogue={**GELU, "operands": "f32"})
    lists = {t.name: (t.listed, t.modes) for t in plan.signature.tensors}
    assert lists["a"] == ("batch", ("m", "k")) and lists["aux"] == lists["c"] == ("batch", ("m", "n"))
    assert lists["bias"] == (None, ("batch", "n"))
    maps = [param for param in plan.signature.params if isinstance(param, TensorMapArray)]
    assert [param.tensor for param in maps] == ["a", "b", "c", "aux"]
    assert all(len(param.each.modes) == len(param.each.box) == 2 for param in maps)
    assert PointerArray("c") in plan.signature.params and not plan.touched
    assert "TmaDescriptor const* tma_A" in plan.params_cpp and "bfloat16_t* const* ptr_C" in plan.params_cpp
    assert plan.symbol.startswith("gemm_sm_90a_tn_bf16_") and "_ptr" in plan.symbol


def test_arrays_of_pointers_where_threads_move_matrices() -> None:
    plan = hopper(problem={**POINTERS, "m": 511, "n": 511}, majors="NN", c_major="M")  # mirrored: C^T = B A^T
    arrays = [param.tensor for param in plan.signature.params if isinstance(param, PointerArray)]
    assert (plan.by_threads, arrays) == ((False, True), ["a", "c"])
    assert (plan.matrix(plan.b), plan.index(plan.a), plan.map("A")) == ("B", "", "tma_A + batch")
    common = api.resolve(gemm(arch="sm_80", problem=POINTERS))
    assert [p.tensor for p in common.signature.params if isinstance(p, PointerArray)] == ["a", "b", "c"]
    assert not any(isinstance(p, Stride) and p.mode == "batch" for p in common.signature.params)
    assert common.params_cpp[0] == "bfloat16_t const* const* ptr_A" and common.symbol.endswith("_ptr")


@pytest.mark.parametrize(
    ("problem", "field", "words"),
    [
        ({**POINTERS, "batch": 1, "groups": 2}, "problem.pointers", ["not with groups", "problem.batch"]),
        ({**POINTERS, "batch": 0}, "problem.batch", ["a matrix at least", "1 or more"]),
        ({**POINTERS, "pointers": "yes"}, "problem.pointers", ["true or false"]),
    ],
)
def test_pointers_that_are_refused(problem: dict[str, Any], field: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        gemm(problem=problem)
    assert field in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_tiles_that_would_spill_come_last() -> None:
    strided, pointers = hopper(8192, 8192, 8192), hopper(problem={"m": 8192, "n": 8192, "k": 8192, "pointers": True})
    assert strided.accumulators == 192 and pointers.accumulators <= 160
