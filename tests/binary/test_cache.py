"""The cache: whole entries or none, whatever happens to the folder or beside it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from cutegen.binary import Binary, Cache, Resources, cache
from cutegen.binary.cache import key_of


def binary(key: str, cubin: bytes = b"\x7fELF code") -> Binary:
    return Binary("ptx", cubin, "kernel", "sm_80", Resources(registers=8), (), "log", 1.5, False, None, key)


def put(store: Cache, made: Binary, stem: str = "kernel") -> Path | None:
    workspace = store.workspace()
    if workspace is None:
        return None
    (workspace / f"{stem}.cu").write_text("source")
    return store.put(workspace, stem, made)


@pytest.fixture(autouse=True)
def _warn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_warned", set())


def test_an_entry_comes_back_whole(tmp_path: Path) -> None:
    store = Cache(tmp_path / "with space, 'quote' and é")
    key = key_of({"source": "s"})
    assert store.get(key) is None
    entry = put(store, binary(key))
    found = store.get(key)
    assert found is not None and found.cached and found.cubin == b"\x7fELF code" and found.resources.registers == 8
    assert found.source_path == entry / "kernel.cu" and found.source_path.read_text() == "source"  # type: ignore[operator]
    assert store.info().entries == 1 and store.clear() == 1 and store.info().entries == 0


@pytest.mark.parametrize("damage", ["kernel.cubin", "kernel.ptx", "meta.json"])
def test_a_damaged_entry_is_a_miss_and_is_replaced(tmp_path: Path, damage: str) -> None:
    store, key = Cache(tmp_path), key_of({"source": "s"})
    entry = put(store, binary(key))
    assert entry is not None
    (entry / damage).write_bytes((entry / damage).read_bytes()[:1])
    assert store.get(key) is None
    put(store, binary(key))
    assert store.get(key) is not None


def test_each_part_of_the_key_counts() -> None:
    parts = {"source": "a", "kernel": "k", "flags": "-x", "nvrtc": "13.0.88", "headers": "abc"}
    keys = {key_of(parts)} | {key_of({**parts, name: value + "!"}) for name, value in parts.items()}
    assert len(keys) == 6


def _race(root: str, key: str, barrier: Any) -> bytes:
    store = Cache(Path(root))
    barrier.wait()
    put(store, binary(key))
    found = store.get(key)
    return found.cubin if found else b""


def test_sixteen_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager, context.Pool(16) as pool:
        for turn in range(5):
            barrier = manager.Barrier(16)
            root = str(tmp_path / str(turn))
            same = pool.starmap(_race, [(root, key_of({"source": "same"}), barrier)] * 16)
            barrier = manager.Barrier(16)
            each = pool.starmap(_race, [(root, key_of({"source": str(i)}), barrier) for i in range(16)])
            assert set(same) == set(each) == {b"\x7fELF code"}
            assert Cache(Path(root)).info().entries == 17
            assert not list(Path(root).glob("tmp-*"))


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
def test_a_folder_that_can_not_be_written_is_said_once(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    store = Cache(blocked)
    with pytest.warns(UserWarning, match="kernels are not cached.*CUTEGEN_CACHE_DIR"):
        assert store.workspace() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.workspace() is None
    assert store.get(key_of({})) is None and store.info().entries == 0


def test_environment_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTEGEN_CACHE_DIR", str(tmp_path / "x"))
    assert Cache.default().root == tmp_path / "x"
    monkeypatch.setenv("CUTEGEN_CACHE", "0")
    assert Cache.default().root is None
    monkeypatch.delenv("CUTEGEN_CACHE")
    monkeypatch.delenv("CUTEGEN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Cache.default().root == tmp_path / "cutegen"


def test_what_a_killed_compilation_left_is_cleared(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    left = store.workspace()
    assert left is not None and left.is_dir()
    store.clear()
    assert not left.exists()
    shutil.rmtree(tmp_path)
    assert store.clear() == 0
