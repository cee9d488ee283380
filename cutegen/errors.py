"""The one family of errors that cutegen raises.

Each class belongs to one step of the pipeline (spec, source, binary, kernel, report) and carries the process exit
status that the command line returns for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class CutegenError(Exception):
    """Base of every error that a user may cause or mend. `exit_status` is what the command line returns."""

    exit_status = 1


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a spec.

    `field` is a dotted path (`tile.m`), `got` what stands there, `expected` what would be right, `hint` the remedy
    (the nearest legal value, the nearest name of a misspelt key). `line` and `column` count from 1 and are None for
    specs that were built in Python.
    """

    field: str
    message: str
    got: str | None = None
    expected: str | None = None
    hint: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        text = f"{self.field}: {self.message}" if self.field else self.message
        if self.got is not None:
            text += f", got {self.got}"
        if self.expected is not None:
            text += f"; expected {self.expected}"
        if self.hint is not None:
            text += f" ({self.hint})"
        return text


class SpecError(CutegenError):
    """A spec that can't be read, or can't become a right kernel. `faults` lists everything found, not only the
    first.
    """

    exit_status = 2

    def __init__(self, faults: Fault | Sequence[Fault], source: str | Path | None = None) -> None:
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        self.source = None if source is None else str(source)
        super().__init__(self.faults, self.source)

    def __str__(self) -> str:
        lines = []
        for fault in self.faults:
            where = self.source or ""
            if fault.line is not None:
                where += f":{fault.line}:{fault.column or 1}"
            lines.append(f"{where}: {fault}" if where else str(fault))
        return "\n".join(lines)

    def located(self, source: str | Path | None, faults: Sequence[Fault]) -> SpecError:
        """The same error with its faults placed in a file."""
        return SpecError(faults, source)


class ToolchainError(CutegenError):
    """A compiler, header, driver or device that is missing or too old; the message says which and how to get it."""

    exit_status = 3


class CompileError(CutegenError):
    """NVRTC or ptxas refused a source. `log` is the whole log, `path` the `.cu` it speaks of."""

    exit_status = 4

    def __init__(self, message: str, log: str = "", path: Path | None = None) -> None:
        super().__init__(message)
        self.log = log
        self.path = path


class ArgumentError(CutegenError):
    """A call's tensors or scalars don't fit the kernel: shape, dtype, stride, alignment, device. Raised before
    launch.
    """

    exit_status = 5


class LaunchError(CutegenError):
    """The driver refused or failed a launch."""

    exit_status = 6


class SimulationError(CutegenError):
    """The simulator found a fault in the kernel, or an instruction that it does not know. `findings` are the faults."""

    exit_status = 7
    findings: tuple[Any, ...] = ()
