"""Where templates and shipped specs lie: in a checkout beside the package, in an installed wheel inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent


def data_dir(kind: Literal["templates", "specs"]) -> Path:
    """The folder of `kind`; a checkout's own comes first, so that edits show at once.

    Raises:
        FileNotFoundError: neither exists: the installation is broken.
    """
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / kind).is_dir():
        return checkout / kind
    installed = _PACKAGE / "_data" / kind
    if installed.is_dir():
        return installed
    raise FileNotFoundError(f"cutegen's {kind} are neither in {checkout / kind} nor in {installed}: install it again")
