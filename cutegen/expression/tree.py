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
    `body` defines it over x (low, high) where it is not CUDA's own: an expression, or statements in lines. `cost` is
    about how many instructions a value takes, one of the special-function unit counted as eight.

    Activations have no branches, which CUDA's `erff`, `tanhf` and division have: a thread's values are then computed
    side by side, not one after the other.
    """

    arity: int
    cpp: str
    bounded: Callable[..., Bounded]
    body: str | None = None
    cost: int = 25


_TAIL = [f"{np.float32(coefficient)!s}f" for coefficient in bounded.LOG2_TAIL]
_HORNER = "\n".join(f"  p = fmaf(a, p, {coefficient});" for coefficient in _TAIL[2:])
_GELU = f"""\
  // x Phi(x) = max(x, 0) - |x| Phi(-|x|); log2 Phi(-a) is nearly a parabola: with this polynomial gelu is off by 6e-8
  float const a = min_nan(fabsf(x), 6.5f);
  float p = fmaf(a, {_TAIL[0]}, {_TAIL[1]});
{_HORNER}
  return fmaf(-a, exp2_approx(p), fmaxf(x, 0.0f));"""
_GELU_TANH = """\
  // x (1 + tanh u) / 2 = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
  return x * reciprocal(1.0f + exp2_approx(x * fmaf(x * x, -0.10294324f, -2.3022082f)));"""

FUNCTIONS: dict[str, Function] = {
    "abs": Function(1, "fabsf", bounded.abs_, cost=1),
    "exp": Function(1, "expf", bounded.exp_),
    "log": Function(1, "logf", bounded.log_),
    "sqrt": Function(1, "sqrtf", bounded.sqrt_),
    "erf": Function(1, "erff", bounded.erf_),
    "tanh": Function(1, "tanhf", bounded.tanh_),
    "relu": Function(1, "relu", bounded.relu_, "max_nan(x, 0.0f)", cost=1),
    "sigmoid": Function(1, "sigmoid", bounded.sigmoid_, "reciprocal(1.0f + exp2_approx(-1.442695f * x))", cost=16),
    "silu": Function(1, "silu", bounded.silu_, "x * reciprocal(1.0f + exp2_approx(-1.442695f * x))", cost=17),
    "gelu": Function(1, "gelu", bounded.gelu_, _GELU, cost=17),
    "gelu_tanh": Function(1, "gelu_tanh", bounded.gelu_tanh_, _GELU_TANH, cost=19),
    "clamp": Function(3, "clamp", bounded.clamp_, "min_nan(max_nan(x, low), high)", cost=2),
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
