"""Result files: measured figures with all that they depend on."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutegen.errors import CutegenError
from cutegen.kernel.driver import driver

_PACKAGES = (
    "cutegen",
    "cuda-bindings",
    "cuda-core",
    "nvidia-cuda-nvrtc",
    "nvidia-cutlass",
    "numpy",
    "torch",
    "cupy-cuda13x",
)


def environment(ordinal: int = 0) -> dict[str, Any]:
    """GPU, driver and versions. Without a GPU those two are None."""
    versions: dict[str, str] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        api = driver()
        device = api.device(ordinal)
        gpu = {
            "name": device.name,
            "capability": ".".join(map(str, device.capability)),
            "sms": device.sms,
            "l2_bytes": device.l2_bytes,
        }
        cuda: str | None = "{}.{}".format(*api.version())
    except CutegenError:
        gpu, cuda = None, None
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpu": gpu,
        "driver_cuda": cuda,
        "driver": _driver_version(),
        "versions": versions,
    }


def _driver_version() -> str | None:
    """The kernel module's version, where Linux shows it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else None


def write(folder: Path, name: str, spec_digest: str, results: Mapping[str, Any]) -> Path:
    """Writes `name`.json into `folder`, whole or not at all; an older file of the name is replaced.

    Raises:
        OSError: the folder can't be written.
    """
    path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}.json"
    return _store(path, {"name": name, "spec_digest": spec_digest, **environment(), "results": results})


def save(path: Path, **parts: Any) -> Path:
    """Writes the environment and `parts` into a file, whole or not at all; an older one is replaced.

    Raises:
        OSError: the file can't be written.
    """
    return _store(path, {"environment": environment(), **parts})


def _store(path: Path, data: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".json.part")
    temporary.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
    return path
