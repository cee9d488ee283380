"""What a compilation gives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Resources:
    """What ptxas says a kernel takes: registers a thread; bytes of spills, stack and static shared memory; named
    barriers.
    """

    registers: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    static_smem: int = 0
    barriers: int = 0


@dataclass(frozen=True)
class Finding:
    """Something that the compiler said and that costs speed: `spill`, `stack`, or a `warning` in its own words."""

    kind: str
    message: str


@dataclass(frozen=True)
class Binary:
    """PTX and cubin of one kernel. `seconds` is what the compilation took, `cached` whether it was read from the
    cache.
    """

    ptx: str
    cubin: bytes
    kernel: str
    arch: str
    resources: Resources
    findings: tuple[Finding, ...]
    log: str
    seconds: float
    cached: bool
    source_path: Path | None
    key: str


def read_log(log: str, kernel: str) -> tuple[Resources, tuple[Finding, ...]]:
    """Resources and findings from the log of `--ptxas-options=-v`."""
    part = log.partition(f"'{kernel}'")[2] or log

    def number(pattern: str) -> int:
        match = re.search(pattern, part)
        return int(match[1]) if match else 0

    resources = Resources(
        registers=number(r"Used (\d+) registers"),
        spill_stores=number(r"(\d+) bytes spill stores"),
        spill_loads=number(r"(\d+) bytes spill loads"),
        stack=number(r"(\d+) bytes stack frame"),
        static_smem=number(r"(\d+) bytes smem"),
        barriers=number(r"used (\d+) barriers"),
    )
    findings = []
    if resources.spill_stores or resources.spill_loads:
        findings.append(
            Finding("spill", f"{resources.spill_stores} B of spill stores, {resources.spill_loads} B of spill loads")
        )
    if resources.stack:
        findings.append(Finding("stack", f"{resources.stack} B of local memory"))
    for line in log.splitlines():
        # What ptxas calls an info may cost most: serialised WGMMA (C7510), a setmaxnreg that it ignores (C7508).
        if (
            re.search(r"\bwarning\b|potential performance loss", line, re.IGNORECASE)
            and "declared but never referenced" not in line
        ):
            findings.append(Finding("warning", line.strip()))
    return resources, tuple(findings)
