"""Tests that launch. Without a GPU they are skipped, and say why."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutegen.errors import CutegenError
from cutegen.kernel.driver import driver

_HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a GPU")


def missing() -> str | None:
    """Why nothing can be launched here, or None."""
    try:
        return None if driver().device_count() else "no GPU"
    except CutegenError as error:
        return str(error)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if _HERE in item.path.parents]
    reason = missing() if mine else None
    for item in mine:
        item.add_marker(pytest.mark.gpu)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
