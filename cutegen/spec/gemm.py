"""The `gemm` family: C = alpha * A B^T + beta * C, per batch.

A is (M, K), B is (N, K) and C is (M, N), CuTe's convention; `majors` say which mode of each is contiguous.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from cutegen.dtypes import DTYPES
from cutegen.errors import SpecError
from cutegen.expression import Expression, arguments, find
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

# Arguments of a call, and what emitted kernels call their own.
_OWN = """
a b m n k batch out stream device scale_a scale_b A B C M N K T TA TB TC batches ldA ldB ldC batch_A batch_B
batch_C scale_A scale_B smem warp warpgroup rank work first stride origin tile group rows stage phase tid lane
row step turn buffer mma last sums pair old factor i j v r r0 x m0 n0 tiles_m tiles_n k_tiles tma_A tma_B tma_C
box place read write vector outer inner int float if for while return auto const void char double long short
new delete this class struct union enum static extern inline typedef using namespace true false and or not xor
switch case do else
q tile_n m_tile n_tile k_all k_first part loads
joined kept assembled words skew count
aux Aux TAux ldAux batch_Aux tma_Aux ends groups end begin before g
ptr_A ptr_B ptr_C ptr_Aux known acquire
"""
_TAKEN = frozenset(_OWN.split())
_INDICES = (("m",), ("n",), ("m", "n"))
ElementName = Literal["f32", "f16", "bf16", "e4m3", "e5m2"]
Cluster = Annotated[tuple[Positive, Positive], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)]


class GemmProblem(SpecModel):
    """The extents that `run` and `bench` use; the kernel takes any.

    With `groups` the m rows of A come in that many groups, each multiplied with a matrix of its own of B
    (groups, n, k); where each ends is read on the device, from a vector `ends`.

    With `pointers` the matrices of a batch lie anywhere, as in cuBLAS's `gemmBatched`: A, B and C are lists of them.
    """

    m: Extent
    n: Extent
    k: Extent
    batch: Extent = 1
    groups: Positive | None = None
    pointers: bool = False

    @model_validator(mode="after")
    def _one_kind(self) -> GemmProblem:
        if self.groups is not None and self.batch != 1:
            raise FieldFault("batch", "grouped problems have none", got=str(self.batch), expected="1")
        if self.groups is not None and self.pointers:
            hint = "write problem.batch in place of groups"
            raise FieldFault(
                "pointers", "not with groups, which lie in one tensor", got="true", expected="false", hint=hint
            )
        if self.pointers and self.batch < 1:
            raise FieldFault("batch", "a list has a matrix at least", got=str(self.batch), expected="1 or more")
        return self


class GemmDtypes(SpecModel):
    """Element types. `multiply` is what the tensor cores multiply: f32 data can be multiplied as `f32` or as `tf32`.

    fp8 operands, `e4m3` and `e5m2`, may differ from each other; a scale of a whole tensor goes into alpha, those of
    rows into `scales`. Every `promote` elements of K the sums of the tensor cores, which keep few bits of
    fp8 products, are added to sums in f32. C may be fp8 too; values beyond its largest finite one become that. `aux` is
    the type of the second output: if left out C's, or f32 beside an fp8 C.
    """

    a: ElementName
    b: ElementName
    c: ElementName
    aux: StorageName | None = None
    accumulate: AccumulateName = "f32"
    multiply: MultiplyName | None = None
    promote: Positive | None = None

    @model_validator(mode="after")
    def _agree(self) -> GemmDtypes:
        check_dtypes(self.a, self.b, self.c, self.multiply, self.accumulate, names=("a", "b", "c"))
        return self


class GemmMma(Mma):
    """`a_operand` says where WGMMA takes A from (Hopper path): `shared` memory, an SS atom, or `registers`, an RS atom,
    into which consumers load it first.
    """

    a_operand: Literal["shared", "registers"] | None = None

    @model_validator(mode="after")
    def _as_the_atom_says(self) -> GemmMma:
        says = {"_SS": "shared", "_RS": "registers"}
        named = next((where for mark, where in says.items() if mark in (self.atom or "")), None)
        if self.a_operand is not None and named not in (None, self.a_operand):
            raise FieldFault("a_operand", f"{self.atom} takes A from {named}", got=self.a_operand, expected=named)
        return self

    @property
    def a_in_registers(self) -> bool:
        return self.a_operand == "registers" or "_RS" in (self.atom or "")


class GemmSmem(SpecModel):
    a: Smem = Smem()
    b: Smem = Smem()


class GemmCopy(SpecModel):
    a: Copy = Copy()
    b: Copy = Copy()


class GemmScales(SpecModel):
    """How operands are scaled: `row` takes an f32 vector with a factor for each row of A (M) or of B (N); `tensor`
    none, since alpha can hold it.
    """

    a: Literal["tensor", "row"] = "tensor"
    b: Literal["tensor", "row"] = "tensor"

    @property
    def rows(self) -> tuple[str, ...]:
        """The operands that have a vector."""
        return tuple(name for name, kind in (("a", self.a), ("b", self.b)) if kind == "row")


class GemmAlign(SpecModel):
    """How many elements are contiguous and aligned together at least: address, strides and the contiguous extent.

    The launcher builds a narrower variant by itself for tensors that are less aligned.
    """

    a: Positive | None = None
    b: Positive | None = None
    c: Positive | None = None
    aux: Positive | None = None


class GemmEpilogue(Epilogue):
    """What is stored, and how.

    `out` is an expression of `acc`, the sum of products: `gelu(alpha * acc + bias[n])`. Bare names are run-time
    scalars, `c` the old C; `name[n]`, `name[m]` and `name[m, n]` are tensors, of the element type `operands` (C's
    if left out, f32 if that is fp8). Without it C = alpha * acc + beta * c, and C is read only if beta is not 0.

    `aux` is an expression of the same names that is stored beside `out`, as a second output of C's shape: the
    `alpha * acc + bias[n]` that the gradient of gelu needs.
    """

    out: str | None = None
    aux: str | None = None
    operands: StorageName | None = None

    @model_validator(mode="after")
    def _parses(self) -> GemmEpilogue:
        if self.out is None and self.operands is not None:
            raise FieldFault("operands", "types the tensors of epilogue.out, which is missing", got=self.operands)
        if self.out is None and self.aux is not None:
            hint = "write out: alpha * acc + beta * c"
            raise FieldFault("aux", "stands beside epilogue.out, which is missing", got=self.aux, hint=hint)
        try:
            expressions = self.expressions
            arguments("aux", *expressions)
        except SpecError as error:
            (fault,) = error.faults
            path = fault.field or ""
            raise FieldFault(path, fault.message, got=fault.got, expected=fault.expected, hint=fault.hint) from None
        for field, found in zip(("out", "aux"), expressions):
            if "acc" not in found.bare:
                raise FieldFault(field, "does not use the product", got=found.text, hint="name it acc")
        return self

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The parsed `out` and `aux`, as far as there are any."""
        texts = (("out", self.out), ("aux", self.aux))
        return tuple(find(text, _INDICES, ("acc", "c"), _TAKEN, name) for name, text in texts if text is not None)


