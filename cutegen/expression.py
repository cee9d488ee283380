"""Epilogue expressions such as `gelu(alpha * acc + bias[n])`: one parse gives device code and the numpy reference.

The text is parsed by Python's `ast` and checked against a closed list of operators and functions; it is never evaluated
as Python, nor pasted as C++. The reference carries a running error bound beside each value
(`bounded`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from cutegen.bounded import (
    Bounded,
    constant,
    erf_,
    exp_,
    gelu_,
    gelu_tanh_,
    max_,
    min_,
    sigmoid_,
    silu_,
    tanh_,
)


class ExpressionError(ValueError):
    """What is wrong with a text; `hint` says what would do."""

    def __init__(self, message: str, got: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.got, self.hint = got, hint


@dataclass(frozen=True)
class Function:
    """`cpp` is the callee on the device; `body` its definition in terms of x, if it is not CUDA's own."""

    arity: int
    cpp: str
    bounded: Callable[..., Bounded]
    body: str | None = None


FUNCTIONS: dict[str, Function] = {
    "exp": Function(1, "expf", exp_),
    "erf": Function(1, "erff", erf_),
    "tanh": Function(1, "tanhf", tanh_),
    "abs": Function(1, "fabsf", lambda x: Bounded(np.abs(x.value), x.error)),
    "max": Function(2, "fmaxf", max_),
    "min": Function(2, "fminf", min_),
    "relu": Function(1, "relu", lambda x: max_(x, constant(0)), "fmaxf(x, 0.0f)"),
    "sigmoid": Function(1, "sigmoid", sigmoid_, "1.0f / (1.0f + expf(-x))"),
    "silu": Function(1, "silu", silu_, "x / (1.0f + expf(-x))"),
    "gelu": Function(1, "gelu", gelu_, "0.5f * x * (1.0f + erff(x * 0.70710678f))"),
    "gelu_tanh": Function(
        1, "gelu_tanh", gelu_tanh_, "0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)))"
    ),
    "clamp": Function(3, "clamp", lambda x, low, high: min_(max_(x, low), high), "fminf(fmaxf(x, low), high)"),
}
_OPERATORS: dict[type[ast.operator], tuple[str, Callable[[Bounded, Bounded], Bounded]]] = {
    ast.Add: ("+", lambda x, y: x + y),
    ast.Sub: ("-", lambda x, y: x - y),
    ast.Mult: ("*", lambda x, y: x * y),
    ast.Div: ("/", lambda x, y: x / y),
}


# ---- expressions


