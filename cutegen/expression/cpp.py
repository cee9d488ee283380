"""Device code of an expression."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from cutegen.expression.tree import COMPARISONS, EXTREMA, FUNCTIONS, Node

_HELPERS = {
    "//": "CUTE_DEVICE int floor_div(int a, int b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }",
    "%": "CUTE_DEVICE int floor_mod(int a, int b) { return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0); }",
}

# Instructions that CUDA C++ has no function for, none with a branch. "ex2", "rcp": relative errors of 2^-22 and 2^-23,
# subnormals are 0; "min.NaN", "max.NaN": a NaN stays one, unlike fminf's, as numpy and torch have it (PTX ISA).
_INSTRUCTIONS = {
    "exp2_approx": ("ex2.approx.ftz.f32", "x"),
    "reciprocal": ("rcp.approx.ftz.f32", "x"),
    "min_nan": ("min.NaN.f32", "xy"),
    "max_nan": ("max.NaN.f32", "xy"),
}


def instruction(name: str) -> str:
    """The definition of `exp2_approx`, `reciprocal`, `min_nan` or `max_nan`."""
    text, names = _INSTRUCTIONS[name]
    places = ", ".join(f"%{i}" for i in range(len(names) + 1))
    given = ", ".join(f'"f"({x})' for x in names)
    parameters = ", ".join(f"float {x}" for x in names)
    made = "xyz"[len(names)]
    call = f'asm("{text} {places};" : "=f"({made}) : {given});'
    return f"CUTE_DEVICE float {name}({parameters}) {{\n  float {made};\n  {call}\n  return {made};\n}}"


# How tightly C++ binds: an operand of a looser operator needs parentheses.
_ATOM, _UNARY, _TIMES, _PLUS, _COMPARE, _AND, _OR, _WHERE = range(8)
_BINDING = {"*": _TIMES, "/": _TIMES, "+": _PLUS, "-": _PLUS, **dict.fromkeys(COMPARISONS, _COMPARE)}


def emit(node: Node, names: Mapping[str, str], tensors: Mapping[str, str]) -> str:
    """The C++ expression. `names` says what each variable is called; `tensors` how each tensor's element is read."""
    return _emit(node, names, tensors)[0]


def _emit(node: Node, names: Mapping[str, str], tensors: Mapping[str, str]) -> tuple[str, int]:
    """(text, how tightly it binds)."""

    def inner(arg: Node, binding: int) -> str:
        text, own = _emit(arg, names, tensors)
        return text if own <= binding else f"({text})"

    if node.op == "number":
        return _number(node), _UNARY if str(node.value).startswith("-") else _ATOM
    if node.op == "name":
        return names[node.value], _ATOM
    if node.op == "item":
        return tensors[node.value], _ATOM
    if node.op in ("neg", "not"):
        return f"{'-' if node.op == 'neg' else '!'}{inner(node.args[0], _ATOM)}", _UNARY
    if node.op in ("and", "or"):
        # Of both, the looser inside the tighter is put in parentheses; compilers warn of the other way, too.
        parts = [inner(arg, _COMPARE) for arg in node.args]
        return f" {'&&' if node.op == 'and' else '||'} ".join(parts), _AND if node.op == "and" else _OR
    if node.op == "where":
        return f"{inner(node.args[0], _COMPARE)} ? {inner(node.args[1], _OR)} : {inner(node.args[2], _OR)}", _WHERE
    if node.op in _BINDING:
        own = _BINDING[node.op]
        return f"{inner(node.args[0], own)} {node.op} {inner(node.args[1], own - 1)}", own
    callee = _callee(node)
    return f"{callee}({', '.join(_emit(arg, names, tensors)[0] for arg in node.args)})", _ATOM


def _callee(node: Node) -> str:
    if node.op == "float":
        return "float"
    if node.op in _HELPERS:
        return "floor_div" if node.op == "//" else "floor_mod"
    if node.op in EXTREMA:
        return f"{node.op}_nan" if node.kind == "float" else node.op
    return "abs" if node.op == "abs" and node.kind == "int" else FUNCTIONS[node.op].cpp


def helpers(*nodes: Node, defined: Collection[str] = ()) -> tuple[str, ...]:
    """Functions that the emitted code calls and a file must define, besides those that it has `defined` already:
    Python's floored division and remainder, activations, and what these call.
    """
    used = {part.op for node in nodes for part in node.walk()}
    found = [text for op, text in _HELPERS.items() if op in used]
    called = {_callee(part) for node in nodes for part in node.walk() if part.op in EXTREMA}
    bodies = [function.body or "" for name, function in FUNCTIONS.items() if name in used]
    called |= {name for name in _INSTRUCTIONS if any(f"{name}(" in body for body in bodies)}
    found += [instruction(name) for name in _INSTRUCTIONS if name in called and name not in defined]
    for name, function in FUNCTIONS.items():
        if name in used and function.body is not None:
            parameters = ", ".join(("float x", "float low", "float high")[: function.arity])
            body = f"\n{function.body}\n" if "return" in function.body else f" return {function.body}; "
            found.append(f"CUTE_DEVICE float {function.cpp}({parameters}) {{{body}}}")
    return tuple(found)


def _number(node: Node) -> str:
    if node.kind == "bool":
        return "true" if node.value else "false"
    if node.kind == "int":
        return str(node.value)
    text = str(np.float32(node.value))
    return f"{text}f" if any(c in text for c in ".en") else f"{text}.0f"
