"""The reference of an epilogue expression: over rows of a product, and the tensors and scalars of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutegen.expression import Bounded, Expression, exact
from cutegen.report.arrays import backend

# From the product's rows of a batch, with a bound on their error, to what is stored.
Finish = Callable[[int, NDArray[np.int64], Bounded], Bounded]


def finish_of(
    expression: Expression,
    arrays: Mapping[str, Any],
    scalars: Mapping[str, float],
    ends: NDArray[np.int64] | None = None,
) -> Finish:
    """An expression over a call's tensors and scalars. `ends` says where groups of the product's rows end: a tensor of
    columns may then have a row for each group.
    """
    values = {"alpha": 1.0, "beta": 0.0, **scalars}

    def finish(batch: int, index: NDArray[np.int64], acc: Bounded) -> Bounded:
        names = {"acc": acc}
        for scalar in expression.scalars:
            names[scalar] = exact(float(np.float32(values[scalar])))
        tensors = (*expression.tensors, *((("c", ("m", "n")),) if "c" in expression.bare else ()))
        for name, modes in tensors:
            array = arrays[name]
            if ends is not None and modes == ("n",) and array.ndim == 2:
                groups = np.minimum(np.searchsorted(ends, index, side="right"), len(ends) - 1)
                names[name] = exact(backend(array).float64(array)[groups])
                continue
            part = array[batch] if array.ndim > len(modes) else array
            if "m" in modes:
                part = backend(part).take_rows(part, index)
            found = backend(part).float64(part)
            names[name] = exact(found[:, None] if modes == ("m",) else found)
        return expression.bounded(names)

    return finish
