"""Data flows to the right: a package imports only from itself and from what stands left of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cutegen

PACKAGE = Path(cutegen.__file__).parent
ORDER = [
    "errors",
    "dtypes",
    "expression",
    "hardware",
    "data",
    "layout",
    "atoms",
    "spec",
    "plan",
    "source",
    "binary",
    "sim",
    "kernel",
    "report",
    "bench",
    "api",
    "tune",
    "cli",
]
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "_data" not in path.parts)


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_left(path: Path) -> None:
    here = part(path)
    if here in ("__init__", "__main__"):
        return
    for name in imports(path):
        pieces = name.split(".")
        if pieces[0] == "cutegen" and len(pieces) > 1 and pieces[1] in ORDER:
            assert ORDER.index(pieces[1]) <= ORDER.index(here), f"{here} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_stay_where_they_belong(path: Path) -> None:
    found = {name.split(".")[0] for name in imports(path)}
    assert "jinja2" not in found or part(path) == "source"
    assert "cuda" not in found or part(path) in ("binary", "kernel", "bench", "cli")
    assert "torch" not in found and "cupy" not in found


@pytest.mark.parametrize("path", [*MODULES, *(PACKAGE.parent / "templates").rglob("*.jinja")], ids=lambda p: p.name)
def test_modules_are_short(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= (430 if path.suffix == ".py" else 180)
