"""The tree of an expression, and what its functions and operators are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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


# How far off gelu is by each of `LOG2_TAIL`, for readers of the source.
_OFF = {
    "f32": "off by 6e-8",
    "f16": "off by 3e-5 of itself, a seventeenth of what rounding to f16 costs",
    "bf16": "off by 3e-4 of itself, a sixth of what rounding to bf16 costs",
    "fp8": "off by 3e-3 of itself, a twelfth of what rounding to fp8 costs",
}


def _gelu(output: str) -> Function:
    first, second, *others = (f"{np.float32(coefficient)!s}f" for coefficient in bounded.LOG2_TAIL[output])
    horner = "\n".join(f"  p = fmaf(a, p, {coefficient});" for coefficient in others)
    body = f"""\
  // x Phi(x) = max(x, 0) - |x| Phi(-|x|); log2 Phi(-a) is nearly a parabola: with this polynomial gelu is
  // {_OFF[output]}
  float const a = min_nan(fabsf(x), 6.5f);
  float p = fmaf(a, {first}, {second});
{horner}
  return fmaf(-a, exp2_approx(p), fmaxf(x, 0.0f));"""
    name = "gelu" if output == "f32" else f"gelu_{output}"
    return Function(1, name, bounded.gelu_for(output), body, cost=12 + len(others))


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
    "gelu": _gelu("f32"),
    "gelu_tanh": Function(1, "gelu_tanh", bounded.gelu_tanh_, _GELU_TANH, cost=19),
    "clamp": Function(3, "clamp", bounded.clamp_, "min_nan(max_nan(x, low), high)", cost=2),
}
# What stands for a function where its value is rounded to an output of so many significant bits, fewest first. These
# names can't be written in an expression.
ROUNDED: dict[str, tuple[tuple[int, str], ...]] = {"gelu": ((4, "gelu@fp8"), (8, "gelu@bf16"), (11, "gelu@f16"))}
FUNCTIONS |= {name: _gelu(name.partition("@")[2]) for _, name in ROUNDED["gelu"]}


def rounded(node: Node, precision: int) -> Node:
    """The expression for an output that keeps `precision` significant bits: a function whose value gets there through
    products alone need not be better by far. A sum may cancel, and keeps its terms as they are."""
    if node.op in ("*", "/", "neg"):
        return replace(node, args=tuple(rounded(arg, precision) for arg in node.args))
    return replace(node, op=next((name for bits, name in ROUNDED.get(node.op, ()) if precision <= bits), node.op))


EXTREMA = {"min": np.minimum, "max": np.maximum}
COMPARISONS: dict[str, Callable[..., Any]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}
