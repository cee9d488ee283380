"""The parts that specs of several kernel families share: what a person may decide about tiles, layouts and atoms.

Every field is optional unless said otherwise: what is left out is chosen by the plan for the arch and the dtypes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from cutegen import hardware
from cutegen.errors import SpecError
from cutegen.spec.base import FieldFault, SpecModel, as_spec_error

Positive = Annotated[int, Field(ge=1)]
Extent = Annotated[int, Field(ge=0, lt=2**31)]
Counts = Annotated[
    tuple[Positive, Positive, Positive], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)
]

StorageName = Literal["f32", "f16", "bf16"]
AccumulateName = Literal["f32", "f16"]
MultiplyName = Literal["f32", "tf32", "f16", "bf16"]


class Tile(SpecModel):
    """The tile of the output that one block computes, (m, n), and the depth k of one pipeline stage, in elements."""

    m: Positive | None = None
    n: Positive | None = None
    k: Positive | None = None


class Mma(SpecModel):
    """The MMA atom and how many of it lie side by side.

    `atom` is CuTe's name (`SM80_16x8x16_F32F16F16F32_TN`, `UniversalFMA`). For a warp-wide atom `warps` says how
    many warps stand along M, N and K; for the scalar `UniversalFMA`, `threads` says how many threads do.
    """

    atom: str | None = None
    warps: Counts | None = None
    threads: Counts | None = None


class Smem(SpecModel):
    """A shared-memory layout: `atom` in CuTe notation over (mn, k), repeated to cover the tile, under a `swizzle`.

    `swizzle` is `Sw<bits,base,shift>` in elements, or `none`.
    """

    atom: str | None = None
    swizzle: str | None = None


class Copy(SpecModel):
    """A global to shared copy: atom, and the (mn, k) layouts of threads and of the values of one vector."""

    atom: str | None = None
    threads: str | None = None
    values: str | None = None


class Pipeline(SpecModel):
    """How many tiles of A and B are in shared memory at once."""

    stages: Annotated[int, Field(ge=1, le=16)] | None = None


class Epilogue(SpecModel):
    """How results leave the registers.

    `staged: true` collects the output in shared memory, so that whole rows leave in 16-byte stores; `false` stores
    straight from the registers. Hopper's own path is always staged; there `store` says who writes the rows out: the
    threads (`vector`) or the copy engine (`tma`).
    """

    staged: bool | None = None
    store: Literal["vector", "tma"] | None = None


class Schedule(SpecModel):
    """The order in which blocks take tiles.

    `group_m` rows of tiles share their columns, to meet in L2. On Hopper's own path a block takes `run_n` tiles
    along N in a row, while it keeps the rows of the first operand.
    """

    group_m: Positive | None = None
    run_n: Positive | None = None


class KernelSpec(SpecModel):
    """What every family has in common. `name` becomes part of the kernel's symbol; `description` goes into its
    header.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")] | None = None
    description: str | None = None
    arch: str = "sm_80"

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise as_spec_error(error, type(self)) from None

    @field_validator("arch", mode="before")
    @classmethod
    def _known_arch(cls, value: object) -> object:
        if not isinstance(value, str):
            known = [a for a in hardware.ARCHS if a[3:].rstrip("a") == str(value).replace(".", "")]
            raise FieldFault(
                "", "wrong type", got=repr(value), expected="a text", hint=f"write {' or '.join(known) or 'sm_90a'}"
            )
        try:
            return hardware.arch(value).name
        except SpecError as error:
            fault = error.faults[0]
            raise FieldFault("", fault.message, got=fault.got, expected=fault.expected, hint=fault.hint) from None
