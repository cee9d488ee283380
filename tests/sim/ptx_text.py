"""Small kernels written in PTX, for tests of single instructions and checkers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen import sim

_WIDE = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}


def module(body: str, parameters: int = 2, registers: str = "", target: str = "sm_90a", static: str = "") -> str:
    """A module with one entry, `k`, whose parameters are pointers in %rd1, %rd2, ... and thread number in %r1."""
    params = ",\n".join(f"    .param .u64 k_param_{i}" for i in range(parameters))
    loads = "\n".join(f"    ld.param.u64 %rd{i + 1}, [k_param_{i}];" for i in range(parameters))
    return f"""
.version 9.0
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
{static}
.visible .entry k(
{params}
)
{{
    .reg .pred %p<32>;
    .reg .b16 %rs<64>;
    .reg .b32 %r<256>;
    .reg .f32 %f<256>;
    .reg .b64 %rd<64>;
    .reg .f64 %fd<16>;
    {registers}
{loads}
    mov.u32 %r1, %tid.x;
{body}
    ret;
}}
"""


def run(
    ptx: str, args: Sequence[Any], *, threads: int = 32, blocks: int = 1, shared: int = 0, **options: Any
) -> sim.Result:
    """Runs `k`."""
    return sim.launch(ptx, "k", grid=(blocks, 1, 1), block=(threads, 1, 1), args=args, shared_bytes=shared, **options)


def each_lane(code: str, inputs: Sequence[NDArray[Any]], output: Any, result: str = "b32") -> NDArray[Any]:
    """Runs `code` on each lane with its inputs in %a0, %a1, ...; what it leaves in %d, declared as `result`."""
    lanes = len(inputs[0])
    assert lanes % 32 == 0
    out = np.zeros(lanes, output)
    body, registers = "", f".reg .{result} %d;"
    for i, array in enumerate(inputs):
        size = array.dtype.itemsize
        registers += f" .reg .{_WIDE[size]} %a{i};"
        body += f"    mul.wide.u32 %rd40, %r1, {size};\n    add.s64 %rd41, %rd{i + 1}, %rd40;\n"
        body += f"    ld.global.{_WIDE[size]} %a{i}, [%rd41];\n"
    body += code
    size = out.itemsize
    body += f"\n    mul.wide.u32 %rd40, %r1, {size};\n    add.s64 %rd41, %rd{len(inputs) + 1}, %rd40;\n"
    body += f"    st.global.{_WIDE[size]} [%rd41], %d;"
    done = run(module(body, len(inputs) + 1, registers), [*inputs, out], threads=lanes)
    done.raise_findings()
    return out
