"""A column-major C is the transpose of a row-major one: C^T = alpha B A^T + beta C^T. The spec is mirrored, planned as usual,
and the calling convention is mirrored back, so that callers see their own names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from cutegen.plan.signature import (
    Extent,
    KernelParam,
    Pointer,
    PointerArray,
    Signature,
    Stride,
    TensorArg,
    TensorMapArray,
    TensorMapParam,
)
from cutegen.spec.gemm import GemmSpec

_MAJORS: dict[str, Literal["TN", "NT", "NN", "TT"]] = {"TN": "TN", "NT": "NT", "NN": "TT", "TT": "NN"}
_NAMES = {"a": "b", "b": "a", "m": "n", "n": "m", "scale_a": "scale_b", "scale_b": "scale_a"}


def mirrored(spec: GemmSpec) -> GemmSpec:
    """The spec of the transposed product if C is M-major, else the spec itself."""
    if spec.c_major == "N":
        return spec
    p, d, align, scales = spec.problem, spec.dtypes, spec.align, spec.scales
    return spec.model_copy(
        update={
            "problem": p.model_copy(update={"m": p.n, "n": p.m}),
            "dtypes": d.model_copy(update={"a": d.b, "b": d.a}),
            "align": align.model_copy(update={"a": align.b, "b": align.a}),
            "scales": scales.model_copy(update={"a": scales.b, "b": scales.a}),
            "majors": _MAJORS[spec.majors],
            "c_major": "N",
        }
    )


def mirrored_back(signature: Signature) -> Signature:
    """The calling convention with the caller's names for operands and modes."""
    geometry = signature.geometry
    found = tuple(_argument(arg) for arg in signature.tensors)
    return replace(
        signature,
        tensors=tuple(sorted(found, key=lambda arg: ["a", "b", "scale_a", "scale_b", "c"].index(arg.name))),
        params=tuple(_param(param) for param in signature.params),
        geometry=replace(geometry, axes=tuple((_renamed(mode), size) for mode, size in geometry.axes)),
    )


def _renamed(name: str) -> str:
    return _NAMES.get(name, name)


def _argument(arg: TensorArg) -> TensorArg:
    # C keeps the order of its modes, for callers index it as ever.
    modes = arg.modes if arg.name == "c" else tuple(_renamed(mode) for mode in arg.modes)
    return replace(arg, name=_renamed(arg.name), modes=modes, contiguous=_renamed(arg.contiguous))


def _map(param: TensorMapParam) -> TensorMapParam:
    return replace(param, tensor=_renamed(param.tensor), modes=tuple(_renamed(mode) for mode in param.modes))


def _param(param: KernelParam) -> KernelParam:
    if isinstance(param, TensorMapParam):
        return _map(param)
    if isinstance(param, TensorMapArray):
        return TensorMapArray(_map(param.each))
    if isinstance(param, Pointer | PointerArray):
        return replace(param, tensor=_renamed(param.tensor))
    if isinstance(param, Stride):
        return Stride(_renamed(param.tensor), _renamed(param.mode))
    return Extent(_renamed(param.mode)) if isinstance(param, Extent) else param
