"""Float64 references of the kernel families, a block of rows at a time.

Each family is a batch of scaled matrix products, `alpha * left right^T + beta * addend`, perhaps with a bound on the
columns that a row sees. Element values are taken as given, exactly: what a kernel's number formats lose is the bound's
business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import ArgumentError
from cutegen.expression import Expression, arguments
from cutegen.report.arrays import Backend, Stack, backend, stacked
from cutegen.report.finish import Finish, finish_of

F64 = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Product:
    """`batches` products of (m, k) by (n, k) transposed. `shape` is the output's; its last two modes are (m, n).

    `left(b, rows)` reads rows of one batch as float64, `right(b)` a whole one, `addend(b)` gives the caller's array.
    `visible[i]` counts the columns that row i sees, None where all do; the others are -inf. `alpha` and `beta` are
    rounded to float32, as kernels take them. `finish` is what an expression makes of it; then alpha is 1 and beta 0.
    `aux` makes a second output of it.
    `listed`: the matrices of each batch are tensors of their own, and the output is a list.
    With `ends` the rows up to ends[g] that no earlier group has are multiplied with `right(g)`; `batches` is then 1.
    """

    shape: tuple[int, ...]
    batches: int
    m: int
    n: int
    k: int
    alpha: float
    beta: float
    left: Callable[[int, Index], F64]
    right: Callable[[int], F64]
    addend: Callable[[int], Any] | None = None
    visible: NDArray[np.int64] | None = None
    finish: Finish | None = None
    aux: Finish | None = None
    ends: NDArray[np.int64] | None = None
    listed: bool = False

    def coordinate(self, batch: int, row: int, column: int) -> tuple[int, ...]:
        """The output's index of an element."""
        outer = self.shape[:-2]
        return (*(int(i) for i in np.unravel_index(batch, outer)), row, column) if outer else (row, column)


@dataclass(frozen=True)
class Rows:
    """Some rows of a reference. `value` in float64; `magnitude` = |alpha| |left| |right|^T; `addend` = |beta C|; all
    (rows, n)."""

    value: F64
    magnitude: F64
    addend: F64


def matrix_of(array: Any, product: Product, batch: int) -> Any:
    """One batch of an output as (m, n)."""
    return array[product.coordinate(batch, 0, 0)[:-2]] if len(product.shape) > 2 else array


