"""What the checkers report."""

from __future__ import annotations

from dataclasses import dataclass


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
