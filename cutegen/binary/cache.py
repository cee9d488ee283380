"""Compiled kernels on disk, addressed by everything that can change their bytes.

An entry is a folder that is built beside its place and renamed whole, so readers see all of it or nothing, and no
locks are needed. Whoever loses a race uses its own result. An entry that is not what its `meta.json` says is a miss
and is replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from cutegen.binary.result import Binary, Finding, Resources

_FORMAT = 1
_DIR_ENV, _OFF_ENV = "CUTEGEN_CACHE_DIR", "CUTEGEN_CACHE"


@dataclass(frozen=True)
class CacheInfo:
    """Where the cache is, how many kernels it holds and their bytes; `problem` says why it can't be used."""

    root: str | None
    entries: int
    bytes: int
    problem: str | None = None


def key_of(parts: dict[str, str]) -> str:
    """The digest of an entry: sha256 over the sorted parts."""
    return hashlib.sha256(json.dumps({**parts, "format": str(_FORMAT)}, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Cache:
    """`root` is its folder, None for no cache."""

    root: Path | None

    @staticmethod
    def default() -> Cache:
        """CUTEGEN_CACHE_DIR, else the user's cache folder; no cache with CUTEGEN_CACHE=0 or without a home."""
        if os.environ.get(_OFF_ENV) == "0":
            return Cache(None)
        if os.environ.get(_DIR_ENV):
            return Cache(Path(os.environ[_DIR_ENV]))
        base = os.environ.get("XDG_CACHE_HOME")
        try:
            return Cache((Path(base) if base else Path.home() / ".cache") / "cutegen")
        except RuntimeError:
            _warn_once("no home folder: kernels are not cached (set CUTEGEN_CACHE_DIR)")
            return Cache(None)

    def _entry(self, key: str) -> Path | None:
        return None if self.root is None else self.root / key[:2] / key

    def get(self, key: str) -> Binary | None:
        """The entry, or None if there is none or it is damaged."""
        entry = self._entry(key)
        if entry is None:
            return None
        try:
            meta = json.loads((entry / "meta.json").read_text("utf-8"))
            stem = meta["stem"]
            ptx, cubin = (entry / f"{stem}.ptx").read_bytes(), (entry / f"{stem}.cubin").read_bytes()
            if [hashlib.sha256(part).hexdigest() for part in (ptx, cubin)] != [meta["ptx"], meta["cubin"]]:
                return None
            return Binary(
                ptx=ptx.decode(),
                cubin=cubin,
                kernel=meta["kernel"],
                arch=meta["arch"],
                resources=Resources(**meta["resources"]),
                findings=tuple(Finding(**finding) for finding in meta["findings"]),
                log=meta["log"],
                seconds=meta["seconds"],
                cached=True,
                source_path=entry / f"{stem}.cu",
                key=key,
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def workspace(self) -> Path | None:
        """A fresh folder on the cache's own disk, for `put`; None where the cache can't be written (said once)."""
        if self.root is None:
            return None
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix="tmp-", dir=self.root))
        except OSError as error:
            _warn_once(
                f"kernels are not cached: {self.root}: {error.strerror or error} (set {_DIR_ENV} to a folder that can be written)"
            )
            return None

    def put(self, workspace: Path, stem: str, binary: Binary) -> Path | None:
        """Moves a workspace that holds `<stem>.cu` into its place. Returns the entry, or None if it could not be
        kept.
        """
        entry = self._entry(binary.key)
        assert entry is not None
        meta = {
            "stem": stem,
            "kernel": binary.kernel,
            "arch": binary.arch,
            "resources": asdict(binary.resources),
            "findings": [asdict(finding) for finding in binary.findings],
            "log": binary.log,
            "seconds": binary.seconds,
            "ptx": hashlib.sha256(binary.ptx.encode()).hexdigest(),
            "cubin": hashlib.sha256(binary.cubin).hexdigest(),
        }
        try:
            for name, data in (
                (f"{stem}.ptx", binary.ptx.encode()),
                (f"{stem}.cubin", binary.cubin),
                ("meta.json", json.dumps(meta, indent=1).encode()),
            ):
                with open(workspace / name, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            entry.parent.mkdir(exist_ok=True)
            if entry.exists() and self.get(binary.key) is None:
                shutil.rmtree(entry, ignore_errors=True)
            try:
                os.rename(workspace, entry)
            except OSError:
                if self.get(binary.key) is None:
                    raise
                shutil.rmtree(workspace, ignore_errors=True)  # another process was first
            return entry
        except OSError as error:
            _warn_once(f"kernels are not cached: {self.root}: {error.strerror or error}")
            shutil.rmtree(workspace, ignore_errors=True)
            return None

    def info(self) -> CacheInfo:
        """Counts the entries."""
        if self.root is None:
            return CacheInfo(None, 0, 0, "switched off, or no home folder")
        entries = [meta.parent for meta in self.root.glob("??/*/meta.json")] if self.root.is_dir() else []
        size = sum(file.stat().st_size for entry in entries for file in entry.iterdir())
        return CacheInfo(str(self.root), len(entries), size)

    def clear(self) -> int:
        """Removes all entries and what broken-off compilations left. Returns how many entries went."""
        count = self.info().entries
        if self.root is not None and self.root.is_dir():
            for folder in [*self.root.glob("[0-9a-f][0-9a-f]"), *self.root.glob("tmp-*")]:
                with contextlib.suppress(OSError):
                    shutil.rmtree(folder)
        return count


_warned: set[str] = set()


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=4)
