"""What is told of a block of queries and keys beforehand, against every pair of the block."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutegen.expression import FALSE, Bounded, Node, Told, emit, evaluate, parse, tell
from tests.expression.masks import conditions

NAMES = {"q": "int", "k": "int", "h": "int", "seqlen_k": "int", "w": "float"}
TENSORS = {"length": ("b",), "bias": ("q", "k")}
ENDS = {"q": ("q_first", "q_last"), "k": ("k_first", "k_last")}


def told(text: str) -> Told:
    mask = parse(text, NAMES, TENSORS, kind="bool", field="mask")  # type: ignore[arg-type]
    return tell(mask, ENDS, {"length": "length_b"})


def cpp(node: Node) -> str:
    names = [*itertools.chain(*ENDS.values()), *NAMES, "length_b"]
    return emit(node, {name: name for name in names}, {})


@pytest.mark.parametrize(
    ("text", "never", "always"),
    [
        ("k <= q", "k_first > q_last", "k_last <= q_first"),
        ("k <= q and q - k < w", "k_first > q_last || float(q_first - k_last) >= w",
         "k_last <= q_first && float(q_last - k_first) < w"),
        ("k < length[b]", "float(k_first) >= length_b", "float(k_last) < length_b"),
        ("not k == q", "k_first == q_last && k_last == q_first", "k_last < q_first || k_first > q_last"),
        ("q // 16 == k // 16",
         "floor_div(q_last, 16) < floor_div(k_first, 16) || floor_div(q_first, 16) > floor_div(k_last, 16)",
         "floor_div(q_first, 16) == floor_div(k_last, 16) && floor_div(q_last, 16) == floor_div(k_first, 16)"),
        ("abs(q - k) * -2 > -9", "-9 >= max(max(q_first - k_last, -(q_last - k_first)), 0) * -2",
         "-9 < max(-(q_first - k_last), q_last - k_first) * -2"),
        ("h < 3", "h >= 3", "h < 3"),
        ("k < (w if length[b] > h else 9)", "float(k_first) >= (length_b > float(h) ? w : 9.0f)",
         "float(k_last) < (length_b > float(h) ? w : 9.0f)"),
        ("k < (9 if q < 4 else q)", "k_first >= (q_last < 4 ? 9 : (q_first >= 4 ? q_last : max(9, q_last)))",
         "k_last < (q_last < 4 ? 9 : (q_first >= 4 ? q_first : min(9, q_first)))"),
        ("k < (w if q < 4 else 9)", "false", "false"),
        ("bias[q, k] > 0 and k <= q", "k_first > q_last", "false"),
        ("bias[q, k] > 0 or k <= q", "false", "k_last <= q_first"),
        ("exp(k) > q", "false", "false"),
        ("abs(w - k) > 3", "false", "false"),
        ("q * k < 5", "false", "false"),
        ("True and k < 5", "k_first >= 5", "k_last < 5"),
        ("k < 5 or True", "false", "true"),
    ],
)  # fmt: skip
def test_bounds_as_they_are_emitted(text: str, never: str, always: str) -> None:
    found = told(text)
    assert (cpp(found.never), cpp(found.always)) == (never, always)


def test_useful() -> None:
    assert told("k <= q").useful and told("bias[q, k] > 0 or k <= q").useful
    assert not told("bias[q, k] > 0").useful and told("bias[q, k] > 0") == Told(FALSE, FALSE)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=conditions(),
    q=st.tuples(st.integers(0, 60), st.integers(0, 20)),
    k=st.tuples(st.integers(0, 60), st.integers(0, 20)),
    w=st.sampled_from([-3.0, 0.0, 2.5, 17.0, float("inf"), float("nan")]),
    h=st.integers(0, 3),
)
def test_no_pair_contradicts(text: str, q: tuple[int, int], k: tuple[int, int], w: float, h: int) -> None:
    mask = parse(text, NAMES, TENSORS, kind="bool", field="mask")  # type: ignore[arg-type]
    fixed = {"h": Bounded(h), "seqlen_k": Bounded(81), "w": Bounded(np.float64(w)), "length_b": Bounded(np.float64(7))}
    here = {"q": Bounded(q[0] + np.arange(q[1] + 1)[:, None]), "k": Bounded(k[0] + np.arange(k[1] + 1)[None, :])}
    tensors = {"length": fixed["length_b"], "bias": Bounded(np.full((q[1] + 1, k[1] + 1), 0.5))}
    seen = np.asarray(evaluate(mask, {**fixed, **here}, tensors).value, bool)
    ends = {name: Bounded(value) for ends, (first, more) in zip(ENDS.values(), (q, k))
            for name, value in zip(ends, (first, first + more))}  # fmt: skip
    found = tell(mask, ENDS, {"length": "length_b"})
    never, always = (bool(evaluate(node, {**fixed, **ends}, {}).value) for node in (found.never, found.always))
    assert not (never and seen.any()), cpp(found.never)
    assert not (always and not seen.all()), cpp(found.always)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("k <= q", 36), ("q - k < 16 and k <= q", 21), ("q // 8 == k // 8", 8), ("abs(q - k) <= 3", 22),
        ("k % 16 < 8", 32), ("k <= q or k > 55", 43), ("(k // 8) % 4 == (q // 8) % 4", 16),
        ("k < (q if q % 2 == 0 else q - 1)", 36), ("q - k < min(w, 4) and q >= k", 15),
    ],
)  # fmt: skip
def test_how_many_blocks_are_left(text: str, expected: int) -> None:
    """Of 8 x 8 blocks of 8 x 8 pairs; none is left that no pair needs, up to what intervals can't see."""
    found = told(text)
    kept = 0
    for q, k in itertools.product(range(0, 64, 8), repeat=2):
        ends = {"q_first": q, "q_last": q + 7, "k_first": k, "k_last": k + 7, "w": 30.0, "h": 0, "seqlen_k": 64}
        kept += not evaluate(found.never, {name: Bounded(value) for name, value in ends.items()}, {}).value
    assert kept == expected
