"""Layouts from numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pycute import Layout

from cutegen.plan.fit import fit, fit_threads


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 64)), min_size=1, max_size=4))
def test_a_fitted_layout_gives_the_numbers_it_was_fitted_to(modes: list[tuple[int, int]]) -> None:
    layout = Layout(tuple(m[0] for m in modes), tuple(m[1] for m in modes))
    values = np.array([layout(i) for i in range(layout.size())])
    found = fit_threads(values)
    if found is not None:
        assert [found(i) for i in range(found.size())] == values.tolist()


def test_what_is_no_layout_is_not_fitted() -> None:
    assert fit_threads(np.array([0, 1, 2, 4])) is None
    assert fit_threads(np.array([1, 2])) is None
    assert fit(np.array([[0, 1], [2, 4]])) is None


def test_modes_are_fitted_axis_by_axis() -> None:
    values = np.arange(8)[:, None] % 2 + 64 * (np.arange(8)[:, None] // 2) + 8 * np.arange(4)
    assert str(fit(values)) == "((2, 4), 4):((1, 64), 8)"
