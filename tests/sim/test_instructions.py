"""Single instructions against values worked out another way: Python integers, exact fractions, stated tables."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegen.errors import SimulationError
from tests.sim.ptx_text import each_lane, module, run

U32 = 2**32


def lanes(values: list[Any], dtype: Any) -> np.ndarray[Any, Any]:
    return np.array((values * 32)[: -(-len(values) // 32) * 32], dtype)


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def toward_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGER = {
    "add.s32 %d, %a0, %a1;": lambda a, b: a + b,
    "sub.s32 %d, %a0, %a1;": lambda a, b: a - b,
    "mul.lo.s32 %d, %a0, %a1;": lambda a, b: a * b,
    "mul.hi.s32 %d, %a0, %a1;": lambda a, b: (signed(a) * signed(b)) >> 32,
    "mul.hi.u32 %d, %a0, %a1;": lambda a, b: (a * b) >> 32,
    "div.u32 %d, %a0, %a1;": lambda a, b: a // b if b else None,
    "rem.u32 %d, %a0, %a1;": lambda a, b: a % b if b else None,
    "div.s32 %d, %a0, %a1;": lambda a, b: toward_zero(signed(a), signed(b)) if b else None,
    "rem.s32 %d, %a0, %a1;": lambda a, b: signed(a) - toward_zero(signed(a), signed(b)) * signed(b) if b else None,
    "min.s32 %d, %a0, %a1;": lambda a, b: min(signed(a), signed(b)),
    "max.u32 %d, %a0, %a1;": max,
    "and.b32 %d, %a0, %a1;": lambda a, b: a & b,
    "xor.b32 %d, %a0, %a1;": lambda a, b: a ^ b,
    "lop3.b32 %d, %a0, %a1, %a0, 0x3c;": lambda a, b: a ^ b,
    "shl.b32 %d, %a0, %a1;": lambda a, b: a << b if b < 32 else 0,
    "shr.u32 %d, %a0, %a1;": lambda a, b: a >> min(b, 32),
    "shr.s32 %d, %a0, %a1;": lambda a, b: signed(a) >> min(b, 31),
    "shf.l.wrap.b32 %d, %a0, %a1, %a1;": lambda a, b: ((b << 32 | a) << (b & 31)) >> 32,
    "shf.r.clamp.b32 %d, %a0, %a1, %a1;": lambda a, b: (b << 32 | a) >> min(b, 32),
    "prmt.b32 %d, %a0, %a1, 0x5410;": lambda a, b: (a & 0xFFFF) | (b & 0xFFFF) << 16,
    "prmt.b32 %d, %a0, %a1, 0x7632;": lambda a, b: a >> 16 | (b >> 16) << 16,
    "popc.b32 %d, %a0;": lambda a, b: a.bit_count(),
    "clz.b32 %d, %a0;": lambda a, b: 32 - a.bit_length(),
    "brev.b32 %d, %a0;": lambda a, b: int(f"{a:032b}"[::-1], 2),
    "bfe.u32 %d, %a0, 5, 9;": lambda a, b: a >> 5 & 511,
    "bfe.s32 %d, %a0, 5, 9;": lambda a, b: signed(a >> 5, 9),
    "bfi.b32 %d, %a0, %a1, 4, 8;": lambda a, b: (b & ~0xFF0) | (a & 0xFF) << 4,
    "mad.lo.s32 %d, %a0, %a1, 7;": lambda a, b: a * b + 7,
}


@pytest.mark.parametrize("code", INTEGER)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_integers(code: str, data: st.DataObject) -> None:
    some = st.one_of(st.integers(0, U32 - 1), st.sampled_from([0, 1, 31, 32, 33, 2**31 - 1, 2**31, U32 - 1]))
    a = data.draw(st.lists(some, min_size=32, max_size=32))
    b = data.draw(st.lists(some, min_size=32, max_size=32))
    wanted = [INTEGER[code](x, y) for x, y in zip(a, b)]
    b = [1 if w is None else y for w, y in zip(wanted, b)]
    wanted = [INTEGER[code](x, y) for x, y in zip(a, b)]
    got = each_lane(code, [np.array(a, np.uint32), np.array(b, np.uint32)], np.uint32)
    assert [int(g) for g in got] == [w & (U32 - 1) for w in wanted]


def test_wide_products_and_64_bits() -> None:
    a, b = lanes([-3, 2**31 - 1, -(2**31), 7], np.int32), lanes([5, 2**31 - 1, -(2**31), -1], np.int32)
    got = each_lane("mul.wide.s32 %d, %a0, %a1;", [a, b], np.int64, "b64")
    assert got.tolist() == [int(x) * int(y) for x, y in zip(a, b)]
    big = lanes([2**63 - 1, -1, 2**40, -(2**63)], np.int64)
    got = each_lane("shr.s64 %d, %a0, 33;", [big], np.int64, "b64")
    assert got.tolist() == [int(x) >> 33 for x in big]
    got = each_lane("mad.lo.s64 %d, %a0, %a0, %a0;", [big], np.int64, "b64")
    assert got.tolist() == [signed(int(x) * int(x) + int(x), 64) for x in big]


def nearest_f32(x: Fraction) -> np.float32:
    """The float32 nearest to a fraction, ties to even, without going through float64."""
    if x == 0:
        return np.float32(0)
    exponent = max(math.floor(math.log2(abs(x))) - 24, -149 - 2)
    while abs(x) / Fraction(2) ** exponent >= 2**24:
        exponent += 1
    exponent = max(exponent, -149)
    whole = round(x / Fraction(2) ** exponent)
    return np.float32(math.ldexp(whole, exponent))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_fma_rounds_once(data: st.DataObject) -> None:
    some = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**60), max_value=2.0**60)
    draw = lambda: np.array(data.draw(st.lists(some, min_size=32, max_size=32)), np.float32)
    a, b, c = draw(), draw(), draw()
    # Sums near a tie: c cancels most of the product.
    c[::2] = -(a * b)[::2].clip(-(2.0**100), 2.0**100)
    got = each_lane("fma.rn.f32 %d, %a0, %a1, %a2;", [a, b, c], np.float32, "f32")
    for x, y, z, g in zip(a, b, c, got):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert g == nearest_f32(exact) or (exact == 0 and g == 0), (x, y, z)


def test_fma_where_two_roundings_would_go_wrong() -> None:
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 is a tie; with c = 2^-60 the exact sum lies above it, its float64 on it.
    a, b, c = np.float32(1 + 2.0**-12), np.float32(1 + 2.0**-12), np.float32(2.0**-60)
    got = each_lane("fma.rn.f32 %d, %a0, %a1, %a2;", [lanes([a], np.float32), lanes([b], np.float32), lanes([c], np.float32)], np.float32, "f32")  # fmt: skip
    exact = Fraction(float(a)) ** 2 + Fraction(float(c))
    assert got[0] == nearest_f32(exact) != np.float32(float(a) * float(b) + float(c))


def test_comparisons_with_nan() -> None:
    a = lanes([1.0, np.nan, 2.0, -0.0], np.float32)
    b = lanes([1.0, 1.0, np.nan, 0.0], np.float32)
    wanted = {"eq": [1, 0, 0, 1], "ne": [0, 0, 0, 0], "neu": [0, 1, 1, 0], "lt": [0, 0, 0, 0], "geu": [1, 1, 1, 1],
              "num": [1, 0, 0, 1], "nan": [0, 1, 1, 0]}  # fmt: skip
    for name, values in wanted.items():
        code = f"setp.{name}.f32 %p1, %a0, %a1;\n selp.u32 %d, 1, 0, %p1;"
        assert each_lane(code, [a, b], np.uint32).tolist() == values * 8, name


def test_minimum_of_a_nan_is_the_other_unless_nans_are_kept() -> None:
    a, b = lanes([np.nan, 1.0, np.nan], np.float32), lanes([3.0, np.nan, np.nan], np.float32)
    got = each_lane("min.f32 %d, %a0, %a1;", [a, b], np.float32, "f32")
    assert got[0] == 3 and got[1] == 1 and np.isnan(got[2])
    for name in ("min", "max"):
        kept = each_lane(f"{name}.NaN.f32 %d, %a0, %a1;", [a, b], np.float32, "f32")
        assert np.isnan(kept[:3]).all(), name


@pytest.mark.parametrize(
    ("name", "function"),
    [("ex2.approx.ftz.f32", np.exp2), ("rcp.approx.ftz.f32", lambda x: 1 / x), ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)),
     ("lg2.approx.f32", np.log2), ("sqrt.rn.f32", np.sqrt), ("tanh.approx.f32", np.tanh)],
)  # fmt: skip
def test_functions(name: str, function: Any) -> None:
    x = np.linspace(0.1, 20, 64).astype(np.float32)
    got = each_lane(f"{name} %d, %a0;", [x], np.float32, "f32")
    assert np.array_equal(got, function(x.astype(np.float64)).astype(np.float32))


def test_subnormals_are_flushed_where_asked() -> None:
    tiny = lanes([2.0**-140, -(2.0**-140), 1.0], np.float32)
    kept = each_lane("add.f32 %d, %a0, 0f00000000;", [tiny], np.float32, "f32")
    flushed = each_lane("add.ftz.f32 %d, %a0, 0f00000000;", [tiny], np.float32, "f32")
    assert kept[0] == np.float32(2.0**-140) and flushed[:2].tolist() == [0, 0] and flushed[2] == 1


CONVERSIONS = [
    # 1 + 2^-11 lies halfway between two f16, 1 + 3 * 2^-11 too: even wins; the other modes by their rule
    ("cvt.rn.f16.f32", [1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11, 65520.0, 65519.0, 2.0**-25], [0x3C00, 0x3C02, 0xBC00, 0x7C00, 0x7BFF, 0x0000]),
    ("cvt.rz.f16.f32", [1 + 2.0**-11, -1 - 3 * 2.0**-11, 70000.0], [0x3C00, 0xBC01, 0x7BFF]),
    ("cvt.rn.bf16.f32", [1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4e38, -0.0], [0x3F80, 0x3F82, 0x7F80, 0x8000]),
    ("cvt.rm.bf16.f32", [1 + 2.0**-8, -1 - 2.0**-8], [0x3F80, 0xBF81]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "bits"), CONVERSIONS)
def test_conversion_to_16_bits(name: str, values: list[float], bits: list[int]) -> None:
    got = each_lane(f"{name} %d, %a0;", [lanes(values, np.float32)], np.uint16, "b16")
    assert got[: len(bits)].tolist() == bits


def test_every_f16_comes_back() -> None:
    bits = np.arange(65536, dtype=np.uint16)[: 65536 // 1024 * 1024]
    finite = bits[np.isfinite(bits.view(np.float16))][:1024]
    wide = each_lane("cvt.f32.f16 %d, %a0;", [finite], np.float32, "f32")
    assert np.array_equal(wide, finite.view(np.float16).astype(np.float32))
    assert np.array_equal(each_lane("cvt.rn.f16.f32 %d, %a0;", [wide], np.uint16, "b16"), finite)


def test_packed_conversions() -> None:
    a, b = lanes([1.5, -2.0, 300.0, 1000.0], np.float32), lanes([0.25, 7.0, -3.0, -1000.0], np.float32)
    got = each_lane("cvt.rn.bf16x2.f32 %d, %a0, %a1;", [a, b], np.uint32)
    halves = got.view(ml_dtypes.bfloat16).astype(np.float32).reshape(-1, 2)
    assert np.array_equal(halves[:, 1], a.astype(ml_dtypes.bfloat16)) and np.array_equal(
        halves[:, 0], b.astype(ml_dtypes.bfloat16)
    )
    got8 = each_lane("cvt.rn.satfinite.e4m3x2.f32 %d, %a0, %a1;", [a, b], np.uint16, "b16")
    bytes_ = got8.view(ml_dtypes.float8_e4m3fn).astype(np.float32).reshape(-1, 2)
    assert bytes_[:4, 1].tolist() == [1.5, -2.0, 288.0, 448.0] and bytes_[:4, 0].tolist() == [0.25, 7.0, -3.0, -448.0]


def test_tf32_rounds_ties_away() -> None:
    x = lanes([1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11], np.float32)
    got = each_lane("cvt.rna.tf32.f32 %d, %a0;", [x], np.float32)
    assert got[:3].tolist() == [1 + 2.0**-10, 1 + 2.0**-9, -1 - 2.0**-10]


def test_floats_to_integers_saturate() -> None:
    x = lanes([2.5, 3.5, -2.5, 1e20, -1e20, np.nan], np.float32)
    assert each_lane("cvt.rni.s32.f32 %d, %a0;", [x], np.int32)[:6].tolist() == [2, 4, -2, 2**31 - 1, -(2**31), 0]
    assert each_lane("cvt.rzi.u32.f32 %d, %a0;", [x], np.uint32)[:6].tolist() == [2, 3, 0, U32 - 1, 0, 0]


def test_half_precision_pairs() -> None:
    a = np.array([1.5, 2.0, -4.0, 0.125] * 16, np.float16)
    b = np.array([2.0, -1.0, 0.5, 8.0] * 16, np.float16)
    got = each_lane("fma.rn.f16x2 %d, %a0, %a1, %a0;", [a.view(np.uint32), b.view(np.uint32)], np.uint32).view(
        np.float16
    )
    assert np.array_equal(got, (a.astype(np.float64) * b + a).astype(np.float16))


def test_shuffles() -> None:
    x = np.arange(32, dtype=np.uint32)
    shuffle = lambda mode, b, c: each_lane(f"shfl.sync.{mode}.b32 %d|%p1, %a0, {b}, {c}, -1;", [x], np.uint32).tolist()
    assert shuffle("bfly", 1, 31) == [i ^ 1 for i in range(32)]
    assert shuffle("down", 4, 31) == [i + 4 if i + 4 < 32 else i for i in range(32)]
    assert shuffle("up", 3, 0) == [i - 3 if i >= 3 else i for i in range(32)]
    assert shuffle("idx", 5, 31) == [5] * 32
    assert shuffle("idx", 2, 0x181F) == [i // 8 * 8 + 2 for i in range(32)]  # segments of 8


def test_votes_and_reductions() -> None:
    x = np.arange(32, dtype=np.uint32)
    ballot = "setp.lt.u32 %p1, %a0, 5;\n vote.sync.ballot.b32 %d, %p1, -1;"
    assert each_lane(ballot, [x], np.uint32).tolist() == [31] * 32
    assert each_lane("redux.sync.add.s32 %d, %a0, -1;", [x], np.uint32).tolist() == [496] * 32
    assert each_lane("match.any.sync.b32 %d, %a0, -1;", [x % 2], np.uint32).tolist() == [0x55555555, 0xAAAAAAAA] * 16
    elected = "elect.sync %r9|%p1, -1;\n selp.u32 %d, 1, 0, %p1;"
    assert each_lane(elected, [x], np.uint32).tolist() == [1] + [0] * 31


def test_atomics_are_all_counted() -> None:
    total = np.zeros(1, np.uint32)
    out = np.zeros(64, np.uint32)
    body = """
    atom.global.add.u32 %r2, [%rd1], 1;
    mul.wide.u32 %rd5, %r1, 4;
    add.s64 %rd6, %rd2, %rd5;
    st.global.u32 [%rd6], %r2;
    """
    run(module(body), [total, out], threads=64).raise_findings()
    assert total[0] == 64 and sorted(out.tolist()) == list(range(64))


def _fragment(matrix: np.ndarray[Any, Any], rows: Any, columns: Any) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(matrix[rows, columns])


def test_mma_by_the_tables_of_the_isa() -> None:
    # PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", written out lane by lane.
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (16, 16)).astype(np.float16), rng.integers(-3, 4, (16, 8)).astype(np.float16)
    c = rng.integers(-9, 9, (16, 8)).astype(np.float32)
    fa, fb, fc = np.zeros((32, 8), np.float16), np.zeros((32, 4), np.float16), np.zeros((32, 4), np.float32)
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range(8):
            row = group if i in (0, 1, 4, 5) else group + 8
            fa[lane, i] = a[row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)]
        for i in range(4):
            fb[lane, i] = b[thread * 2 + (i & 1) + (8 if i >= 2 else 0), group]
            fc[lane, i] = c[group if i < 2 else group + 8, thread * 2 + (i & 1)]
    out = np.zeros((32, 4), np.float32)
    body = """
    mul.wide.u32 %rd10, %r1, 16;
    add.s64 %rd11, %rd1, %rd10;
    add.s64 %rd13, %rd3, %rd10;
    add.s64 %rd14, %rd4, %rd10;
    mul.wide.u32 %rd15, %r1, 8;
    add.s64 %rd12, %rd2, %rd15;
    ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd11];
    ld.global.v2.u32 {%r14, %r15}, [%rd12];
    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd13];
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f5,%f6,%f7,%f8},{%r10,%r11,%r12,%r13},{%r14,%r15},{%f1,%f2,%f3,%f4};
    st.global.v4.f32 [%rd14], {%f5, %f6, %f7, %f8};
    """
    run(module(body, 4), [fa, fb, fc, out]).raise_findings()
    wanted = a.astype(np.float32) @ b.astype(np.float32) + c
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        assert out[lane].tolist() == [wanted[group if i < 2 else group + 8, thread * 2 + (i & 1)] for i in range(4)]


def test_tf32_ignores_low_bits() -> None:
    fa, fb = np.full((32, 4), 1 + 2.0**-12, np.float32), np.ones((32, 2), np.float32)
    out = np.zeros((32, 4), np.float32)
    body = """
    mul.wide.u32 %rd10, %r1, 16;
    add.s64 %rd11, %rd1, %rd10;
    add.s64 %rd13, %rd3, %rd10;
    mul.wide.u32 %rd15, %r1, 8;
    add.s64 %rd12, %rd2, %rd15;
    ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd11];
    ld.global.v2.u32 {%r14, %r15}, [%rd12];
    mov.f32 %f1, 0f00000000;
    mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f5,%f6,%f7,%f8},{%r10,%r11,%r12,%r13},{%r14,%r15},{%f1,%f1,%f1,%f1};
    st.global.v4.f32 [%rd13], {%f5, %f6, %f7, %f8};
    """
    run(module(body, 3), [fa, fb, out]).raise_findings()
    assert (out == 8).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_go_out_and_come_back(transposed: bool) -> None:
    # stmatrix puts row r, columns 2c and 2c + 1 of matrix j where lane 4r + c holds register j; ldmatrix undoes it.
    words = np.arange(128, dtype=np.uint32).reshape(32, 4)
    out, plain = np.zeros((32, 4), np.uint32), np.zeros((32, 4), np.uint32)
    trans = ".trans" if transposed else ""
    body = f"""
    mul.wide.u32 %rd10, %r1, 16;
    add.s64 %rd11, %rd1, %rd10;
    add.s64 %rd12, %rd2, %rd10;
    add.s64 %rd13, %rd3, %rd10;
    ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%rd11];
    mov.u32 %r2, smem;
    shl.b32 %r3, %r1, 4;
    add.s32 %r2, %r2, %r3;
    stmatrix.sync.aligned{trans}.m8n8.x4.shared.b16 [%r2], {{%r10, %r11, %r12, %r13}};
    bar.sync 0;
    ldmatrix.sync.aligned{trans}.m8n8.x4.shared.b16 {{%r14, %r15, %r16, %r17}}, [%r2];
    ld.shared.v4.u32 {{%r18, %r19, %r20, %r21}}, [%r2];
    st.global.v4.u32 [%rd12], {{%r14, %r15, %r16, %r17}};
    st.global.v4.u32 [%rd13], {{%r18, %r19, %r20, %r21}};
    """
    run(module(body, 3), [words, out, plain], shared=512).raise_findings()
    assert np.array_equal(out, words)
    halves = words.view(np.uint16).reshape(32, 4, 2)
    matrix = np.stack([halves[:, j].reshape(8, 8) for j in range(4)])
    matrix = matrix.swapaxes(1, 2) if transposed else matrix
    assert np.array_equal(plain.view(np.uint16).reshape(4, 8, 8), matrix)


def test_unknown_instructions_are_named_with_their_line() -> None:
    with pytest.raises(SimulationError, match=r"does not know this instruction: PTX line \d+: frobnicate.b32 %r2, %r1"):
        run(module("    frobnicate.b32 %r2, %r1;", 0), [])
    with pytest.raises(SimulationError, match="mma.sync.aligned.m8n8k4.+is not modelled"):
        run(module("    mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd1,%fd2},{%fd3},{%fd4},{%fd5,%fd6};", 0), [])


def test_what_is_no_ptx_is_refused() -> None:
    with pytest.raises(SimulationError, match="the PTX has no entry k"):
        run("int main() { return 0; }", [])
    with pytest.raises(SimulationError, match="the kernel's body does not end"):
        run(module("", 0).replace("}\n", "\n"), [])
    with pytest.raises(SimulationError, match=r"PTX line \d+: no label NOWHERE"):
        run(module("    bra NOWHERE;", 0), [])
    with pytest.raises(SimulationError, match="operand %r777 is not understood"):
        run(module("    add.s32 %r2, %r777, 1;", 0), [])
    with pytest.raises(SimulationError, match="takes 2 parameters, got 1"):
        run(module("", 2), [np.zeros(1, np.uint32)])


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SimulationError, match=r"a grid of \(3, 1, 1\) is not made of clusters of \(2, 1, 1\)"):
        run(module("", 0), [], blocks=3, cluster=(2, 1, 1))
    with pytest.raises(SimulationError, match=r"parameter k_param_0 is a \.u64, got float32"):
        run(module("", 1), [np.float32(1)])
