"""The simulator against a GPU: the same PTX, the same inputs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import cutegen as cg
from cutegen import api
from cutegen.cli.running import native
from cutegen.kernel.driver import driver
from cutegen.plan.reduced import reduced
from cutegen.report import inputs
from tests.specs import PATHS, spec_of

pytestmark = pytest.mark.gpu


@lru_cache
def build(name: str) -> Any:
    return cg.build(native(spec_of(name), driver().device(0).capability, quiet=True))


def both(name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]:
    """(output of the GPU, of the simulator, inputs)."""
    kernel = build(name)
    arrays = inputs.for_signature(kernel.signature, reduced(kernel.signature, api.problem(kernel.spec)), 7)
    given = [arrays[t.name] for t in kernel.signature.tensors if t.name in arrays]
    return kernel(*given), kernel(*given, device="sim"), arrays


@pytest.mark.parametrize("name", [n for n in PATHS if "simt" in n])
def test_bits_are_equal_without_tensor_cores(name: str) -> None:
    hardware, simulated, _ = both(name)
    assert np.array_equal(hardware.view(np.uint32), simulated.view(np.uint32))


@pytest.mark.parametrize("name", [n for n in PATHS if "simt" not in n])
def test_tensor_cores_differ_by_their_sums_only(name: str, record_property: Any) -> None:
    hardware, simulated, arrays = both(name)
    x, y = hardware.astype(np.float64), simulated.astype(np.float64)
    finite = np.isfinite(y)
    assert np.array_equal(x[~finite], y[~finite])
    names = "ab" if "a" in arrays else "qk"
    k = arrays[names[0]].shape[-1]
    largest = np.prod([float(np.abs(arrays[n].astype(np.float64)).max()) for n in names]) * k
    off = float(np.abs(x - y)[finite].max() / largest)
    record_property("largest difference over sum of magnitudes", off)
    print(f"{name}: largest difference {off:.3g} of the sum of magnitudes")
    # A step of the accumulator's last bit for each instruction along K, and one rounding of the output.
    assert off <= 2.0**-10 if "f16" in str(hardware.dtype) else off <= k / 8 * 2.0**-22
