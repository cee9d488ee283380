"""The tree of an expression, and what its functions and operators are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

# int: positions and lengths, 32 bits. float: f32. bool: masks and conditions.
Kind = Literal["int", "float", "bool"]


@dataclass(frozen=True)
class Node:
    """`op` applied to `args`; every node has a kind.

    `op` is `number` or `name` (with `value`), `item` (the element of tensor `value` at the names `args`), `where`
    (condition, then, else), an operator as Python writes it (`+`, `//`, `<=`, `and`, `not`, `neg`), or a function.
    """

    op: str
    kind: Kind
    args: tuple[Node, ...] = ()
    value: Any = None

    def walk(self) -> Iterator[Node]:
        yield self
        for arg in self.args:
            yield from arg.walk()


def names_in(node: Node) -> frozenset[str]:
    """The variables that an expression reads, those of indices included."""
    return frozenset(part.value for part in node.walk() if part.op == "name")


def tensors_in(node: Node) -> frozenset[str]:
    return frozenset(part.value for part in node.walk() if part.op == "item")


@dataclass(frozen=True)
class Function:
    """A function of f32 arguments.

    `cpp` is what computes it on the device, `numpy` in float64. `slope(x, y)` bounds |dy/dx| beside x, with y the
    value, `roundings` counts its own error in units of 2^-24 relative to the value, `absolute` in units of 2^-24.
    Errors of CUDA's functions: CUDA C++ Programming Guide, "Mathematical Functions", without -use_fast_math.
    """

    cpp: str
    numpy: Callable[..., Any]
    slope: Callable[[Any, Any], Any]
    roundings: float
    absolute: float = 0.0


def _one(x: Any, y: Any) -> Any:
    return np.ones_like(y)


FUNCTIONS: dict[str, Function] = {
    "abs": Function("fabsf", np.abs, _one, 0),
    "exp": Function("expf", np.exp, lambda x, y: y, 4),
    "log": Function("logf", np.log, lambda x, y: 1 / np.abs(x), 2, 2),
    "sqrt": Function("sqrtf", np.sqrt, lambda x, y: 0.5 / y, 1),
    "tanh": Function("tanhf", np.tanh, lambda x, y: 1 - y * y, 4),
}
EXTREMA = {"min": np.minimum, "max": np.maximum}
COMPARISONS: dict[str, Callable[..., Any]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}
ARITHMETIC = ("+", "-", "*", "/", "//", "%")
