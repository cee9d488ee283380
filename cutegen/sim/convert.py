"""cvt: between integers and floating-point formats (PTX ISA, "Data Movement and Conversion Instructions: cvt")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cutegen.sim import floats
from cutegen.sim.machine import Machine, Step
from cutegen.sim.ptx import Instruction
from cutegen.sim.registers import NUMPY, Lanes


def convert(m: Machine, ins: Instruction) -> Step:
    """cvt between integers and floating-point formats, with rounding mode and saturation."""
    parts = ins.parts
    mode = next((p for p in parts[1:] if p in ("rn", "rz", "rm", "rp", "rna")), "rn")
    whole: str | None = next((p for p in parts[1:] if p in ("rni", "rzi", "rmi", "rpi")), None)
    satfinite, relu, sat = "satfinite" in parts, "relu" in parts, "sat" in parts
    to, origin = parts[-2], parts[-1]
    put = m.put(ins.operands[0])
    pair = to.endswith("x2")
    sources = [_real_source(m, operand, origin) for operand in ins.operands[1:]]

    def finish(values: Any) -> Any:
        values = np.where(values > 0, values, 0) if relu else values
        return np.clip(values, 0, 1) if sat and to.startswith("f") else values

    if origin.endswith("x2"):
        narrow = m.get(ins.operands[1], "b16" if origin.startswith("e") else "b32")

        def widen(at: Lanes) -> None:
            bits = np.ascontiguousarray(np.broadcast_to(narrow(at), (m.count(at),)))
            bits = bits.view(np.uint8 if origin.startswith("e") else np.uint16)
            values = finish(floats.decode(bits, origin[:-2]))
            put(
                at,
                floats.rounded(values, to[:-2], mode, satfinite).view(np.uint32 if to.endswith("16x2") else np.uint16),
            )

        return widen
    if pair:

        def packed(at: Lanes) -> None:
            high, low = (np.broadcast_to(s(at), (m.count(at),)) for s in sources)
            bits = floats.rounded(finish(np.stack([low, high], 1)), to[:-2], mode, satfinite)
            put(at, bits.reshape(-1).view(f"u{2 * bits.itemsize}"))

        return packed
    source = sources[0]
    if to in ("f16", "bf16", "tf32"):
        return lambda at: put(at, floats.rounded(finish(source(at)), to, mode, satfinite))
    if to in ("f32", "f64"):
        rounding = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}

        def real(at: Lanes) -> None:
            values = source(at)
            values = rounding[whole](values) if whole else values
            if to == "f32" and mode != "rn" and values.dtype != np.float32:
                put(at, floats.rounded(finish(values), "f32", mode).view(np.float32))
            else:
                put(at, np.asarray(finish(values), NUMPY[to]))

        return real
    return _to_integer(m, ins, to, origin, whole or "rzi", sat)


def _real_source(m: Machine, operand: str, origin: str) -> Callable[[Lanes], Any]:
    if origin in ("f16", "bf16"):
        bits = m.get(operand, "b16")
        return lambda at: floats.decode(np.ascontiguousarray(bits(at)), origin)
    if origin.endswith("x2"):
        return lambda at: None
    get = m.get(operand, origin)
    return lambda at: np.asarray(get(at))


def _to_integer(m: Machine, ins: Instruction, to: str, origin: str, mode: str, sat: bool) -> Step:
    dtype: Any = np.dtype(NUMPY[to])
    info = np.iinfo(dtype)
    put = m.put(ins.operands[0])
    source = _real_source(m, ins.operands[1], origin)
    extend = {1: {"u": np.uint16, "s": np.int16}}.get(dtype.itemsize, {}).get(to[0])
    rounding = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]

    def step(at: Lanes) -> None:
        values = source(at)
        if values.dtype.kind == "f":  # saturates by itself; NaN becomes 0
            values = np.nan_to_num(rounding(values.astype(np.float64)), nan=0.0, posinf=2.0**70, neginf=-(2.0**70))
            low, high = values < float(info.min), values >= float(info.max)
            result = np.where(low | high, 0, values).astype(np.int64 if dtype.kind == "i" else np.uint64).astype(dtype)
            result = np.where(low, dtype.type(info.min), np.where(high, dtype.type(info.max), result))
        elif sat:
            result = np.clip(values.astype(object), info.min, info.max).astype(dtype)
        else:
            result = values.astype(dtype)
        put(at, result.astype(extend) if extend else result)

    return step
