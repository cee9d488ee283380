"""Integer, floating-point, comparison, logic, move and conversion instructions (PTX ISA, "Instruction Set")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cutegen.errors import SimulationError
from cutegen.sim import floats
from cutegen.sim.machine import Machine, Step
from cutegen.sim.ptx import WIDTHS, Instruction, names_of
from cutegen.sim.registers import NUMPY, Lanes

Decoder = Callable[[Machine, Instruction], Step]
Function = Callable[..., Any]
_COMPARE: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_SMALL_FLOATS = ("f16", "bf16", "f16x2", "bf16x2")


def _kinds(ins: Instruction) -> str:
    return ins.parts[-1]


def _refuse(ins: Instruction, *modifiers: str) -> None:
    for modifier in modifiers:
        if modifier in ins.parts:
            raise SimulationError(f"PTX line {ins.line}: .{modifier} of {ins.opcode} is not modelled")


def _elementwise(integer: Function | None, real: Function | None) -> Decoder:
    """Operands of one type in, the same type out; `real` works on float32, or on float64 for f64 and narrow types."""

    def decode(m: Machine, ins: Instruction) -> Step:
        kind = _kinds(ins)
        _refuse(ins, "cc")
        put = m.put(ins.operands[0])
        if kind in _SMALL_FLOATS:
            if real is None:
                raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")
            return _small(m, ins, real)
        gets = [m.get(operand, kind) for operand in ins.operands[1:]]
        function = real if kind in ("f32", "f64") else integer
        if function is None:
            raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")
        wrap = _float_modifiers(ins)
        dtype = np.dtype(NUMPY[kind])

        def step(at: Lanes) -> None:
            result = function(*(get(at) for get in gets))
            put(at, np.asarray(result, dtype) if result.dtype != dtype else result)

        def modified(at: Lanes) -> None:
            put(at, np.asarray(wrap(function, [get(at) for get in gets]), dtype))  # type: ignore[misc]

        return modified if wrap else step

    return decode


def _extreme(keeping: Function, ignoring: Function) -> Decoder:
    """Minimum or maximum: .NaN keeps a NaN, which else gives way to a number (PTX ISA, "max")."""
    plain, nan = _elementwise(keeping, ignoring), _elementwise(keeping, keeping)
    return lambda m, ins: (nan if "NaN" in ins.parts else plain)(m, ins)


def _float_modifiers(ins: Instruction) -> Callable[[Function, list[Any]], Any] | None:
    """.ftz and .sat; directed rounding is modelled for fma only."""
    if ins.parts[-1] in ("f32", "f64"):
        _refuse(ins, *(("rz", "rm", "rp") if ins.parts[0] in ("add", "sub", "mul", "div", "rcp", "sqrt") else ()))
    ftz, sat = "ftz" in ins.parts and ins.parts[-1] == "f32", "sat" in ins.parts and ins.parts[-1] in ("f32", "f64")
    if not (ftz or sat):
        _refuse(ins, "sat")
        return None

    def apply(function: Function, values: list[Any]) -> Any:
        if ftz:
            values = [floats.flush(v) for v in values]
        result = function(*values)
        result = floats.flush(result) if ftz else result
        return np.where(np.isnan(result), 0, np.clip(result, 0, 1)) if sat else result

    return apply


def _small(m: Machine, ins: Instruction, real: Function) -> Step:
    """f16 and bf16, one or two in a register: computed in float64, rounded once."""
    kind = _kinds(ins)
    base, pair = kind.removesuffix("x2"), kind.endswith("x2")
    storage = "b32" if pair else "b16"
    gets = [m.get(operand, storage) for operand in ins.operands[1:]]
    put = m.put(ins.operands[0])

    def step(at: Lanes) -> None:
        count = m.count(at)
        values = []
        for get in gets:
            bits = np.ascontiguousarray(np.broadcast_to(get(at), (count,))).view(np.uint16)
            values.append(floats.decode(bits, base).astype(np.float64))
        result = floats.rounded(real(*values), base)
        put(at, result.view(np.uint32) if pair else result)

    return step


def _bits(function: Function) -> Decoder:
    """and, or, xor, not, neg of predicates and bits."""

    def decode(m: Machine, ins: Instruction) -> Step:
        gets = [m.get(operand, _kinds(ins)) for operand in ins.operands[1:]]
        put = m.put(ins.operands[0])
        return lambda at: put(at, np.asarray(function(*(get(at) for get in gets))))

    return decode


def _shift(m: Machine, ins: Instruction) -> Step:
    """shl and shr: amounts beyond the width count as the width."""
    kind = _kinds(ins)
    value, amount, put = m.get(ins.operands[1], kind), m.get(ins.operands[2], "u32"), m.put(ins.operands[0])
    bits = 8 * np.dtype(NUMPY[kind]).itemsize
    left = ins.parts[0] == "shl"
    signed = kind.startswith("s") and not left

    def step(at: Lanes) -> None:
        a, n = np.asarray(value(at)), np.asarray(amount(at))
        most = np.minimum(n, bits - 1).astype(a.dtype)
        moved = np.left_shift(a, most) if left else np.right_shift(a, most)
        put(at, moved if signed else np.where(n >= bits, a.dtype.type(0), moved))

    return step


def _multiply(m: Machine, ins: Instruction) -> Step:
    """mul and mad of integers: the low half, the high half, or all of it."""
    kind = _kinds(ins)
    if kind in ("f32", "f64", *_SMALL_FLOATS):
        real: Function = (lambda a, b: a * b) if ins.parts[0] == "mul" else _fma_real
        return _fma(m, ins) if ins.parts[0] == "mad" else _elementwise(None, real)(m, ins)
    mode = next(p for p in ins.parts if p in ("lo", "hi", "wide"))
    _refuse(ins, "sat", "cc")
    left, right = m.get(ins.operands[1], kind), m.get(ins.operands[2], kind)
    bits = 8 * WIDTHS[kind]
    result_kind = f"{kind[0]}{2 * bits}" if mode == "wide" else kind
    addend = m.get(ins.operands[3], result_kind) if len(ins.operands) > 3 else None
    put = m.put(ins.operands[0])
    if mode == "hi" and bits == 64:
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")
    wide: Any = np.dtype(NUMPY[f"{kind[0]}{2 * bits}"]) if bits < 64 else np.dtype(NUMPY[kind])

    def step(at: Lanes) -> None:
        a, b = np.asarray(left(at)), np.asarray(right(at))
        if mode == "lo":
            product = a * b
        else:
            product = a.astype(wide) * b.astype(wide)
            product = product if mode == "wide" else (product >> bits).astype(a.dtype)
        put(at, product if addend is None else product + addend(at))

    return step


def _fma_real(a: Any, b: Any, c: Any) -> Any:
    product = a * b
    return floats.to_odd(product + c, product, c)


def _fma(m: Machine, ins: Instruction) -> Step:
    """One rounding: a product of two float32 is exact in float64."""
    kind = _kinds(ins)
    if kind in _SMALL_FLOATS:
        return _small(m, ins, _fma_real)
    if kind != "f32":
        raise SimulationError(f"PTX line {ins.line}: {ins.opcode} is not modelled")
    left, right, addend = (m.get(operand, "f32") for operand in ins.operands[1:])
    put = m.put(ins.operands[0])
    wrap = _float_modifiers(ins)

    mode = next((part for part in ("rz", "rm", "rp") if part in ins.parts), None)

    def single(a: Any, b: Any, c: Any) -> Any:
        if mode is not None:
            product, addend = np.asarray(a.astype(np.float64) * b), np.asarray(c.astype(np.float64))
            return floats.directed(np.asarray(product + addend), product, addend, mode)
        return floats.fused(a.astype(np.float64) * b, c.astype(np.float64))

    if wrap:
        return lambda at: put(at, np.asarray(wrap(single, [left(at), right(at), addend(at)]), np.float32))
    return lambda at: put(at, single(left(at), right(at), addend(at)))


def _divide(m: Machine, ins: Instruction) -> Step:
    """Integers divide towards zero; the remainder has the dividend's sign."""
    kind = _kinds(ins)
    if kind in ("f32", "f64"):
        return _elementwise(None, lambda a, b: a / b)(m, ins)
    left, right, put = m.get(ins.operands[1], kind), m.get(ins.operands[2], kind), m.put(ins.operands[0])
    remainder = ins.parts[0] == "rem"

    def step(at: Lanes) -> None:
        a, b = np.broadcast_arrays(np.asarray(left(at)), np.asarray(right(at)))
        if (b == 0).any():
            m.find("division-by-zero", "an integer is divided by 0", at, np.broadcast_to(b == 0, (m.count(at),)))
            b = np.where(b == 0, 1, b).astype(a.dtype)
        rest = np.fmod(a, b)
        put(at, rest if remainder else (a - rest) // b)

    return step


def _compare(m: Machine, ins: Instruction) -> Step:
    """setp: ordered comparisons are false with a NaN, those that end in u true; and, or, xor with a predicate."""
    kind, name = _kinds(ins), ins.parts[1]
    real = kind.startswith(("f", "bf"))
    unordered = real and name.endswith("u") and name[:-1] in _COMPARE
    targets = [o for o in ins.operands if not o.startswith("!")]
    two = len(ins.operands) - (3 if not any(p in ins.parts for p in ("and", "or", "xor")) else 4) == 1
    puts = [m.put(t) for t in targets[: 2 if two else 1]]
    rest = ins.operands[2 if two else 1 :]
    if kind in ("f16", "bf16"):
        small = [m.get(o, "b16") for o in rest[:2]]
        gets: list[Any] = [lambda at, g=g: floats.decode(np.ascontiguousarray(g(at)), kind) for g in small]
    else:
        gets = [m.get(o, kind) for o in rest[:2]]
    combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}.get(ins.parts[2])
    other = predicate(m, rest[2]) if combine is not None else None

    def step(at: Lanes) -> None:
        a, b = gets[0](at), gets[1](at)
        if name in ("num", "nan"):
            nan = np.isnan(a) | np.isnan(b)
            result = nan if name == "nan" else ~nan
        else:
            result = _COMPARE[name[:-1] if unordered else name](a, b)
            if real and (unordered or name == "ne"):
                nan = np.isnan(a) | np.isnan(b)
                result = result | nan if unordered else result & ~nan
        for put, value in zip(puts, (result, ~np.asarray(result))):
            put(at, np.asarray(combine(value, other(at)) if combine is not None and other is not None else value))

    return step


