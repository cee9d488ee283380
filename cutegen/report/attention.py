r"""The float64 reference of attention, and how far from it a fused kernel may be.

Per row, with scores s_j = scale q.k_j (or c tanh(s_j / c)), p_j = exp(s_j) / sum over what the row sees, O = sum p_j
v_j.

*Bound of an element*, from number formats alone. The kernel's scores differ from s_j by at most

    d_j = gamma_D(2 u) scale |q|.|k_j| + 2^-22 (|s_j| + max|s|) + 2^-21 c      (u = 2^-24, D = head_dim, c = softcap)

(accumulation on tensor cores, see `bounds`; the factor log2(e) and the difference to the row's reference, in f32;
tanh); where the score is an expression, its running error (`cutegen.expression`) takes the place of the first term. The
logarithm of the sum then moves by at most l = log(sum p_j exp(d_j)), so that p_j changes by a factor within
exp(+-(d_j + l)). exp2 is good to 2^-22 (PTX ISA, ex2.approx), p_j is rounded to the type of V (u_p, or half its
smallest subnormal h_p relative to the row's largest), sums of N terms and at most N / 16 rescalings give
f = gamma_N(2 u) + gamma_N(u) + (N / 16 + 4) 2^-21, and

    E = sum p_j |v_j| (exp(d_j + l) (1 + u_p) (1 + f) - 1) + h_p max(p) sum |v_j|
    |computed - O| <= E + u_o (|O| + E) + h_o

With tf32, Q, K and V lose their low 13 bits: gamma_D(2 u) becomes t + (1 + t) gamma_D(2 u) with t = 2 2^-10 + 2^-20
(see `bounds`), and |v_j| (1 + 2^-10) |v_j|. p_j is rounded to nearest, u_p = 2^-11, while u_o is f32's.

*Aggregate.* Over all elements compared, the root mean square of the error must not exceed that of an unfused
computation in the same type: scores rounded to it, softmax in f32, probabilities rounded to it, product rounded to it.
With tf32 that one keeps scores and probabilities in f32, and its products drop the low bits of every operand.
A twentieth is granted, since two correct roundings may differ near ties.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.dtypes import F32, TF32, DType
from cutegen.errors import ArgumentError
from cutegen.expression import Bounded, Node, evaluate
from cutegen.report import philox
from cutegen.report.arrays import backend
from cutegen.report.bounds import SUBNORMAL, TF32_TRUNCATION, gamma

F64 = NDArray[np.float64]
_EX2 = 2.0**-22
GRANTED = 1.05


@dataclass(frozen=True)
class AttentionForward:
    """Attention of q (batch, heads, seqlen_q, head_dim) over k, v (batch, heads_kv, seqlen_k, head_dim).

    Query i stands at key i + seqlen_k - seqlen_q if `bottom_right`, else i. It sees the keys from `left` before to
    `right` after that, None meaning all.
    """

    left: int | None = None
    right: int | None = None
    bottom_right: bool = True
    softcap: float | None = None
    score: Node | None = None
    mask: Node | None = None
    # Tensors of the expressions, each with its modes, and the names of their scalars.
    tensors: tuple[tuple[str, tuple[str, ...]], ...] = ()
    scalars: tuple[str, ...] = ()
    sinks: bool = False
    varlen: bool = False
    dropout: bool = False
    tf32: bool = False
    name: str = "attention_forward"

    @property
    def inputs(self) -> tuple[str, ...]:
        ends = ("cu_seqlens_q", "cu_seqlens_k") if self.varlen else ()
        return ("q", "k", "v", *ends, *(name for name, _ in self.tensors), *(("sinks",) if self.sinks else ()))

    def visible(self, index: NDArray[np.int64], seqlen_q: int, seqlen_k: int) -> NDArray[np.bool_]:
        """(rows, seqlen_k): what the queries `index` see."""
        position = index[:, None] + (seqlen_k - seqlen_q if self.bottom_right else 0)
        key = np.arange(seqlen_k)[None, :]
        seen = np.ones((len(index), seqlen_k), bool)
        if self.left is not None:
            seen &= key >= position - self.left
        if self.right is not None:
            seen &= key <= position + self.right
        return seen

    def check(self, arrays: Mapping[str, Any]) -> tuple[int, int, int, int, int, int]:
        """(batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim of V and O).

        Raises:
            ArgumentError: shapes that don't fit each other.
        """
        q, k, v = (arrays[name] for name in "qkv")
        if any(x.ndim != 4 for x in (q, k, v)) or tuple(k.shape[:3]) != tuple(v.shape[:3]):
            raise ArgumentError(
                "q, k, v: expected (batch, heads, seqlen, head_dim) each, k and v of one length, got "
                f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
            )
        if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
            raise ArgumentError(f"q, k: batch and head_dim must agree, got {tuple(q.shape)} and {tuple(k.shape)}")
        batch, heads, seqlen_q = (int(e) for e in q.shape[:3])
        heads_kv, seqlen_k = int(k.shape[1]), int(k.shape[2])
        if heads and (not heads_kv or heads % heads_kv):
            raise ArgumentError(f"q, k: heads must be a multiple of heads_kv, got {heads} and {heads_kv}")
        return batch, heads, heads_kv, seqlen_q, seqlen_k, int(v.shape[3])


@dataclass(frozen=True)
class Rows:
    """Some rows of one head: O (rows, head_dim) and LSE (rows) in float64, their bounds, and the unfused O."""

    value: F64
    bound: F64
    lse: F64
    lse_bound: F64
    unfused: F64


class Head:
    """One head of one batch; K and V are kept as float64. `scalars` are the call's, `scale` among them; `number` is the
    batch as expressions see it, where the arrays hold one sequence."""

    def __init__(
        self,
        family: AttentionForward,
        arrays: Mapping[str, Any],
        scalars: Mapping[str, float],
        dtype: DType,
        batch: int,
        head: int,
        number: int | None = None,
    ) -> None:
        _, heads, heads_kv, self.seqlen_q, self.seqlen_k, _ = family.check(arrays)
        self.depth = int(arrays["q"].shape[3])
        self.family, self.dtype = family, dtype
        self.multiply = TF32 if family.tf32 else dtype
        self.dropped = TF32_TRUNCATION if family.tf32 else 0.0
        self.scalars = {name: float(np.float32(value)) for name, value in scalars.items() if name != "seed"}
        self.random = (int(scalars.get("seed", 0)), int(scalars.get("offset", 0)))
        self.heads = heads
        self.arrays, self.at = arrays, {"batch": batch if number is None else number, "heads": head}
        self.ops = backend(arrays["q"])
        self.q = arrays["q"][batch, head]
        where = head // (heads // heads_kv)
        # A score without a value, that every row sees.
        self.sink = float(self.ops.float64(arrays["sinks"])[head]) if family.sinks else -math.inf
        self.k, self.v = (self.ops.float64(arrays[name][batch, where]) for name in "kv")

    def rows(self, index: NDArray[np.int64]) -> Rows:
        """The reference and the bounds of the rows `index`."""
        seen = self.family.visible(index, self.seqlen_q, self.seqlen_k)
        score, moved = self._scores(index, self.k)
        if self.family.mask is not None:
            seen &= np.asarray(evaluate(self.family.mask, *self._values(index)).value, bool)
        seen &= ~np.isneginf(score)
        sink = abs(self.sink) if math.isfinite(self.sink) else 0.0
        largest = np.abs(score).max(axis=1, keepdims=True, initial=sink, where=seen)
        p, lse = softmax(score, seen, self.sink)
        kept = self._kept(index)
        drawn = p * kept
        value = drawn @ self.v
        u = F32.unit_roundoff
        with np.errstate(invalid="ignore"):
            moved = np.where(seen, moved + _EX2 * (np.abs(score) + largest), 0.0)
        with np.errstate(invalid="ignore"):
            share = np.where(np.isneginf(lse), 0.0, np.exp(self.sink - lse))[:, None]
        total = (p * np.exp(moved)).sum(axis=1, keepdims=True) + share * np.exp(2 * _EX2 * largest)
        total = np.log(np.maximum(total, 1.0))
        n = self.seqlen_k
        sums = gamma(n, 2 * u) + gamma(n, u) + (n / 16 + 4) * 2 * _EX2
        rounded = self.dtype.unit_roundoff
        absolute = np.abs(self.v)
        with np.errstate(over="ignore", invalid="ignore"):
            relative = np.exp(moved + total) * (1 + self.multiply.unit_roundoff) * (1 + self.dropped) * (1 + sums) - 1
        own = gamma(n + self.depth + 2, 2.0**-53)
        half = SUBNORMAL[self.multiply.name] / 2
        error = (drawn * (relative + own)) @ absolute
        error += half * p.max(axis=1, keepdims=True, initial=0.0) * ((seen * kept) @ absolute)
        bound = error + rounded * (np.abs(value) + error) + half
        bound = np.where(seen.any(axis=1, keepdims=True), bound, 0.0)
        finite = np.where(np.isfinite(lse), np.abs(lse), 0.0)
        lse_bound = total[:, 0] + sums + 2 * _EX2 * (1 + finite + largest[:, 0])
        return Rows(value, bound, lse, lse_bound, self._unfused(index, score, seen, kept))

    def _scores(self, index: NDArray[np.int64], k: F64, cut: bool = False) -> tuple[F64, F64]:
        """Scores before masks, and what the kernel's may differ by beside the rounding of the exponent; `cut`: of the
        bits of q that tf32 keeps."""
        q = self.ops.float64(self.ops.take_rows(self.q, index))
        q = _cut(q) if cut else q
        family, scale = self.family, self.scalars["scale"]
        with np.errstate(over="ignore", invalid="ignore"):
            product = q @ k.T
            magnitude = np.abs(q) @ np.abs(k).T
        lost = 2 * self.dropped + self.dropped**2
        error = (lost + (1 + lost) * gamma(self.depth, 2 * F32.unit_roundoff)) * magnitude
        if family.score is not None:
            names, tensors = self._values(index)
            found = evaluate(family.score, {**names, "s": Bounded(product, error)}, tensors)
            return np.broadcast_to(found.value, product.shape), np.broadcast_to(found.error, product.shape)
        score = scale * product
        if family.softcap is not None:
            score = family.softcap * np.tanh(score / family.softcap)
        return score, scale * error + 2 * _EX2 * (family.softcap or 0.0)

    def _values(self, index: NDArray[np.int64]) -> tuple[dict[str, Bounded], dict[str, Bounded]]:
        """What expressions read: variables, and tensors as (rows or 1, seqlen_k or 1)."""
        names = {
            "b": self.at["batch"], "h": self.at["heads"], "q": index[:, None], "k": np.arange(self.seqlen_k)[None, :],
            "seqlen_q": self.seqlen_q, "seqlen_k": self.seqlen_k, **self.scalars,
        }  # fmt: skip
        tensors = {}
        for name, modes in self.family.tensors:
            array = self.arrays[name][tuple(self.at.get(mode, slice(None)) for mode in modes)]
            left = [mode for mode in modes if mode not in self.at]
            if left[:1] == ["seqlen_q"]:
                values = self.ops.float64(self.ops.take_rows(array, index))
            else:
                values = self.ops.float64(array)
                values = values[..., index] if "seqlen_q" in left else values
            if left == ["seqlen_k", "seqlen_q"]:
                values = values.T
            shape = tuple(-1 if mode in left else 1 for mode in ("seqlen_q", "seqlen_k"))
            tensors[name] = Bounded(values if len(left) == 2 else values.reshape(shape))
        return {name: Bounded(value) for name, value in names.items()}, tensors

    def _kept(self, index: NDArray[np.int64]) -> F64:
        """What dropout multiplies probabilities by: 0, or 1 / (1 - p_dropout)."""
        if not self.family.dropout:
            return np.ones((1, 1))
        p = self.scalars["p_dropout"]
        row = self.at["batch"] * self.heads + self.at["heads"]
        return philox.kept(index, self.seqlen_k, row, p, *self.random) / (1 - p)

    def _unfused(self, index: NDArray[np.int64], score: F64, seen: NDArray[np.bool_], kept: F64) -> F64:
        if self.family.tf32:
            p, _ = softmax(self._scores(index, _cut(self.k), cut=True)[0], seen, self.sink)
            return _cut(p * kept) @ _cut(self.v)
        p, _ = softmax(_round(score, self.dtype), seen, self.sink)
        return _round(_round((p * kept).astype(np.float32), self.dtype) @ self.v, self.dtype)


def softmax(score: F64, seen: NDArray[np.bool_], sink: float = -math.inf) -> tuple[F64, F64]:
    """Probabilities and log-sum-exp of each row over what it sees and the sink; 0 and -inf where that is nothing."""
    top = np.max(score, axis=1, keepdims=True, initial=sink, where=seen)
    top = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        p = np.where(seen, np.exp(score - top), 0.0)
        total = p.sum(axis=1, keepdims=True) + np.exp(sink - top)
        lse = (np.log(total) + top)[:, 0]
    return p / np.where(total == 0, 1.0, total), lse


def _cut(values: F64) -> F64:
    """What tensor cores read of f32 values as tf32: all but the low 13 bits."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return np.asarray(bits.view(np.float32).astype(np.float64))


def _round(values: Any, dtype: DType) -> F64:
    with np.errstate(over="ignore"):
        return np.asarray(values.astype(dtype.numpy).astype(np.float64))


def attention_forward(
    family: AttentionForward, arrays: Mapping[str, Any], scalars: Mapping[str, float] | None = None, block: int = 512
) -> tuple[F64, F64]:
    """O and LSE in float64, `block` rows at a time. `scale` is head_dim^-0.5 if not among the scalars.

    Raises:
        ArgumentError: shapes that don't fit each other.
    """
    batch, heads, _, seqlen_q, _, depth = family.check(arrays)
    values = {"scale": 1 / math.sqrt(arrays["q"].shape[3]), **(scalars or {})}
    out, lse = np.zeros((batch, heads, seqlen_q, depth)), np.zeros((batch, heads, seqlen_q))
    for b in range(batch):
        for h in range(heads):
            one = Head(family, arrays, values, F32, b, h)
            for start in range(0, seqlen_q, block):
                index = np.arange(start, min(start + block, seqlen_q))
                found = one.rows(index)
                out[b, h, index], lse[b, h, index] = found.value, found.lse
    return out, lse
