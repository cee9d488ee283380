"""Expressions whose arguments are found in their text: `gelu(alpha * acc + bias[n])` of a GEMM's epilogue."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cutegen.errors import Fault, SpecError
from cutegen.expression.bounded import Bounded
from cutegen.expression.cpp import emit, helpers
from cutegen.expression.evaluate import evaluate
from cutegen.expression.parse import parse
from cutegen.expression.tree import EXTREMA, FUNCTIONS, Node, rounded


@dataclass(frozen=True)
class Expression:
    """A checked expression. `scalars` are its bare names but `reserved` ones, `tensors` its indexed names with their
    indices, both in order of appearance; `reserved` are the bare names that a kernel family gives a meaning.
    """

    text: str
    tree: Node
    reserved: tuple[str, ...]
    scalars: tuple[str, ...]
    tensors: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def bare(self) -> frozenset[str]:
        """The reserved names that it uses."""
        return frozenset(n.value for n in self.tree.walk() if n.op == "name") & set(self.reserved)

    def rounded(self, precision: int) -> Expression:
        """The same for an output that keeps `precision` significant bits: functions need not be better than that."""
        return replace(self, tree=rounded(self.tree, precision))

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that it calls."""
        return tuple(dict.fromkeys(n.op for n in self.tree.walk() if n.op in FUNCTIONS))

    def cpp(self, names: Mapping[str, str]) -> str:
        """C++ in f32, with each name replaced by what `names` has for it."""
        return emit(self.tree, names, names)

    def bounded(self, names: Mapping[str, Bounded]) -> Bounded:
        """The values and bounds of the expression, for those of its names."""
        return evaluate(self.tree, names, names)

    @property
    def definitions(self) -> tuple[str, ...]:
        """Functions that an emitted file must define."""
        return helpers(self.tree)

    @property
    def cost(self) -> int:
        """About how many instructions a value takes: one an operator, and what its functions cost."""
        called = [FUNCTIONS[n.op] for n in self.tree.walk() if n.op in FUNCTIONS]
        operators = sum(n.op in ("+", "-", "*", "/", *EXTREMA) for n in self.tree.walk())
        return operators + sum(function.cost for function in called)

    def identifier(self) -> str:
        """Its names in order, for a kernel's symbol."""
        words = [n.id for n in ast.walk(ast.parse(self.text, mode="eval")) if isinstance(n, ast.Name)]
        return "_".join(word for word in words if word not in ("m", "n"))[:40].strip("_")


@dataclass(frozen=True)
class Arguments:
    """What expressions of one kernel take together: `scalars`, and `tensors` with their indices, each once and in order
    of appearance.
    """

    scalars: tuple[str, ...]
    tensors: tuple[tuple[str, tuple[str, ...]], ...]


def arguments(field: str, *expressions: Expression) -> Arguments:
    """What `expressions` take together. `field` is the spec's path of the last one, for faults.

    Raises:
        SpecError: a name that is a scalar here and a tensor there, or a tensor indexed in two ways.
    """
    scalars: dict[str, None] = {}
    tensors: dict[str, tuple[str, ...]] = {}
    for expression in expressions:
        scalars |= dict.fromkeys(expression.scalars)
        for name, index in expression.tensors:
            if tensors.setdefault(name, index) != index:
                raise SpecError(Fault(field, f"{name} is indexed in two ways", got=repr(expression.text)))
    if both := scalars.keys() & tensors.keys():
        name = min(both)
        raise SpecError(Fault(field, f"{name} is a scalar and a tensor", got=repr(expressions[-1].text)))
    return Arguments(tuple(scalars), tuple(tensors.items()))


def find(
    text: str, indices: tuple[tuple[str, ...], ...], reserved: tuple[str, ...], taken: frozenset[str], field: str
) -> Expression:
    """The expression that `text` denotes.

    Args:
        indices: what may stand in brackets, as (m,), (n,), (m, n).
        reserved: bare names with a meaning of their own, such as `acc`.
        taken: names that neither a scalar nor a tensor may have.
        field: the spec's path, for faults.

    Raises:
        SpecError: not an expression of the known names, operators and functions.
    """
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        parse(text, {}, {}, kind="float", field=field)  # raises, with what is wrong
        raise
    tensors: dict[str, tuple[str, ...]] = {}
    scalars: dict[str, None] = {}
    _collect(body, indices, set(reserved), tensors, scalars, field, text)
    own = {*taken, *reserved, *FUNCTIONS, *EXTREMA, *(scalars.keys() & tensors.keys())}
    for name in (*scalars, *tensors):
        if name in own:
            raise SpecError(Fault(field, f"the name {name} is taken", got=repr(text), hint="choose another"))
    names = dict.fromkeys((*reserved, *scalars), "float")
    tree = parse(text, names, tensors, kind="float", field=field)  # type: ignore[arg-type]
    return Expression(text, tree, reserved, tuple(scalars), tuple(tensors.items()))


def _collect(
    node: ast.AST,
    indices: tuple[tuple[str, ...], ...],
    reserved: set[str],
    tensors: dict[str, tuple[str, ...]],
    scalars: dict[str, None],
    field: str,
    text: str,
) -> None:
    """The names of a tree, in order; `name[m]` makes a tensor of its own."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        index = tuple(part.id if isinstance(part, ast.Name) else "?" for part in parts)
        name = node.value.id
        if index not in indices:
            legal = " or ".join(f"{name}[{', '.join(i)}]" for i in indices)
            raise SpecError(Fault(field, f"{name} can't be indexed so", got=ast.unparse(node), hint=f"write {legal}"))
        if tensors.setdefault(name, index) != index:
            raise SpecError(Fault(field, f"{name} is indexed in two ways", got=repr(text)))
        return
    if isinstance(node, ast.Name):
        if node.id not in reserved:
            scalars[node.id] = None
        return
    children = node.args if isinstance(node, ast.Call) else list(ast.iter_child_nodes(node))
    for child in children:
        _collect(child, indices, reserved, tensors, scalars, field, text)
