"""Checks every row of a large output at the cost of reading it once (Freivalds' test).

For random signs x, S x is compared with alpha A (B^T x) + beta C x. If each |s_ij - y_ij| <= e_ij, the sum of errors
under signs drawn after the kernel ran exceeds t with probability at most 2 exp(-t^2 / (2 sum_j e_ij^2)) (Hoeffding,
Probability inequalities for sums of bounded random variables, 1963); t is set so that a right kernel fails once in
10^15 rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.report.arrays import Backend, Projection, backend
from cutegen.report.bounds import Coefficients, gamma
from cutegen.report.reference import F64, Product, matrix_of

_VECTORS = 2
_ROWS = 65536  # of the left operand at once
_HOEFFDING = math.sqrt(2 * math.log(2e15))


def project(product: Product, limits: Coefficients, ops: Backend, output: Any, rng: np.random.Generator) -> F64:
    """For each batch and row, the largest projected error over its bound: (batches, m)."""
    found = np.empty((product.batches, product.m))
    for batch in range(product.batches):
        signs = rng.choice([-1.0, 1.0], (product.n, _VECTORS))
        got = ops.project(matrix_of(output, product, batch), signs, product.visible)
        expected, error, squares = _projected_reference(product, limits, batch, signs)
        with np.errstate(invalid="ignore", divide="ignore"):
            # |s - y| <= E + u |y| and |y| <= (|s| + E) / (1 - u), so that |s - y| <= (E + u |s| + h) / (1 - u).
            u, h = limits.output, limits.tiny
            total = 3 * (squares + u * u * got.squares + h * h * product.n) / (1 - u) ** 2
            own = gamma(product.n + product.k + 2, 2.0**-53) * (got.absolute + error)
            allowed = _HOEFFDING * np.sqrt(total) + own
            difference = np.abs(got.product - expected).max(axis=1)
            ratio = np.where(difference == 0, 0.0, difference / allowed)
        found[batch] = _exceptional(ratio, got, allowed)
    return found


def _exceptional(ratio: F64, got: Projection, allowed: F64) -> F64:
    ratio = np.where(np.isinf(allowed), 0.0, ratio)
    # Rows with an infinity or NaN that no mask asks for can't be projected: they are compared whole.
    ratio = np.where(got.finite, ratio, np.inf)
    ratio = np.where(got.hidden, ratio, np.inf)
    return np.where(np.isnan(ratio), np.inf, ratio)


def _projected_reference(product: Product, limits: Coefficients, batch: int, signs: F64) -> tuple[F64, F64, F64]:
    """alpha A (B^T x) + beta C x, the row sums of |alpha| X + |beta c|, and a bound on the row sums of E^2."""
    m, count = product.m, signs.shape[1]
    expected, total, largest = np.zeros((m, count)), np.zeros(m), np.zeros(m)
    if product.alpha != 0 and product.k:
        alpha = abs(product.alpha)
        right = product.right(batch)
        norm = float(np.sqrt((right * right).sum(axis=1)).max(initial=0.0))
        sums = _Sums(right, signs, masked=product.visible is not None)
        for start in range(0, m, _ROWS):
            index = np.arange(start, min(start + _ROWS, m))
            left = product.left(batch, index)
            seen = None if product.visible is None else product.visible[index]
            expected[index] = product.alpha * sums.signed(left, seen)
            total[index] = alpha * sums.absolute(np.abs(left), seen)
            largest[index] = alpha * norm * np.sqrt((left * left).sum(axis=1))
    added, added_squares = np.zeros(m), np.zeros(m)
    if product.beta != 0 and product.addend is not None:
        array = product.addend(batch)
        addend = backend(array).project(array, signs, None)
        expected = expected + product.beta * addend.product
        added = abs(product.beta) * addend.absolute
        added_squares = product.beta**2 * addend.squares
    with np.errstate(invalid="ignore"):
        # (p X + q c)^2 <= 2 (p X)^2 + 2 (q c)^2, and sum X^2 <= max X sum X, where max X is at most a product of norms.
        squares = 2 * limits.product**2 * largest * total + 2 * limits.addend**2 * added_squares
    squares = np.where(largest > abs(product.alpha) * limits.limit, np.inf, squares)
    return expected, total + added, squares


class _Sums:
    """B^T x for sign vectors x and |B|^T 1. `masked` keeps the sums over the first j columns of the output for every j,
    since each row of a masked output sees its own number of columns."""

    def __init__(self, right: F64, signs: F64, masked: bool) -> None:
        terms = [right * signs[:, j : j + 1] for j in range(signs.shape[1])]
        self._signed = [_prefixes(t) if masked else t.sum(axis=0) for t in terms]
        self._absolute = _prefixes(np.abs(right)) if masked else np.abs(right).sum(axis=0)

    def signed(self, left: F64, visible: NDArray[np.int64] | None) -> F64:
        return np.stack([_applied(left, sums, visible) for sums in self._signed], axis=1)

    def absolute(self, left: F64, visible: NDArray[np.int64] | None) -> F64:
        return _applied(left, self._absolute, visible)


def _prefixes(terms: F64) -> F64:
    return np.concatenate([np.zeros((1, terms.shape[1])), np.cumsum(terms, axis=0)])


def _applied(left: F64, sums: F64, visible: NDArray[np.int64] | None) -> F64:
    return np.asarray(left @ sums if visible is None else (left * sums[visible]).sum(axis=1))
