"""The tree of an expression, and what its functions and operators are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cutegen.expression import bounded
from cutegen.expression.bounded import Bounded

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
    """A function of `arity` f32 arguments. `cpp` is the callee on the device, `bounded` its values and error bound;
    `body` defines it over x (low, high) where it is not CUDA's own.
    """

    arity: int
    cpp: str
    bounded: Callable[..., Bounded]
    body: str | None = None
    slow: bool = True


FUNCTIONS: dict[str, Function] = {
    "abs": Function(1, "fabsf", bounded.abs_, slow=False),
    "exp": Function(1, "expf", bounded.exp_),
    "log": Function(1, "logf", bounded.log_),
    "sqrt": Function(1, "sqrtf", bounded.sqrt_),
    "erf": Function(1, "erff", bounded.erf_),
    "tanh": Function(1, "tanhf", bounded.tanh_),
    "relu": Function(1, "relu", bounded.relu_, "fmaxf(x, 0.0f)", slow=False),
    "sigmoid": Function(1, "sigmoid", bounded.sigmoid_, "1.0f / (1.0f + expf(-x))"),
    "silu": Function(1, "silu", bounded.silu_, "x / (1.0f + expf(-x))"),
    "gelu": Function(1, "gelu", bounded.gelu_, "0.5f * x * (1.0f + erff(x * 0.70710678f))"),
    "gelu_tanh": Function(
        1, "gelu_tanh", bounded.gelu_tanh_, "0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)))"
    ),
    "clamp": Function(3, "clamp", bounded.clamp_, "fminf(fmaxf(x, low), high)", slow=False),
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
