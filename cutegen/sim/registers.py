"""Registers of all lanes of a batch: a row of numbers for each register, read and written by sets of lanes.

A set of lanes is `ALL`, which costs no indexing, or an ascending array of lane numbers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cutegen.errors import SimulationError
from cutegen.sim.ptx import WIDTHS

if TYPE_CHECKING:
    from cutegen.sim.machine import Machine

ALL = slice(None)
Lanes = Any  # ALL or NDArray[np.int64]
Get = Callable[[Lanes], Any]
Put = Callable[[Lanes, Any], None]
NUMPY = {
    "u8": np.uint8, "s8": np.int8, "b8": np.uint8, "u16": np.uint16, "s16": np.int16, "b16": np.uint16,
    "u32": np.uint32, "s32": np.int32, "b32": np.uint32, "f32": np.float32, "f16": np.float16, "f16x2": np.uint32,
    "bf16": np.uint16, "bf16x2": np.uint32,
    "u64": np.uint64, "s64": np.int64, "b64": np.uint64, "f64": np.float64, "pred": np.bool_,
}  # fmt: skip
_KIND = {1: "16", 2: "16", 4: "32", 8: "64"}
_FLOAT = re.compile(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})")
_INTEGER = re.compile(r"(-?)(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?")


def one_value(values: Any) -> int:
    """What an operand holds that is the same for all lanes."""
    return int(np.asarray(values).reshape(-1)[0])


class Registers:
    """The register file of a machine, and which of it was ever written."""

    def __init__(self, machine: Machine, declared: dict[str, str], lanes: int) -> None:
        self._machine = machine
        self.declared = declared
        kinds: dict[str, list[str]] = {"pred": [], "16": [], "32": [], "64": [], "128": []}
        for name, kind in declared.items():
            kinds["pred" if kind == "pred" else _KIND.get(WIDTHS[kind], "128")].append(name)
        if kinds["128"]:
            raise SimulationError(f"128-bit registers are not modelled: {kinds['128'][0]}")
        self.rows = {name: row for names in kinds.values() for row, name in enumerate(names)}
        self.kind = {name: kind for kind, names in kinds.items() for name in names}
        shape = {kind: (len(names), lanes) for kind, names in kinds.items()}
        self.files: dict[str, NDArray[Any]] = {
            "pred": np.zeros(shape["pred"], bool),
            "16": np.zeros(shape["16"], np.uint16),
            "32": np.zeros(shape["32"], np.uint32),
            "64": np.zeros(shape["64"], np.uint64),
        }
        self.defined = {kind: np.zeros(shape[kind], bool) for kind in self.files}
        self.complete = {kind: [False] * len(kinds[kind]) for kind in self.files}
        # Accumulators that a wgmma is still writing, by name: lanes.
        self.in_flight: dict[str, NDArray[np.bool_]] = {}
        # Operands that a wgmma is still reading, by name: lanes.
        self.held: dict[str, NDArray[np.bool_]] = {}
        # Rows that wgmma reads, with the lanes that wrote them since their last wgmma.fence.
        self.unfenced: dict[str, NDArray[np.bool_]] = {}

    def reset(self) -> None:
        """As a new block finds them: undefined."""
        for kind, flags in self.defined.items():
            flags[:] = False
            self.complete[kind] = [False] * len(self.complete[kind])
        self.in_flight.clear()
        self.held.clear()
        for lanes in self.unfenced.values():
            lanes[:] = False

    def view(self, name: str, kind: str) -> NDArray[Any]:
        """A register's row as `kind`: a view, where widths agree."""
        row = self.files[self.kind[name]][self.rows[name]]
        return row if self.kind[name] == "pred" else np.asarray(row.view(NUMPY[kind]))

    def getter(self, name: str, kind: str, raw: bool = False) -> Get:
        """Reads a register as `kind`; a narrower type reads the low bits. `raw` skips the check of in-flight values."""
        if name not in self.declared:
            raise SimulationError(f"{self._machine.where()}: register {name} is not declared")
        file = self.kind[name]
        row = self.rows[name]
        wide = self.files[file].dtype.itemsize
        want = np.dtype(NUMPY[kind]).itemsize if kind != "pred" else 1
        numbers = self.files[file][row]
        defined = self.defined[file][row]
        complete = self.complete
        check = self._check
        if file == "pred" or kind == "pred" or wide == want:
            view = numbers if file == "pred" else numbers.view(NUMPY[kind])

            def get(at: Lanes) -> Any:
                if not complete[file][row]:
                    check(name, file, row, defined, at, raw)
                return view[at]

            return get
        if wide < want:
            raise SimulationError(f"{self._machine.where()}: {name} is narrower than {kind}")

        def narrow(at: Lanes) -> Any:
            if not complete[file][row]:
                check(name, file, row, defined, at, raw)
            return numbers[at].astype(f"u{want}").view(NUMPY[kind])

        return narrow

    def _check(self, name: str, file: str, row: int, defined: NDArray[np.bool_], at: Lanes, raw: bool) -> None:
        if name in self.in_flight:
            flying = self.in_flight[name]
            if not raw and flying[at].any():
                text = f"{name} is read while a wgmma still writes it"
                self._machine.find("register-before-wait", text, at, flying[at])
                flying[at] = False
            return
        have = defined[at]
        if not have.all():
            self._machine.find("uninitialised-register", f"{name} is read, but nothing was written to it", at, ~have)
            defined[at] = True
        elif at is ALL or defined.all():
            self.complete[file][row] = True

    def setter(self, name: str, raw: bool = False) -> Put:
        """Writes a register; values wider than it are refused, narrower ones are extended by their own type."""
        if name == "_":
            return lambda at, value: None
        if name not in self.declared:
            raise SimulationError(f"{self._machine.where()}: register {name} is not declared")
        file, row = self.kind[name], self.rows[name]
        numbers, defined = self.files[file][row], self.defined[file][row]
        width = numbers.itemsize
        kinds = "" if file == "pred" else "iuf" if width > 1 else "iu"
        views = {np.dtype(f"{c}{width}"): numbers.view(f"{c}{width}") for c in kinds}
        signed = views.get(np.dtype(f"i{width}"), numbers)
        complete = self.complete
        in_flight, held, unfenced = self.in_flight, self.held, self.unfenced
        find = self._machine.find

        def put(at: Lanes, value: Any) -> None:
            if name in in_flight and not raw and in_flight[name][at].any():
                text = f"{name} is written while a wgmma still writes it"
                find("register-before-wait", text, at, in_flight[name][at])
            if name in held and held[name][at].any():
                find("register-before-wait", f"{name} is written while a wgmma still reads it", at, held[name][at])
            if not raw and name in unfenced:
                unfenced[name][at] = True
            target = views.get(value.dtype)
            if target is None:
                target = signed if value.dtype.kind == "i" else numbers
            target[at] = value
            if at is ALL:
                complete[file][row] = name not in in_flight
            elif not complete[file][row]:
                defined[at] = True
            if at is ALL:
                defined[:] = True

        return put

    def number(self, text: str, kind: str) -> Any | None:
        """A literal as a numpy scalar of `kind`; None if it is none."""
        dtype = np.dtype(NUMPY[kind])
        if match := _FLOAT.fullmatch(text):
            value: Any = (
                np.frombuffer(struct.pack("<I", int(match[1], 16)), np.float32)[0]
                if match[1]
                else np.frombuffer(struct.pack("<Q", int(match[2], 16)), np.float64)[0]
            )
            return value if value.dtype.itemsize != dtype.itemsize else value.view(dtype)
        if match := _INTEGER.fullmatch(text):
            whole = int(match[2], 0) * (-1 if match[1] else 1)
            if dtype.kind == "b":
                return np.bool_(whole != 0)
            if dtype.kind == "f":
                return dtype.type(whole)
            return np.array(whole & ((1 << 8 * dtype.itemsize) - 1), f"u{dtype.itemsize}").view(dtype)[()]
        return None
