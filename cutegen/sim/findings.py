"""What the checkers report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Finding:
    """A fault that was seen: what kind, who did it first, where in PTX and `.cu`, and by how many lanes."""

    kind: str
    message: str
    block: int | None = None
    thread: int | None = None
    line: int | None = None
    source: int | None = None
    instruction: str = ""
    count: int = 1

    def __str__(self) -> str:
        if self.line is None:
            return f"{self.kind}: {self.message}"
        where = f".cu line {self.source}, " if self.source else ""
        times = f"; {self.count} times" if self.count > 1 else ""
        who = f"block {self.block}, thread {self.thread}, "
        return f"{self.kind}: {self.message}\n    {who}{where}PTX line {self.line}: {self.instruction}{times}"


def by_line(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of one kind at one line of the `.cu` as one: an unrolled loop repeats its instructions."""
    merged: dict[tuple[str, int | None, int | None], Finding] = {}
    for finding in findings:
        key = (finding.kind, finding.source, None if finding.source else finding.line)
        before = merged.get(key)
        merged[key] = finding if before is None else replace(before, count=before.count + finding.count)
    return list(merged.values())
