"""TMA descriptors: what `cuTensorMapEncodeTiled` is told of a tensor.

Rules: CUDA driver API, "Tensor Map Object Management": address and strides multiples of 16 bytes, strides below 2^40,
extents in [1, 2^32], boxes up to 256 elements a mode, the innermost box a multiple of 16 bytes and at most the swizzle
span.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cutegen.errors import ArgumentError
from cutegen.plan.signature import TensorArg, TensorMapParam

_DATA_TYPES = {
    "f32": "FLOAT32",
    "tf32": "TFLOAT32",
    "f16": "FLOAT16",
    "bf16": "BFLOAT16",
    "e4m3": "UINT8",
    "e5m2": "UINT8",
}


@dataclass(frozen=True)
class TensorMapSpec:
    """Arguments of `cuTensorMapEncodeTiled`, innermost mode first; `strides` in bytes, for all modes but the first."""

    tensor: str
    data_type: str
    pointer: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


def tensor_map(
    param: TensorMapParam, arg: TensorArg, pointer: int, extents: Mapping[str, int], strides: Mapping[str, int]
) -> TensorMapSpec | None:
    """Describes `arg` to the TMA unit; None for a tensor without elements, which no descriptor can describe.

    `strides` are in elements, by mode; 0 where the mode is missing or is a broadcast.

    Raises:
        ArgumentError: an address or stride that TMA can't take.
    """
    dims = tuple(extents[mode] for mode in param.modes)
    if 0 in dims:
        return None
    size = arg.dtype.bytes
    if pointer % 16:
        raise ArgumentError(f"{arg.name}: TMA needs a 16-byte aligned address, got {pointer:#x}: pass a copy")
    found: list[int] = []
    below = -(-dims[0] * size // 16) * 16
    for mode, extent in zip(param.modes[1:], dims[1:]):
        # The stride of a mode of extent 1 is never used, but the driver checks it.
        stride = strides[mode] * size if extent > 1 else below
        if stride % 16 or stride >= 2**40:
            raise ArgumentError(
                f"{arg.name}: TMA needs strides that are multiples of 16 bytes below 2^40, "
                f"got {stride} bytes for {mode}"
            )
        found.append(stride)
        below = max(below, stride * extent if stride * extent < 2**40 else stride)
    box = (param.box[0], min(param.box[1], dims[1]), *param.box[2:]) if param.clipped else param.box
    return TensorMapSpec(arg.name, _DATA_TYPES[arg.dtype.name], pointer, dims, tuple(found), box, param.swizzle)
