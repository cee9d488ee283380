"""Right kernels pass, and each way of being wrong that BUG-53 and the like report is caught."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cutegen.dtypes import BF16, E4M3, F16, F32
from cutegen.errors import ArgumentError
from cutegen.report import FAMILIES, Numerics, Report, validate
from cutegen.report.compare import compare
from cutegen.report.inputs import packed, random
from cutegen.spec.gemm import GemmEpilogue

GEMM = FAMILIES["gemm"]()
NUMERICS = Numerics(F16, F32, F32)
Damage = Callable[[Any], None]


def kernel(damage: Damage = lambda out: None) -> Callable[..., Any]:
    """A right f32 GEMM, then damaged."""

    def run(a: Any, b: Any, *, out: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        product = np.matmul(a.astype(np.float32), np.swapaxes(b.astype(np.float32), -1, -2))
        out[...] = (np.float32(alpha) * product + (np.float32(beta) * out if beta else 0)).astype(out.dtype)
        damage(out)
        return out

    return run


def inputs(m: int = 70, n: int = 50, k: int = 40, batch: tuple[int, ...] = (2,), **keywords: Any) -> dict[str, Any]:
    return {"a": random((*batch, m, k), F16, 1, **keywords), "b": random((*batch, n, k), F16, 2, **keywords)}


def check(run: Callable[..., Any], arrays: dict[str, Any] | None = None, **keywords: Any) -> Report:
    return validate(run, GEMM, arrays or inputs(), keywords.pop("scalars", None), numerics=NUMERICS, **keywords)


@pytest.mark.parametrize("limit", [10**9, 0], ids=["full", "rows"])
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"scalars": {"alpha": -1.7}},
        {"strides": (50 * 80, 56, 1)},
        {"strides": (50 * 70, 1, 70)},
        {"arrays": inputs(batch=())},
        {"arrays": inputs(k=0)},
        {"arrays": inputs(integers=True)},
        {"arrays": {"a": random((3, 20, 9), F16, 1), "b": random((30, 9), F16, 2)}},
        {
            "arrays": {**inputs(), "c": np.random.default_rng(5).standard_normal((2, 70, 50), np.float32)},
            "scalars": {"beta": 0.5},
        },
    ],
    ids=["plain", "alpha", "padded", "column-major", "unbatched", "k0", "integers", "broadcast", "beta"],
)
def test_a_right_kernel_passes(keywords: dict[str, Any], limit: int) -> None:
    report = check(kernel(), full_limit=limit, **keywords)
    assert report.ok, str(report)
    assert report.deterministic and report.ratio <= 1
    assert report.checked == ("full" if limit else "rows")
    assert (report.projection is None) == bool(limit)
    json.dumps(report.to_dict())


def plant(value: float, where: tuple[Any, ...] = (1, 33, 7)) -> Damage:
    def damage(out: Any) -> None:
        out[where] = value

    return damage


@pytest.mark.parametrize("limit", [10**9, 0], ids=["full", "rows"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e3])
def test_one_wrong_element_is_found_and_named(value: float, limit: int) -> None:
    report = check(kernel(plant(value)), full_limit=limit, sampled=0)
    assert not report.ok and report.first is not None
    assert report.first.coordinate == (1, 33, 7) and report.worst == (1, 33, 7)
    assert np.array_equal(report.first.got, value, equal_nan=True)
    assert "(1, 33, 7): got" in str(report)
    json.dumps(report.to_dict())


@pytest.mark.parametrize("limit", [10**9, 0], ids=["full", "rows"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda out: out.fill(np.nan),
        lambda out: out.fill(0),
        lambda out: out[:, :64, :32].fill(0),
        lambda out: np.negative(out, out=out),
        lambda out: out.__setitem__(Ellipsis, out[::-1].copy()),
        lambda out: out.__setitem__((1, slice(None)), np.roll(out[1], 1, axis=0)),
    ],
    ids=["nan", "zero", "tile", "sign", "batches-swapped", "rows-shifted"],
)
def test_wrong_everywhere(damage: Damage, limit: int) -> None:
    assert not check(kernel(damage), full_limit=limit).ok


@pytest.mark.parametrize("limit", [10**9, 0], ids=["full", "rows"])
def test_an_fp8_output_saturates(limit: int) -> None:
    """Right is the largest finite value, not what lies beyond, nor NaN; and no projection is made."""

    def run(clip: float) -> Callable[..., Any]:
        def right(a: Any, b: Any, *, out: Any, alpha: float) -> Any:
            values = np.float32(alpha) * np.matmul(a.astype(np.float32), np.swapaxes(b.astype(np.float32), -1, -2))
            out[...] = np.clip(values, -clip, clip).astype(out.dtype)

        return right

    options: dict[str, Any] = {"numerics": Numerics(F16, F32, E4M3), "full_limit": limit}
    report = validate(run(448), GEMM, inputs(), {"alpha": 60.0}, **options)
    assert report.ok and report.projection is None and report.ratio > 0.5, str(report)
    assert not validate(run(416), GEMM, inputs(), {"alpha": 60.0}, **options).ok
    assert validate(run(1e9), GEMM, inputs(), {"alpha": 60.0}, **options).nans > 0


@pytest.mark.parametrize("name", ["out", "aux"])
@pytest.mark.parametrize("limit", [10**9, 0], ids=["full", "rows"])
def test_a_second_output_is_checked_too(name: str, limit: int) -> None:
    expressions = GemmEpilogue(out="relu(acc + shift[n])", aux="acc + shift[n]").expressions
    arrays = {**inputs(), "shift": random((2, 50), F32, 3)}
    numerics = Numerics(F16, F32, F32, aux=BF16)

    def run(damage: Damage) -> Report:
        def right(a: Any, b: Any, shift: Any, *, out: Any, aux: Any) -> Any:
            values = np.matmul(a.astype(np.float32), np.swapaxes(b.astype(np.float32), -1, -2)) + shift[:, None]
            out[...], aux[...] = np.maximum(values, 0), values.astype(aux.dtype)
            damage({"out": out, "aux": aux}[name])
            return out, aux

        family = FAMILIES["gemm"](expressions=expressions)
        return validate(right, family, arrays, numerics=numerics, full_limit=limit, sampled=400)

    assert run(lambda out: None).ok
    wrong = run(plant(1e3, (1, 69, 7)))
    assert not wrong.ok and wrong.first is not None and wrong.first.coordinate == (1, 69, 7)
    assert ("wrong elements of aux" in str(wrong)) == (name == "aux")
    assert not run(lambda out: out.__setitem__((0, 3), np.nan)).ok


def test_small_error_is_seen_by_the_projection_alone() -> None:
    # Ten times the bound in each element of one row of 4,000 that is not sampled.
    arrays = {"a": random((4000, 16), F16, 1), "b": random((300, 16), F16, 2)}

    def damage(out: Any) -> None:
        out[1234] += np.float32(0.05)

    assert check(kernel(), arrays, full_limit=0).ok
    report = check(kernel(damage), arrays, full_limit=0, sampled=0)
    assert not report.ok and report.first is not None and report.first.coordinate[0] == 1234


def test_integers_show_an_error_that_normal_inputs_hide() -> None:
    def damage(out: Any) -> None:
        out[0, 0] += np.float32(1e-3)

    big = {"a": random((8, 4096), F16, 1), "b": random((8, 4096), F16, 2)}
    exact = {"a": random((8, 4096), F16, 1, integers=True), "b": random((8, 4096), F16, 2, integers=True)}
    assert check(kernel(damage), big).ok
    assert not check(kernel(damage), exact).ok


def test_untouched_output_and_stale_buffer() -> None:
    right = kernel()
    kept: list[Any] = []

    def lazy(a: Any, b: Any, *, out: Any) -> Any:
        if not kept:
            kept.append(out)
            right(a, b, out=out)
        return out  # the second run writes nothing, and the buffer held the right answer before

    report = check(lazy)
    assert not report.ok and report.deterministic is False
    nothing = check(lambda a, b, *, out: out)
    assert not nothing.ok and nothing.unwritten == 2 * 70 * 50 and nothing.nans == 2 * 70 * 50

    def all_but_last(a: Any, b: Any, *, out: Any) -> None:
        keep = out[1, 69, 49]
        right(a, b, out=out)
        out[1, 69, 49:] = keep

    assert check(all_but_last).first is not None


def test_writes_outside_the_output() -> None:
    def before(out: Any) -> None:
        np.lib.stride_tricks.as_strided(out, (1,), (4,))[...] = out[0, 0, 0]
        ctypes.memset(out.ctypes.data - out.itemsize, 0, out.itemsize)

    report = check(kernel(before))
    assert not report.ok and report.stray >= 1

    def between(out: Any) -> None:
        np.lib.stride_tricks.as_strided(out, (2, 70, 51), out.strides)[:, :, 50] = 0

    report = check(kernel(between), strides=(80 * 56, 56, 1))
    assert report.stray == 140 and "140 elements outside" in str(report)
    with pytest.raises(ArgumentError, match="strides: expected 3"):
        check(kernel(), strides=(1, 2))


def test_wrong_shape_is_a_fault() -> None:
    def run(a: Any, b: Any, *, out: Any) -> Any:
        kernel()(a, b, out=out)
        return out[:1]

    report = check(run)
    assert not report.ok and "returned shape (1, 70, 50)" in str(report)


def test_runs_that_differ() -> None:
    rng = np.random.default_rng(0)

    def damage(out: Any) -> None:
        out += (rng.random(out.shape) * 1e-6 * np.abs(out)).astype(np.float32)

    report = check(kernel(damage))
    assert report.wrong == 0 and not report.ok and "differ in their bits" in str(report)


def test_nothing_to_compute() -> None:
    report = check(kernel(), inputs(m=0))
    assert report.ok and report.checked == "empty"


# ---- attention scores


def scores(causal: bool, top_left: bool = False, leak: float = -np.inf) -> Callable[..., Any]:
    def run(q: Any, k: Any, *, out: Any, scale: float = 0.25) -> Any:
        k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
        s = np.float32(scale) * np.einsum("bhid,bhjd->bhij", q.astype(np.float32), k.astype(np.float32))
        if causal:
            m, n = s.shape[-2:]
            hidden = ~np.tri(m, n, 0 if top_left else n - m, dtype=bool)
            s[..., hidden] = leak
        out[...] = s.astype(out.dtype)
        return out

    return run


@pytest.mark.parametrize("limit", [10**9, 0], ids=["full", "rows"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("m", "n"), [(33, 33), (70, 20), (20, 70), (1, 1)])
def test_scores(m: int, n: int, causal: bool, limit: int) -> None:
    arrays = {"q": random((2, 6, m, 16), BF16, 1), "k": random((2, 2, n, 16), BF16, 2)}
    family = FAMILIES["attention_scores"](causal=causal)
    for output in (F32, BF16):
        numerics = Numerics(BF16, F32, output)
        assert validate(scores(causal), family, arrays, numerics=numerics, full_limit=limit).ok
        if causal and m != n:
            assert not validate(scores(True, True), family, arrays, numerics=numerics, full_limit=limit).ok
        if causal and m > 1:
            wrong = validate(scores(True, leak=-1e30), family, arrays, numerics=numerics, full_limit=limit)
            assert not wrong.ok and wrong.first is not None and wrong.first.expected == -np.inf


def test_packed_views_give_the_same() -> None:
    q, k, _ = packed(3, 2, 33, 3, 16, F16)
    assert q.shape == (2, 3, 33, 16) and q.strides[2] == 3 * 3 * 16 * 2
    assert validate(
        scores(False),
        FAMILIES["attention_scores"](),
        {"q": q, "k": k},
        {"scale": 0.5},
        numerics=Numerics(F16, F32, F32),
    ).ok


# ---- comparison and inputs


def test_compare_infinities_and_overflow() -> None:
    one = np.ones(1)
    for got, expected, right in [
        (np.inf, np.inf, True),
        (np.inf, -np.inf, False),
        (np.inf, 1.0, False),
        (1.0, np.inf, False),
        (np.nan, np.nan, False),
        (1.0, np.nan, False),
        (np.nan, 1.0, False),
    ]:
        assert (compare(got * one, expected * one, one).wrong == 0) is right
    assert compare(np.nan * one, np.nan * one, one, allow_nan=True).wrong == 0
    assert compare(1 * one, np.nan * one, one, allow_nan=True).wrong == 1
    assert compare(np.inf * one, 70000 * one, one, largest=65504).wrong == 0
    assert compare(-np.inf * one, 70000 * one, one, largest=65504).wrong == 1
    assert compare(np.inf * one, 60000 * one, one, largest=65504).wrong == 1
    assert compare(5 * one, 70000 * one, np.inf * one).wrong == 0
    assert compare(np.nan * one, 1 * one, np.inf * one).wrong == 1
    assert compare(np.ones((1,)), np.ones((3, 4)), np.ones((3, 4))).wrong == 12
    assert compare(np.ones(0), np.ones(3), np.ones(3)).wrong == 3


def test_inputs_are_seeded_padded_and_surrounded_by_nan() -> None:
    first = random((4, 6), F16, 3, inner=0, pad=3, offset=1)
    assert first.strides == (2, 14) and np.isfinite(first.astype(np.float32)).all()
    assert first.ctypes.data % 256 == 2
    assert np.array_equal(first, random((4, 6), F16, 3))
    assert not np.array_equal(first, random((4, 6), F16, 4))
    around = np.lib.stride_tricks.as_strided(first, (7, 5), first.strides)
    assert np.isnan(around[4:].astype(np.float32)).all()
    assert set(np.unique(random((50, 50), BF16, integers=True).astype(int))) == {-2, -1, 0, 1, 2}
    assert random((0, 6), F16).shape == (0, 6)
