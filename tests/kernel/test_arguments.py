from __future__ import annotations

import struct
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from cutegen.dtypes import F16, F32
from cutegen.errors import ArgumentError
from cutegen.kernel.arguments import assign, bind
from cutegen.kernel.overlap import overlapping
from cutegen.kernel.packing import pack, scalar_bytes, slots
from cutegen.kernel.tensors import TensorView, dense_strides
from cutegen.plan.signature import Extent, Geometry, Pointer, Scalar, ScalarArg, Signature, TensorArg, TensorMapParam
from tests.kernel.conftest import GEMM, SCORES


def view(*shape: int, strides: tuple[int, ...] | None = None, dtype: str = "f16", pointer: int = 4096, device: int = 0):
    return TensorView(pointer, shape, dense_strides(shape) if strides is None else strides, dtype, device)


def test_extents_and_strides_are_bound_by_name() -> None:
    bound = bind(GEMM, {"a": view(3, 128, 64), "b": view(96, 64)})
    assert bound.extents == {"batch": 3, "m": 128, "k": 64, "n": 96}
    assert bound.strides["a", "batch"] == 128 * 64 and bound.strides["a", "m"] == 64
    assert bound.strides["b", "batch"] == 0
    (missing,) = bound.missing
    assert missing.shape == (3, 128, 96) and missing.strides == (128 * 96, 96, 1)
    assert bound.vectors == (("a", 8), ("b", 8), ("c", 4))
    assert bound.read_if == (("c", "beta"),)


def test_optional_mode_missing_everywhere_is_one() -> None:
    bound = bind(GEMM, {"a": view(5, 8), "b": view(7, 8)})
    assert bound.extents["batch"] == 1
    assert bound.missing[0].shape == (5, 7)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"b": view(96, 32)}, ["b: k is 32", "a has k 64"]),
        ({"b": view(96, 64, dtype="f32")}, ["b: expected dtype f16, got f32"]),
        ({"b": view(96, 64, device=1)}, ["b is on GPU 1", "a on GPU 0"]),
        ({"b": view(96, 64, device=-1)}, ["b is on the host"]),
        ({"b": view(64)}, ["b: expected (batch, n, k) or (n, k), got shape (64)"]),
        ({"b": view(96, 64, strides=(-64, 1))}, ["b: the stride of n is -64", "negative", "pass b.contiguous()"]),
        (
            {"b": view(96, 64, strides=(1, 96))},
            ["b: k must be contiguous (stride 1), its stride is 96", "pass b.contiguous()"],
        ),
        ({"b": view(96, 64, pointer=4097)}, ["b: the address 0x1001 is not a multiple of the 2-byte element"]),
        ({"b": view(2, 96, 64)}, ["b: batch is 2, but a has batch 3"]),
        ({"b": view(1, 96, 64)}, ["b: batch is 1, but a has batch 3", "expand"]),
        ({"c": view(3, 128, 96, strides=(0, 96, 1), dtype="f32")}, ["c: the stride of batch is 0", "overlap"]),
        ({"c": view(3, 128, 96, strides=(128 * 96, 95, 1), dtype="f32")}, ["c: the stride of m is 95", "overlap"]),
        ({"c": view(128, 96, dtype="f32")}, ["c: the stride of batch is 0"]),
        ({"a": view(3, 2**31, 64)}, ["a: m is 2147483648", "2147483647"]),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changed: dict[str, TensorView], words: list[str]) -> None:
    views = {"a": view(3, 128, 64), "b": view(96, 64), **changed}
    with pytest.raises(ArgumentError) as error:
        bind(GEMM, views, dict.fromkeys(views, "{}.contiguous()"))
    for word in words:
        assert word in str(error.value)


def test_broadcast_inputs_and_padded_outputs_are_taken() -> None:
    bound = bind(
        GEMM,
        {
            "a": view(3, 128, 64, strides=(0, 64, 1)),
            "b": view(96, 64, strides=(0, 1)),
            "c": view(3, 128, 96, strides=(20000, 128, 1), dtype="f32"),
        },
    )
    assert bound.strides["a", "batch"] == 0 and bound.strides["b", "n"] == 0
    assert bound.strides["c", "m"] == 128 and not bound.missing


