from __future__ import annotations

import numpy as np
import pytest

from cutegen.errors import ArgumentError
from cutegen.report import attention_scores, gemm


def test_gemm_by_hand() -> None:
    a = np.array([[1, 2], [3, 4], [5, 6]], np.float16)
    b = np.array([[1, 0], [2, -1]], np.float16)
    c = np.ones((3, 2), np.float32)
    assert np.array_equal(gemm(a, b), [[1, 0], [3, 2], [5, 4]])
    assert np.array_equal(gemm(a, b, c, alpha=2, beta=-0.5), [[1.5, -0.5], [5.5, 3.5], [9.5, 7.5]])


def test_gemm_batches_and_broadcast_operand() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 5, 7)), rng.standard_normal((4, 7))
    assert np.allclose(gemm(a, b), np.einsum("bmk,nk->bmn", a, b), rtol=1e-15)
    c = rng.standard_normal((3, 5, 4))
    assert np.allclose(gemm(a, b, c, beta=0.5), np.einsum("bmk,nk->bmn", a, b) + 0.5 * c)


def test_scalars_that_are_zero_read_nothing() -> None:
    nan = np.full((4, 4), np.nan, np.float32)
    assert np.array_equal(gemm(np.eye(4), np.eye(4), nan, beta=0), np.eye(4))
    assert np.array_equal(gemm(nan, nan, np.eye(4), alpha=0, beta=2), 2 * np.eye(4))
    assert np.array_equal(gemm(np.zeros((4, 0)), np.zeros((4, 0)), np.eye(4), beta=3), 3 * np.eye(4))
    assert np.array_equal(gemm(np.zeros((4, 0)), np.zeros((3, 0))), np.zeros((4, 3)))


def test_alpha_is_what_the_kernel_gets() -> None:
    assert gemm(np.ones((1, 1)), np.ones((1, 1)), alpha=0.1)[0, 0] == float(np.float32(0.1))


@pytest.mark.parametrize(
    ("a", "b", "c", "words"),
    [
        ((3, 4), (3, 5), None, "expected"),
        ((2, 3, 4), (3, 5, 4), None, "one batch"),
        ((3, 4), (5, 4), (3, 4), "c: beta is 0.5"),
    ],
)
def test_shapes_are_checked(a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...] | None, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        gemm(np.ones(a), np.ones(b), None if c is None else np.ones(c), beta=0.5)


def test_scores_causal_is_aligned_bottom_right() -> None:
    # Five queries, two keys: BUG-01. Rows see 0, 0, 0, 1, 2 keys.
    seen = np.isfinite(attention_scores(np.ones((1, 1, 5, 64)), np.ones((1, 1, 2, 64)), causal=True)[0, 0])
    assert seen.sum(axis=1).tolist() == [0, 0, 0, 1, 2]
    wide = attention_scores(np.ones((1, 1, 2, 64)), np.ones((1, 1, 5, 64)), causal=True)[0, 0]
    assert np.isfinite(wide).sum(axis=1).tolist() == [4, 5]
    assert wide[0, 0] == 8.0 and wide[0, 4] == -np.inf


def test_scores_share_key_heads() -> None:
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 6, 5, 8)), rng.standard_normal((2, 2, 7, 8))
    got = attention_scores(q, k, scale=0.5)
    assert np.allclose(got, 0.5 * np.einsum("bhid,bhjd->bhij", q, np.repeat(k, 3, axis=1)), rtol=1e-14)
    with pytest.raises(ArgumentError, match="multiple of heads_kv, got 6 and 4"):
        attention_scores(q, rng.standard_normal((2, 4, 7, 8)))
    assert attention_scores(q[:, :0], k[:, :0]).shape == (2, 0, 5, 7)
