"""An expression in float64, with a bound on what f32 arithmetic may make of it (`bounded`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cutegen.expression.bounded import Bounded, constant, max_, min_, where_
from cutegen.expression.tree import COMPARISONS, EXTREMA, FUNCTIONS, Node

_U = 2.0**-24


def evaluate(node: Node, names: Mapping[str, Bounded], tensors: Mapping[str, Bounded]) -> Bounded:
    """Evaluates over arrays that broadcast. `tensors` are given as the elements that the expression reads."""
    if node.op == "number":
        return constant(node.value) if node.kind == "float" else Bounded(node.value)
    if node.op == "name":
        return names[node.value]
    if node.op == "item":
        return tensors[node.value]
    args = [evaluate(arg, names, tensors) for arg in node.args]
    with np.errstate(all="ignore"):
        if node.kind == "float":
            return _float(node, args)
        return Bounded(_exact(node, [arg.value for arg in args]))


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


def _float(node: Node, args: list[Bounded]) -> Bounded:
    first = args[0]
    if node.op == "float":
        values = np.asarray(first.value)
        return Bounded(values.astype(np.float64), np.abs(values) * _U * (np.abs(values) > 2**24))
    if node.op == "neg":
        return -first
    if node.op == "where":
        return where_(first.value, args[1], args[2])
    if node.op in FUNCTIONS:
        return FUNCTIONS[node.op].bounded(*args)
    if node.op in EXTREMA:
        return (max_ if node.op == "max" else min_)(*args)
    if node.op == "+":
        return first + args[1]
    if node.op == "-":
        return first - args[1]
    return first * args[1] if node.op == "*" else first / args[1]