def test_strides_of_single_and_empty_modes_do_not_matter() -> None:
    bound = bind(GEMM, {"a": view(1, 1, 64, strides=(-3, 17, 1)), "b": view(1, 8, 64, strides=(5, 64, 1))})
    assert bound.strides["a", "batch"] == 0 and bound.strides["a", "m"] == 0
    assert dict(bound.vectors)["a"] == 8
    empty = bind(GEMM, {"a": view(128, 0, strides=(1, 1), pointer=0), "b": view(96, 0, strides=(1, 1), pointer=0)})
    assert empty.vectors[0] == ("a", 8) and empty.extents["k"] == 0


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"a": view(128, 64, pointer=4098)}, 1),
        ({"a": view(128, 64, pointer=4104)}, 4),
        ({"a": view(128, 64, strides=(66, 1))}, 2),
        ({"a": view(128, 65), "b": view(96, 65)}, 1),
        ({"a": view(128, 60), "b": view(96, 60)}, 4),
    ],
)
def test_vector_that_alignment_allows(changed: dict[str, TensorView], expected: int) -> None:
    bound = bind(GEMM, {"a": view(128, 64), "b": view(96, 64), **changed})
    assert dict(bound.vectors)["a"] == expected


def test_output_extent_narrows_its_vector() -> None:
    assert dict(bind(GEMM, {"a": view(128, 64), "b": view(7, 64)}).vectors)["c"] == 1


def test_column_major_output_is_dense_along_its_contiguous_mode() -> None:
    tensors = (*GEMM.tensors[:2], replace(GEMM.tensors[2], contiguous="m"))
    bound = bind(replace(GEMM, tensors=tensors), {"a": view(3, 128, 64), "b": view(96, 64)})
    assert bound.missing[0].shape == (3, 128, 96) and bound.missing[0].strides == (128 * 96, 1, 128)


def test_static_extents_and_cross_checks() -> None:
    with pytest.raises(ArgumentError, match="head_dim is 32, but the kernel was generated for head_dim 64"):
        bind(SCORES, {"q": view(2, 6, 8, 32), "k": view(2, 6, 8, 32)})
    with pytest.raises(ArgumentError, match="heads must be a multiple of heads_kv"):
        bind(SCORES, {"q": view(2, 6, 8, 64), "k": view(2, 4, 8, 64)})
    assert bind(SCORES, {"q": view(2, 6, 8, 64), "k": view(2, 2, 9, 64)}).missing[0].shape == (2, 6, 8, 9)


def test_packed_views_are_taken_as_they_are() -> None:
    batch, seqlen, heads, dim = 2, 33, 3, 64
    row = 3 * heads * dim
    strides = (seqlen * row, dim, row, 1)
    q = view(batch, heads, seqlen, dim, strides=strides)
    bound = bind(SCORES, {"q": q, "k": replace(q, pointer=4096 + 2 * heads * dim)})
    assert bound.strides_of(SCORES.tensor("q")) == {
        "batch": seqlen * row, "heads": dim, "seqlen_q": row, "head_dim": 1
    }  # fmt: skip
    assert bound.vectors[0] == ("q", 8)


# ---- names


def test_assign_by_position_name_and_out() -> None:
    tensors, scalars = assign(GEMM, ["A", "B"], {"out": "C", "alpha": 2.0})
    assert tensors == {"a": "A", "b": "B", "c": "C"} and scalars == {"alpha": 2.0}
    assert assign(GEMM, ["A"], {"b": "B", "c": None})[0] == {"a": "A", "b": "B"}


@pytest.mark.parametrize(
    ("positional", "keywords", "words"),
    [
        (["A", "B", "C", "D"], {}, "takes 3 tensors"),
        (["A"], {}, "b is missing"),
        (["A", None], {}, "b is missing"),
        (["A", "B"], {"alhpa": 1}, "did you mean alpha"),
        (["A", "B", "C"], {"out": "D"}, "c was given twice"),
        (["A", "B"], {"a": "X"}, "a was given twice"),
    ],
)
def test_wrong_names(positional: list[object], keywords: dict[str, object], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        assign(GEMM, positional, keywords)


# ---- scalars


@pytest.mark.parametrize(
    ("ctype", "value", "expected"),
    [
        ("float", 3, struct.pack("<f", 3.0)),
        ("float", 0.1, np.float32(0.1).tobytes()),
        ("float", np.float16(1.5), np.float32(1.5).tobytes()),
        ("float", np.float64(0.1), np.float32(0.1).tobytes()),
        ("float", ml_dtypes.bfloat16(1.5), np.float32(1.5).tobytes()),
        ("float", float("-inf"), np.float32(-np.inf).tobytes()),
        ("float", 1e-45, b"\x01\0\0\0"),
        ("float", -0.0, b"\0\0\0\x80"),
        ("int32_t", -7, struct.pack("<i", -7)),
        ("int32_t", np.int64(7), struct.pack("<i", 7)),
        ("int64_t", 2**33, struct.pack("<q", 2**33)),
        ("int64_t", np.uint8(255), struct.pack("<q", 255)),
        ("uint32_t", 2**32 - 1, b"\xff" * 4),
        ("uint64_t", 2**64 - 1, b"\xff" * 8),
    ],
)
def test_scalars_arrive_exactly(ctype: str, value: object, expected: bytes) -> None:
    assert scalar_bytes(ScalarArg("x", ctype), value) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ctype", "value"),
    [
        ("int32_t", 2**33),
        ("int32_t", 2**31),
        ("int32_t", 1.0),
        ("int32_t", 1.5),
        ("int32_t", True),
        ("int32_t", np.True_),
        ("int32_t", np.uint64(2**63)),
        ("uint32_t", -1),
        ("int64_t", 2**63),
        ("float", None),
        ("float", True),
        ("float", "1.0"),
        ("float", 1e39),
        pytest.param("float", 10**400, id="float-huge"),
        ("float", 1j),
        ("float", np.zeros(1)),
    ],
)
def test_scalars_that_do_not_fit_are_refused_by_name(ctype: str, value: object) -> None:
    with pytest.raises(ArgumentError, match="^slope: "):
        scalar_bytes(ScalarArg("slope", ctype), value)  # type: ignore[arg-type]


