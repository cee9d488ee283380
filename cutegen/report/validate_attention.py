"""Validates an attention kernel: O, and LSE where it has one, on poisoned memory against the float64 reference.

Small problems are compared row by row. Of large ones the first and the last row of heads and random rows are: the
softmax stands between the operands and O, so that no projection can check all rows at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.dtypes import F32, DType
from cutegen.report.arrays import backend
from cutegen.report.attention import GRANTED, AttentionForward, Head
from cutegen.report.compare import Mismatch, compare
from cutegen.report.guarded import Guarded
from cutegen.report.validate import FULL_LIMIT, Report

_SCORES = 2**22  # scores of the reference at once


def validate_attention(
    kernel: Callable[..., Any],
    family: AttentionForward,
    arrays: Mapping[str, Any],
    scalars: Mapping[str, float] | None = None,
    *,
    dtype: DType,
    lse: bool,
    full_limit: int = FULL_LIMIT,
    sampled: int = 64,
    seed: int = 0,
    twice: bool = True,
) -> Report:
    """Validates `kernel(q, k, v, out=..., [lse=...,] **scalars)`.

    Args:
        kernel: a `Kernel` or anything that is called alike.
        family: the reference of its variant.
        arrays: the inputs by name, of one library.
        scalars: passed on to the kernel.
        dtype: of the tensors.
        lse: whether the kernel has that output.
        full_limit: multiply-adds up to which every row is compared.
        sampled: random rows compared of a larger problem.
        twice: run again and compare the bits.

    Raises:
        ArgumentError: inputs that don't fit; and whatever the kernel raises.
    """
    scalars = dict(scalars or {})
    batch, heads, _, seqlen_q, seqlen_k, depth = family.check(arrays)
    ops = backend(arrays["q"])
    shape = (batch, heads, seqlen_q, depth)
    outputs = {"out": Guarded(ops, arrays["q"], dtype, shape, None)}
    if lse:
        outputs["lse"] = Guarded(ops, arrays["q"], F32, shape[:3], None)

    def run() -> None:
        for output in outputs.values():
            output.reset(None)
        kernel(*(arrays[n] for n in family.inputs), **{n: o.array for n, o in outputs.items()}, **scalars)
        ops.synchronize()

    run()
    faults = []
    unwritten = sum(output.unwritten() for output in outputs.values())
    stray = sum(output.stray() for output in outputs.values())
    values = {"scale": 1 / math.sqrt(arrays["q"].shape[3]), **scalars}
    tally = _Tally(outputs, dtype)
    work = 2 * math.prod(shape) * max(seqlen_k, 1)
    full = work <= full_limit
    for (b, h), index in _chosen(shape, None if full else sampled, np.random.default_rng(seed)).items():
        head = Head(family, arrays, values, dtype, b, h)
        step = max(1, _SCORES // max(seqlen_k, 1))
        for start in range(0, len(index), step):
            tally.add(b, h, head, index[start : start + step])
    deterministic = None
    if twice:
        kept = [ops.copy(output.bits) for output in outputs.values()]
        run()
        deterministic = all(ops.equal(a, o.bits) for a, o in zip(kept, outputs.values()))
    if unwritten:
        faults.append(f"{unwritten} elements were never written")
    if stray:
        faults.append(f"{stray} elements outside the outputs were overwritten")
    if tally.wrong:
        faults.append(f"{tally.wrong} wrong elements compared, the first {tally.first_in} at {tally.first}")
    if tally.aggregate > 1:
        faults.append(f"root mean square error {tally.aggregate * GRANTED:.3g} times that of an unfused computation")
    if deterministic is False:
        faults.append("two runs differ in their bits")
    checked = "empty" if math.prod(shape) == 0 else "full" if full else "rows"
    report = Report(
        not faults, family.name, shape, checked, tally.rows, tally.ratio, tally.worst, tally.wrong, tally.first,
        tally.nans, unwritten, stray, 0, deterministic, None, tuple(faults),
    )  # fmt: skip
    return replace(report, aggregate=tally.aggregate if tally.rows else None)


def _chosen(
    shape: tuple[int, ...], sampled: int | None, rng: np.random.Generator
) -> dict[tuple[int, int], NDArray[np.int64]]:
    """Rows to compare by (batch, head): all, or first and last rows of up to 32 heads and `sampled` random ones."""
    batch, heads, length = shape[:3]
    if 0 in shape:
        return {}
    if sampled is None:
        return {(b, h): np.arange(length) for b in range(batch) for h in range(heads)}
    total = batch * heads
    ends = {(int(i), row) for i in rng.permutation(total)[:32] for row in (0, length // 2, length - 1)}
    ends |= {(0, 0), (total - 1, length - 1)}
    ends |= {(int(i), int(r)) for i, r in zip(rng.integers(0, total, sampled), rng.integers(0, length, sampled))}
    found: dict[tuple[int, int], list[int]] = {}
    for i, row in sorted(ends):
        found.setdefault((i // heads, i % heads), []).append(row)
    return {key: np.array(rows) for key, rows in found.items()}


class _Tally:
    """Compares rows and keeps the worst, the first wrong element, and the squares of both computations' errors."""

    def __init__(self, outputs: Mapping[str, Guarded], dtype: DType) -> None:
        self.outputs, self.dtype = outputs, dtype
        self.rows = self.wrong = self.nans = 0
        self.ratio = self.squares = self.unfused = self.tiny = 0.0
        self.worst: tuple[int, ...] | None = None
        self.first: Mismatch | None = None
        self.first_in = "o"

    @property
    def aggregate(self) -> float:
        """The root mean square of the errors over what is granted."""
        allowed = GRANTED**2 * self.unfused + self.tiny
        return math.sqrt(self.squares / allowed) if allowed and self.squares else 0.0 if not self.squares else math.inf

    def add(self, batch: int, head: int, reference: Head, index: NDArray[np.int64]) -> None:
        expected = reference.rows(index)
        parts = {"out": (expected.value, expected.bound), "lse": (expected.lse[:, None], expected.lse_bound[:, None])}
        self.rows += len(index)
        for name, output in self.outputs.items():
            value, bound = parts[name]
            got = output.ops.float64(output.ops.take_rows(output.array[batch, head], index)).reshape(value.shape)
            found = compare(got, value, bound, largest=output.dtype.max)
            where = (batch, head)
            self.wrong += found.wrong
            self.nans += found.nans
            if found.worst is not None and (self.worst is None or found.ratio > self.ratio):
                self.ratio = found.ratio
                self.worst = (*where, int(index[found.worst[0]]), found.worst[1])[: 4 if name == "out" else 3]
            if found.first is not None and self.first is None:
                row, column = found.first.coordinate
                at = (*where, int(index[row]), column)[: 4 if name == "out" else 3]
                self.first, self.first_in = replace(found.first, coordinate=at), "o" if name == "out" else name
            if name == "out" and not found.nans:
                self.squares += float(((got - value) ** 2).sum())
                self.unfused += float(((expected.unfused - value) ** 2).sum())
                # What float32 arithmetic leaves where the unfused computation happens to be exact.
                self.tiny += float(((2.0**-20 * value) ** 2).sum())
