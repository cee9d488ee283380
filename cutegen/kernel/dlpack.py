"""Reading DLPack capsules: `dlpack.h`, version 0.x layout (`DLManagedTensor`), which every exporter still offers."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from cutegen.errors import ArgumentError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13

# DLDataTypeCode of dlpack.h with the width in bits.
_DTYPES = {
    (0, 32): "i32",
    (2, 16): "f16",
    (2, 32): "f32",
    (2, 64): "float64",
    (4, 16): "bf16",
    (10, 8): "e4m3",
    (12, 8): "e5m2",
}


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class DLPackView:
    """What a capsule says. `strides` count elements, None for row-major; the data live as long as `capsule`."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device_type: int
    device: int
    capsule: Any


def read(array: Any, name: str) -> DLPackView:
    """Reads an exporter's capsule without consuming it.

    Raises:
        ArgumentError: the exporter refuses, or the capsule is of a kind that is not understood.
    """
    try:
        device_type, _ = array.__dlpack_device__()
        # Stream 1 is the legacy default stream: the exporter orders its pending work before it.
        capsule = array.__dlpack__() if int(device_type) == CPU else array.__dlpack__(stream=1)
    except Exception as error:
        raise ArgumentError(f"{name}: its library can't export it by DLPack: {error}") from error
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        address = get(capsule, b"dltensor")
    except ValueError as error:
        raise ArgumentError(f"{name}: not a DLPack capsule that can be read ({error})") from None
    tensor = _DLTensor.from_address(address)
    axes = range(tensor.ndim)
    kind = _DTYPES.get((tensor.code, tensor.bits), f"DLPack type ({tensor.code}, {tensor.bits} bits)")
    if tensor.lanes != 1:
        kind += f" with {tensor.lanes} lanes"
    return DLPackView(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[axis] for axis in axes),
        strides=tuple(tensor.strides[axis] for axis in axes) if tensor.strides else None,
        dtype=kind,
        device_type=tensor.device_type,
        device=tensor.device_id,
        capsule=capsule,
    )
