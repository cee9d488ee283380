"""The `attention_forward` family: O = softmax(mask(scale * Q K^T)) V per batch and head, in one pass."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from cutegen.spec.attention import ScoresProblem
from cutegen.spec.base import FieldFault, SpecModel
from cutegen.spec.common import KernelSpec, Positive

# Positions, windows and their sums stay within 32 bits.
Span = Annotated[int, Field(ge=0, lt=2**29)]
DataName = Literal["f16", "bf16", "f32"]
ModeName = Literal["batch", "heads", "seqlen_q", "seqlen_k"]
# The variable of an expression that runs along each mode.
MODES: dict[str, str] = {"batch": "b", "heads": "h", "seqlen_q": "q", "seqlen_k": "k"}
_TAKEN = (
    "q",
    "k",
    "v",
    "o",
    "s",
    "b",
    "h",
    "lse",
    "out",
    "sinks",
    "p_dropout",
    "seed",
    "offset",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "scale",
    "stream",
    "device",
    *MODES,
    "heads_kv",
)


class ForwardProblem(ScoresProblem):
    """The extents that `run` and `bench` use. `head_dim` and `head_dim_v`, that of V and O where it differs, are static
    in the kernel, the others are run-time arguments."""

    head_dim_v: Positive | None = None

    @field_validator("head_dim", "head_dim_v")
    @classmethod
    def _head_dim(cls, value: int | None) -> int | None:
        if value is not None and (value % 8 or value > 256):
            raise FieldFault("", "must be a multiple of 8 up to 256", got=str(value))
        return value

    @property
    def value_dim(self) -> int:
        return self.head_dim if self.head_dim_v is None else self.head_dim_v


class ForwardDtypes(SpecModel):
    """Element types: all four tensors share one. Scores, softmax and sums are f32 throughout.

    f32 data are multiplied on tensor cores with `multiply: tf32`, which keeps 11 significant bits of each.
    """

    q: DataName
    k: DataName
    v: DataName
    o: DataName
    multiply: Literal["tf32"] | None = None
    accumulate: Literal["f32"] = "f32"

    @model_validator(mode="after")
    def _agree(self) -> ForwardDtypes:
        for name in ("k", "v", "o"):
            if getattr(self, name) != self.q:
                raise FieldFault(name, "must equal dtypes.q", got=getattr(self, name), expected=self.q)
        if self.q == "f32" and self.multiply is None:
            hint = "write multiply: tf32, or use f16 or bf16"
            raise FieldFault("multiply", "f32 is multiplied on tensor cores as tf32 only", got="none", hint=hint)
        if self.q != "f32" and self.multiply is not None:
            raise FieldFault("multiply", f"multiplies f32 data, not {self.q}", got="tf32", hint="leave it out")
        return self


class Window(SpecModel):
    """How many keys before (`left`) and after (`right`) its own position a query sees; left out: all of them."""

    left: Span | None = None
    right: Span | None = None


class ForwardTile(SpecModel):
    """`m` queries that a block owns, `n` keys that it takes at a time."""

    m: Positive | None = None
    n: Positive | None = None


class ForwardPipeline(SpecModel):
    """How many blocks of K and V are in shared memory at once.

    With one, K of the next block arrives while V of this one is multiplied, and V while K is: two barriers a block.
    With two, both arrive a block ahead: one barrier.
    """

    stages: Annotated[int, Field(ge=1, le=2)] | None = None


class ForwardAlign(SpecModel):
    """Elements that are contiguous and aligned together at least; see `GemmAlign`."""

    q: Positive | None = None
    k: Positive | None = None
    v: Positive | None = None
    o: Positive | None = None


class Argument(SpecModel):
    """A named argument of the expressions: a tensor over `modes`, outermost first and the last contiguous, or without
    modes a run-time f32 scalar. In an expression it is indexed by its modes' variables: `bias[b, h, q, k]`."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    modes: Annotated[tuple[ModeName, ...], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)] = ()
    dtype: Literal["f32", "f16", "bf16"] = "f32"

    @model_validator(mode="after")
    def _names(self) -> Argument:
        if self.name in _TAKEN:
            raise FieldFault("name", "is the name of something else", got=self.name)
        if len(set(self.modes)) != len(self.modes):
            raise FieldFault("modes", "names a mode twice", got=", ".join(self.modes))
        return self


