"""An expression in float64, with a bound on what f32 arithmetic may make of it.

Running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, 3.3): each node has a value and a bound
on the error of its f32 counterpart; an operation passes on the errors of its operands and adds one rounding, 2^-24 of
the value, or what CUDA states for a function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegen.expression.tree import COMPARISONS, EXTREMA, FUNCTIONS, Node

_U = 2.0**-24


@dataclass(frozen=True)
class Value:
    """Float64 values (or booleans, or integers), and a bound of the error of each in f32."""

    value: Any
    error: Any = 0.0


def evaluate(node: Node, names: Mapping[str, Value], tensors: Mapping[str, Value]) -> Value:
    """Evaluates over arrays that broadcast. `tensors` are given as the elements that the expression reads."""
    if node.op == "number":
        value = node.value
        return Value(value, 0.0 if node.kind != "float" else abs(value - float(np.float32(value))))
    if node.op == "name":
        return names[node.value]
    if node.op == "item":
        return tensors[node.value]
    args = [evaluate(arg, names, tensors) for arg in node.args]
    with np.errstate(all="ignore"):
        if node.kind == "float":
            return _float(node, args)
        return Value(_exact(node, [arg.value for arg in args]))


def _exact(node: Node, values: list[Any]) -> Any:
    """Integers and conditions."""
    if node.op in COMPARISONS:
        return COMPARISONS[node.op](*values)
    if node.op in EXTREMA:
        return EXTREMA[node.op](*values)
    if node.op in ("and", "or"):
        found = values[0]
        for value in values[1:]:
            found = np.logical_and(found, value) if node.op == "and" else np.logical_or(found, value)
        return found
    if node.op == "where":
        return np.where(*values)
    first = np.asarray(values[0])
    if node.op == "not":
        return np.logical_not(first)
    if node.op == "neg":
        return -first
    if node.op == "abs":
        return np.abs(first)
    second = np.asarray(values[1])
    return {
        "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.mod,
    }[node.op](first, second)  # fmt: skip


def _float(node: Node, args: list[Value]) -> Value:
    first = args[0]
    a, da = np.asarray(first.value), np.asarray(first.error)
    if node.op == "float":
        return Value(a.astype(np.float64), np.abs(a) * _U * (np.abs(a) > 2**24))
    if node.op == "neg":
        return Value(-a, da)
    if node.op == "where":
        then, other = args[1], args[2]
        return Value(np.where(a, then.value, other.value), np.where(a, then.error, other.error))
    if node.op in FUNCTIONS:
        function = FUNCTIONS[node.op]
        y = function.numpy(a)
        carried = np.where(da == 0, 0.0, function.slope(a, y) * da * (1 + 2.0**-8))
        return Value(y, carried + (function.roundings * np.abs(y) + function.absolute) * _U)
    b, db = np.asarray(args[1].value), np.asarray(args[1].error)
    if node.op in EXTREMA:
        return Value(EXTREMA[node.op](a, b), np.maximum(da, db))
    if node.op in ("+", "-"):
        value, error = (a + b if node.op == "+" else a - b), da + db
    elif node.op == "*":
        value, error = a * b, np.abs(a) * db + np.abs(b) * da + da * db
    else:
        value = a / b
        error = (da + np.abs(value) * db) / np.maximum(np.abs(b) - db, 1e-300)
    return Value(value, error + (np.abs(value) + error) * _U)
