"""Mask expressions on the simulator: blocks that nobody sees are skipped, blocks that everybody sees pay no mask, and the
result is that of the mask for every pair."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutegen import api, binary
from cutegen.dtypes import DTYPES
from cutegen.kernel import Kernel
from cutegen.report import attention_forward, inputs, validate_attention
from cutegen.spec import AttentionForwardSpec
from tests.expression.masks import conditions

M, N, D = 16, 16, 16
ARGUMENTS = [
    {"name": "length", "modes": ["batch"]},
    {"name": "bias", "modes": ["seqlen_q", "seqlen_k"]},
    {"name": "w"},
]
# Masks that people use, on tiles of 16 x 16.
MASKS = {
    "causal": "k <= q",
    "window": "k <= q and q - k < w",
    "band": "abs(q - k) < w",
    "prefix": "k <= q or k < length[b]",
    "padding": "k < length[b]",
    "documents": "q // 32 == k // 32 and k <= q",
    "strided": "k <= q and (q - k < 16 or k // 16 % 3 == 2)",
    "dilated": "k // 16 % 2 == q // 16 % 2",
    "future": "k > q + 20",
    "nothing": "k < 0",
    "everything": "k >= 0",
}


@lru_cache
def kernel(mask: str, stages: int = 1, **parts: Any) -> Any:
    used = [a for a in ARGUMENTS if a["name"] in mask]
    spec = AttentionForwardSpec(
        problem={"seqlen_q": 64, "seqlen_k": 64, "head_dim": D}, dtypes=dict.fromkeys("qkvo", "f16"),
        tile={"m": M, "n": N}, pipeline={"stages": stages}, mask=mask, arguments=used, lse=True, **parts,
    )  # fmt: skip
    return api.build(spec)


def problem(built: Any, seqlen_q: int, seqlen_k: int, length: float = 20.0) -> dict[str, Any]:
    size = {"batch": 2, "heads": 1, "heads_kv": 1, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k}
    arrays = inputs.for_signature(built.signature, size, 0)
    if "length" in arrays:
        arrays["length"] = np.array([length, seqlen_k], np.float32)
    return arrays


def check(built: Any, arrays: dict[str, Any], w: float) -> None:
    scalars = {"w": w} if "w" in api.family(built.spec).scalars else {}
    report = validate_attention(
        partial(built, device="sim"),
        api.family(built.spec),
        arrays,
        scalars,
        dtype=DTYPES["f16"],
        lse=True,
        twice=False,
    )
    assert report.ok, f"{built.spec.mask}: {report}"


def visible(built: Any, arrays: dict[str, Any], w: float) -> np.ndarray:
    """(batch, seqlen_q, seqlen_k): from the reference's own output, with V the identity and all scores equal."""
    q, k = np.zeros_like(arrays["q"]), np.zeros_like(arrays["k"])
    v = np.broadcast_to(np.eye(k.shape[2]), (*k.shape[:2], k.shape[2], k.shape[2]))
    o, _ = attention_forward(api.family(built.spec), {**arrays, "q": q, "k": k, "v": v}, {"w": w})
    return o[:, 0] > 0


@pytest.mark.parametrize("name", MASKS)
def test_blocks_that_are_visited(name: str) -> None:
    """As many as have a visible pair, neither more nor fewer, by the operations of the tensor cores."""
    built = kernel(MASKS[name])
    for seqlen_q, seqlen_k, w in ((130, 200, 25.0), (64, 64, 1.0), (37, 90, float("inf")), (200, 33, 4.0)):
        arrays = problem(built, seqlen_q, seqlen_k)
        check(built, arrays, w)
        seen = visible(built, arrays, w)
        blocks = sum(
            seen[b, q : q + M, k : k + N].any()
            for b in range(2) for q in range(0, seqlen_q, M) for k in range(0, seqlen_k, N)
        )  # fmt: skip
        scalars = {"w": w} if "w" in api.family(built.spec).scalars else {}
        _, result = built.simulate(*arrays.values(), profile=True, **scalars)
        assert not result.findings
        assert result.profile.total().tensor_flop == blocks * 4 * M * N * D


def test_whole_blocks_pay_no_mask() -> None:
    """The mask's tensor is not read in blocks that every query of the tile sees whatever it holds."""
    built = kernel("k <= q or bias[q, k] > 1000")
    size = 8 * M
    arrays = problem(built, size, size)
    check(built, arrays, 0.0)
    line = next(i for i, text in enumerate(built.source.splitlines(), 1) if "if (!(key <= query" in text)
    _, result = built.simulate(*arrays.values(), profile=True)
    crossed_or_above = 8 * 9 // 2 * M * N * arrays["q"].shape[0]
    above_the_diagonal = size * (size - 1) // 2 * arrays["q"].shape[0]
    read = result.profile.by_line()[line].global_bytes // 4
    assert above_the_diagonal <= read <= crossed_or_above


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(mask=conditions(), seqlen_q=st.integers(1, 90), seqlen_k=st.integers(1, 90), w=st.sampled_from([0.0, 17.0]))
def test_random_masks(mask: str, seqlen_q: int, seqlen_k: int, w: float) -> None:
    built = kernel(mask)
    check(built, problem(built, seqlen_q, seqlen_k), w)


def test_beside_another_mask() -> None:
    built = kernel(MASKS["dilated"], causal=True)
    check(built, problem(built, 100, 130), 0.0)


def test_two_stages() -> None:
    built = kernel(MASKS["strided"], stages=2)
    for seqlen_q, seqlen_k in ((130, 200), (20, 90), (90, 20)):
        check(built, problem(built, seqlen_q, seqlen_k), 0.0)


def test_packed_sequences() -> None:
    """Their tiles begin anywhere, their blocks at their own first key."""
    built = kernel(MASKS["strided"], varlen=True)
    for boundaries in (2, 5):
        size = {"total_q": 190, "total_k": 260, "heads": 1, "heads_kv": 1, "boundaries": boundaries}
        check(built, inputs.for_signature(built.signature, size, 1), 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{ load_K(gap); }", "{ load_K(1); }"),
        ("{ load_V(gap); }", "{ load_V(1); }"),
        ("if (hidden(begin, end)) {", "if (hidden(begin, begin + 1)) {"),
        ("else if (step == 1)     { break; }", "else if (step == 1)     { --end; break; }"),
        ("if (!whole(n)) {", "if (!whole(n - 1)) {"),
        ("return k_first > q_last", "return k_first >= q_first"),
        ("int const n_last = seen_before(n_end);", "int const n_last = n_end - 1;"),
    ],
)
def test_faults_show(old: str, new: str) -> None:
    """In the output, or in how much is multiplied."""
    plan = api.resolve(kernel(MASKS["strided"]).spec)
    source = api.emit(plan.spec)
    assert source.count(old) == 1, old
    made = binary.compile(source.replace(old, new), stem="faulty", arch=plan.arch.name, kernel=plan.symbol)
    faulty = Kernel(plan.signature, made.cubin, plan.arch, ptx=made.ptx)
    arrays = problem(faulty, 130, 200)
    (right, expected), (wrong, found) = (
        built.simulate(*arrays.values(), profile=True) for built in (kernel(MASKS["strided"]), faulty)
    )
    same = all(np.array_equal(a, b) for a, b in zip(right, wrong))
    assert not same or found.profile.total().tensor_flop > expected.profile.total().tensor_flop
