"""The shipped specs, for parametrised tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutegen.cli.commands import shipped
from cutegen.spec import KernelSpec
from cutegen.spec.yaml import load_spec

PATHS: dict[str, Path] = shipped()
every_spec = pytest.mark.parametrize("name", list(PATHS))


def spec_of(name: str) -> KernelSpec:
    return load_spec(PATHS[name])
