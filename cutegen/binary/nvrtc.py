"""From source to PTX and cubin with NVRTC. Needs no GPU, driver or nvcc."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from pathlib import Path

from cutegen.binary.cache import Cache, key_of
from cutegen.binary.result import Binary, read_log
from cutegen.binary.toolchain import Toolchain
from cutegen.errors import CompileError, ToolchainError

# -default-device: CuTe has functions without an execution space. One compilation for a real arch gives PTX and cubin.
_OPTIONS = ("-std=c++17", "-default-device", "-lineinfo", "--ptxas-options=-v", "--diag-suppress=177")


def compile(
    source: str,
    *,
    stem: str,
    arch: str,
    kernel: str,
    options: tuple[str, ...] = (),
    toolchain: Toolchain | None = None,
    cache: Cache | None = None,
) -> Binary:
    """Compiles `source` for `arch` (`sm_90a`), or finds it in the cache.

    `stem` names the `.cu` that is kept beside the binary and that diagnostics speak of; `kernel` is the `extern "C"`
    entry.

    Raises:
        ToolchainError: NVRTC or a header is missing.
        CompileError: the source is refused; the first error comes first, with its line; `path` is the `.cu`.
    """
    toolchain = toolchain or Toolchain.discover()
    cache = cache if cache is not None else Cache.default()
    flags = (f"--gpu-architecture={arch}", *_OPTIONS, *options)
    key = key_of(
        {
            "source": significant(source),
            "kernel": kernel,
            "flags": " ".join(flags),
            "nvrtc": toolchain.nvrtc_version,
            "headers": toolchain.headers_digest,
        }
    )
    found = cache.get(key)
    if found is not None:
        return found
    workspace = cache.workspace()
    folder = workspace or Path(tempfile.mkdtemp(prefix="cutegen-"))
    path = folder / f"{stem}.cu"
    path.write_text(source, "utf-8")
    started = time.perf_counter()
    try:
        ptx, cubin, log = _run(source, path, flags, toolchain)
    except CompileError as error:
        raise _kept(error, path, workspace) from None
    resources, findings = read_log(log, kernel)
    binary = Binary(ptx, cubin, kernel, arch, resources, findings, log, time.perf_counter() - started, False, None, key)
    if workspace is None:
        shutil.rmtree(folder, ignore_errors=True)
        return binary
    entry = cache.put(workspace, stem, binary)
    return Binary(**{**vars(binary), "source_path": None if entry is None else entry / f"{stem}.cu"})


def significant(source: str) -> str:
    """A source without the words of its whole-line comments, which change no byte of the binary; lines keep their
    numbers, which do. A source with block comments or raw strings, in which // may mean something else, stays whole.
    """
    if "/*" in source or 'R"' in source or "\\\n" in source:
        return source
    return re.sub(r"^[ \t]*//.*$", "//", source, flags=re.MULTILINE)


def _kept(error: CompileError, path: Path, workspace: Path | None) -> CompileError:
    """Moves the refused source, and its log, to a folder of its own that stays."""
    folder = Path(tempfile.mkdtemp(prefix="cutegen-failed-"))
    kept = folder / path.name
    shutil.copy(path, kept)
    (folder / "nvrtc.log").write_text(error.log, "utf-8")
    shutil.rmtree(path.parent, ignore_errors=True)
    return CompileError(f"{error}\n  source and whole log: {folder}", error.log, kept)


def _run(source: str, path: Path, flags: tuple[str, ...], toolchain: Toolchain) -> tuple[str, bytes, str]:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise ToolchainError("cuda-python is missing: pip install 'cuda-python>=13,<14'") from error
    options = [*flags, *(f"-I{folder}" for folder in toolchain.include_dirs)]
    try:
        _, program = nvrtc.nvrtcCreateProgram(source.encode(), path.name.encode(), 0, [], [])
    except RuntimeError as error:
        raise ToolchainError(f"NVRTC can't be loaded ({error}): pip install 'nvidia-cuda-nvrtc==13.0.*'") from None
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = (
            _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            .decode(errors="replace")
            .strip("\0\n ")
        )
        if int(status) != 0:
            raise CompileError(_first_error(log, source, str(status)), log, path)
        ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0").decode()
        cubin = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        return ptx, cubin, log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(size_of, read, program) -> bytes:  # type: ignore[no-untyped-def]
    _, size = size_of(program)
    data = bytearray(size)
    buffer = bytes(data)
    read(program, buffer)
    return buffer


def _first_error(log: str, source: str, status: str) -> str:
    """The first true error of a log, with the line of the source that it speaks of."""
    match = re.search(r"^(.*?)\((\d+)\): (?:catastrophic )?error: (.*)$", log, re.MULTILINE)
    if match is None:
        unsupported = re.search(r"invalid value for --gpu-architecture|unsupported gpu", log)
        return f"NVRTC failed ({status})" + (
            ": this NVRTC does not know the architecture"
            if unsupported
            else f": {log.splitlines()[0] if log else 'no log'}"
        )
    name, line, message = match[1], int(match[2]), match[3]
    missing = re.search(r'cannot open source file "([^"]+)"', message)
    if missing:
        return f"header {missing[1]} is missing: run `cutegen doctor`"
    lines = source.splitlines()
    shown = f"\n    {lines[line - 1].strip()}" if name.endswith(".cu") and line <= len(lines) else ""
    return f"{Path(name).name}:{line}: {message}{shown}"
