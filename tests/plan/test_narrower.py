"""The specs that a launcher builds for tensors less aligned than a kernel assumes."""

from __future__ import annotations

import pytest

from cutegen import api
from tests.specs import every_spec, spec_of


@every_spec
@pytest.mark.parametrize("limit", [1, 2, 4])
def test_any_alignment_has_a_kernel(limit: int, name: str) -> None:
    """Whatever the types, scales, groups and expressions."""
    spec = spec_of(name)
    vectors = {tensor.name: min(limit, tensor.vector) for tensor in api.resolve(spec).signature.tensors}
    found = api.resolve(api.narrower(spec, tuple(vectors.items()))).signature.tensors
    assert {t.name for t in found} == set(vectors) and all(vectors[t.name] % t.vector == 0 for t in found)