@dataclass(frozen=True)
class Expression:
    """A checked expression. `scalars` are its bare names but `reserved` ones, `tensors` its indexed names with their
    indices, both in order of appearance; `reserved` are the bare names that a kernel family gives a meaning.
    """

    text: str
    reserved: tuple[str, ...]
    scalars: tuple[str, ...]
    tensors: tuple[tuple[str, tuple[str, ...]], ...]
    functions: tuple[str, ...]

    @property
    def bare(self) -> frozenset[str]:
        """The reserved names that it uses."""
        found = {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)}
        return frozenset(found & set(self.reserved))

    @property
    def _tree(self) -> ast.expr:
        return ast.parse(self.text, mode="eval").body

    def cpp(self, names: Mapping[str, str]) -> str:
        """C++ in f32, with each name replaced by what `names` has for it."""
        return _cpp(self._tree, names)

    def bounded(self, names: Mapping[str, Bounded]) -> Bounded:
        """The values and bounds of the expression, for those of its names."""
        return _bounded(self._tree, names)

    @property
    def definitions(self) -> tuple[tuple[str, str, str], ...]:
        """(name, parameters, body) of the functions that an emitted file must define."""
        found = []
        for name in self.functions:
            function = FUNCTIONS[name]
            if function.body is not None:
                parameters = ("float x", "float low", "float high")[: function.arity]
                found.append((function.cpp, ", ".join(parameters), function.body))
        return tuple(found)

    @property
    def cost(self) -> int:
        """About how many instructions a value takes: one an operator, some 25 an exponential or the like."""
        slow = {"exp", "erf", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh"}
        calls = [n.func.id for n in ast.walk(self._tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        operators = sum(isinstance(node, ast.BinOp) for node in ast.walk(self._tree))
        return operators + sum(25 if name in slow else 2 for name in calls)

    def identifier(self) -> str:
        """Its names in order, for a kernel's symbol."""
        return "_".join(node for node in _words(self._tree))[:40].strip("_")


def parse(
    text: str, indices: tuple[tuple[str, ...], ...], reserved: tuple[str, ...], taken: frozenset[str]
) -> Expression:
    """The expression that `text` denotes.

    Args:
        indices: what may stand in brackets, as (m,), (n,), (m, n).
        reserved: bare names with a meaning of their own, such as `acc`.
        taken: names that neither a scalar nor a tensor may have.

    Raises:
        ExpressionError: not an expression of the known names, operators and functions.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ExpressionError(f"not an expression: {getattr(error, 'msg', error)}", text) from None
    scalars: dict[str, None] = {}
    tensors: dict[str, tuple[str, ...]] = {}
    functions: dict[str, None] = {}
    for node in _checked(tree):
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name)
            functions[node.func.id] = None
        elif isinstance(node, ast.Subscript):
            name, index = _indexed(node)
            if index not in indices:
                legal = " or ".join("[" + ", ".join(i) + "]" for i in indices)
                raise ExpressionError(f"{name} can't be indexed so", ast.unparse(node), f"write {name}{legal}")
            if tensors.setdefault(name, index) != index:
                raise ExpressionError(f"{name} is indexed in two ways", text)
        elif isinstance(node, ast.Name) and node.id not in reserved:
            scalars[node.id] = None
    for name in (*scalars, *tensors):
        if name in taken or name in reserved or name in FUNCTIONS or (name in scalars and name in tensors):
            raise ExpressionError(f"the name {name} is taken", name, "choose another")
    return Expression(text, reserved, tuple(scalars), tuple(tensors.items()), tuple(functions))


def _checked(node: ast.expr) -> Iterator[ast.expr]:
    """The nodes of a tree that stand for something, outer ones first.

    Raises:
        ExpressionError: a construct that is not on the list.
    """
    if isinstance(node, ast.Constant) and _number(node) is not None:
        return
    if isinstance(node, (ast.Name, ast.Subscript)):
        yield node
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield from _checked(node.left)
        yield from _checked(node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        yield from _checked(node.operand)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function = FUNCTIONS.get(node.func.id)
        if function is None:
            raise ExpressionError("unknown function", node.func.id, f"one of {', '.join(FUNCTIONS)}")
        if len(node.args) != function.arity:
            raise ExpressionError(f"{node.func.id} takes {function.arity} arguments", ast.unparse(node))
        yield node
        for argument in node.args:
            yield from _checked(argument)
    else:
        raise ExpressionError(
            "not allowed here", ast.unparse(node), "numbers, names, name[m], name[n], name[m, n], + - * / and functions"
        )


def _number(node: ast.Constant) -> float | None:
    """The literal's value if it is a finite number that f32 holds."""
    value = node.value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 3.4e38:
        return None
    return float(value)


def _indexed(node: ast.Subscript) -> tuple[str, tuple[str, ...]]:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if not isinstance(node.value, ast.Name) or not all(isinstance(part, ast.Name) for part in parts):
        raise ExpressionError("not allowed here", ast.unparse(node), "an index is m, n or m, n")
    return node.value.id, tuple(part.id for part in parts if isinstance(part, ast.Name))


def _cpp(node: ast.expr, names: Mapping[str, str], inner: bool = False) -> str:
    if isinstance(node, ast.Constant):
        return f"{float(np.float32(_number(node) or 0.0))!r}f"
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.Subscript):
        return names[_indexed(node)[0]]
    if isinstance(node, ast.UnaryOp):
        sign = "-" if isinstance(node.op, ast.USub) else ""
        return f"{sign}{_cpp(node.operand, names, True)}"
    if isinstance(node, ast.BinOp):
        text = f"{_cpp(node.left, names, True)} {_OPERATORS[type(node.op)][0]} {_cpp(node.right, names, True)}"
        return f"({text})" if inner else text
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return f"{FUNCTIONS[node.func.id].cpp}({', '.join(_cpp(argument, names) for argument in node.args)})"


def _bounded(node: ast.expr, names: Mapping[str, Bounded]) -> Bounded:
    if isinstance(node, ast.Constant):
        return constant(_number(node) or 0.0)
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.Subscript):
        return names[_indexed(node)[0]]
    if isinstance(node, ast.UnaryOp):
        operand = _bounded(node.operand, names)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)][1](_bounded(node.left, names), _bounded(node.right, names))
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return FUNCTIONS[node.func.id].bounded(*(_bounded(argument, names) for argument in node.args))


def _words(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id not in ("m", "n"):
            yield part.id