# ---- packing


def test_packed_bytes() -> None:
    bound = bind(GEMM, {"a": view(3, 128, 64), "b": view(96, 64)})
    got = pack(GEMM, bound, {"a": 0x1111, "b": 0x2222, "c": 0x3333}, {"alpha": 0.5, "beta": 0})
    expected = struct.pack("<QQQiii4xqqqqff", 0x1111, 0x2222, 0x3333, 128, 96, 64, 8192, 64, 0, 96, 0.5, 0.0)
    assert bytes(got) == expected


def test_descriptors_are_aligned_to_64_bytes() -> None:
    places = slots(SCORES)
    assert [(s.offset, s.size) for s in places] == [(0, 4), (64, 128), (192, 8), (200, 4)]


def test_strides_beyond_32_bits() -> None:
    a = view(3, 128, 64, strides=(2**33, 64, 1))
    bound = bind(GEMM, {"a": a, "b": view(96, 64)})
    assert (
        struct.unpack_from("<q", pack(GEMM, bound, {"a": 0, "b": 0, "c": 0}, {"alpha": 1, "beta": 0}), 40)[0] == 2**33
    )


def test_every_scalar_type_keeps_its_alignment() -> None:
    signature = Signature(
        "s",
        (TensorArg("x", F32, ("n",), "n", 1), TensorArg("y", F32, ("n",), "n", 1, "output")),
        tuple(ScalarArg(c, c) for c in ("float", "int64_t", "int32_t", "uint64_t", "uint32_t")),  # type: ignore[arg-type]
        (
            Scalar("float"),
            Scalar("int64_t"),
            Scalar("int32_t"),
            Pointer("x"),
            Scalar("uint32_t"),
            Scalar("uint64_t"),
            Extent("n"),
        ),
        Geometry((("n", 64),), 32, 0),
    )
    bound = bind(signature, {"x": view(5, dtype="f32")})
    values = {"float": 1.5, "int64_t": 2**40, "int32_t": -1, "uint64_t": 2**63, "uint32_t": 9}
    got = pack(signature, bound, {"x": 77, "y": 0}, values)
    assert bytes(got) == struct.pack("<f4xqi4xQI4xQi", 1.5, 2**40, -1, 77, 9, 2**63, 5)


# ---- overlap


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (view(4, 8), view(4, 8), True),
        (view(4, 8), view(4, 8, pointer=4096 + 64), False),
        (view(4, 8), view(4, 8, pointer=4096 + 62), True),
        (view(4, 8, strides=(24, 1)), view(4, 8, strides=(24, 1), pointer=4096 + 16), False),
        (view(4, 8, strides=(24, 1)), view(4, 8, strides=(24, 1), pointer=4096 + 14), True),
        (view(4, 8, strides=(24, 1)), view(4, 8, strides=(24, 1), pointer=4096 + 40), True),
        (view(0, 8), view(4, 8), False),
    ],
)
def test_shared_memory_is_seen(first: TensorView, second: TensorView, expected: bool) -> None:
    assert overlapping(first, second, F16.bytes, F16.bytes) is expected
    assert overlapping(second, first, F16.bytes, F16.bytes) is expected


def test_tma_parameter_has_a_place() -> None:
    assert isinstance(SCORES.params[1], TensorMapParam)