def predicate(m: Machine, operand: str) -> Callable[[Lanes], Any]:
    """A predicate operand, `!p` included."""
    get = m.get(operand.lstrip("!"), "pred")
    return (lambda at: ~get(at)) if operand.startswith("!") else get


def _select(m: Machine, ins: Instruction) -> Step:
    kind = _kinds(ins)
    left, right = m.get(ins.operands[1], kind), m.get(ins.operands[2], kind)
    chosen, put = predicate(m, ins.operands[3]), m.put(ins.operands[0])
    return lambda at: put(at, np.where(chosen(at), left(at), right(at)))


def _move(m: Machine, ins: Instruction) -> Step:
    """mov, with vectors packed into or unpacked from one register (the first element is the lowest)."""
    kind = _kinds(ins)
    target, origin = ins.operands
    size = WIDTHS.get(kind, 1)
    if target.startswith("{"):
        names = names_of(target)
        get, puts = m.get(origin, kind), [m.put(n) for n in names]
        piece = f"u{size // len(names)}"

        def unpack(at: Lanes) -> None:
            whole = np.ascontiguousarray(np.broadcast_to(get(at), (m.count(at),)))
            pieces = whole.view(piece).reshape(len(whole), len(names))
            for i, put in enumerate(puts):
                put(at, pieces[:, i])

        return unpack
    put = m.put(target)
    if origin.startswith("{"):
        names = names_of(origin)
        narrow = f"b{8 * size // len(names)}"
        gets = [m.get(n, narrow) for n in names]
        dtype = np.dtype(NUMPY[kind])

        def pack(at: Lanes) -> None:
            whole: Any = np.empty((m.count(at), len(names)), NUMPY[narrow])
            for i, get in enumerate(gets):
                whole[:, i] = get(at)
            put(at, whole.view(dtype).reshape(-1))

        return pack
    get = m.get(origin, kind)
    return lambda at: put(at, np.asarray(get(at)))


