"""Every shipped spec compiles with NVRTC, without spills or warnings; with nvcc too, where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cutegen import api
from cutegen.binary import Toolchain
from cutegen.spec import GemmSpec
from tests.specs import PATHS, every_spec, spec_of

# The only ones that spill. Element by element copies of a whole tile keep many addresses; with head_dim 128 the
# accumulators of attention leave so few registers that some addresses are read back once in a block of keys.
_SPILLS = {
    "gemm/sm80_bf16_unaligned",
    "attention/forward_sm80_f16_d128",
    "attention/forward_sm80_bf16_d128_causal_gqa",
    "attention/forward_sm80_bf16_d128_varlen",
}


@every_spec
def test_compiles_clean(name: str) -> None:
    made = api.compile(spec_of(name))
    assert made.cubin.startswith(b"\x7fELF") and f".entry {made.kernel}" in made.ptx
    assert made.resources.registers > 32
    if name not in _SPILLS:
        assert not made.findings, made.findings


@pytest.mark.parametrize("epilogue", [{"out": "relu(acc)"}, {"out": "relu(acc)", "aux": "acc"}])
def test_short_expressions_leave_accumulators_in_registers(epilogue: dict[str, str]) -> None:
    """Loops over a box that the compiler does not unroll at once put all accumulators into local memory."""
    types = {"a": "bf16", "b": "bf16", "c": "bf16"}
    made = api.compile(
        GemmSpec(arch="sm_90a", problem={"m": 4096, "n": 4096, "k": 4096}, dtypes=types, epilogue=epilogue)
    )
    assert not made.findings and made.resources.stack == 0


@pytest.mark.parametrize(
    ("n", "tile", "kind"),
    [(8191, (128, 128), "ping_pong"), (8191, (256, 160), "cooperative"), (8194, (128, 160), "ping_pong")],
)
def test_rows_of_c_that_begin_anywhere_spill_nothing(n: int, tile: tuple[int, int], kind: str) -> None:
    """A warp's stores of single elements, unrolled whole, kept an address each: 92, 276 and 36 B of spills."""
    spec = {"problem": {"m": 8192, "n": n, "k": 8192}, "tile": dict(zip("mn", tile)), "schedule": {"kind": kind}}
    made = api.compile(GemmSpec(arch="sm_90a", dtypes=dict.fromkeys("abc", "bf16"), cluster=(1, 1), **spec))
    assert not made.findings and made.resources.stack == 0


@pytest.mark.nvcc
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
@pytest.mark.parametrize("name", ["gemm/sm90_f16_tn", "attention/scores_sm90_f16_d128"])
def test_compiles_with_nvcc(name: str, tmp_path: Path) -> None:
    spec = spec_of(name)
    source = tmp_path / "kernel.cu"
    source.write_text(api.emit(spec))
    arch = spec.arch.removeprefix("sm_")
    include = next(p for p in Toolchain.discover().include_dirs if (p / "cute").is_dir())
    command = [
        "nvcc",
        "-std=c++17",
        f"-gencode=arch=compute_{arch},code=sm_{arch}",
        f"-I{include}",
        "-cubin",
        "-o",
        str(tmp_path / "k.cubin"),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_spec_is_covered() -> None:
    assert len(PATHS) >= 12