class Family(Protocol):
    """A kernel family: its inputs by name, in calling order, and its reference."""

    name: str
    inputs: tuple[str, ...]

    def product(self, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> Product:
        """The reference of a call.

        Raises:
            ArgumentError: shapes that don't fit each other.
        """


def rows(product: Product, batch: int, index: NDArray[np.int64]) -> Rows:
    """Rows `index` of one batch. With alpha 0 the operands are not read, with beta 0 the addend is not."""
    count = len(index)
    value = np.zeros((count, product.n))
    magnitude = np.zeros((count, product.n))
    addend = np.zeros((count, product.n))
    if product.alpha != 0 and product.k:
        for which, part in _parts(product, batch, index):
            left, right = product.left(batch, index[part]), product.right(which)
            with np.errstate(invalid="ignore", over="ignore"):
                value[part] = product.alpha * (left @ right.T)
                magnitude[part] = abs(product.alpha) * (np.abs(left) @ np.abs(right).T)
    if product.beta != 0 and product.addend is not None:
        scaled = product.beta * _float64(product.addend(batch), index)
        value = value + scaled
        addend = np.abs(scaled)
    if product.visible is not None:
        hidden = np.arange(product.n)[None, :] >= product.visible[index][:, None]
        value[hidden], magnitude[hidden] = -np.inf, 0.0
    return Rows(value, magnitude, addend)


def _parts(product: Product, batch: int, index: Index) -> list[tuple[int, Index]]:
    """(which right operand, places in `index` of its rows)."""
    if product.ends is None:
        return [(batch, np.arange(len(index)))]
    group = np.searchsorted(product.ends, index, side="right")
    return [(int(g), np.flatnonzero(group == g)) for g in np.unique(group) if g < len(product.ends)]


def _float64(array: Any, index: NDArray[np.int64]) -> F64:
    return backend(array).float64(backend(array).take_rows(array, index))


def _reader(array: Any, ops: Backend, outer: tuple[int, ...], share: int = 1) -> Callable[[int], F64]:
    """Reads batch b of an array whose leading modes are `outer`, `share` batches of the last of them reading one of it.

    The last batch read is kept, since callers come back for other rows of it.
    """
    kept: dict[tuple[int, ...], F64] = {}

    def read(batch: int) -> F64:
        where = tuple(int(i) for i in np.unravel_index(batch, outer)) if outer else ()
        if share != 1:
            where = (*where[:-1], where[-1] // share)
        if where not in kept:
            kept.clear()
            kept[where] = ops.float64(array[where])
        return kept[where]

    return read


def _row_reader(array: Any, ops: Backend, outer: tuple[int, ...]) -> Callable[[int, Index], F64]:
    """Reads rows of batch b. A left operand may be too large to be kept whole as float64."""

    def read(batch: int, index: Index) -> F64:
        where = tuple(int(i) for i in np.unravel_index(batch, outer)) if outer else ()
        return ops.float64(ops.take_rows(array[where], index))

    return read


def _factors(scale: Any) -> Callable[[int], F64]:
    """The factors of one batch's rows."""
    ops = backend(scale)
    return lambda batch: ops.float64(scale[batch] if scale.ndim == 2 else scale)


def _scaled_rows(read: Callable[[int, Index], F64], scale: Any) -> Callable[[int, Index], F64]:
    factors = _factors(scale)
    return lambda batch, index: read(batch, index) * factors(batch)[index][:, None]


def _scaled(read: Callable[[int], F64], scale: Any) -> Callable[[int], F64]:
    factors = _factors(scale)
    return lambda batch: read(batch) * factors(batch)[:, None]


def _slices(array: Any, batched: bool) -> Callable[[int], Any]:
    return lambda batch: array[batch] if batched else array


def _rounded(value: float) -> float:
    return float(np.float32(value))


class Gemm:
    """C = alpha * A B^T + beta * C, with a ([batch,] m, k), b ([batch,] n, k), c ([batch,] m, n); or lists of a (m, k),
    b (n, k) and c (m, n).

    The operands in `scaled` come with a factor for each row: scale_a ([batch,] m), scale_b ([batch,] n). Of
    `expressions` the first gives C, a second one the second output.
    """

    name = "gemm"

    def __init__(
        self, scaled: tuple[str, ...] = (), expressions: tuple[Expression, ...] = (), grouped: bool = False
    ) -> None:
        self.scaled = scaled
        self.grouped = grouped
        self.expressions = expressions
        named = tuple(name for name, _ in arguments("epilogue.aux", *expressions).tensors)
        ends = ("ends",) if grouped else ()
        self.inputs: tuple[str, ...] = ("a", "b", *ends, *(f"scale_{name}" for name in scaled), *named)

    def product(self, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> Product:
        if self.grouped:
            return _grouped(arrays, scalars, self.expressions)
        arrays = {name: stacked(array) for name, array in arrays.items()}
        a, b, c = arrays["a"], arrays["b"], arrays.get("c")
        if a.ndim not in (2, 3) or b.ndim not in (2, 3) or a.shape[-1] != b.shape[-1]:
            raise ArgumentError(
                f"a, b: expected ([batch,] m, k) and ([batch,] n, k), got {tuple(a.shape)} and {tuple(b.shape)}"
            )
        (m, k), n = (int(e) for e in a.shape[-2:]), int(b.shape[-2])
        batched = {int(x.shape[0]) for x in (a, b) if x.ndim == 3}
        if len(batched) > 1:
            raise ArgumentError(f"a, b: expected one batch, got {sorted(batched)}")
        outer = tuple(batched)
        alpha, beta = _rounded(scalars.get("alpha", 1.0)), _rounded(scalars.get("beta", 0.0))
        if self.expressions:
            alpha, beta = 1.0, 0.0
        finish, aux = _finishes(self.expressions, arrays, scalars)
        if beta != 0 and (c is None or tuple(c.shape) != (*outer, m, n)):
            got = "nothing" if c is None else tuple(c.shape)
            raise ArgumentError(f"c: beta is {beta}, so c is read: expected {(*outer, m, n)}, got {got}")
        left = _row_reader(a, backend(a), outer if a.ndim == 3 else ())
        right = _reader(b, backend(b), outer if b.ndim == 3 else ())
        if "a" in self.scaled:
            left = _scaled_rows(left, arrays["scale_a"])
        if "b" in self.scaled:
            right = _scaled(right, arrays["scale_b"])
        return Product(
            shape=(*outer, m, n),
            batches=math.prod(outer),
            m=m,
            n=n,
            k=k,
            alpha=alpha,
            beta=beta,
            left=left,
            right=right,
            addend=None if beta == 0 or c is None else _slices(c, bool(outer)),
            finish=finish,
            aux=aux,
            listed=isinstance(a, Stack),
        )


def _finishes(
    expressions: tuple[Expression, ...],
    arrays: Mapping[str, Any],
    scalars: Mapping[str, float],
    ends: Index | None = None,
) -> tuple[Finish | None, Finish | None]:
    """Of C and of a second output, as far as there are expressions."""
    found = [finish_of(expression, arrays, scalars, ends) for expression in expressions]
    return (found[0] if found else None), (found[1] if len(found) > 1 else None)


def _grouped(arrays: Mapping[str, Any], scalars: Mapping[str, float], expressions: tuple[Expression, ...]) -> Product:
    """Groups of rows of a (m, k), each by a matrix of its own of b (groups, n, k)."""
    a, b, c, ends = arrays["a"], arrays["b"], arrays.get("c"), arrays["ends"]
    if a.ndim != 2 or b.ndim != 3 or a.shape[-1] != b.shape[-1] or tuple(ends.shape) != (b.shape[0],):
        raise ArgumentError(
            f"a, b, ends: expected (m, k), (groups, n, k) and (groups,), got {tuple(a.shape)}, {tuple(b.shape)} and "
            f"{tuple(ends.shape)}"
        )
    m, n, k = int(a.shape[0]), int(b.shape[1]), int(a.shape[1])
    alpha, beta = _rounded(scalars.get("alpha", 1.0)), _rounded(scalars.get("beta", 0.0))
    if expressions:
        alpha, beta = 1.0, 0.0
    until = backend(ends).float64(ends).astype(np.int64)
    finish, aux = _finishes(expressions, arrays, scalars, until)
    return Product(
        shape=(m, n),
        batches=1,
        m=m,
        n=n,
        k=k,
        alpha=alpha,
        beta=beta,
        left=_row_reader(a, backend(a), ()),
        right=_reader(b, backend(b), (int(b.shape[0]),)),
        addend=None if beta == 0 or c is None else _slices(c, False),
        finish=finish,
        aux=aux,
        ends=until,
    )


class AttentionScores:
    """S = scale * Q K^T with q (batch, heads, seqlen_q, head_dim), k (batch, heads_kv, seqlen_k, head_dim).

    Query head h reads key head h // (heads // heads_kv). `causal`: query i sees key j when j <= i + seqlen_k -
    seqlen_q; what it doesn't see is -inf. `scale` is 1 / sqrt(head_dim) if not given.
    """

    inputs: tuple[str, ...] = ("q", "k")

    def __init__(self, causal: bool = False) -> None:
        self.causal = causal
        self.name = "attention_scores"

    def product(self, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> Product:
        q, k = arrays["q"], arrays["k"]
        if q.ndim != 4 or k.ndim != 4 or q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1]:
            raise ArgumentError(
                f"q, k: expected (batch, heads, seqlen, head_dim) each, got {tuple(q.shape)} and {tuple(k.shape)}"
            )
        batch, heads, m, depth = (int(e) for e in q.shape)
        heads_kv, n = int(k.shape[1]), int(k.shape[2])
        if heads and (not heads_kv or heads % heads_kv):
            raise ArgumentError(f"q, k: heads must be a multiple of heads_kv, got {heads} and {heads_kv}")
        outer = (batch, heads)
        scale = scalars.get("scale")
        visible = None
        if self.causal:
            visible = np.clip(np.arange(m, dtype=np.int64) + 1 + n - m, 0, n)
        return Product(
            shape=(*outer, m, n),
            batches=batch * heads,
            m=m,
            n=n,
            k=depth,
            alpha=_rounded(1.0 / math.sqrt(depth) if scale is None else scale),
            beta=0.0,
            left=_row_reader(q, backend(q), outer),
            right=_reader(k, backend(k), outer, heads // heads_kv if heads else 1),
            visible=visible,
        )


FAMILIES: dict[str, Callable[..., Family]] = {"gemm": Gemm, "attention_scores": AttentionScores}


def whole(product: Product, block: int = 1024) -> F64:
    """The whole reference in float64, `block` rows at a time."""
    out = np.empty((product.batches, product.m, product.n))
    for batch in range(product.batches):
        for start in range(0, product.m, block):
            index = np.arange(start, min(start + block, product.m))
            out[batch, index] = rows(product, batch, index).value
    return out.reshape(product.shape)


def gemm(a: Any, b: Any, c: Any = None, alpha: float = 1.0, beta: float = 0.0) -> F64:
    """alpha * A B^T + beta * C in float64; c is not read if beta is 0, a and b are not if alpha is 0.

    Raises:
        ArgumentError: shapes that don't fit each other, or beta without c.
    """
    return whole(Gemm().product({"a": a, "b": b, "c": c}, {"alpha": alpha, "beta": beta}))


def attention_scores(q: Any, k: Any, scale: float | None = None, causal: bool = False) -> F64:
    """scale * Q K^T per batch and head in float64; see `AttentionScores`.

    Raises:
        ArgumentError: shapes that don't fit each other.
    """
    return whole(AttentionScores(causal).product({"q": q, "k": k}, {} if scale is None else {"scale": scale}))
