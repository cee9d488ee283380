"""NVRTC: what it gives, and how its refusals are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutegen.binary import Cache, Toolchain, compile
from cutegen.binary import toolchain as toolchain_module
from cutegen.binary.result import read_log
from cutegen.errors import CompileError, ToolchainError

SOURCE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }\n'


def test_ptx_and_cubin_without_a_gpu(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    first = compile(SOURCE, stem="twice", arch="sm_80", kernel="twice", cache=store)
    again = compile(SOURCE, stem="twice", arch="sm_80", kernel="twice", cache=store)
    other = compile(SOURCE, stem="twice", arch="sm_90a", kernel="twice", cache=store)
    assert ".entry twice" in first.ptx and first.cubin[:4] == b"\x7fELF" and first.resources.registers > 0
    assert not first.cached and again.cached and again.cubin == first.cubin and again.ptx == first.ptx
    assert other.key != first.key and not other.cached
    assert first.source_path and first.source_path.read_text() == SOURCE


def test_the_first_true_error_comes_first() -> None:
    source = SOURCE + "#warning early\n__device__ int f() { return undefined_name; }\n"
    with pytest.raises(CompileError) as error:
        compile(source, stem="broken", arch="sm_80", kernel="twice", cache=Cache(None))
    text = str(error.value)
    assert text.startswith('broken.cu:3: identifier "undefined_name" is undefined\n    __device__ int f()')
    assert error.value.path is not None and error.value.path.read_text() == source
    assert "#warning" in error.value.log or "warning" in error.value.log


def test_a_missing_header_and_an_unknown_architecture() -> None:
    with pytest.raises(CompileError, match=r"header no/such\.hpp is missing: run `cutegen doctor`"):
        compile('#include "no/such.hpp"\n' + SOURCE, stem="k", arch="sm_80", kernel="twice", cache=Cache(None))
    with pytest.raises(CompileError, match="does not know the architecture"):
        compile(SOURCE, stem="k", arch="sm_9999", kernel="twice", cache=Cache(None))


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        toolchain_module, "_CCCL", ("no-such-package", "cuda/std/cstdint", "'nvidia-cuda-cccl==13.0.*'")
    )
    with pytest.raises(
        ToolchainError, match=r"cuda/std/cstdint is missing, package no-such-package has it: pip install"
    ):
        Toolchain.discover.__wrapped__()  # type: ignore[attr-defined]


def test_a_checkout_of_cutlass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTEGEN_CUTLASS_DIR", str(tmp_path))
    discover = Toolchain.discover.__wrapped__  # type: ignore[attr-defined]
    with pytest.raises(ToolchainError, match="is no CUTLASS checkout"):
        discover()
    header = tmp_path / "include" / "cute" / "tensor.hpp"
    header.parent.mkdir(parents=True)
    header.write_text("// one")
    first = discover()
    header.touch()
    assert discover().headers_digest == first.headers_digest
    header.write_text("// two")
    assert discover().headers_digest != first.headers_digest


def test_findings_of_a_log() -> None:
    log = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas         .     40 bytes stack frame, 36 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes smem
ptxas warning : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirements."""
    resources, findings = read_log(log, "k")
    assert (
        resources.registers,
        resources.spill_stores,
        resources.spill_loads,
        resources.stack,
        resources.static_smem,
    ) == (255, 36, 44, 40, 16)
    assert [finding.kind for finding in findings] == ["spill", "stack", "warning", "warning"]
    assert "C7510" in findings[-2].message and "C7508" in findings[-1].message