class GemmSchedule(Schedule):
    """How tiles are taken, and on Hopper's own path by whom.

    `kind: cooperative` has all consumer warpgroups share each tile; in `ping_pong` two take whole tiles in turn, so
    that one stores while the other multiplies.

    `split_k` blocks, a cluster, share a tile: each multiplies its part of K, and they add up their sums through each
    other's shared memory, in one order, so that results are equal from run to run.
    """

    kind: Literal["cooperative", "ping_pong"] | None = None
    split_k: Literal[1, 2, 4, 8] | None = None


class GemmSpec(KernelSpec):
    """C = alpha * A B^T + beta * C with A (M, K), B (N, K), C (M, N), for each of `batch` problems.

    `cluster` counts the blocks along M and N that load their common operands together: [1, 1], [2, 1], [1, 2], [2, 2],
    [4, 2] or [2, 4]; only on sm_90a.

    `majors` follows BLAS: first letter A, second B. T: K-major A, N: M-major A; for B, N: K-major... see `Majors`
    below:
    `TN` has both K-major, `NT` has A M-major and B N-major, `NN` A M-major and B K-major, `TT` A K-major and B N-major.
    """

    kernel: Literal["gemm"] = "gemm"
    problem: GemmProblem
    dtypes: GemmDtypes
    scales: GemmScales = GemmScales()
    majors: Literal["TN", "NT", "NN", "TT"] = "TN"
    c_major: Literal["M", "N"] = "N"
    tile: Tile = Tile()
    mma: GemmMma = GemmMma()
    smem: GemmSmem = GemmSmem()
    copy_: GemmCopy = Field(default=GemmCopy(), alias="copy")
    pipeline: Pipeline = Pipeline()
    epilogue: GemmEpilogue = GemmEpilogue()
    schedule: GemmSchedule = GemmSchedule()
    cluster: Cluster | None = None
    align: GemmAlign = GemmAlign()

    @model_validator(mode="after")
    def _second_output(self) -> GemmSpec:
        for field, value in (("dtypes.aux", self.dtypes.aux), ("align.aux", self.align.aux)):
            if value is not None and self.epilogue.aux is None:
                raise FieldFault(field, "describes epilogue.aux, which is missing", got=str(value))
        return self

    @property
    def stored(self) -> tuple[str, ...]:
        """The element types of the outputs: C's, and that of `epilogue.aux` if there is one."""
        return (self.dtypes.c,) if self.epilogue.aux is None else (self.dtypes.c, self.dtypes.aux or self._beside_c)

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """What is stored, as far as the spec has expressions of it: each for the significant bits of its output."""
        return tuple(
            expression.rounded(DTYPES[output].precision)
            for expression, output in zip(self.epilogue.expressions, self.stored)
        )

    @property
    def operands(self) -> str:
        """The element type of an expression's tensors."""
        return self.epilogue.operands or self._beside_c

    @property
    def _beside_c(self) -> str:
        """The element type of what stands beside C where the spec does not say."""
        return "f32" if self.dtypes.c in _FP8 else self.dtypes.c


