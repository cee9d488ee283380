"""What a condition says about a whole block of its variables: never true, always true, or neither can be told.

Interval arithmetic on the tree. A variable that runs over a block is known by its first and last value; the bounds of
what is computed from it are expressions of those ends again, so that they can be emitted, or evaluated, like any other.
Every operation that is bounded here is monotone in each operand, with f32's rounding too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cutegen.expression.tree import COMPARISONS, Kind, Node

# Beyond this many nodes a bound costs more than it saves.
_LARGEST = 120
TRUE = Node("number", "bool", value=True)
FALSE = Node("number", "bool", value=False)
_SWAPPED = {">": "<", ">=": "<="}


@dataclass(frozen=True)
class Span:
    """The least and the greatest value of a number over a block."""

    low: Node
    high: Node

    @property
    def point(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True)
class Told:
    """Conditions on a block's ends: if `never` holds, what they tell of is false everywhere; if `always`, true.

    What can't be told is the constant FALSE.
    """

    never: Node
    always: Node

    @property
    def useful(self) -> bool:
        return self.never != FALSE or self.always != FALSE


def tell(condition: Node, ends: Mapping[str, tuple[str, str]], elements: Mapping[str, str]) -> Told:
    """Bounds `condition` over a block.

    Args:
        ends: variables that run over the block, with the names of their first and last value. All others stand still.
        elements: tensors of which a block reads one element only, each with the name of that.
    """
    return _Teller(ends, elements).told(condition)


class _Teller:
    def __init__(self, ends: Mapping[str, tuple[str, str]], elements: Mapping[str, str]) -> None:
        self.ends, self.elements = ends, elements

    def told(self, node: Node) -> Told:
        if node.op == "number":
            return Told(FALSE, TRUE) if node.value else Told(TRUE, FALSE)
        if node.op == "not":
            inner = self.told(node.args[0])
            return Told(inner.always, inner.never)
        if node.op in ("and", "or"):
            parts = [self.told(arg) for arg in node.args]
            never, always = [p.never for p in parts], [p.always for p in parts]
            return Told(any_of(never), all_of(always)) if node.op == "and" else Told(all_of(never), any_of(always))
        left, right = (self.span(arg) for arg in node.args)
        if left is None or right is None:
            return Told(FALSE, FALSE)
        op = node.op
        if op in _SWAPPED:
            op, left, right = _SWAPPED[op], right, left
        return _compare(op, left, right)

    def span(self, node: Node) -> Span | None:
        """Bounds of a number, None where there are none."""
        found = self._span(node)
        if found is None or max(sum(1 for _ in end.walk()) for end in (found.low, found.high)) > _LARGEST:
            return None
        return found

    def _span(self, node: Node) -> Span | None:
        if node.op == "number":
            return Span(node, node)
        if node.op == "name":
            first, last = self.ends.get(node.value, (node.value, node.value))
            return Span(Node("name", node.kind, value=first), Node("name", node.kind, value=last))
        if node.op == "item":
            name = self.elements.get(node.value)
            element = Node("name", "float", value=name)
            return None if name is None else Span(element, element)
        if node.op == "where":
            return self._either(node)
        spans = [self.span(arg) for arg in node.args]
        if any(span is None for span in spans):
            return None
        known = [span for span in spans if span is not None]
        if all(span.point for span in known):
            value = Node(node.op, node.kind, tuple(span.low for span in known))
            return Span(value, value)
        return _bound(node.op, node.kind, known)

    def _still(self, node: Node) -> Node | None:
        """What is the same all over the block, as it is read there; None for what varies."""
        if node.op == "name":
            return None if node.value in self.ends else node
        if node.op == "item":
            name = self.elements.get(node.value)
            return None if name is None else Node("name", "float", value=name)
        args = [self._still(arg) for arg in node.args]
        return None if None in args else replace(node, args=tuple(arg for arg in args if arg is not None))

    def _either(self, node: Node) -> Span | None:
        then, otherwise = self.span(node.args[1]), self.span(node.args[2])
        if then is None or otherwise is None:
            return None
        still = self._still(node.args[0])
        if still is not None:
            ends = ((then.low, otherwise.low), (then.high, otherwise.high))
            return Span(*(Node("where", node.kind, (still, a, b)) for a, b in ends))
        if any(_may_be_nan(branch) for branch in node.args[1:]):
            return None
        condition = self.told(node.args[0])

        def end(a: Node, b: Node, op: str) -> Node:
            both = a if a == b else Node(op, node.kind, (a, b))
            both = both if condition.never == FALSE else Node("where", node.kind, (condition.never, b, both))
            return both if condition.always == FALSE else Node("where", node.kind, (condition.always, a, both))

        return Span(end(then.low, otherwise.low, "min"), end(then.high, otherwise.high, "max"))


def _compare(op: str, left: Span, right: Span) -> Told:
    """A comparison; a NaN among the ends makes both conditions false."""
    if op == "<":
        return Told(_test(">=", left.low, right.high), _test("<", left.high, right.low))
    if op == "<=":
        return Told(_test(">", left.low, right.high), _test("<=", left.high, right.low))
    apart = any_of([_test("<", left.high, right.low), _test(">", left.low, right.high)])
    equal = all_of(list(dict.fromkeys([_test("==", left.low, right.high), _test("==", left.high, right.low)])))
    return Told(apart, equal) if op == "==" else Told(equal, apart)


def _bound(op: str, kind: Kind, spans: list[Span]) -> Span | None:
    """Bounds of an operation of which some operand is no point."""
    x, y = spans[0], spans[-1]

    def of(op: str, *args: Node) -> Node:
        return Node(op, kind, args)

    if op == "float":
        return Span(of(op, x.low), of(op, x.high))
    if op == "neg":
        return Span(of(op, x.high), of(op, x.low))
    if op == "abs" and not any(_may_be_nan(span.low) for span in spans):
        beside = of("max", x.low, of("neg", x.high))
        return Span(of("max", beside, _number(0, kind)), of("max", of("neg", x.low), x.high))
    if op in ("+", "min", "max"):
        return Span(of(op, x.low, y.low), of(op, x.high, y.high))
    if op == "-":
        return Span(of(op, x.low, y.high), of(op, x.high, y.low))
    if op == "*" and x.point:
        x, y = y, x
    if op in ("*", "/", "//") and y.point:
        return _scaled(op, kind, x, y.low)
    if op == "%" and y.point and _literal(y.low) > 0:
        same = _test("==", of("//", x.low, y.low), of("//", x.high, y.low))
        return Span(
            of("where", same, of("%", x.low, y.low), _number(0, kind)),
            of("where", same, of("%", x.high, y.low), _number(_literal(y.low) - 1, kind)),
        )
    return None


def _scaled(op: str, kind: Kind, x: Span, by: Node) -> Span:
    """x times or divided by what stands still: it rises with x, or falls if that is negative."""
    low, high = Node(op, kind, (x.low, by)), Node(op, kind, (x.high, by))
    if _literal(by):
        return Span(low, high) if _literal(by) > 0 else Span(high, low)
    rises = _test(">=", by, _number(0, kind))
    return Span(Node("where", kind, (rises, low, high)), Node("where", kind, (rises, high, low)))


def _literal(node: Node) -> float:
    """The value of a literal, perhaps behind a minus; 0 for what is none."""
    if node.op == "neg":
        return -_literal(node.args[0])
    return float(node.value) if node.op == "number" else 0.0


def _may_be_nan(node: Node) -> bool:
    """Whether an f32 argument or a quotient takes part: either can be NaN, which no bound holds."""
    return any(part.op == "/" or (part.op in ("name", "item") and part.kind == "float") for part in node.walk())


def _number(value: float, kind: Kind) -> Node:
    return Node("number", kind, value=float(value) if kind == "float" else int(value))


def _test(op: str, left: Node, right: Node) -> Node:
    if left.op == "number" and right.op == "number":
        return TRUE if COMPARISONS[op](left.value, right.value) else FALSE
    return Node(op, "bool", (left, right))


def all_of(conditions: list[Node]) -> Node:
    """Their conjunction, with constants taken out."""
    left = [c for c in conditions if c != TRUE]
    if FALSE in left:
        return FALSE
    return TRUE if not left else left[0] if len(left) == 1 else Node("and", "bool", tuple(left))


def any_of(conditions: list[Node]) -> Node:
    """Their disjunction, with constants taken out."""
    left = [c for c in conditions if c != FALSE]
    if TRUE in left:
        return TRUE
    return FALSE if not left else left[0] if len(left) == 1 else Node("or", "bool", tuple(left))
