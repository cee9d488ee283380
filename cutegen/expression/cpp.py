"""Device code of an expression."""

from __future__ import annotations

from collections.abc import Mapping

from cutegen.expression.tree import ARITHMETIC, COMPARISONS, EXTREMA, FUNCTIONS, Node

_HELPERS = {
    "//": "CUTE_DEVICE int floor_div(int a, int b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }",
    "%": "CUTE_DEVICE int floor_mod(int a, int b) { return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0); }",
}


def emit(node: Node, names: Mapping[str, str], tensors: Mapping[str, str]) -> str:
    """The C++ expression. `names` says what each variable is called; `tensors` how each tensor's element is read."""
    args = [emit(arg, names, tensors) for arg in node.args] if node.op != "item" else []
    if node.op == "number":
        return _number(node)
    if node.op == "name":
        return names[node.value]
    if node.op == "item":
        return tensors[node.value]
    if node.op == "float":
        return f"float({args[0]})"
    if node.op == "neg":
        return f"(-{args[0]})"
    if node.op == "not":
        return f"(!{args[0]})"
    if node.op in ("and", "or"):
        return "(" + f" {'&&' if node.op == 'and' else '||'} ".join(args) + ")"
    if node.op == "where":
        return f"({args[0]} ? {args[1]} : {args[2]})"
    if node.op in _HELPERS:
        return f"{'floor_div' if node.op == '//' else 'floor_mod'}({args[0]}, {args[1]})"
    if node.op in ARITHMETIC or node.op in COMPARISONS:
        return f"({args[0]} {node.op} {args[1]})"
    if node.op in EXTREMA:
        return f"{'f' + node.op + 'f' if node.kind == 'float' else node.op}({args[0]}, {args[1]})"
    if node.op == "abs" and node.kind == "int":
        return f"abs({args[0]})"
    return f"{FUNCTIONS[node.op].cpp}({args[0]})"


def helpers(*nodes: Node) -> tuple[str, ...]:
    """Functions that the emitted code calls: Python's floored division and remainder, where they are used."""
    used = {part.op for node in nodes for part in node.walk()}
    return tuple(text for op, text in _HELPERS.items() if op in used)


def _number(node: Node) -> str:
    if node.kind == "bool":
        return "true" if node.value else "false"
    if node.kind == "int":
        return str(node.value)
    return f"{float(node.value)!r}f"
