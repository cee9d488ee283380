"""Where the compiler and the headers are: found in Python wheels, so that neither nvcc nor a CUDA installation is
needed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from cutegen.errors import ToolchainError

_CUTLASS_ENV = "CUTEGEN_CUTLASS_DIR"
_CUDA_ENV = "CUTEGEN_CUDA_INCLUDE"
# (distribution, a header that proves it, pip requirement)
_CUTLASS = ("nvidia-cutlass", "cute/tensor.hpp", "nvidia-cutlass==4.2.0.0")
_RUNTIME = ("nvidia-cuda-runtime", "cuda_runtime.h", "'nvidia-cuda-runtime==13.0.*'")
_CCCL = ("nvidia-cuda-cccl", "cuda/std/cstdint", "'nvidia-cuda-cccl==13.0.*'")
_NVRTC = "nvidia-cuda-nvrtc"


@dataclass(frozen=True)
class Toolchain:
    """The compiler's version, the include folders in their order, and a digest of every header that they hold."""

    nvrtc_version: str
    cutlass_version: str
    include_dirs: tuple[Path, ...]
    headers_digest: str

    @staticmethod
    @lru_cache(maxsize=1)
    def discover() -> Toolchain:
        """Finds NVRTC and the headers of CUTLASS, CUDA and CCCL.

        Raises:
            ToolchainError: something is missing; names the header, the package that has it, and the command that
            installs it.
        """
        digest = hashlib.sha256()
        folders: list[Path] = []
        checkout = os.environ.get(_CUTLASS_ENV)
        if checkout:
            include = Path(checkout) / "include"
            _require(include / _CUTLASS[1], f"{_CUTLASS_ENV}={checkout} is no CUTLASS checkout")
            folders.append(include)
            digest.update(_tree_digest(include).encode())
            cutlass_version = f"checkout {checkout}"
        else:
            folder, cutlass_version, record = _wheel_headers(*_CUTLASS)
            folders.append(folder)
            digest.update(record)
        if os.environ.get(_CUDA_ENV):
            extra = [Path(p) for p in os.environ[_CUDA_ENV].split(os.pathsep) if p]
            for header, distribution in ((_RUNTIME[1], _RUNTIME[0]), (_CCCL[1], _CCCL[0])):
                if not any((p / header).is_file() for p in extra):
                    raise ToolchainError(f"{_CUDA_ENV} has no folder with {header} (of {distribution})")
            folders += extra
            for path in extra:
                digest.update(_tree_digest(path).encode())
        else:
            for wheel in (_RUNTIME, _CCCL):
                folder, _, record = _wheel_headers(*wheel)
                folders.append(folder)
                digest.update(record)
        return Toolchain(nvrtc_version(), cutlass_version, tuple(folders), digest.hexdigest())


def nvrtc_version() -> str:
    """NVRTC's version, from its wheel; of a system library, by asking it.

    Raises:
        ToolchainError: there is no NVRTC.
    """
    try:
        return metadata.version(_NVRTC)
    except metadata.PackageNotFoundError:
        pass
    try:
        from cuda.bindings import nvrtc

        error, major, minor = nvrtc.nvrtcVersion()
        if int(error) == 0:
            return f"{major}.{minor}"
    except Exception:  # the binding raises RuntimeError where the library is missing, ImportError where itself is
        pass
    raise ToolchainError(f"NVRTC is missing: pip install '{_NVRTC}==13.0.*'")


def _require(header: Path, problem: str) -> None:
    if not header.is_file():
        raise ToolchainError(f"{problem}: {header} does not exist")


def _wheel_headers(distribution: str, header: str, requirement: str) -> tuple[Path, str, bytes]:
    """(include folder, version, digest of the wheel's RECORD, which holds a hash of each file)."""
    remedy = f"pip install {requirement}"
    try:
        wheel = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        raise ToolchainError(f"{header} is missing, package {distribution} has it: {remedy}") from None
    record = wheel.read_text("RECORD") or ""
    entry = next(
        (
            line.rpartition(",")[0].rpartition(",")[0]
            for line in record.splitlines()
            if line.split(",")[0].endswith("/" + header)
        ),
        None,
    )
    if entry is None:
        raise ToolchainError(f"package {distribution} {wheel.version} has no {header}: {remedy}")
    path = Path(str(wheel.locate_file(entry.strip('"'))))
    _require(path, f"{header} is missing though {distribution} is installed ({remedy} --force-reinstall)")
    folder = path
    for _ in Path(header).parts:
        folder = folder.parent
    # Compiled Python files and paths of the installation differ from machine to machine; headers don't.
    headers = "\n".join(sorted(line for line in record.splitlines() if "/include/" in line))
    return folder, wheel.version, hashlib.sha256(headers.encode()).digest()


def _tree_digest(root: Path) -> str:
    """A digest of the contents of all headers below `root`, whatever their times and wherever they lie."""
    digest = hashlib.sha256()
    for path in sorted(_headers(root)):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _headers(root: Path) -> Iterable[Path]:
    return (p for p in root.rglob("*") if p.is_file() and p.suffix in ("", ".h", ".hpp", ".cuh", ".inl"))