_FP8 = ("e4m3", "e5m2")


def _check_fp8(first: str, out: str, multiply: str | None, accumulate: str, name: str) -> None:
    if multiply is not None:
        raise FieldFault("multiply", f"{first} is multiplied as it is", got=multiply, hint="leave it out")
    if accumulate != "f32":
        raise FieldFault("accumulate", f"{first} products are accumulated in f32 only", got=accumulate, expected="f32")
    if name != "c" and out in _FP8:
        raise FieldFault(name, f"output of {first} operands", got=out, expected="f32, f16 or bf16")


def check_dtypes(
    first: str, second: str, out: str, multiply: str | None, accumulate: str, names: tuple[str, str, str]
) -> None:
    """Refuses combinations for which no MMA atom exists.

    Raises:
        FieldFault: naming the field and the legal values.
    """
    if first in _FP8 and second in _FP8:
        _check_fp8(first, out, multiply, accumulate, names[2])
        return
    if first != second:
        raise FieldFault(names[1], f"must equal dtypes.{names[0]}", got=second, expected=first)
    legal = {"f32": ("f32", "tf32"), "f16": ("f16",), "bf16": ("bf16",)}[first]
    if multiply is not None and multiply not in legal:
        raise FieldFault("multiply", f"can't multiply {first} data this way", got=multiply, expected=" or ".join(legal))
    if accumulate == "f16" and first != "f16":
        raise FieldFault("accumulate", f"{first} products are accumulated in f32 only", got="f16", expected="f32")
    outputs = ("f32", first, *(_FP8 if names[2] == "c" else ()))
    if first != "f32" and out not in outputs:
        expected = f"{', '.join(outputs[:-1])} or {outputs[-1]}"
        raise FieldFault(names[2], f"output of {first} operands", got=out, expected=expected)
    if first == "f32" and out != "f32":
        raise FieldFault(names[2], "output of f32 operands", got=out, expected="f32")
