"""A kernel's parameters as the bytes that the GPU receives."""

from __future__ import annotations

import numbers
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegen.errors import ArgumentError
from cutegen.hardware import TENSOR_MAP_ALIGNMENT, TENSOR_MAP_BYTES
from cutegen.kernel.arguments import Bound
from cutegen.plan.signature import (
    Extent,
    KernelParam,
    Pointer,
    PointerArray,
    Scalar,
    ScalarArg,
    Signature,
    Stride,
    TensorMapArray,
    TensorMapParam,
)

_FLOAT = struct.Struct("<f")
_FORMATS = {"float": "<f", "int32_t": "<i", "int64_t": "<q", "uint32_t": "<I", "uint64_t": "<Q"}
_RANGES = {
    "int32_t": (-(2**31), 2**31 - 1),
    "int64_t": (-(2**63), 2**63 - 1),
    "uint32_t": (0, 2**32 - 1),
    "uint64_t": (0, 2**64 - 1),
}


def scalar_bytes(arg: ScalarArg, value: Any) -> bytes:
    """A scalar as its C type's bytes: integers exactly, floats rounded to nearest.

    Raises:
        ArgumentError: not a number, a fraction for an integer, or out of range.
    """
    if arg.below is not None and not 0 <= value < arg.below:
        raise ArgumentError(f"{arg.name}: expected a number from 0 to below {arg.below:g}, got {value!r:.40}")
    if arg.positive and not value > 0:
        raise ArgumentError(f"{arg.name}: expected a number greater than 0, got {value!r:.40}")
    if type(value) is float and arg.ctype == "float":
        try:
            return _FLOAT.pack(value)
        except OverflowError:
            pass
    kind = _RANGES.get(arg.ctype)
    if isinstance(value, np.generic) and not isinstance(value, np.bool_):
        value = value.item() if not isinstance(value, np.longdouble) else float(value)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        try:  # ml_dtypes' scalars are not registered as numbers
            if type(value).__module__.split(".")[0] != "ml_dtypes":
                raise TypeError
            value = float(value)
        except TypeError:
            raise ArgumentError(f"{arg.name}: expected a number for {arg.ctype}, got {value!r}") from None
    if kind is None:
        try:
            return struct.pack("<f", float(value))
        except OverflowError:
            raise ArgumentError(f"{arg.name}: {value!r:.40} is beyond the range of a float (3.4e38)") from None
    if not isinstance(value, numbers.Integral):
        raise ArgumentError(f"{arg.name}: expected an integer for {arg.ctype}, got {value!r}")
    whole = int(value)
    if not kind[0] <= whole <= kind[1]:
        raise ArgumentError(f"{arg.name}: {whole} is out of range for {arg.ctype} ({kind[0]} to {kind[1]})")
    return struct.pack(_FORMATS[arg.ctype], whole)


def scalar_values(signature: Signature, given: Mapping[str, Any], extents: Mapping[str, int]) -> dict[str, Any]:
    """Every scalar's value: given, or its default.

    Raises:
        ArgumentError: one that has no default was not given.
    """
    values = {}
    for arg in signature.scalars:
        if arg.name in given:
            values[arg.name] = given[arg.name]
        elif arg.default is None:
            raise ArgumentError(f"{arg.name} is missing: pass {arg.name}=")
        else:
            values[arg.name] = arg.default(extents) if callable(arg.default) else arg.default
    return values


# ---- the parameter buffer


@dataclass(frozen=True)
class Slot:
    """Where a parameter lies in the packed buffer, in bytes."""

    param: KernelParam
    offset: int
    size: int


def slots(signature: Signature) -> tuple[Slot, ...]:
    """The parameters at their natural alignment, as the CUDA ABI lays them out (PTX ISA, "Kernel Function
    Parameters")."""
    ctypes_of = {s.name: s.ctype for s in signature.scalars}
    found: list[Slot] = []
    offset = 0
    for param in signature.params:
        if isinstance(param, (Pointer, Stride, PointerArray, TensorMapArray)):
            size = align = 8
        elif isinstance(param, Extent):
            size = align = 4
        elif isinstance(param, Scalar):
            size = align = struct.calcsize(_FORMATS[ctypes_of[param.name]])
        else:
            size, align = TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT
        offset = -(-offset // align) * align
        found.append(Slot(param, offset, size))
        offset += size
    return tuple(found)


def pack(signature: Signature, bound: Bound, pointers: Mapping[str, int], values: Mapping[str, Any]) -> bytearray:
    """The packed parameters. TMA descriptors and the addresses of arrays stay zero: who launches makes them.

    Raises:
        ArgumentError: a scalar that does not fit its C type.
    """
    places = slots(signature)
    buffer = bytearray(places[-1].offset + places[-1].size if places else 0)
    scalars = {s.name: s for s in signature.scalars}
    for slot in places:
        param = slot.param
        if isinstance(param, Pointer):
            data = struct.pack("<Q", pointers[param.tensor])
        elif isinstance(param, Extent):
            data = struct.pack("<i", bound.extents[param.mode])
        elif isinstance(param, Stride):
            data = struct.pack("<q", bound.strides[param.tensor, param.mode])
        elif isinstance(param, (TensorMapParam, PointerArray, TensorMapArray)):
            continue
        else:
            data = scalar_bytes(scalars[param.name], values[param.name])
        buffer[slot.offset : slot.offset + slot.size] = data
    return buffer
