"""Operands that TMA can't load, copied to where it can: rows that begin at multiples of 16 bytes.

A copy reads and writes an operand once, a large product uses each element thousands of times: copying first and
multiplying at TMA's speed takes less time than threads that shift words in the middle of a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cutegen import binary
from cutegen.dtypes import DTYPES
from cutegen.hardware import ARCHS
from cutegen.kernel.tensors import Adapter, TensorView, TorchAdapter, stream_pointer
from cutegen.plan.signature import Extent, Geometry, Pointer, Signature, Stride, TensorArg, TensorMapParam
from cutegen.plan.unaligned import worth_copying

if TYPE_CHECKING:
    from cutegen.kernel.arguments import Bound
    from cutegen.kernel.launch import Kernel

_ALIGNMENT = 16  # bytes: of addresses and strides that a descriptor takes (cuTensorMapEncodeTiled)
_WORD, _WORDS, _ROWS = 4, 128, 8  # bytes of a word, words of a row that a warp moves, warps of a block

# Rows of any address and pitch to rows that begin at multiples of 4 bytes; a word holds PER elements.
_SOURCE = """using Unit = {unit};
constexpr int PER = {per}, WORDS = {words}, ROWS = {rows};

extern "C" __global__ __launch_bounds__(32 * ROWS)
void pack_rows(Unit const* from, Unit* to, long long from_batch, long long from_row, long long to_batch,
               long long to_row, int rows, int columns) {{
  long long const tiles_m = (rows + ROWS - 1) / ROWS, tiles_n = (columns + WORDS * PER - 1) / (WORDS * PER);
  long long const tile = blockIdx.x, batch = tile / tiles_n / tiles_m;
  long long const row = tile / tiles_n % tiles_m * ROWS + threadIdx.x / 32;
  if (row >= rows) {{ return; }}
  int const first = int(tile % tiles_n) * WORDS * PER + threadIdx.x % 32 * PER; // this lane's first element
  Unit const* source = from + batch * from_batch + row * from_row;
  Unit* target = to + batch * to_batch + row * to_row;
  unsigned words[WORDS / 32] = {{}};
  #pragma unroll
  for (int i = 0; i < WORDS / 32; ++i) {{
    #pragma unroll
    for (int v = 0; v < PER; ++v) {{
      int const c = first + 32 * PER * i + v;
      if (c < columns) {{ words[i] |= unsigned(source[c]) << 32 / PER * v; }}
    }}
  }}
  #pragma unroll
  for (int i = 0; i < WORDS / 32; ++i) {{
    int const c = first + 32 * PER * i;
    if (c + PER <= columns) {{
      *reinterpret_cast<unsigned*>(target + c) = words[i];
    }} else {{ // the last word of a row may be shorter
      for (int v = 0; c + v < columns; ++v) {{ target[c + v] = Unit(words[i] >> 32 / PER * v); }}
    }}
  }}
}}
"""


@lru_cache
def pack_rows(dtype: str, arch: str) -> Kernel:
    """A kernel that copies x ([batch,] rows, columns) to y of that shape, both with contiguous columns; y's rows begin
    at multiples of 4 bytes.
    """
    from cutegen.kernel.launch import Kernel

    kind = DTYPES[dtype]
    per = _WORD // kind.bytes
    unit = {1: "unsigned char", 2: "unsigned short", 4: "unsigned"}[kind.bytes]
    batch, modes = frozenset({"batch"}), ("batch", "rows", "columns")
    signature = Signature(
        symbol="pack_rows",
        tensors=(
            TensorArg("x", kind, modes, "columns", 1, optional=batch),
            TensorArg("y", kind, modes, "columns", per, "output", optional=batch, ragged=True),
        ),
        scalars=(),
        params=(
            Pointer("x"), Pointer("y"), Stride("x", "batch"), Stride("x", "rows"), Stride("y", "batch"),
            Stride("y", "rows"), Extent("rows"), Extent("columns"),
        ),
        geometry=Geometry((("batch", 1), ("rows", _ROWS), ("columns", _WORDS * per)), 32 * _ROWS, 0),
    )  # fmt: skip
    source = _SOURCE.format(unit=unit, per=per, words=_WORDS, rows=_ROWS)
    made = binary.compile(source, stem=f"pack_rows_{kind.bytes}", arch=arch, kernel="pack_rows")
    return Kernel(signature, made.cubin, ARCHS[arch], ptx=made.ptx)


def nested(view: TensorView, arg: TensorArg) -> list[int]:
    """The axes of an array, outermost first; the contiguous mode is innermost."""
    contiguous = arg.modes[-len(view.shape) :].index(arg.contiguous)
    others = [axis for axis in range(len(view.shape)) if axis != contiguous]
    return [*sorted(others, key=lambda axis: -view.strides[axis]), contiguous]


def padded(view: TensorView, arg: TensorArg) -> TensorView:
    """The same array where its rows begin at multiples of 16 bytes, its axes nested as they are."""
    per = _ALIGNMENT // arg.dtype.bytes
    *others, contiguous = nested(view, arg)
    strides, step = [1] * len(view.shape), -(-view.shape[contiguous] // per) * per
    for axis in reversed(others):
        strides[axis] = step
        step *= view.shape[axis]
    return replace(view, pointer=_ALIGNMENT, strides=tuple(strides), keep=None)


def copied(
    signature: Signature, bound: Bound, views: Mapping[str, TensorView], adapters: Mapping[str, Adapter]
) -> dict[str, TensorView]:
    """The operands that TMA can't load and that a copy is worth its time for, as they will lie; none where one of them
    must be loaded by threads all the same.
    """
    by_tma = {param.tensor for param in signature.params if isinstance(param, TensorMapParam)}
    short = [
        arg
        for arg, (_, vector) in zip(signature.tensors, bound.vectors)
        if arg.role == "input" and arg.name in by_tma and vector < arg.vector
    ]
    if not {"m", "n", "k"} <= bound.extents.keys() or not worth_copying(*(bound.extents[mode] for mode in "mnk")):
        return {}
    if any(not isinstance(adapters[arg.name], TorchAdapter) or 0 in views[arg.name].strides for arg in short):
        return {}
    return {arg.name: padded(views[arg.name], arg) for arg in short}


def copier(view: TensorView, to: TensorView, arg: TensorArg, arch: str, adapter: TorchAdapter) -> Callable[..., Any]:
    """What makes the copy of an array like `view`: `copy(array, into=None, stream=None)` gives it."""
    kernel = pack_rows(arg.dtype.name, arch)
    allocate = adapter.allocator(to.shape, to.strides, arg.dtype, view.device)
    order = nested(view, arg)

    def copy(array: Any, into: Any = None, stream: Any = None) -> Any:
        with nullcontext() if stream is None else adapter.using(stream_pointer(stream), view.device):
            made = allocate() if into is None else into
        kernel(array.permute(order), out=made.permute(order), stream=stream)
        return made

    return copy
