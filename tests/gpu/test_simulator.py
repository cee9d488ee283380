"""The simulator against a GPU: the same PTX, the same inputs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import cutegen as cg
from cutegen import api
from cutegen.cli.running import native, reads_c, trial_scalars
from cutegen.dtypes import DTYPES
from cutegen.kernel.driver import driver
from cutegen.kernel.lists import each
from cutegen.plan.reduced import reduced
from cutegen.report import inputs
from tests.specs import PATHS, spec_of

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]


@lru_cache
def build(name: str) -> Any:
    return cg.build(native(spec_of(name), driver().device(0).capability, quiet=True))


def both(name: str) -> tuple[dict[str, tuple[Array, Array]], dict[str, Any]]:
    """For each output (GPU's, simulator's), and the inputs."""
    kernel = build(name)
    scalars = trial_scalars(kernel.spec)
    extents = reduced(kernel.signature, api.problem(kernel.spec))
    arrays = inputs.for_signature(kernel.signature, extents, 7, inouts=reads_c(kernel.spec))
    results = []
    for options in ({}, {"device": "sim"}):
        given = [each(np.copy, arrays[t.name]) for t in kernel.signature.tensors if t.name in arrays]
        found = kernel(*given, **scalars, **options)
        results.append(found if isinstance(found, tuple) else (found,))
    outputs = [t.name for t in kernel.signature.tensors if t.role != "input"]
    return {n: (np.asarray(x), np.asarray(y)) for n, x, y in zip(outputs, *results)}, {
        n: np.asarray(given) for n, given in arrays.items()
    }


@pytest.mark.parametrize("name", [n for n in PATHS if "simt" in n])
def test_bits_are_equal_without_tensor_cores(name: str) -> None:
    for hardware, simulated in both(name)[0].values():
        assert np.array_equal(hardware.view(np.uint32), simulated.view(np.uint32))


@pytest.mark.parametrize("name", [n for n in PATHS if "simt" not in n])
def test_tensor_cores_differ_by_their_sums_only(name: str, record_property: Any) -> None:
    found, arrays = both(name)
    for output, (hardware, simulated) in found.items():
        x, y = hardware.astype(np.float64), simulated.astype(np.float64)
        finite = np.isfinite(y)
        assert np.array_equal(x[~finite], y[~finite], equal_nan=True)
        x, y = x[finite], y[finite]
        precision = _precision(hardware)
        # The hardware's sums are cut off where the largest product's last bits are, and may then round to the
        # neighbour in the output's type; in attention also P's type rounds, which a last bit of a score decides.
        names = "ab" if "a" in arrays else "qk"
        depth = arrays[names[0]].shape[-1]
        bits = 13 if _fp8(arrays) else 22
        sums = np.prod([float(np.abs(arrays[n].astype(np.float64)).max()) for n in names]) * depth
        allowed = depth / 8 * 2.0**-bits * sums + 2.0 ** (1 - precision) * np.abs(y)
        if "v" in arrays:
            allowed += 2.0 ** (1 - _precision(arrays["v"])) * float(np.abs(arrays["v"].astype(np.float64)).max())
        off = np.abs(x - y)
        record_property(f"{output}: equal", float((x == y).mean()))
        record_property(f"{output}: largest difference over largest value", float(off.max() / np.abs(y).max()))
        assert (off <= allowed).all(), f"{output}: off by {off.max():.3g}, allowed {allowed[off.argmax()]:.3g}"


def _precision(array: Any) -> int:
    return {d.numpy: d.precision for d in DTYPES.values() if d.name != "tf32"}[array.dtype]


def _fp8(arrays: dict[str, Any]) -> bool:
    return str(next(iter(arrays.values())).dtype).startswith("float8")
