"""What this machine has and lacks."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from cutegen.errors import CutegenError


@dataclass(frozen=True)
class Check:
    """One thing looked at. `optional`: everything but running on a GPU works without it. `remedy` mends it."""

    name: str
    ok: bool
    found: str
    remedy: str | None = None
    optional: bool = False


def checks() -> list[Check]:
    """Looks at everything; never raises."""
    return [
        _python(),
        *map(_package, ("cuda-bindings", "jinja2", "pydantic", "numpy")),
        _guard("NVRTC", _nvrtc),
        _guard("headers", _headers),
        _guard("cache", _cache),
        *_gpu(),
    ]


def _guard(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except CutegenError as error:
        text, _, remedy = str(error).partition(": pip install")
        return Check(name, False, text, f"pip install{remedy}" if remedy else None)
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}")


def _python() -> Check:
    ok = sys.version_info >= (3, 10)
    return Check(
        "Python", ok, f"{platform.python_version()} at {sys.executable}", None if ok else "install Python 3.10 or newer"
    )


def _package(name: str) -> Check:
    try:
        return Check(name, True, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check(name, False, "not installed", f"pip install {'cuda-python' if name == 'cuda-bindings' else name}")


def _nvrtc() -> str:
    from cuda.bindings import nvrtc

    from cutegen.binary.toolchain import nvrtc_version

    version = nvrtc_version()
    error, major, minor = nvrtc.nvrtcVersion()
    if int(error) != 0:
        raise RuntimeError(str(error))
    return f"{version} (library says {major}.{minor})"


def _headers() -> str:
    from cutegen.binary import Toolchain

    found = Toolchain.discover()
    return f"CUTLASS {found.cutlass_version}, digest {found.headers_digest[:12]}, in {len(found.include_dirs)} folders"


def _cache() -> str:
    from cutegen.binary import Cache

    cache = Cache.default()
    info = cache.info()
    if info.root is None:
        raise RuntimeError(info.problem)
    folder = cache.workspace()
    if folder is None:
        raise RuntimeError(f"{info.root} can't be written: set CUTEGEN_CACHE_DIR")
    folder.rmdir()
    return f"{info.root}: {info.entries} kernels"


def _gpu() -> list[Check]:
    from cutegen.kernel.driver import driver

    try:
        api = driver()
        version = ".".join(map(str, api.version()))
        found = [Check("driver", True, f"for CUDA {version}", optional=True)]
        if api.version()[0] < 13:
            found = [
                Check(
                    "driver",
                    False,
                    f"for CUDA {version}; cubins are made by NVRTC 13",
                    "update the NVIDIA driver to 580 or newer",
                    optional=True,
                )
            ]
        count = api.device_count()
        devices = [api.device(i) for i in range(count)]
        found += [
            Check(f"GPU {i}", True, f"{d.name}, sm_{d.capability[0]}{d.capability[1]}, {d.sms} SMs", optional=True)
            for i, d in enumerate(devices)
        ]
        return found
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return [Check("GPU", False, text, "everything but running on a GPU works without one", optional=True)]