class AttentionForwardSpec(KernelSpec):
    """O = softmax(scale * Q K^T) V with Q, O (batch, heads, seqlen_q, head_dim), K, V (batch, heads_kv, seqlen_k,
    head_dim).

    Any strides with a contiguous head_dim are taken, so `bshd`, `bhsd` and views of a packed (B, T, 3, NH, HS) tensor
    are. Query i stands at key position i + seqlen_k - seqlen_q (`causal_align: bottom_right`, the last query meets
    the last key) or i (`top_left`). `causal` hides the keys after that position, `window` those outside it. `softcap`
    c replaces a score s by c * tanh(s / c) before masks. A query that sees no key gives O = 0.

    `score` is an expression that makes the score of query q and key k from s, the product of their vectors:
    `s * scale + slope[h] * (k - q)` is ALiBi. `mask` is a condition that says whether q sees k, beside the masks
    above. Both may read b, h, q, k, seqlen_q, seqlen_k, scale and the `arguments`.

    `sinks: true` adds an input `sinks` (heads) in f32: a score that every query of a head sees besides its keys, with a
    value of 0. It takes its share of the softmax, and counts in the LSE.

    `varlen: true` takes sequences of any lengths packed one after the other: q, o (total_q, heads, head_dim), k, v
    (total_k, heads_kv, head_dim), and `cu_seqlens_q`, `cu_seqlens_k` (batch + 1, int32), where sequence b begins and
    ends: [cu_seqlens[b], cu_seqlens[b + 1]). LSE is then (heads, total_q).

    `dropout: true` adds the scalars `p_dropout`, the probability that an element of the softmax becomes 0 (the others
    grow by 1 / (1 - p_dropout)), and `seed` and `offset`, from which Philox makes the same mask for any tile.

    `lse: true` adds a second output (batch, heads, seqlen_q) in f32: the natural logarithm of the sum of exponentials
    of a row's scores, -inf for a query that sees no key.

    `warps` share the queries of a block. `q_operand` says where Q stays during the loop: in `registers`, or in
    `shared` memory, from which it is read again for every block of keys. `pipeline.stages` says how many blocks of K
    and V are in shared memory at once: with 2 they arrive a block ahead, for one barrier a block instead of two.
    """

    kernel: Literal["attention_forward"] = "attention_forward"
    problem: ForwardProblem
    dtypes: ForwardDtypes
    causal: bool = False
    causal_align: Literal["bottom_right", "top_left"] = "bottom_right"
    window: Window = Window()
    softcap: Annotated[float, Field(gt=0, lt=1e6)] | None = None
    score: str | None = None
    mask: str | None = None
    arguments: Annotated[tuple[Argument, ...], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)] = ()
    sinks: bool = False
    varlen: bool = False
    dropout: bool = False
    lse: bool = False
    tile: ForwardTile = ForwardTile()
    pipeline: ForwardPipeline = ForwardPipeline()
    warps: Annotated[int, Field(ge=1, le=16)] | None = None
    q_operand: Literal["registers", "shared"] | None = None
    align: ForwardAlign = ForwardAlign()

    @model_validator(mode="after")
    def _one_right_edge(self) -> AttentionForwardSpec:
        if self.causal and self.window.right:
            raise FieldFault("window.right", "causal hides every later key", got=str(self.window.right), expected="0")
        return self

    @model_validator(mode="after")
    def _expressions(self) -> AttentionForwardSpec:
        if self.score is not None and self.softcap is not None:
            raise FieldFault("softcap", "is part of the score", hint="write c * tanh(s * scale / c) in score")
        longest = next((a for a in self.arguments if self.varlen and set(a.modes) - {"heads"}), None)
        if longest is not None:
            raise FieldFault("arguments", "with varlen, tensors run along heads only", got=longest.name)
        names = [argument.name for argument in self.arguments]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise FieldFault("arguments", "names one twice", got=twice)
        return self
