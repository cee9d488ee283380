"""The score and mask expressions of attention: which names they may read, and how the kernel spells them."""

from __future__ import annotations

from dataclasses import dataclass

from cutegen.dtypes import DTYPES
from cutegen.expression import FALSE, Kind, Node, Told, emit, helpers, instruction, names_in, parse, tell, tensors_in
from cutegen.plan.signature import KernelParam, Pointer, Scalar, ScalarArg, Stride, TensorArg
from cutegen.spec.attention_forward import MODES, Argument, AttentionForwardSpec

# Variables of an expression: their kind, and what the kernel calls them.
VARIABLES: dict[str, tuple[Kind, str]] = {
    "scale": ("float", "scale"),
    "b": ("int", "batch"),
    "h": ("int", "head"),
    "q": ("int", "query"),
    "k": ("int", "key"),
    "seqlen_q": ("int", "seqlen_q"),
    "seqlen_k": ("int", "seqlen_k"),
}
_STRIDES = {"batch": "batch", "heads": "head", "seqlen_q": "query", "seqlen_k": "key"}
# Elements beyond the lengths are computed and thrown away; their operands are read inside.
_INSIDE = {"batch": "batch", "heads": "head", "seqlen_q": "query_inside", "seqlen_k": "key_inside"}


# The first and last query of a tile, and key of some blocks. No argument has a space in its name.
_ENDS = {"q": ("q first", "q last"), "k": ("k first", "k last")}


@dataclass(frozen=True)
class Expressions:
    """`score` gives a score from s, the product q.k; `mask` says whether it is seen. None where the spec has none.

    `blocks` says what of the mask can be told from the ends of a tile's queries and a block's keys.
    """

    score: Node | None
    mask: Node | None
    arguments: tuple[Argument, ...]
    score_text: str | None
    mask_text: str | None
    blocks: Told

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for node in (self.score, self.mask) if node is not None)

    @property
    def exp2_approx(self) -> str:
        """What softmax calls, whether or not the expressions do."""
        return instruction("exp2_approx")

    @property
    def helpers(self) -> tuple[str, ...]:
        return helpers(*self.nodes, self.blocks.never, self.blocks.always, defined=("exp2_approx",))

    @property
    def score_cpp(self) -> str | None:
        return None if self.score is None else self._cpp(self.score)

    @property
    def mask_cpp(self) -> str | None:
        return None if self.mask is None else self._cpp(self.mask)

    @property
    def hidden_cpp(self) -> str | None:
        """When no query of a tile sees a key of some blocks; None where that can't be told."""
        return self._told(self.blocks.never)

    @property
    def whole_cpp(self) -> str | None:
        """When every query of a tile sees every key of a block; None where that can't be told."""
        return self._told(self.blocks.always)

    @property
    def elements(self) -> tuple[tuple[str, str], ...]:
        """Elements of tensors that stay the same for a tile, as far as blocks are told by them: (name, how it is read)."""
        used = names_in(self.blocks.never) | names_in(self.blocks.always)
        return tuple((_cpp(_here(a)), _element(a)) for a in self.arguments if a.modes and _here(a) in used)

    def _told(self, condition: Node) -> str | None:
        if condition == FALSE:
            return None
        names = {name: cpp for name, (_, cpp) in VARIABLES.items()}
        names |= {a.name: f"arg_{a.name}" for a in self.arguments if not a.modes}
        own = (*_ENDS["q"], *_ENDS["k"], *(_here(a) for a in self.arguments))
        return emit(condition, names | {name: _cpp(name) for name in own}, {})

    def reads(self, mode: str) -> bool:
        """Whether a tensor that has this mode is read."""
        read = frozenset[str]().union(*(tensors_in(node) for node in self.nodes))
        return any(mode in argument.modes for argument in self.arguments if argument.name in read)

    def uses(self, name: str) -> bool:
        return any(name in names_in(node) for node in self.nodes)

    def _cpp(self, node: Node) -> str:
        names = {name: cpp for name, (_, cpp) in VARIABLES.items()} | {"s": "s"}
        names |= {a.name: f"arg_{a.name}" for a in self.arguments if not a.modes}
        return emit(node, names, {a.name: _element(a) for a in self.arguments if a.modes})

    @property
    def tensors(self) -> tuple[TensorArg, ...]:
        return tuple(TensorArg(a.name, DTYPES[a.dtype], a.modes, a.modes[-1], 1) for a in self.arguments if a.modes)

    @property
    def scalars(self) -> tuple[ScalarArg, ...]:
        return tuple(ScalarArg(a.name, "float") for a in self.arguments if not a.modes)

    @property
    def params(self) -> tuple[tuple[KernelParam, str], ...]:
        """The kernel's parameters for the arguments, with their names."""
        found: list[tuple[KernelParam, str]] = []
        for a in self.arguments:
            if not a.modes:
                found.append((Scalar(a.name), f"arg_{a.name}"))
                continue
            found.append((Pointer(a.name), f"arg_{a.name}"))
            found += [(Stride(a.name, mode), f"{_STRIDES[mode]}_{a.name}") for mode in a.modes[:-1]]
        return tuple(found)


def _here(argument: Argument) -> str:
    """The one element of a tensor that a tile reads."""
    return f"{argument.name} here"


def _cpp(name: str) -> str:
    """What the kernel calls a name of this module."""
    return name.replace(" ", "_")


def _element(argument: Argument) -> str:
    """How the kernel reads the element that an expression means."""
    *outer, last = argument.modes
    offset = [f"{_INSIDE[mode]} * {_STRIDES[mode]}_{argument.name}" for mode in outer]
    return f"float(arg_{argument.name}[{' + '.join([*offset, _INSIDE[last]])}])"


def plan_expressions(spec: AttentionForwardSpec) -> Expressions:
    """Parses the expressions of a spec.

    Raises:
        SpecError: an expression that is none, or reads what it may not.
    """
    names: dict[str, Kind] = {name: kind for name, (kind, _) in VARIABLES.items()}
    names |= {a.name: "float" for a in spec.arguments if not a.modes}
    tensors = {a.name: tuple(MODES[mode] for mode in a.modes) for a in spec.arguments if a.modes}
    score = mask = None
    blocks = Told(FALSE, FALSE)
    if spec.score is not None:
        score = parse(spec.score, {"s": "float", **names}, tensors, kind="float", field="score")
    if spec.mask is not None:
        mask = parse(spec.mask, names, tensors, kind="bool", field="mask")
        still = {a.name: _here(a) for a in spec.arguments if not {"seqlen_q", "seqlen_k"} & set(a.modes)}
        blocks = tell(mask, _ENDS, still)
    return Expressions(score, mask, spec.arguments, spec.score, spec.mask, blocks)
