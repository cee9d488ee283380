"""CuTe notation in and out."""

from __future__ import annotations

import pytest
from pycute import Layout

from cutegen.errors import SpecError
from cutegen.layout import cpp_integer, cpp_layout, cpp_swizzle, format_layout, parse_layout, parse_swizzle


@pytest.mark.parametrize("text", ["(8,64):(64,1)", "((2,4),8):((1,16),2)", "8:1", "(1,1):(0,0)"])
def test_layouts_round_trip(text: str) -> None:
    assert format_layout(parse_layout(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(8,64)", "needs a static stride"),
        ("(8,64):", "needs a static stride"),
        ("(8,64):(?,1)", "where a static number should stand"),
        ("(8,64):(lda,1)", "where a static number should stand"),
        ("(8,64):(64,1,1)", "different forms"),
        ("(8,64:(64,1)", "unbalanced"),
        ("(0,64):(64,1)", "an extent is 0"),
        ("(8,64):(64,1)x", "left over"),
    ],
)
def test_what_is_no_static_layout_is_refused_with_the_form(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        parse_layout(text, "smem.a.atom")
    assert error.value.faults[0].field == "smem.a.atom"
    assert error.value.faults[0].expected


def test_swizzles() -> None:
    assert str(parse_swizzle("Sw<3,3,3>")) == "Sw<3,3,3>"
    assert parse_swizzle("none") is None and parse_swizzle("Sw<0,4,0>") is None
    for text in ("off", "Sw<3,3>", "Sw<3,3,1>", "3,3,3"):
        with pytest.raises(SpecError):
            parse_swizzle(text)


def test_cpp_uses_aliases_that_cute_defines() -> None:
    assert [cpp_integer(n) for n in (0, 3, 11, 12, 13, 64, 72, 132, 8192, 2**19, 2**20)] == [
        "_0", "_3", "Int<11>", "_12", "Int<13>", "_64", "_72", "Int<132>", "_8192", "_524288", "Int<1048576>",
    ]  # fmt: skip
    assert (
        cpp_layout(Layout(((8, 2), 64), ((64, 512), 1)))
        == "Layout<Shape<Shape<_8,_2>,_64>, Stride<Stride<_64,_512>,_1>>"
    )
    swizzle = parse_swizzle("Sw<2,3,3>")
    assert swizzle is not None and cpp_swizzle(swizzle) == "Swizzle<2,3,3>"
    with pytest.raises(TypeError):
        cpp_integer((2, 4))  # type: ignore[arg-type]
