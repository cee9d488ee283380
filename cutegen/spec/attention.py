"""The `attention_scores` family: S = scale * Q K^T per batch and head, the first half of attention."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cutegen.spec.base import FieldFault, SpecModel
from cutegen.spec.common import (
    AccumulateName,
    Copy,
    Epilogue,
    Extent,
    KernelSpec,
    Mma,
    MultiplyName,
    Pipeline,
    Positive,
    Schedule,
    Smem,
    StorageName,
    Tile,
)
from cutegen.spec.gemm import check_dtypes


class ScoresProblem(SpecModel):
    """The extents that `run` and `bench` use. `head_dim` is static in the kernel, the others are run-time arguments.

    `heads` must be a multiple of `heads_kv` (grouped-query attention); `heads_kv` left out equals `heads`.
    """

    batch: Extent = 1
    heads: Extent = 1
    heads_kv: Extent | None = None
    seqlen_q: Extent
    seqlen_k: Extent
    head_dim: Positive

    @model_validator(mode="after")
    def _groups(self) -> ScoresProblem:
        kv = self.heads if self.heads_kv is None else self.heads_kv
        if (kv == 0) != (self.heads == 0) or (kv and self.heads % kv):
            raise FieldFault("heads", "must be a multiple of heads_kv", got=f"{self.heads} with heads_kv {kv}")
        if self.head_dim % 8 or self.head_dim > 512:
            raise FieldFault("head_dim", "must be a multiple of 8 up to 512", got=str(self.head_dim))
        return self

    @property
    def kv_heads(self) -> int:
        return self.heads if self.heads_kv is None else self.heads_kv


class ScoresDtypes(SpecModel):
    """Element types; `multiply: tf32` multiplies f32 data on tensor cores."""

    q: StorageName
    k: StorageName
    scores: StorageName
    accumulate: AccumulateName = "f32"
    multiply: MultiplyName | None = None

    @model_validator(mode="after")
    def _agree(self) -> ScoresDtypes:
        check_dtypes(self.q, self.k, self.scores, self.multiply, self.accumulate, names=("q", "k", "scores"))
        return self


class ScoresSmem(SpecModel):
    q: Smem = Smem()
    k: Smem = Smem()


class ScoresCopy(SpecModel):
    q: Copy = Copy()
    k: Copy = Copy()


class ScoresAlign(SpecModel):
    """Elements that are contiguous and aligned together at least; see `GemmAlign`."""

    q: Positive | None = None
    k: Positive | None = None
    scores: Positive | None = None


class AttentionScoresSpec(KernelSpec):
    """S = scale * Q K^T with Q (batch, heads, seqlen_q, head_dim), K (batch, heads_kv, seqlen_k, head_dim).

    Any strides with a contiguous head_dim are taken, so Q and K may be views of a packed (B, T, 3, NH, HS) tensor. With
    `causal`, query i sees key j when j <= i + seqlen_k - seqlen_q (aligned bottom right); what it doesn't see is -inf.
    """

    kernel: Literal["attention_scores"] = "attention_scores"
    problem: ScoresProblem
    dtypes: ScoresDtypes
    causal: bool = False
    tile: Tile = Tile()
    mma: Mma = Mma()
    smem: ScoresSmem = ScoresSmem()
    copy_: ScoresCopy = Field(default=ScoresCopy(), alias="copy")
    pipeline: Pipeline = Pipeline()
    epilogue: Epilogue = Epilogue()
    schedule: Schedule = Schedule()
    align: ScoresAlign = ScoresAlign()