def _unary64(function: Function) -> Function:
    """An approximate function of the hardware, within its stated error: computed in float64, rounded once."""
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


def _copysign(sign: Any, magnitude: Any) -> Any:
    return np.copysign(magnitude, sign)


ARITHMETIC: dict[str, Decoder] = {
    "add": _elementwise(np.add, np.add),
    "sub": _elementwise(np.subtract, np.subtract),
    "min": _extreme(np.minimum, np.fmin),
    "max": _extreme(np.maximum, np.fmax),
    "neg": _elementwise(np.negative, np.negative),
    "abs": _elementwise(np.abs, np.abs),
    "sqrt": _elementwise(None, _unary64(np.sqrt)),
    "rsqrt": _elementwise(None, _unary64(lambda x: 1 / np.sqrt(x))),
    "rcp": _elementwise(None, _unary64(lambda x: 1 / x)),
    "ex2": _elementwise(None, _unary64(np.exp2)),
    "lg2": _elementwise(None, _unary64(np.log2)),
    "sin": _elementwise(None, _unary64(np.sin)),
    "cos": _elementwise(None, _unary64(np.cos)),
    "tanh": _elementwise(None, _unary64(np.tanh)),
    "copysign": _elementwise(None, _copysign),
    "and": _bits(np.bitwise_and), "or": _bits(np.bitwise_or), "xor": _bits(np.bitwise_xor), "not": _bits(np.invert),
    "cvta": _bits(lambda x: x),
    "shl": _shift, "shr": _shift, "mul": _multiply, "mad": _multiply, "fma": _fma, "div": _divide, "rem": _divide,
    "setp": _compare, "selp": _select, "mov": _move,
}  # fmt: skip
