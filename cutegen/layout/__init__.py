"""CuTe's layouts in Python: notation, swizzles, bank conflicts. The algebra is `pycute`'s."""

from __future__ import annotations

from pycute import Layout

from cutegen.layout.notation import (
    cpp_integer,
    cpp_layout,
    cpp_shape,
    cpp_swizzle,
    format_layout,
    parse_layout,
    parse_swizzle,
)
from cutegen.layout.swizzle import Swizzle

__all__ = [
    "Layout",
    "Swizzle",
    "cpp_integer",
    "cpp_layout",
    "cpp_shape",
    "cpp_swizzle",
    "format_layout",
    "parse_layout",
    "parse_swizzle",
]
