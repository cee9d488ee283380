"""Faults put into emitted kernels are caught, and by what docs/simulator.md says.

Every fourth runs here; `CUTEGEN_FAULTS=all pytest tests/sim/test_mutations.py` runs all, a compilation each.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sim.faults import MUTATIONS, Mutation
from tests.sim.mutate import catch, mutated

CHOSEN = MUTATIONS if os.environ.get("CUTEGEN_FAULTS") == "all" else MUTATIONS[::4]


@pytest.mark.parametrize("mutation", CHOSEN, ids=lambda m: m.name.replace(" ", "-"))
def test_a_fault_is_caught(mutation: Mutation) -> None:
    assert catch(mutation) == mutation.caught


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a box that begins within 16 bytes", "a box begins 2 bytes into a row, not at a multiple of 16: hardware calls the instruction illegal"),
        ("a block ends while a neighbour may signal it", "arrives at a block that does not wait for it, and may have ended"),
    ],
)  # fmt: skip
def test_what_a_user_reads_of_a_fault(name: str, message: str) -> None:
    kernel, arrays = mutated(next(m for m in MUTATIONS if m.name == name))
    _, seen = kernel.simulate(*arrays.values())
    assert seen is not None and message in str(seen.findings[0])


def test_there_are_enough() -> None:
    assert len(MUTATIONS) >= 40 and len({m.name for m in MUTATIONS}) == len(MUTATIONS)


def test_the_documentation_lists_them() -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text("utf-8")
    for mutation in MUTATIONS:
        assert f"| {mutation.name} | {mutation.spec.split('/')[1]} | {mutation.caught} |" in text
