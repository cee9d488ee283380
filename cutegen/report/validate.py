"""Runs a kernel on poisoned memory and compares what it wrote with the reference, under the stated bound.

Small problems are compared element by element. Of large ones, every row is checked by a random projection, and whole
rows are compared: the first, the last, random ones, and those whose projections look worst.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.expression import Bounded
from cutegen.report.arrays import backend, stacked
from cutegen.report.bounds import Coefficients, Numerics, coefficients, exact_integers
from cutegen.report.compare import Comparison, Mismatch, compare
from cutegen.report.guarded import Guarded, GuardedList
from cutegen.report.projection import project
from cutegen.report.reference import Family, Product, matrix_of, rows

# Multiply-adds of a float64 reference beyond which rows are sampled: some seconds on two cores.
FULL_LIMIT = 4 * 10**9


@dataclass(frozen=True)
class Report:
    """A verdict. `ratio` is the largest error over its bound, at `worst`; `first` the first wrong element found.

    `checked` says how: `full`, `rows` (sampled rows and a projection of all, whose largest ratio is `projection`) or
    `empty`. `unwritten` counts output elements that still hold their poison, `stray` elements around and between them
    that were overwritten. `unbounded` counts compared elements for which the formats promise nothing.
    `aggregate` is the root mean square of the errors over what it may be (attention only).
    """

    ok: bool
    family: str
    shape: tuple[int, ...]
    checked: str
    rows: int
    ratio: float
    worst: tuple[int, ...] | None
    wrong: int
    first: Mismatch | None
    nans: int
    unwritten: int
    stray: int
    unbounded: int
    deterministic: bool | None
    projection: float | None
    faults: tuple[str, ...]
    aggregate: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON; infinities as text."""

        def plain(value: Any) -> Any:
            if isinstance(value, float) and not math.isfinite(value):
                return str(value)
            if isinstance(value, dict):
                return {k: plain(v) for k, v in value.items()}
            return [plain(v) for v in value] if isinstance(value, (tuple, list)) else value

        return {key: plain(value) for key, value in asdict(self).items()}

    def __str__(self) -> str:
        projected = "" if self.projection is None else " and a random projection of all"
        how = {
            "full": "every element",
            "rows": f"{self.rows} whole rows{projected}",
            "empty": "nothing to compute",
        }[self.checked]
        text = f"{'ok' if self.ok else 'WRONG'}: {self.family} {self.shape}, {how}; "
        text += f"largest error {self.ratio:.3g} of its bound"
        if self.projection is not None:
            text += f", projection {self.projection:.3g}"
        if self.aggregate is not None:
            text += f", root mean square {self.aggregate:.3g} of its limit"
        if self.deterministic:
            text += ", two runs equal bit for bit"
        return "\n".join([text, *(f"  {fault}" for fault in self.faults)])


