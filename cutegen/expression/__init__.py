"""Expressions of a spec: parsed once, against a closed list of names and operators, into a tree that emits device code
and evaluates in numpy, so that a reference can't drift from its kernel."""

from __future__ import annotations

from cutegen.expression.blocks import FALSE, Told, tell
from cutegen.expression.bounded import Bounded, exact
from cutegen.expression.cpp import emit, helpers, instruction
from cutegen.expression.epilogue import Arguments, Expression, arguments, find
from cutegen.expression.evaluate import evaluate
from cutegen.expression.parse import parse
from cutegen.expression.tree import FUNCTIONS, Kind, Node, names_in, tensors_in

__all__ = [
    "FALSE",
    "FUNCTIONS",
    "Arguments",
    "Bounded",
    "Expression",
    "Kind",
    "Node",
    "Told",
    "arguments",
    "emit",
    "evaluate",
    "exact",
    "find",
    "helpers",
    "instruction",
    "names_in",
    "parse",
    "tell",
    "tensors_in",
]
