"""From text to tree. Python's own parser reads the text; nothing of it is ever evaluated as Python."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Mapping

from cutegen.errors import Fault, SpecError
from cutegen.expression.tree import COMPARISONS, EXTREMA, FUNCTIONS, Kind, Node

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_LONGEST = 1000


def parse(
    text: str,
    names: Mapping[str, Kind],
    tensors: Mapping[str, tuple[str, ...]],
    *,
    kind: Kind,
    field: str,
) -> Node:
    """The tree of `text`, an expression of the given kind (an int is taken for a float).

    Args:
        names: the variables that it may read.
        tensors: the tensors, each with the variables that index it, in order.
        field: the spec's path, for faults.

    Raises:
        SpecError: anything outside the closed list, with the column.
    """
    if len(text) > _LONGEST:
        raise SpecError(Fault(field, f"an expression of at most {_LONGEST} characters", got=f"{len(text)}"))
    try:
        body = ast.parse(text.strip(), mode="eval").body
        found = _Parser(names, tensors, field, text.strip()).node(body)
    except (SyntaxError, ValueError, RecursionError) as error:
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise SpecError(Fault(field, f"not an expression: {message}", got=repr(text))) from None
    if kind == "float" and found.kind == "int":
        return _as_float(found)
    if found.kind != kind:
        wanted = {"bool": "a condition", "float": "a number", "int": "an integer"}[kind]
        raise SpecError(Fault(field, f"must give {wanted}", got=repr(text)))
    return found


def _as_float(node: Node) -> Node:
    if node.kind != "int":
        return node
    if node.op == "number":
        return Node("number", "float", value=float(node.value))
    if node.op == "neg" and node.args[0].op == "number":
        return Node("neg", "float", (_as_float(node.args[0]),))
    return Node("float", "float", (node,))


class _Parser:
    def __init__(
        self, names: Mapping[str, Kind], tensors: Mapping[str, tuple[str, ...]], field: str, text: str
    ) -> None:
        self.names, self.tensors, self.field, self.text = names, tensors, field, text

    def fault(self, at: ast.AST, message: str, expected: str | None = None, hint: str | None = None) -> SpecError:
        got = ast.get_source_segment(self.text, at) or self.text
        column = getattr(at, "col_offset", 0) + 1
        return SpecError(Fault(self.field, f"character {column}: {message}", repr(got), expected, hint))

    def node(self, at: ast.AST) -> Node:
        if isinstance(at, ast.Constant):
            return self.number(at)
        if isinstance(at, ast.Name):
            return self.name(at)
        if isinstance(at, ast.Subscript):
            return self.item(at)
        if isinstance(at, ast.UnaryOp):
            return self.unary(at)
        if isinstance(at, ast.BinOp) and type(at.op) in _BINARY:
            return self.binary(at)
        if isinstance(at, ast.Compare):
            return self.compare(at)
        if isinstance(at, ast.BoolOp):
            op = "and" if isinstance(at.op, ast.And) else "or"
            return Node(op, "bool", tuple(self.of_kind(value, "bool") for value in at.values))
        if isinstance(at, ast.IfExp):
            return self.where(at.test, at.body, at.orelse)
        if isinstance(at, ast.Call):
            return self.call(at)
        raise self.fault(at, "not allowed in an expression")

    def number(self, at: ast.Constant) -> Node:
        if isinstance(at.value, bool):
            return Node("number", "bool", value=at.value)
        if isinstance(at.value, int) and abs(at.value) < 2**31:
            return Node("number", "int", value=at.value)
        if isinstance(at.value, float) and abs(at.value) < 3e38:
            return Node("number", "float", value=at.value)
        raise self.fault(at, "not a number that fits 32 bits")

    def name(self, at: ast.Name) -> Node:
        if at.id in self.names:
            return Node("name", self.names[at.id], value=at.id)
        if at.id in self.tensors:
            index = ", ".join(self.tensors[at.id])
            raise self.fault(at, f"{at.id} is a tensor", hint=f"write {at.id}[{index}]")
        near = difflib.get_close_matches(at.id, [*self.names, *self.tensors], n=1, cutoff=0.5)
        known = ", ".join([*self.names, *(f"{t}[{', '.join(i)}]" for t, i in self.tensors.items())])
        raise self.fault(at, "unknown name", known, f"did you mean {near[0]}?" if near else None)

    def item(self, at: ast.Subscript) -> Node:
        if not isinstance(at.value, ast.Name) or at.value.id not in self.tensors:
            raise self.fault(at, "not a tensor of this expression", ", ".join(self.tensors) or "no tensor is declared")
        wanted = self.tensors[at.value.id]
        parts = at.slice.elts if isinstance(at.slice, ast.Tuple) else [at.slice]
        if tuple(part.id if isinstance(part, ast.Name) else None for part in parts) != wanted:
            raise self.fault(at, "must be indexed by its own modes", f"{at.value.id}[{', '.join(wanted)}]")
        index = tuple(Node("name", "int", value=name) for name in wanted)
        return Node("item", "float", index, at.value.id)

    def of_kind(self, at: ast.AST, kind: Kind) -> Node:
        found = self.node(at)
        if kind == "float":
            found = _as_float(found)
        if found.kind != kind:
            raise self.fault(at, {"bool": "must be a condition", "float": "must be a number"}.get(kind, "wrong kind"))
        return found

    def numbers(self, *parts: ast.AST) -> tuple[Node, ...]:
        """Numbers of one kind: integers if all are, else floats."""
        found = tuple(self.node(part) for part in parts)
        for part, node in zip(parts, found):
            if node.kind == "bool":
                raise self.fault(part, "a condition is not a number", hint="write 1.0 if ... else 0.0")
        return found if all(node.kind == "int" for node in found) else tuple(_as_float(node) for node in found)

    def unary(self, at: ast.UnaryOp) -> Node:
        if isinstance(at.op, ast.Not):
            return Node("not", "bool", (self.of_kind(at.operand, "bool"),))
        if isinstance(at.op, ast.USub):
            (value,) = self.numbers(at.operand)
            return Node("neg", value.kind, (value,))
        raise self.fault(at, "not allowed in an expression")

    def binary(self, at: ast.BinOp) -> Node:
        op = _BINARY[type(at.op)]
        left, right = self.numbers(at.left, at.right)
        if op == "/":
            return Node(op, "float", (_as_float(left), _as_float(right)))
        if op in ("//", "%") and left.kind != "int":
            raise self.fault(at, f"{op} takes integers")
        return Node(op, left.kind, (left, right))

    def compare(self, at: ast.Compare) -> Node:
        parts = []
        operands = [at.left, *at.comparators]
        for op, left, right in zip(at.ops, operands, operands[1:]):
            if type(op) not in _COMPARE:
                raise self.fault(at, "not a comparison that is known", ", ".join(COMPARISONS))
            parts.append(Node(_COMPARE[type(op)], "bool", self.numbers(left, right)))
        return parts[0] if len(parts) == 1 else Node("and", "bool", tuple(parts))

    def where(self, condition: ast.AST, then: ast.AST, otherwise: ast.AST) -> Node:
        test = self.of_kind(condition, "bool")
        branches = self.numbers(then, otherwise)
        return Node("where", branches[0].kind, (test, *branches))

    def call(self, at: ast.Call) -> Node:
        known = [*(name for name in FUNCTIONS if "@" not in name), *EXTREMA, "where"]
        if not isinstance(at.func, ast.Name) or at.func.id not in known or at.keywords:
            near = difflib.get_close_matches(getattr(at.func, "id", ""), known, n=1, cutoff=0.5)
            raise self.fault(at, "unknown function", ", ".join(known), f"did you mean {near[0]}?" if near else None)
        name = at.func.id
        count = FUNCTIONS[name].arity if name in FUNCTIONS else {"where": 3, "min": 2, "max": 2}[name]
        if len(at.args) != count or any(isinstance(arg, ast.Starred) for arg in at.args):
            raise self.fault(at, f"{name} takes {count} argument{'s' if count > 1 else ''}")
        if name == "where":
            return self.where(*at.args)
        if name in EXTREMA:
            both = self.numbers(*at.args)
            return Node(name, both[0].kind, both)
        values = self.numbers(*at.args)
        if name == "abs" and values[0].kind == "int":
            return Node("abs", "int", values)
        return Node(name, "float", tuple(_as_float(value) for value in values))
