"""Expressions: what is refused and how, and that device code, numpy and the error bound say the same."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegen.errors import SpecError
from cutegen.expression import Bounded, Node, emit, evaluate, helpers, names_in, parse, tensors_in

NAMES = {"s": "float", "scale": "float", "q": "int", "k": "int", "h": "int"}
TENSORS = {"slope": ("h",), "bias": ("h", "q", "k")}


def made(text: str, kind: str = "float") -> Node:
    return parse(text, NAMES, TENSORS, kind=kind, field="score")  # type: ignore[arg-type]


def cpp(text: str, kind: str = "float") -> str:
    return emit(made(text, kind), {n: n for n in NAMES}, {t: f"{t}_at" for t in TENSORS})


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("s * scale + slope[h] * (k - q)", "float", "s * scale + slope_at * float(k - q)"),
        ("k <= q and q - k < 64", "bool", "k <= q && q - k < 64"),
        ("0 <= q - k < 8 or not h == 2", "bool", "(0 <= q - k && q - k < 8) || !(h == 2)"),
        ("s / 3 - 1", "float", "s / 3.0f - 1.0f"),
        ("(q - k) // 4 % 3", "float", "float(floor_mod(floor_div(q - k, 4), 3))"),
        ("max(s, -1e-5)", "float", "max_nan(s, -1e-05f)"),
        ("min(q, abs(k - 3))", "int", "min(q, abs(k - 3))"),
        (
            "tanh(q) if bias[h, q, k] > 0 else where(q < k, 1, 2)",
            "float",
            "bias_at > 0.0f ? tanhf(float(q)) : float(q < k ? 1 : 2)",
        ),
        ("k / q", "float", "float(k) / float(q)"),
    ],
)
def test_device_code(text: str, kind: str, expected: str) -> None:
    assert cpp(text, kind) == expected


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("s * scal", "float", ["character 5: unknown name", "did you mean scale?"]),
        ("s + slope", "float", ["slope is a tensor", "write slope[h]"]),
        ("s + slope[q]", "float", ["must be indexed by its own modes", "slope[h]"]),
        ("s + bias[h, q + 1, k]", "float", ["bias[h, q, k]"]),
        ("s + table[h]", "float", ["not a tensor of this expression"]),
        ("s <= 1", "float", ["must give a number"]),
        ("s", "bool", ["must give a condition"]),
        ("(s < 1) + 1", "float", ["a condition is not a number"]),
        ("s % 2", "float", ["% takes integers"]),
        ("s ** 2", "float", ["not allowed"]),
        ("q & k", "float", ["not allowed"]),
        ("__import__('os')", "float", ["unknown function"]),
        ("s.real", "float", ["not allowed"]),
        ("[s for s in q]", "float", ["not allowed"]),
        ("tan(s)", "float", ["unknown function", "did you mean tanh?"]),
        ("tanh(s, q)", "float", ["tanh takes 1 argument"]),
        ("q in k", "bool", ["not a comparison"]),
        ("s +", "float", ["not an expression"]),
        ("99999999999", "float", ["32 bits"]),
        ("'a'", "float", ["32 bits"]),
        ("q and k < 1", "bool", ["must be a condition"]),
        ("s" + " + s" * 400, "float", ["at most 1000 characters"]),
    ],
)  # fmt: skip
def test_refusals(text: str, kind: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        made(text, kind)
    assert error.value.faults[0].field == "score"
    for word in words:
        assert word in str(error.value)


def test_what_an_expression_reads() -> None:
    node = made("s * scale + bias[h, q, k]")
    assert names_in(node) == {"s", "scale", "h", "q", "k"} and tensors_in(node) == {"bias"}
    assert not helpers(node) and len(helpers(made("q // 2 + q % 3"))) == 2


_leaf = st.sampled_from(["s", "scale", "q", "k", "2", "0.5", "-3", "slope[h]"])
_tree = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(st.sampled_from(["tanh", "abs"]), inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(inner, inner).map(lambda t: f"max({t[0]}, {t[1]})"),
    ),
    max_leaves=12,
)


def as_python(code: str) -> str:
    """Device code of this subset as Python over numpy's float32."""
    return re.sub(r"(?<![\w.])((?:\d+\.\d*(?:e-?\d+)?|\d+e-?\d+))f\b", r"F(\1)", code)


@settings(max_examples=200, deadline=None)
@given(text=_tree, s=st.floats(-8, 8, width=32), q=st.integers(0, 99), k=st.integers(0, 99))
def test_float32_stays_within_the_bound(text: str, s: float, q: int, k: int) -> None:
    node = made(text)
    code = cpp(text)
    scale, slope = 0.125, -0.3125
    found = evaluate(
        node,
        {"s": Bounded(s), "scale": Bounded(scale), "q": Bounded(q), "k": Bounded(k), "h": Bounded(1)},
        {"slope": Bounded(slope)},
    )
    scope = {
        "F": np.float32, "float": np.float32, "fabsf": abs, "abs": abs, "max": max,
        "max_nan": lambda a, b: np.float32(np.maximum(a, b)), "tanhf": lambda x: np.float32(math.tanh(float(x))),
        "s": np.float32(s), "scale": np.float32(scale), "q": q, "k": k, "slope_at": np.float32(slope),
    }  # fmt: skip
    with np.errstate(all="ignore"):
        got = float(eval(as_python(code), {"__builtins__": {}}, scope))
    if math.isfinite(got):
        assert abs(got - float(found.value)) <= float(found.error) * 1.0001 + 1e-30, (code, got, found)
