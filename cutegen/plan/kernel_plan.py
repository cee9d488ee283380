"""A whole kernel, resolved: what templates render, what launchers and reports need to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cutegen.dtypes import DType
from cutegen.hardware import Arch
from cutegen.plan.batches import STRIDED, Batches
from cutegen.plan.finish import Finish
from cutegen.plan.operand import Operand
from cutegen.plan.output import Output
from cutegen.plan.signature import (
    Extent,
    KernelParam,
    Pointer,
    PointerArray,
    Scalar,
    Signature,
    Stride,
    TensorMapArray,
    TensorMapParam,
)
from cutegen.plan.tile_gemm import Math, TileGemm
from cutegen.spec.common import KernelSpec


@dataclass(frozen=True)
class KernelPlan:
    """The plan of one spec: what every family has. `template` names the Jinja file; `summary` heads the emitted
    file.
    """

    spec: KernelSpec
    symbol: str
    template: str
    arch: Arch
    signature: Signature
    summary: tuple[str, ...]
    params_cpp: tuple[str, ...]

    @property
    def threads(self) -> int:
        return self.signature.geometry.threads

    @property
    def smem_bytes(self) -> int:
        return self.signature.geometry.smem_bytes

    @property
    def min_blocks(self) -> int:
        """Blocks of an SM that the kernel is compiled for: the second argument of `__launch_bounds__`."""
        return 1

    @property
    def states_blocks(self) -> bool:
        """Whether `__launch_bounds__` names them."""
        return self.min_blocks > 1

    @property
    def headers(self) -> tuple[str, ...]:
        """CuTe headers beyond `tensor_impl.hpp`, only what the kernel uses."""
        return ()


@dataclass(frozen=True)
class TilePlan(KernelPlan):
    """A kernel around the product of two tiles, on instructions that every arch has."""

    product: TileGemm
    k_extent: str
    finish: Finish | None = None
    batches: Batches = STRIDED
    causal: bool = False
    head_dim: int | None = None

    @property
    def a(self) -> Operand:
        return self.product.a

    @property
    def b(self) -> Operand:
        return self.product.b

    @property
    def c(self) -> Output:
        return self.product.c

    @property
    def aux(self) -> Output | None:
        return self.product.aux

    @property
    def staged(self) -> tuple[Output, ...]:
        return self.product.staged

    @property
    def asynchronous(self) -> bool:
        return self.product.asynchronous

    @property
    def transposed(self) -> tuple[Operand, ...]:
        return self.product.transposed

    @property
    def mma(self) -> Math:
        return self.product.math

    @property
    def min_blocks(self) -> int:
        return self.product.min_blocks

    @property
    def stages(self) -> int:
        return self.product.stages

    @property
    def group_m(self) -> int:
        return self.product.group_m

    @property
    def tile_m(self) -> int:
        return self.product.tile[0]

    @property
    def tile_n(self) -> int:
        return self.product.tile[1]

    @property
    def tile_k(self) -> int:
        return self.product.tile[2]

    @property
    def m_extent(self) -> str:
        return self.product.request.naming.extents[0]

    @property
    def n_extent(self) -> str:
        return self.product.request.naming.extents[1]

    @property
    def epilogue_section(self) -> int:
        return 5 if self.stages == 1 else 6

    @property
    def headers(self) -> tuple[str, ...]:
        """CuTe headers beyond `tensor_impl.hpp`, only what the kernel uses."""
        names = ["cute/swizzle.hpp", "cute/swizzle_layout.hpp"] if self.a.swizzle or self.b.swizzle else []
        if any("LDSM" in op.s2r.atom for op in (self.a, self.b)):
            names.append("cute/atom/copy_traits_sm75.hpp")
        names += ["cute/atom/copy_traits_sm80.hpp", self.mma.atom.header]
        return tuple(names)


def parameters(
    params: tuple[KernelParam, ...],
    names: Sequence[str],
    dtypes: Mapping[str, DType],
    outputs: frozenset[str],
    scalars: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """The C++ parameter list, in the order of `params`. `scalars` are the types of those that are no float."""
    declared = []
    for param, name in zip(params, names):
        if isinstance(param, Pointer):
            declared.append(f"{dtypes[param.tensor].cpp}{'' if param.tensor in outputs else ' const'}* {name}")
        elif isinstance(param, PointerArray):
            declared.append(f"{dtypes[param.tensor].cpp}{'' if param.tensor in outputs else ' const'}* const* {name}")
        elif isinstance(param, Extent):
            declared.append(f"int32_t {name}")
        elif isinstance(param, Stride):
            declared.append(f"int64_t {name}")
        elif isinstance(param, TensorMapParam):
            declared.append(f"__grid_constant__ TmaDescriptor const {name}")
        elif isinstance(param, TensorMapArray):
            declared.append(f"TmaDescriptor const* {name}")
        elif isinstance(param, Scalar):
            declared.append(f"{(scalars or {}).get(param.name, 'float')} {name}")
    return tuple(declared)
