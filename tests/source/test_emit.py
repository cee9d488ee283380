"""Emitted sources: golden, deterministic, valid C++ literals, strict templates."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest

from cutegen import api
from cutegen.source import render
from cutegen.source.render import environment
from tests.specs import PATHS, every_spec, spec_of

ROOT = Path(__file__).resolve().parents[2]


@every_spec
def test_golden(name: str) -> None:
    committed = ROOT / "generated" / f"{name}.cu"
    assert committed.read_text("utf-8") == api.emit(spec_of(name)), "run `make golden` and look at the difference"


def test_nothing_else_lies_in_generated() -> None:
    found = {str(p.relative_to(ROOT / "generated").with_suffix("")) for p in (ROOT / "generated").rglob("*.cu")}
    assert found == set(PATHS)


def test_two_processes_emit_equal_bytes(tmp_path: Path) -> None:
    for seed in ("0", "1"):
        subprocess.run(
            [sys.executable, "-m", "cutegen", "emit", "gemm/sm80_f16_tn", "-o", str(tmp_path / seed)],
            check=True, cwd=ROOT, env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin"}, capture_output=True,
        )  # fmt: skip
    first, second = (next((tmp_path / seed).iterdir()).read_bytes() for seed in ("0", "1"))
    assert first == second


@every_spec
def test_style(name: str) -> None:
    source = api.emit(spec_of(name))
    code = re.sub(r"//.*", "", source)
    assert source.startswith("// ====") and source.endswith("}\n")
    assert not re.search(r"\b(inf|nan|True|False|None)\b", code)
    assert "template" not in code and "#if" not in code and "#define" not in code
    assert source.count('extern "C" __global__') == 1
    assert "\t" not in source and not re.search(r" +$", source, re.MULTILINE) and "\n\n\n" not in source
    assert max(map(len, source.splitlines())) <= 230


def test_offsets_are_64_bit() -> None:
    """Every stride is an int64_t parameter, and a batch's offset is formed from one."""
    for name in PATHS:
        source = api.emit(spec_of(name))
        for stride in re.findall(
            r"(\w+) (?:ld|row_|head_|batch_)(?:[A-Z]|Aux)\b", source.split("extern")[1].split("{")[0]
        ):
            assert stride == "int64_t"


def test_undefined_names_are_errors(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "templates", tmp_path / "templates")
    broken = tmp_path / "templates" / "gemm.cu.jinja"
    broken.write_text(broken.read_text().replace("plan.a.stride_mn", "plan.a.stride_nm", 1))
    env = environment().overlay(loader=jinja2.FileSystemLoader(tmp_path / "templates"))
    plan = api.resolve(spec_of("gemm/sm80_f16_tn"))
    from cutegen.source import render as module

    context = sys.modules[module.__module__]._Context(plan)
    with pytest.raises(jinja2.UndefinedError, match="stride_nm"):
        env.get_template(plan.template).render(plan=context)
    assert render(plan)
