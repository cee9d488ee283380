"""CuTe's notation for layouts and swizzles: `(8,64):(64,1)`, `Sw<3,3,3>`; reading it, and writing it as C++."""

from __future__ import annotations

import re
from typing import Any

from pycute import Layout

from cutegen.errors import Fault, SpecError
from cutegen.layout.swizzle import Swizzle

# The `_N` aliases that CuTe defines (cute/numeric/integral_constant.hpp, CUTLASS 4.2).
_ALIASES = frozenset({*range(11), 12, *range(16, 257, 8), 384, 768, *(2**i for i in range(9, 20))})


def _tuple(text: str, position: int) -> tuple[Any, int]:
    if position < len(text) and text[position] == "(":
        items = []
        position += 1
        while True:
            item, position = _tuple(text, position)
            items.append(item)
            if position < len(text) and text[position] == ",":
                position += 1
                continue
            if position < len(text) and text[position] == ")":
                return tuple(items), position + 1
            raise ValueError("unbalanced parentheses")
    match = re.compile(r"_?(\d+)").match(text, position)
    if match is None:
        raise ValueError(f"{text[position:] or 'nothing'!r} where a static number should stand")
    return int(match[1]), match.end()


def _congruent(shape: Any, stride: Any) -> bool:
    if isinstance(shape, tuple):
        return isinstance(stride, tuple) and len(shape) == len(stride) and all(map(_congruent, shape, stride))
    return not isinstance(stride, tuple)


def _positive(shape: Any) -> bool:
    return all(map(_positive, shape)) if isinstance(shape, tuple) else shape > 0


def parse_layout(text: str, field: str = "layout") -> Layout:
    """The layout that `text` (`shape:stride`) denotes.

    Raises:
        SpecError: on `field`: no layout, or a stride that is missing or not static; shows the static form.
    """
    form = "shape:stride with static numbers, such as (8,64):(64,1)"
    compact = re.sub(r"\s", "", text)
    shape_text, colon, stride_text = compact.partition(":")
    if not colon or not stride_text:
        raise SpecError(Fault(field, "a layout needs a static stride", got=repr(text), expected=form))
    try:
        (shape, end), (stride, stop) = _tuple(shape_text, 0), _tuple(stride_text, 0)
        if end != len(shape_text) or stop != len(stride_text):
            raise ValueError("something is left over")
    except ValueError as error:
        raise SpecError(
            Fault(field, f"not a layout in CuTe notation: {error}", got=repr(text), expected=form)
        ) from None
    if not _congruent(shape, stride):
        raise SpecError(
            Fault(
                field,
                "shape and stride have different forms",
                got=repr(text),
                expected="a stride for each extent, nested alike",
            )
        )
    if not _positive(shape):
        raise SpecError(Fault(field, "an extent is 0", got=repr(text), expected="extents of at least 1"))
    return Layout(shape, stride)


def parse_swizzle(text: str, field: str = "swizzle") -> Swizzle | None:
    """The swizzle that `text` denotes: `Sw<bits,base,shift>`, or None for `none`.

    Raises:
        SpecError: on `field`: not a swizzle, or one that CuTe refuses (|shift| < bits).
    """
    if text == "none":
        return None
    match = re.fullmatch(r"(?:Sw|Swizzle)\s*<\s*(\d+)\s*,\s*(\d+)\s*,\s*(-?\d+)\s*>", text.strip())
    if match is None:
        raise SpecError(
            Fault(
                field,
                "not a swizzle",
                got=repr(text),
                expected="Sw<bits,base,shift> in elements, such as Sw<3,3,3>, or none",
            )
        )
    bits, base, shift = (int(part) for part in match.groups())
    if bits and abs(shift) < bits:
        raise SpecError(
            Fault(
                field,
                f"a swizzle of {bits} bits must shift by at least {bits}",
                got=text,
                expected=f"Sw<{bits},{base},{bits}>",
            )
        )
    return Swizzle(bits, base, shift) if bits else None


def format_layout(layout: Layout) -> str:
    """CuTe notation, without spaces."""
    return f"{layout.shape}:{layout.stride}".replace(" ", "").replace(",)", ")")


def cpp_integer(value: int) -> str:
    """A static integer: CuTe's `_N` where there is one, else `Int<N>`."""
    if not isinstance(value, int):
        raise TypeError(f"not an integer: {value!r}")
    return f"_{value}" if value in _ALIASES else f"Int<{value}>"


def _cpp(kind: str, item: Any) -> str:
    if isinstance(item, tuple):
        return f"{kind}<{','.join(_cpp(kind, part) for part in item)}>"
    return cpp_integer(item)


def cpp_layout(layout: Layout) -> str:
    """`Layout<Shape<...>, Stride<...>>`, all static."""
    return f"Layout<{_cpp('Shape', layout.shape)}, {_cpp('Stride', layout.stride)}>"


def cpp_shape(shape: Any) -> str:
    """`Shape<...>`, all static."""
    return _cpp("Shape", shape)


def cpp_swizzle(swizzle: Swizzle) -> str:
    return f"Swizzle<{swizzle.bits},{swizzle.base},{swizzle.shift}>"
