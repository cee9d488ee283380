"""The command line, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cutegen.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def test_help_is_quick() -> None:
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "cutegen", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "Exit status" in done.stdout
    assert time.perf_counter() - started < 1.0  # a tenth of that on an idle machine


def test_emit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", "gemm/sm80_f16_tn", "-o", str(tmp_path / "é out")]) == 0
    written = Path(capsys.readouterr().out.strip())
    assert written.read_text("utf-8").startswith("// ===")
    assert main(["emit", "sm80_f16_tn", "--stdout", "--set", "tile.n=64"]) == 0
    assert "gemm_sm_80_tn_f16_f32_128x64x64_p3" in capsys.readouterr().out


def test_emit_into_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["emit", "gemm/sm80_f16_tn", "-o", str(tmp_path / "file")]) == 2
    assert "can't write" in capsys.readouterr().err
    assert main(["emit"]) == 2


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "gemm/sm90_f16_tn"]) == 0
    text = capsys.readouterr().out
    assert "98304 B of 232448 B a block" in text and "1-way written, 1-way read" in text and "bound by compute" in text
    assert main(["check", "gemm/sm90_f16_tn", "attention/scores_sm90_f16_d64", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["smem_bytes"] == 98304 and second["bound"] == "memory" and second["operands"][0]["name"] == "Q"


def test_a_fault_of_the_plan_has_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.yaml"
    path.write_text(
        "kernel: gemm\nproblem: {m: 64, n: 64, k: 64}\ndtypes: {a: f16, b: f16, c: f32}\ntile: {m: 128, k: 24}\n"
    )
    assert main(["check", str(path)]) == 2
    assert (
        capsys.readouterr().err
        == f"cutegen: {path}:4:19: tile.k: must be a multiple of 16 (SM80_16x8x16_F32F16F16F32_TN with warps [2, 2]), got 24 (nearest: 16 or 32)\n"
    )


def test_an_unknown_spec_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "gemm/sm80_f16_tm"]) == 2
    assert "did you mean gemm/sm80_f16_tn?" in capsys.readouterr().err


def test_compile_and_run_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "gemm/sm90_f16_tn", "--json"]) == 0
    (made,) = json.loads(capsys.readouterr().out)
    assert made["resources"]["registers"] > 100 and made["findings"] == []
    if _has_gpu():
        pytest.skip("there is a GPU here")
    assert main(["run", "gemm/sm90_f16_tn", "--profile"]) == 0
    shown = capsys.readouterr().out
    assert "m 208, n 208, k 272; cut down to a few tiles, --set problem.FIELD=VALUE asks for more" in shown
    assert "validated      on the simulator, which found no fault: ok" in shown and "mma_unpack" in shown
    assert main(["run", "gemm/sm90_f16_tn", "--json", "--set", "problem.m=8", "--set", "problem.k=16"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)
    assert outcome["problem"] == {"m": 8, "n": 208, "k": 16} and outcome["ok"] is True
    assert main(["run", "gemm/sm90_f16_tn", "--device", "cuda"]) == 3
    assert main(["bench", "gemm/sm90_f16_tn"]) == 3


def _has_gpu() -> bool:
    from cutegen.cli.running import the_gpu

    return the_gpu()[0] is not None


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["specs"]) == 0
    assert "attention/scores_sm80_f16_d64" in capsys.readouterr().out
    assert main(["specs", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) >= 12
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "cutegen spec"


def test_cache_and_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUTEGEN_CACHE_DIR", str(tmp_path))
    assert main(["cache", "info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"] == 0
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == "removed 0 kernels\n"
    assert main(["doctor"]) == 0
    assert "NVRTC" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    assert {"Python", "NVRTC", "headers", "cache"} <= {item["name"] for item in json.loads(capsys.readouterr().out)}