def validate(
    kernel: Callable[..., Any],
    family: Family,
    arrays: Mapping[str, Any],
    scalars: Mapping[str, float] | None = None,
    *,
    numerics: Numerics,
    strides: tuple[int, ...] | None = None,
    full_limit: int = FULL_LIMIT,
    sampled: int = 64,
    seed: int = 0,
    twice: bool = True,
    allow_nan: bool = False,
) -> Report:
    """Validates `kernel(*inputs, out=..., [aux=...,] **scalars)`, both outputs if there is a second one.

    Args:
        kernel: a `Kernel` or anything that is called alike.
        family: whose reference to use (`reference.FAMILIES`).
        arrays: the inputs by name, of one library, lists where the kernel takes lists; `c` too where it is read. `c`
            itself is not written.
        scalars: passed on to the kernel.
        numerics: the number formats that the bound is made of.
        strides: the output's, or those of a list's members, in elements; row-major if left out. What lies between
            elements must stay untouched.
        full_limit: multiply-adds up to which every element is compared.
        sampled: random rows compared of a larger problem.
        twice: run again and compare the bits.
        allow_nan: a NaN is right where the reference has one.

    Raises:
        ArgumentError: inputs that don't fit; and whatever the kernel raises.
    """
    scalars = dict(scalars or {})
    product = family.product(arrays, scalars)
    like = stacked(arrays[family.inputs[0]])
    like = like[0] if product.listed else like
    ops = backend(like)
    expected = {"out": (product, numerics)}
    if product.aux is not None and numerics.aux is not None:
        expected["aux"] = replace(product, finish=product.aux), replace(numerics, output=numerics.aux)
    guarded = GuardedList if product.listed else Guarded
    outputs = {name: guarded(ops, like, n.output, product.shape, strides) for name, (_, n) in expected.items()}
    inputs = [arrays[name] for name in family.inputs]
    initial = arrays.get("c") if product.beta != 0 or product.finish is not None else None

    def run() -> tuple[Any, ...]:
        for name, output in outputs.items():
            output.reset(initial if name == "out" else None)
        result = kernel(*inputs, **{name: output.given for name, output in outputs.items()}, **scalars)
        ops.synchronize()
        return result if isinstance(result, tuple) else (result,)

    results = run()
    faults: list[str] = []
    for result in results:
        shape = product.shape if result is None else tuple(stacked(result).shape)
        if shape != product.shape:
            faults.append(f"the kernel returned shape {shape}, expected {product.shape}")
    stray = sum(output.stray() for output in outputs.values())
    unwritten = sum(output.unwritten() for name, output in outputs.items() if name != "out" or initial is None)
    checked = {
        name: _check(*expected[name], output, full_limit, sampled, seed, allow_nan) for name, output in outputs.items()
    }
    verdict = _joined(*checked.values())
    deterministic = None
    if twice:
        kept = [output.kept() for output in outputs.values()]
        run()
        deterministic = all(output.same(bits) for bits, output in zip(kept, outputs.values()))
    if unwritten:
        faults.append(f"{unwritten} elements were never written")
    if stray:
        faults.append(f"{stray} elements outside the output were overwritten")
    for name, found in checked.items():
        where = "" if name == "out" else f" of {name}"
        if found.first is not None:
            faults.append(f"{found.wrong} wrong elements{where} compared, the first at {found.first}")
        elif found.wrong:
            faults.append(f"{found.wrong} rows{where} fail the random projection")
    if deterministic is False:
        faults.append("two runs differ in their bits")
    return replace(
        verdict,
        ok=not faults and not verdict.wrong,
        family=family.name,
        stray=stray,
        unwritten=unwritten,
        deterministic=deterministic,
        faults=tuple(faults),
    )


def _joined(verdict: Report, second: Report | None = None) -> Report:
    """The verdict on two outputs."""
    if second is None:
        return verdict
    worse = second if second.ratio > verdict.ratio else verdict
    return replace(
        verdict,
        ratio=worse.ratio,
        worst=worse.worst,
        wrong=verdict.wrong + second.wrong,
        first=verdict.first or second.first,
        nans=verdict.nans + second.nans,
        unbounded=verdict.unbounded + second.unbounded,
    )


