"""Faults put into emitted kernels are caught, and by what docs/simulator.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.faults import MUTATIONS, Mutation
from tests.sim.mutate import catch


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name.replace(" ", "-"))
def test_a_fault_is_caught(mutation: Mutation) -> None:
    assert catch(mutation) == mutation.caught


def test_there_are_enough() -> None:
    assert len(MUTATIONS) >= 40 and len({m.name for m in MUTATIONS}) == len(MUTATIONS)


def test_the_documentation_lists_them() -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text("utf-8")
    for mutation in MUTATIONS:
        assert f"| {mutation.name} | {mutation.spec.split('/')[1]} | {mutation.caught} |" in text
