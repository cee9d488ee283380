"""PTX text as a list of instructions: one kernel of what NVRTC emits, inline assembly included.

Anything that can't be read is refused with its line (PTX ISA, "Syntax" and "State Spaces, Types, and Variables").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cutegen.errors import SimulationError

_GUARD = re.compile(r"@(!?)([%\w$]+)\s+")
_OPCODE = re.compile(r"([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_NAME = re.compile(r"(?<![\w.$%])[%$A-Za-z_][\w$]*(?:\.[xyzw])?")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)")
_VARIABLE = re.compile(
    r"(?:\.visible\s+|\.weak\s+|\.extern\s+)?\.(global|const|shared|local)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)"
    r"(?:\[(\d*)\])?(?:\s*=\s*(.*))?"
)
_DIRECTIVES = (".pragma", ".maxntid", ".minnctapersm", ".reqntid", ".maxnreg", ".reqnctapercluster", ".branchtargets")
WIDTHS = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4, "s32": 4}
WIDTHS |= {"f32": 4, "f16x2": 4, "bf16x2": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16}


@dataclass(frozen=True)
class Instruction:
    """One instruction. `parts` is the opcode at its dots; `guard` (register, negated) or None; `line` counts in the
    PTX, `source` in the `.cu`, where -lineinfo told it.
    """

    parts: tuple[str, ...]
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None
    line: int
    source: int | None

    @property
    def opcode(self) -> str:
        return ".".join(self.parts)

    def __str__(self) -> str:
        guard = f"@{'!' if self.guard[1] else ''}{self.guard[0]} " if self.guard else ""
        return re.sub(r"~\d+", "", f"{guard}{self.opcode} {', '.join(self.operands)}".strip())


@dataclass(frozen=True)
class Variable:
    """A module or kernel variable: its state space, alignment and bytes, and its first values if it has any."""

    space: str
    align: int
    size: int
    kind: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """A kernel. `parameters` are (name, type), `bytes` for an array; `registers` map names to declared types;
    `labels` to indices of instructions.
    """

    kernel: str
    target: str
    parameters: tuple[tuple[str, str], ...]
    registers: dict[str, str]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    variables: dict[str, Variable]


def split_operands(text: str) -> tuple[str, ...]:
    """Operands: what stands between commas outside braces and brackets, or in braces of its own."""
    parts, depth, current = [], 0, ""
    for char in text:
        if char == "{" and depth == 0 and current.strip():
            parts.append(current.strip())
            current = ""
        depth += char in "{["
        depth -= char in "}]"
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
        if char == "}" and depth == 0:
            parts.append(current.strip())
            current = ""
    return tuple(part for part in (*parts, current.strip()) if part)


def names_of(operand: str) -> list[str]:
    """The elements of a braced operand, or the operand itself."""
    if operand.startswith("{"):
        return [name.strip() for name in operand.strip("{}").split(",")]
    return [operand]


def parse(ptx: str, kernel: str) -> Program:
    """The program of `kernel`.

    Raises:
        SimulationError: no such entry, or a line that can't be read.
    """
    lines = ptx.splitlines()
    start = next((i for i, line in enumerate(lines) if re.search(rf"\.entry\s+{re.escape(kernel)}\b", line)), None)
    if start is None:
        raise SimulationError(f"the PTX has no entry {kernel}")
    target = next((m[1] for line in lines if (m := re.match(r"\.target\s+(\w+)", line))), "")
    variables = dict(_variables(lines[:start]))
    parameters: list[tuple[str, str]] = []
    index = start
    while "{" not in lines[index]:
        if match := re.search(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)(\[\d+\])?", lines[index]):
            parameters.append((match[2], match[1] if match[3] is None else "bytes"))
        index += 1
    body = _Body(_source_file(lines))
    body.read(lines, index)
    return Program(
        kernel,
        target,
        tuple(parameters),
        body.registers,
        tuple(body.instructions),
        body.labels,
        variables | body.variables,
    )


def _variables(lines: list[str]) -> Iterator[tuple[str, Variable]]:
    for line in lines:
        match = _VARIABLE.match(line.strip().rstrip(";"))
        if match:
            yield match[4], _variable(match)


def _variable(match: re.Match[str]) -> Variable:
    values = tuple(v.strip() for v in (match[6] or "").strip("{} ").split(",") if v.strip())
    count = int(match[5]) if match[5] else (1 if match[5] is None else 0)
    return Variable(match[1], int(match[2] or 1), count * WIDTHS[match[3]], match[3], values)


def _source_file(lines: list[str]) -> int:
    """The number by which `.loc` names the emitted source: the file that is not a header."""
    for line in lines:
        if match := re.match(r'\s*\.file\s+(\d+)\s+"[^"]*\.cu"', line):
            return int(match[1])
    return 1


class _Body:
    """Reads a kernel's body. Names declared within braces are made unique by the number of their scope."""

    def __init__(self, source_file: int) -> None:
        self.source_file = source_file
        self.registers: dict[str, str] = {}
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.variables: dict[str, Variable] = {}
        self._scopes: list[dict[str, str]] = []
        self._scope_count = 0
        self._inlined: dict[tuple[int, int], tuple[int, int]] = {}
        self._source: int | None = None
        self._forward: list[tuple[int, list[dict[str, str]]]] = []

    def read(self, lines: list[str], first: int) -> None:
        """From the line with the opening brace to its match."""
        statement, begun, depth = "", 0, 0
        for number in range(first, len(lines)):
            line = re.sub(r"//.*", "", lines[number]).strip()
            if line.startswith(".loc"):
                self._location(line)
                continue
            for char in line + "\n":
                if char == "{" and not statement.strip():
                    self._open()
                elif char == "}" and not statement.strip():
                    self._scopes.pop()
                    if not self._scopes:
                        self._resolve()
                        return
                elif char == ":" and depth == 0 and re.fullmatch(r"\s*[\w$]+", statement):
                    self.labels[self._declare(statement.strip())] = len(self.instructions)
                    statement = ""
                elif char == ";":
                    self._statement(" ".join(statement.split()), begun)
                    statement = ""
                else:
                    begun = number + 1 if not statement.strip() else begun
                    statement += char
                    depth += (char in "{[(") - (char in "}])")
        raise SimulationError(f"PTX line {first + 1}: the kernel's body does not end")

    def _open(self) -> None:
        self._scope_count += 1
        self._scopes.append({})

    def _declare(self, name: str) -> str:
        """A name that is unique in the kernel."""
        unique = name if len(self._scopes) == 1 else f"{name}~{self._scope_count}"
        self._scopes[-1][name] = unique
        return unique

    def _statement(self, text: str, line: int) -> None:
        if not text or text.startswith(_DIRECTIVES):
            return
        if match := _REGISTERS.fullmatch(text):
            for name in match[2].split(","):
                many = re.fullmatch(r"\s*([%\w$]+)<(\d+)>\s*", name)
                if many:
                    self.registers |= {f"{many[1]}{i}": match[1] for i in range(int(many[2]))}
                else:
                    self.registers[self._declare(name.strip())] = match[1]
            return
        if match := _VARIABLE.fullmatch(text):
            self.variables[match[4]] = _variable(match)
            return
        guard = None
        if match := _GUARD.match(text):
            guard = (self._known(match[2]), match[1] == "!")
            text = text[match.end() :]
        match = _OPCODE.fullmatch(text)
        if match is None or text.startswith("."):
            raise SimulationError(f"PTX line {line} is not understood: {text}")
        operands = split_operands(_NAME.sub(lambda m: self._known(m[0]), match[2].replace("|", ",")))
        parts = tuple(match[1].split("."))
        if parts[0] == "bra":
            self._forward.append((len(self.instructions), list(self._scopes)))
        self.instructions.append(Instruction(parts, operands, guard, line, self._source))

    def _known(self, name: str) -> str:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return name

    def _resolve(self) -> None:
        """Labels that stand after the branch that names them."""
        for index, scopes in self._forward:
            found = self.instructions[index]
            name = found.operands[0]
            for scope in reversed(scopes):
                if name in scope:
                    name = scope[name]
                    break
            if name not in self.labels:
                raise SimulationError(f"PTX line {found.line}: no label {name}")
            self.instructions[index] = Instruction(found.parts, (name,), found.guard, found.line, found.source)

    def _location(self, line: str) -> None:
        """Follows `inlined_at` from header to header until the emitted source."""
        match = re.match(r"\.loc\s+(\d+)\s+(\d+)\s+\d+(?:.*inlined_at\s+(\d+)\s+(\d+))?", line)
        if match is None:
            return
        place = (int(match[1]), int(match[2]))
        if match[3]:
            self._inlined[place] = (int(match[3]), int(match[4]))
        seen = set()
        while place[0] != self.source_file and place in self._inlined and place not in seen:
            seen.add(place)
            place = self._inlined[place]
        if place[0] == self.source_file:
            self._source = place[1]