def _check(
    product: Product,
    numerics: Numerics,
    output: Guarded | GuardedList,
    full_limit: int,
    sampled: int,
    seed: int,
    allow_nan: bool,
) -> Report:
    size = math.prod(product.shape)
    work = size * max(product.k, 1)
    blank = Report(True, "", product.shape, "full", 0, 0.0, None, 0, None, 0, 0, 0, 0, None, None, ())
    if size == 0:
        return replace(blank, checked="empty")
    limits = coefficients(numerics, product.k, exact=_exact(product, numerics))
    if work <= full_limit:
        found = _Tally(product, numerics, limits, output, allow_nan)
        for batch in range(product.batches):
            for start in range(0, product.m, 1024):
                found.add(batch, np.arange(start, min(start + 1024, product.m)))
        return found.report(blank)

    found = _Tally(product, numerics, limits, output, allow_nan)
    rng = np.random.default_rng(seed)
    # An expression is not linear, saturation isn't, and groups have operands of their own: nothing can be projected.
    linear = product.finish is None and product.ends is None and not numerics.saturates
    flat = np.zeros(product.batches * product.m)
    if linear:
        flat = project(product, limits, output.ops, output.array, rng).reshape(-1)
    total = len(flat)
    chosen = {0, product.m - 1, total - product.m, total - 1}
    chosen |= {int(i) for i in rng.integers(0, total, sampled)}
    chosen |= {int(i) for i in np.argsort(-flat, kind="stable")[:8]}
    by_batch: dict[int, list[int]] = {}
    for index in sorted(chosen):
        by_batch.setdefault(index // product.m, []).append(index % product.m)
    for batch, index_list in by_batch.items():
        found.add(batch, np.array(index_list))
    report = found.report(replace(blank, checked="rows"))
    suspicious = int((flat > 1).sum())
    return replace(report, projection=float(flat.max()) if linear else None, wrong=max(report.wrong, suspicious))


class _Tally:
    """Compares rows and keeps the worst and the first wrong element."""

    def __init__(
        self,
        product: Product,
        numerics: Numerics,
        limits: Coefficients,
        output: Guarded | GuardedList,
        allow_nan: bool,
    ) -> None:
        self.product, self.limits, self.output, self.allow_nan = product, limits, output, allow_nan
        self.largest = numerics.output.max
        self.saturates = numerics.saturates
        self.rows = self.wrong = self.nans = self.unbounded = 0
        self.ratio = 0.0
        self.worst: tuple[int, ...] | None = None
        self.first: Mismatch | None = None

    def add(self, batch: int, index: NDArray[np.int64]) -> None:
        expected = rows(self.product, batch, index)
        value = expected.value
        bound = self.limits.bound(value, expected.magnitude, expected.addend, self.product.alpha)
        if self.product.finish is not None:
            before = self.limits.before(expected.magnitude, expected.addend, self.product.alpha)
            finished = self.product.finish(batch, index, Bounded(value, before))
            value = np.broadcast_to(finished.value, value.shape)
            bound = finished.error + self.limits.output * (np.abs(value) + finished.error) + self.limits.tiny
        if self.saturates:
            value = np.clip(value, -self.largest, self.largest)  # which brings no value further from its neighbour
        matrix = matrix_of(self.output.array, self.product, batch)
        got = self.output.ops.float64(self.output.ops.take_rows(matrix, index))
        found: Comparison = compare(got, value, bound, largest=self.largest, allow_nan=self.allow_nan)
        self.rows += len(index)
        self.wrong += found.wrong
        self.nans += found.nans
        self.unbounded += int(np.isinf(bound).sum())
        if found.worst is not None and (self.worst is None or found.ratio > self.ratio):
            self.ratio = found.ratio
            self.worst = self.product.coordinate(batch, int(index[found.worst[0]]), found.worst[1])
        if found.first is not None and self.first is None:
            row, column = found.first.coordinate
            self.first = replace(found.first, coordinate=self.product.coordinate(batch, int(index[row]), column))

    def report(self, blank: Report) -> Report:
        return replace(
            blank,
            rows=self.rows,
            ratio=self.ratio,
            worst=self.worst,
            wrong=self.wrong,
            first=self.first,
            nans=self.nans,
            unbounded=self.unbounded,
        )


def _exact(product: Product, numerics: Numerics) -> bool:
    """Whether nothing is rounded before the output: see `bounds`, "Integers"."""
    if (
        product.finish is not None
        or product.ends is not None
        or product.beta != 0
        or product.alpha == 0
        or math.frexp(abs(product.alpha))[0] != 0.5
        or not product.k
    ):
        return False
    largest = [0.0, 0.0]
    for batch in range(product.batches):
        blocks = (np.arange(start, min(start + 65536, product.m)) for start in range(0, product.m, 65536))
        parts = chain(((1, product.right(batch)),), ((0, product.left(batch, index)) for index in blocks))
        for side, values in parts:
            if not values.size or not np.array_equal(values, np.round(values)):
                return False
            largest[side] = max(largest[side], float(np.abs(values).max()))
    return exact_integers(numerics, product.k, largest[0], largest[1])
