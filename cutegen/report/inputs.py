"""Seeded inputs for kernels, in numpy or torch: random normal or small integers, with strides, padding and packed
views.

What lies around and between the elements is NaN, so that a read of it shows.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from cutegen.dtypes import DType
from cutegen.errors import ToolchainError
from cutegen.plan.signature import Signature

Library = Literal["numpy", "torch"]


def random(
    shape: Sequence[int],
    dtype: DType,
    seed: int = 0,
    *,
    library: Library = "numpy",
    device: str = "cuda",
    inner: int = -1,
    pad: int = 0,
    offset: int = 0,
    integers: bool = False,
) -> Any:
    """An array of normal random elements (or integers from -2 to 2).

    Args:
        inner: the contiguous axis; the others keep their order.
        pad: elements between rows of the contiguous axis.
        offset: elements between an aligned address and the first.
        device: torch's device.

    Raises:
        ToolchainError: torch is asked for and missing.
    """
    inner %= len(shape)
    order = [*(axis for axis in range(len(shape)) if axis != inner), inner]
    pitch = [shape[axis] for axis in order]
    pitch[-1] += pad
    stored = {axis: math.prod(pitch[place + 1 :]) for place, axis in enumerate(order)}
    strides = [stored[axis] for axis in range(len(shape))]
    count = offset + math.prod(pitch)
    if library == "torch":
        return _torch(shape, strides, offset, count, dtype, seed, device, integers)
    room = np.full(count * dtype.bytes + 256, 0xFF, np.uint8)
    flat = room[-room.ctypes.data % 256 :][: count * dtype.bytes].view(dtype.numpy)
    flat[...] = np.nan
    if 0 in shape:
        return flat[:0].reshape(shape)
    words = flat[offset:].view(f"u{dtype.bytes}")  # as_strided doesn't know every fp8 type
    view = np.lib.stride_tricks.as_strided(words, shape, [s * dtype.bytes for s in strides]).view(dtype.numpy)
    rng = np.random.default_rng(seed)
    values = rng.integers(-2, 3, shape) if integers else rng.standard_normal(shape, np.float32)
    view[...] = values.astype(dtype.numpy)
    return view


def _torch(
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    count: int,
    dtype: DType,
    seed: int,
    device: str,
    integers: bool,
) -> Any:
    torch = _import_torch()
    kind = getattr(torch, dtype.torch)
    if dtype.bits == 8:  # 0x7F is a NaN in both formats; not every torch fills fp8
        flat = torch.full((max(count, 1),), 0x7F, dtype=torch.uint8, device=device).view(kind)
    else:
        flat = torch.full((max(count, 1),), float("nan"), dtype=kind, device=device)
    view = flat.as_strided(tuple(shape), tuple(strides), offset)
    generator = torch.Generator(device=device).manual_seed(seed)
    # Outer slices one by one: whole, the float32 values of a very large half-precision tensor take twice its memory.
    pieces = view.unbind(0) if view.numel() > 2**28 and view.ndim > 1 else [view]
    for piece in pieces:
        if integers:
            values = torch.randint(-2, 3, piece.shape, generator=generator, device=device).float()
        else:
            values = torch.randn(piece.shape, generator=generator, device=device, dtype=torch.float32)
        piece.copy_(values)
    return view


def _ends(total: int, groups: int, seed: int, library: Library, device: str) -> Any:
    """Where each of `groups` groups of rows ends, at random; some are empty."""
    ends = np.sort(np.random.default_rng(seed).integers(0, total + 1, groups)).astype(np.int32)
    ends[-1:] = total
    return _import_torch().from_numpy(ends).to(device) if library == "torch" else ends


def _import_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ToolchainError(f"inputs on a GPU need torch ({error}): pip install torch, or use numpy inputs") from None


def packed(
    parts: int,
    batch: int,
    seqlen: int,
    heads: int,
    head_dim: int,
    dtype: DType,
    seed: int = 0,
    *,
    library: Library = "numpy",
    device: str = "cuda",
) -> tuple[Any, ...]:
    """Views (batch, heads, seqlen, head_dim) of one packed (batch, seqlen, parts, heads, head_dim) array, as llm.c
    keeps QKV."""
    whole = random((batch, seqlen, parts, heads, head_dim), dtype, seed, library=library, device=device)
    views = [whole[:, :, part] for part in range(parts)]
    return tuple(v.permute(0, 2, 1, 3) if library == "torch" else v.transpose(0, 2, 1, 3) for v in views)


def ends(total: int, boundaries: int, seed: int = 0, *, library: Library = "numpy", device: str = "cuda") -> Any:
    """Where sequences of random lengths, that together fill `total`, begin and end: int32, ascending from 0."""
    inner = np.sort(np.random.default_rng(seed).integers(0, total + 1, max(boundaries - 2, 0)))
    values = np.concatenate([[0], inner, [total]]).astype(np.int32)[:boundaries]
    return _import_torch().from_numpy(values).to(device) if library == "torch" else values


def for_signature(
    signature: Signature,
    extents: Mapping[str, int],
    seed: int = 0,
    *,
    library: Library = "numpy",
    device: str = "cuda",
    pads: Mapping[str, int] | None = None,
    offsets: Mapping[str, int] | None = None,
    integers: bool = False,
    inouts: bool = False,
) -> dict[str, Any]:
    """Inputs by name for a kernel, each in its own major. Optional modes that `extents` lacks are left out of the
    shapes; the members of a list are allocations of their own.

    `pads` and `offsets` are by tensor, as in `random`; `inouts` makes tensors that are read and written too.
    """
    extents = {**dict(signature.static), **extents}
    found: dict[str, Any] = {}
    for index, arg in enumerate(signature.tensors):
        if arg.role == "output" or (arg.role == "inout" and not inouts):
            continue
        if arg.name.startswith("cu_seqlens_"):
            total = extents["total" + arg.name[-2:]]
            found[arg.name] = ends(total, extents["boundaries"], seed * 101 + index, library=library, device=device)
            continue
        modes = [m for m in arg.modes if m in extents or m not in arg.optional]
        if arg.name == "ends":
            found[arg.name] = _ends(extents["m"], extents["groups"], seed, library, device)
            continue
        make = partial(
            random,
            [extents[mode] for mode in modes],
            arg.dtype,
            library=library,
            device=device,
            inner=modes.index(arg.contiguous),
            pad=(pads or {}).get(arg.name, 0),
            offset=(offsets or {}).get(arg.name, 0),
            integers=integers,
        )
        if arg.listed is None:
            found[arg.name] = make(seed=seed * 101 + index)
        else:
            count = extents.get(arg.listed, 1)
            found[arg.name] = [make(seed=seed * 101 + index + 1009 * member) for member in range(count)]
    return found
