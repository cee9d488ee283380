"""Validates an attention kernel: O, and LSE where it has one, on poisoned memory against the float64 reference.

Small problems are compared row by row. Of large ones the first and the last row of heads and random rows are: the
softmax stands between the operands and O, so that no projection can check all rows at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
    ops = backend(arrays["q"])
    heads, depth = int(arrays["q"].shape[1]), int(arrays["v"].shape[-1])
    parts = _parts(family, arrays)
    shape = (*(int(e) for e in arrays["q"].shape[:-1]), depth)
    statistics = (shape[1], shape[0]) if family.varlen else shape[:-1]
    outputs = {"out": Guarded(ops, arrays["q"], dtype, shape, None)}
    if lse:
        outputs["lse"] = Guarded(ops, arrays["q"], F32, statistics, None)

    def run() -> None:
        for output in outputs.values():
            output.reset(None)
        kernel(*(arrays[n] for n in family.inputs), **{n: o.array for n, o in outputs.items()}, **scalars)
        ops.synchronize()

    run()
    faults = []
    unwritten = sum(output.unwritten() for output in outputs.values())
    stray = sum(output.stray() for output in outputs.values())
    values = {"scale": 1 / math.sqrt(arrays["q"].shape[-1]), **scalars}
    tally = _Tally(outputs)
    full = sum(2 * part.seqlen_q * max(part.seqlen_k, 1) * heads * depth for part in parts) <= full_limit
    lengths = [part.seqlen_q if depth else 0 for part in parts]
    for (b, h), index in _chosen(lengths, heads, None if full else sampled, np.random.default_rng(seed)).items():
        part = parts[b]
        head = Head(family, part.arrays, values, dtype, part.batch, h, part.number)
        step = max(1, _SCORES // max(part.seqlen_k, 1))
        for start in range(0, len(index), step):
            tally.add(part, h, head, index[start : start + step])
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


@dataclass(frozen=True)
class _Part:
    """One sequence: a batch of `arrays`, or with varlen the rows from `begin` on, as arrays of a single batch."""

    arrays: Mapping[str, Any]
    batch: int
    number: int
    begin: int
    seqlen_q: int
    seqlen_k: int
    varlen: bool

    def output(self, name: str, array: Any, head: int) -> Any:
        """This sequence's rows of O or LSE."""
        if not self.varlen:
            return array[self.batch, head]
        rows = slice(self.begin, self.begin + self.seqlen_q)
        return array[rows, head] if name == "out" else array[head, rows]

    def coordinate(self, name: str, head: int, row: int, column: int) -> tuple[int, ...]:
        """The index of an element in O or LSE."""
        if not self.varlen:
            return (self.batch, head, row, column)[: 4 if name == "out" else 3]
        return (self.begin + row, head, column) if name == "out" else (head, self.begin + row)


def _parts(family: AttentionForward, arrays: Mapping[str, Any]) -> list[_Part]:
    if not family.varlen:
        batch, _, _, seqlen_q, seqlen_k, _ = family.check(arrays)
        return [_Part(arrays, b, b, 0, seqlen_q, seqlen_k, False) for b in range(batch)]
    ends = {x: [int(e) for e in backend(arrays["q"]).float64(arrays[f"cu_seqlens_{x}"])] for x in "qk"}
    found = []
    for b in range(len(ends["q"]) - 1):
        own = dict(arrays)
        for name, x in (("q", "q"), ("k", "k"), ("v", "k")):
            own[name] = arrays[name][ends[x][b] : ends[x][b + 1]].swapaxes(0, 1)[None]
        _, _, _, seqlen_q, seqlen_k, _ = family.check(own)
        found.append(_Part(own, 0, b, ends["q"][b], seqlen_q, seqlen_k, True))
    return found


def _chosen(
    lengths: list[int], heads: int, sampled: int | None, rng: np.random.Generator
) -> dict[tuple[int, int], NDArray[np.int64]]:
    """Rows to compare by (sequence, head): all, or first, middle and last of up to 32 and `sampled` random ones."""
    pairs = [(b, h) for b, length in enumerate(lengths) for h in range(heads) if length]
    if sampled is None or not pairs:
        return {(b, h): np.arange(lengths[b]) for b, h in pairs}
    chosen = [pairs[int(i)] for i in rng.permutation(len(pairs))[:32]]
    rows = {(pair, row) for pair in chosen for row in (0, lengths[pair[0]] // 2, lengths[pair[0]] - 1)}
    rows |= {(pairs[0], 0), (pairs[-1], lengths[pairs[-1][0]] - 1)}
    for i in rng.integers(0, len(pairs), sampled):
        rows.add((pairs[int(i)], int(rng.integers(0, lengths[pairs[int(i)][0]]))))
    found: dict[tuple[int, int], list[int]] = {}
    for pair, row in sorted(rows):
        found.setdefault(pair, []).append(row)
    return {pair: np.array(index) for pair, index in found.items()}


class _Tally:
    """Compares rows and keeps the worst, the first wrong element, and the squares of both computations' errors."""

    def __init__(self, outputs: Mapping[str, Guarded]) -> None:
        self.outputs = outputs
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

    def add(self, part: _Part, head: int, reference: Head, index: NDArray[np.int64]) -> None:
        expected = reference.rows(index)
        wanted = {"out": (expected.value, expected.bound), "lse": (expected.lse[:, None], expected.lse_bound[:, None])}
        self.rows += len(index)
        for name, output in self.outputs.items():
            value, bound = wanted[name]
            rows = output.ops.take_rows(part.output(name, output.array, head), index)
            got = output.ops.float64(rows).reshape(value.shape)
            found = compare(got, value, bound, largest=output.dtype.max)
            self.wrong += found.wrong
            self.nans += found.nans
            if found.worst is not None and (self.worst is None or found.ratio > self.ratio):
                self.ratio = found.ratio
                self.worst = part.coordinate(name, head, int(index[found.worst[0]]), found.worst[1])
            if found.first is not None and self.first is None:
                row, column = found.first.coordinate
                self.first = replace(found.first, coordinate=part.coordinate(name, head, int(index[row]), column))
                self.first_in = "o" if name == "out" else name
            if name == "out" and not found.nans:
                self.squares += float(((got - value) ** 2).sum())
                self.unfused += float(((expected.unfused - value) ** 2).sum())
                # What float32 arithmetic leaves where the unfused computation happens to be exact.
                self.tiny += float(((2.0**-20 * value) ** 2).sum())
