"""Results as text for people and as plain values for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cutegen.binary import Binary
from cutegen.cli.doctor import Check
from cutegen.cli.progress import coloured
from cutegen.plan.preflight import Preflight

if TYPE_CHECKING:
    from cutegen.report import Report
    from cutegen.sim import Profile


def preflight(spec: str, found: Preflight) -> None:
    """Prints what can be said before compiling."""
    print(coloured(spec, "1"))
    print(f"  kernel         {found.symbol} for {found.arch}, {found.threads} threads")
    print(f"  shared memory  {found.smem_bytes} B of {found.smem_limit} B a block")
    for op in found.operands:
        print(
            f"    {op.name:<3} {op.bytes_per_stage} B a stage x {op.stages}{_ways(op.write_ways, op.read_ways)}{_sectors(op.sectors, op.sectors_ideal)}"
        )
    registers = f"at least {found.registers} registers a thread, " if found.registers else ""
    print(f"  occupancy      {registers}{found.blocks_per_sm} blocks an SM, {found.occupancy:.0%} of its threads")
    print(
        f"  waves          {found.work} pieces of work, {found.waves:.2f} waves, {found.tail:.0%} of the last wave's time used"
    )
    if found.candidates:
        (chosen, best), *others = found.candidates
        rivals = ", ".join(f"{name} {time:.1f}" for name, time in others)
        print(f"  model          {chosen} {best:.1f} us" + (f"; rivals {rivals}" if rivals else ""))
    print(
        f"  roofline       {found.gflop:.2f} GFLOP, {found.megabytes:.1f} MB: at least {found.roofline_us:.1f} us, bound by {found.bound}"
    )


def _ways(write: int | None, read: int | None) -> str:
    if write is None or read is None:
        return ", moved by the copy engine" if write is None and read is None else ""
    return f", bank conflicts: {write}-way written, {read}-way read"


def _sectors(touched: int | None, ideal: int | None) -> str:
    return "" if touched is None else f", {touched} sectors a warp's load (ideal {ideal})"


def binary(made: Binary) -> None:
    """Prints what a compilation gave."""
    r = made.resources
    how = "from the cache" if made.cached else f"in {made.seconds:.1f} s"
    print(
        f"  compiled       {made.kernel} for {made.arch} {how}: {r.registers} registers, {r.spill_stores + r.spill_loads} B spilled, {r.static_smem} B static shared memory"
    )
    for finding in made.findings:
        print(coloured(f"  {finding.kind:<14} {finding.message}", "33"))
    if made.source_path:
        print(f"  source         {made.source_path}")


def verdict(where: str, report: Report) -> None:
    """Prints what a validation found."""
    lines = str(report).splitlines()
    print(f"  validated      on {where}: {coloured(lines[0], '32' if report.ok else '31')}")
    for line in lines[1:]:
        print(f"    {line}")


def profile(found: Profile, source: str) -> None:
    """Prints the counters of each line of the `.cu` that moved data or multiplied."""
    total = found.total()
    print(f"  profile        {total.executed} warp-wide accesses and matrix instructions")
    print("    line   executed  wavefronts (ideal)     sectors (ideal)   global B   shared B     bulk B      MFLOP")
    lines = source.splitlines()
    for line, counts in [*found.by_line().items(), (None, total)]:
        text = lines[line - 1].strip()[:70] if line else "total"
        print(
            f"    {line or '':>4} {counts.executed:>10} {counts.wavefronts:>11} ({counts.wavefronts_ideal:>6}) "
            f"{counts.sectors:>10} ({counts.sectors_ideal:>6}) {counts.global_bytes:>10} {counts.shared_bytes:>10} "
            f"{counts.bulk_bytes:>10} {counts.tensor_flop / 1e6:>10.2f}  {text}"
        )


def binary_dict(spec: str, made: Binary) -> dict[str, Any]:
    """A compilation as plain values."""
    return {
        "spec": spec,
        "kernel": made.kernel,
        "arch": made.arch,
        "seconds": made.seconds,
        "cached": made.cached,
        "resources": asdict(made.resources),
        "findings": [asdict(finding) for finding in made.findings],
        "source": str(made.source_path) if made.source_path else None,
        "key": made.key,
    }


def doctor(found: Sequence[Check]) -> None:
    """Prints what was looked at, and what would mend it."""
    for item in found:
        mark = (
            coloured("ok     ", "32")
            if item.ok
            else coloured("absent " if item.optional else "MISSING", "33" if item.optional else "31")
        )
        print(f"{mark} {item.name:<16} {item.found}")
        if item.remedy:
            print(f"        {item.remedy}")
