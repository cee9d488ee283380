"""Reading specs: YAML 1.2 (or JSON) with the line and column of everything, and overrides from a command line.

Scalars follow YAML 1.2's core schema: `yes`, `no`, `on` and `off` are texts, `1e-5` is a number. Beyond it, a number
with a leading zero is refused, since YAML 1.1 would read it as octal; so are null (leave the field out), duplicate
keys, merge keys and anchors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from cutegen.errors import Fault, SpecError
from cutegen.spec import FAMILIES
from cutegen.spec.base import dotted, nearest_name
from cutegen.spec.common import KernelSpec

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+")
_OCTAL_LIKE = re.compile(r"[-+]?0[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

Position = tuple[int, int]


@dataclass
class Document:
    """A mapping read from `source`, with the position of each key and value by dotted path."""

    data: dict[str, Any]
    source: str
    keys: dict[str, Position] = field(default_factory=dict)
    values: dict[str, Position] = field(default_factory=dict)
    overridden: set[str] = field(default_factory=set)

    def locate(self, fault: Fault) -> Fault:
        """The fault with the line and column of its field, or of the nearest mapping around it."""
        if any(fault.field == path or fault.field.startswith(path + ".") for path in self.overridden):
            return fault
        path = fault.field
        while True:
            position = self.keys.get(path) if "key" in fault.message else self.values.get(path) or self.keys.get(path)
            if position:
                return Fault(fault.field, fault.message, fault.got, fault.expected, fault.hint, *position)
            if not path:
                return fault
            path = re.sub(r"(\[\d+\]|\.?[^.\[\]]+)$", "", path)


def read(path: str | Path) -> Document:
    """Reads a file.

    Raises:
        SpecError: it is no readable file, or `parse` refuses it.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(Fault("", f"not UTF-8 at byte {error.start}", hint="save the file as UTF-8"), path) from None
    except OSError as error:
        reason = "a folder, not a file" if Path(path).is_dir() else (error.strerror or str(error)).lower()
        raise SpecError(Fault("", f"can't read the spec: {reason}"), path) from None
    return parse(text, str(path))


def parse(text: str, source: str = "<spec>") -> Document:
    """The mapping that `text` holds.

    Raises:
        SpecError: no YAML, not exactly one document, not a mapping, or something refused; each fault with line and
        column.
    """
    document = Document({}, source)
    try:
        nodes = list(YAML(typ="rt", pure=True).compose_all(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        hint = "indent with spaces, not tabs" if "\\t" in str(error) else None
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        message = f"no valid YAML: {error.problem or error.context}"
        raise SpecError(Fault("", message, hint=hint, line=line, column=column), source) from None
    except YAMLError as error:
        raise SpecError(Fault("", f"no valid YAML: {error}"), source) from None
    if not nodes or nodes[0] is None:
        raise SpecError(Fault("", "the file is empty", expected="a spec that begins with `kernel: ...`"), source)
    if len(nodes) > 1:
        line, column = _place(nodes[1])
        raise SpecError(
            Fault("", "several documents in one file", hint="one spec a file", line=line, column=column), source
        )
    if not isinstance(nodes[0], MappingNode):
        raise SpecError(
            Fault("", "not a mapping", got=_kind(nodes[0]), expected="keys and values", line=1, column=1), source
        )
    faults: list[Fault] = []
    document.data = _mapping(nodes[0], (), document, faults)
    if faults:
        raise SpecError(faults, source)
    return document


def load_spec(path: str | Path, overrides: Iterable[str] = ()) -> KernelSpec:
    """The spec in a file, with `overrides` such as `problem.m=512` applied.

    Raises:
        SpecError: every fault found, with its line and column.
    """
    return build_spec(apply_overrides(read(path), overrides))


def build_spec(document: Document) -> KernelSpec:
    """The spec that a document describes.

    Raises:
        SpecError: every fault found, located in the document.
    """
    kernel = document.data.get("kernel")
    if kernel is None:
        raise SpecError(Fault("kernel", "missing", expected="one of " + ", ".join(FAMILIES)), document.source)
    if not isinstance(kernel, str) or kernel not in FAMILIES:
        fault = Fault(
            "kernel",
            "unknown kernel family",
            got=repr(kernel),
            expected="one of " + ", ".join(FAMILIES),
            hint=nearest_name(str(kernel), FAMILIES),
        )
        raise SpecError(document.locate(fault), document.source)
    try:
        return FAMILIES[kernel](**document.data)
    except SpecError as error:
        raise error.located(document.source, [document.locate(fault) for fault in error.faults]) from None
    except TypeError:
        bad = next(key for key in document.data if not isinstance(key, str))
        raise SpecError(Fault(str(bad), "a key must be a text"), document.source) from None


def apply_overrides(document: Document, overrides: Iterable[str]) -> Document:
    """Sets fields from `path=value` texts; a value is read as YAML.

    Raises:
        SpecError: not of that form.
    """
    for text in overrides:
        path, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", path):
            raise SpecError(
                Fault("--set", "not an override", got=repr(text), expected="field=value, such as problem.m=512")
            )
        holder = parse(f"value: {value}", f"--set {text}").data
        *parents, last = path.split(".")
        target = document.data
        for parent in parents:
            child = target.setdefault(parent, {})
            if not isinstance(child, dict):
                raise SpecError(Fault(path, f"{parent} is not a mapping", got=repr(child)), f"--set {text}")
            target = child
        target[last] = holder["value"]
        document.overridden.add(path)
    return document


def _kind(node: Node) -> str:
    return "a list" if isinstance(node, SequenceNode) else repr(getattr(node, "value", ""))


def _place(node: Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _mapping(node: MappingNode, path: tuple[str | int, ...], document: Document, faults: list[Fault]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    seen: dict[str, Position] = {}
    for key_node, value_node in node.value:
        line, column = _place(key_node)
        key = key_node.value if isinstance(key_node, ScalarNode) else None
        where = dotted((*path, str(key)))
        if key is None:
            faults.append(Fault(dotted(path), "a key must be a text", line=line, column=column))
            continue
        if key == "<<":
            faults.append(
                Fault(where, "merge keys are not read", hint="write the fields out", line=line, column=column)
            )
            continue
        if key in seen:
            first = seen[key][0]
            faults.append(Fault(where, f"duplicate key, on lines {first} and {line}", line=line, column=column))
            continue
        seen[key] = (line, column)
        document.keys[where] = (line, column)
        result[key] = _value(value_node, (*path, key), document, faults)
    return result


def _value(node: Node, path: tuple[str | int, ...], document: Document, faults: list[Fault]) -> Any:
    where = dotted(path)
    document.values[where] = _place(node)
    if isinstance(node, MappingNode):
        return _mapping(node, path, document, faults)
    if isinstance(node, SequenceNode):
        return [_value(item, (*path, i), document, faults) for i, item in enumerate(node.value)]
    return _scalar(node, where, faults)


def _scalar(node: ScalarNode, where: str, faults: list[Fault]) -> Any:
    text = node.value
    if node.style in ("'", '"', "|", ">"):
        return text
    line, column = _place(node)
    if text in ("", "~", "null", "Null", "NULL"):
        faults.append(Fault(where, "null", hint="leave the field out", line=line, column=column))
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    if _OCTAL_LIKE.fullmatch(text):
        faults.append(
            Fault(where, "a number with a leading zero", got=text, hint=f"write {int(text)}", line=line, column=column)
        )
        return None
    if _INT.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        faults.append(Fault(where, "not a finite number", got=text, line=line, column=column))
        return None
    return text
