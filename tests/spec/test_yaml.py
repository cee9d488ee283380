"""Reading specs: every message as a user would read it, with line and column."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cutegen as cg
from cutegen.errors import SpecError
from cutegen.spec.dump import to_yaml
from cutegen.spec.schema import schema
from cutegen.spec.yaml import apply_overrides, build_spec, load_spec, parse, read
from tests.specs import every_spec, spec_of

GOOD = "kernel: gemm\nproblem: {m: 64, n: 64, k: 64}\ndtypes: {a: f16, b: f16, c: f32}\n"


def message(text: str) -> str:
    with pytest.raises(SpecError) as error:
        build_spec(parse(text, "f.yaml"))
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "f.yaml: the file is empty; expected a spec that begins with `kernel: ...`"),
        ("[1]", "f.yaml:1:1: not a mapping, got a list; expected keys and values"),
        ("a: b\n---\nc: d\n", "f.yaml:3:1: several documents in one file (one spec a file)"),
        ("kernel: gemn\n", "f.yaml:1:9: kernel: unknown kernel family, got 'gemn'; expected one of gemm, attention_scores, attention_forward (did you mean gemm?)"),
        (GOOD + "tile: {m: 128.0}\n", "f.yaml:4:11: tile.m: wrong type, got 128.0; expected an integer (write 128)"),
        (GOOD + "tile: {m: '128'}\n", "f.yaml:4:11: tile.m: wrong type, got '128'; expected an integer (write 128 without quotes)"),
        (GOOD + "tile: {m: 128.5}\n", "f.yaml:4:11: tile.m: wrong type, got 128.5; expected an integer"),
        (GOOD + "tile: {m: true}\n", "f.yaml:4:11: tile.m: wrong type, got True; expected an integer"),
        (GOOD + "tile: {m: .inf}\n", "f.yaml:4:11: tile.m: not a finite number, got .inf"),
        (GOOD + "tile: {m: ~}\n", "f.yaml:4:11: tile.m: null (leave the field out)"),
        (GOOD + "pipeline: {stages: 03}\n", "f.yaml:4:20: pipeline.stages: a number with a leading zero, got 03 (write 3)"),
        (GOOD + "pipeline: {stages: 1e2}\n", "f.yaml:4:20: pipeline.stages: wrong type, got 100.0; expected an integer (write 100)"),
        (GOOD + "arch: 90\n", "f.yaml:4:7: arch: wrong type, got 90; expected a text (write sm_90 or sm_90a)"),
        (GOOD + "arch: 9.0\n", "f.yaml:4:7: arch: wrong type, got 9.0; expected a text (write sm_90 or sm_90a)"),
        (GOOD + "majors: NO\n", "f.yaml:4:9: majors: not one of the choices, got 'NO'; expected TN, NT, NN or TT (did you mean TN?)"),
        (GOOD + "epilogue: {staged: yes}\n", "f.yaml:4:20: epilogue.staged: wrong type, got 'yes'; expected true or false (write true or false)"),
        (GOOD + 'epilogue: {staged: "no"}\n', "f.yaml:4:20: epilogue.staged: wrong type, got 'no'; expected true or false (write true or false)"),
        (GOOD + "epilogue: {staged: 1}\n", "f.yaml:4:20: epilogue.staged: wrong type, got 1; expected true or false (write true or false)"),
        (GOOD + "tile: {m: 64}\ntile: {m: 128}\n", "f.yaml:5:1: tile: duplicate key, on lines 4 and 5"),
        (GOOD + "tile: {m: 64, m: 128}\n", "f.yaml:4:15: tile.m: duplicate key, on lines 4 and 4"),
        (GOOD + "<<: {m: 1}\n", "f.yaml:4:1: <<: merge keys are not read (write the fields out)"),
        (GOOD + "mma: {warps: [2, 2]}\n", "f.yaml:4:14: mma.warps[2]: missing"),
        (GOOD.replace("a: f16", "a: on"), "f.yaml:3:13: dtypes.a: not one of the choices, got 'on'; expected f32, f16, bf16, e4m3 or e5m2"),
        ("kernel: gemm\nproblem: {m: 64, n: 64, k: -1}\ndtypes: {a: f16, b: f16, c: f32}\n", "f.yaml:2:28: problem.k: input should be greater than or equal to 0, got -1"),
    ],
)  # fmt: skip
def test_messages(text: str, expected: str) -> None:
    assert message(text) == expected


def test_unknown_keys_name_the_nearest_and_all_faults_are_told() -> None:
    text = message(GOOD + "tille: {m: 3}\non: 1\nmma: {attom: x}\n")
    assert "f.yaml:4:1: tille: unknown key" in text and "(did you mean tile?)" in text
    assert "f.yaml:5:1: on: unknown key" in text
    assert "f.yaml:6:7: mma.attom: unknown key; expected atom, warps, threads, a_operand (did you mean atom?)" in text


def test_syntax_errors_have_a_position() -> None:
    assert message(GOOD + "tile:\n\tm: 3\n").startswith("f.yaml:5:1: no valid YAML")
    assert "indent with spaces, not tabs" in message(GOOD + "tile:\n\tm: 3\n")
    assert message(GOOD + "x: [1\n").startswith("f.yaml:5:1: no valid YAML")


@pytest.mark.parametrize("arch", ["sm_90a", "90a", "9.0a", "compute_90a", "SM_90A"])
def test_one_form_of_an_architecture(arch: str) -> None:
    assert build_spec(parse(GOOD + f'arch: "{arch}"\n')).arch == "sm_90a"


def test_unknown_architectures() -> None:
    assert "did you mean sm_90?" in message(GOOD + "arch: sm_9O\n")
    assert "not a supported architecture, got ''" in message(GOOD + 'arch: ""\n')


def test_json_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(
        '{"kernel": "gemm", "problem": {"m": 1, "n": 2, "k": 3}, "dtypes": {"a": "f32", "b": "f32", "c": "f32"}}'
    )
    spec = load_spec(path)
    assert isinstance(spec, cg.GemmSpec) and (spec.problem.m, spec.problem.k) == (1, 3)


def test_overrides() -> None:
    document = apply_overrides(parse(GOOD), ["tile.m=64", "arch=sm_90a", "mma.warps=[1, 2, 1]"])
    spec = build_spec(document)
    assert isinstance(spec, cg.GemmSpec) and spec.tile.m == 64 and spec.arch == "sm_90a" and spec.mma.warps == (1, 2, 1)
    with pytest.raises(SpecError, match=r"tile.m: wrong type, got 'x'"):
        build_spec(apply_overrides(parse(GOOD), ["tile.m=x"]))
    with pytest.raises(SpecError, match="not an override, got 'tile.m'"):
        apply_overrides(parse(GOOD), ["tile.m"])
    with pytest.raises(SpecError, match="arch is not a mapping"):
        apply_overrides(parse(GOOD + "arch: sm_80\n"), ["arch.x=1"])


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "a folder, with 'quotes' and é"
    folder.mkdir()
    with pytest.raises(SpecError, match="a folder, not a file"):
        read(folder)
    with pytest.raises(SpecError, match="no such file"):
        read(folder / "missing.yaml")
    (folder / "latin.yaml").write_bytes(b"kernel: g\xe9mm\n")
    with pytest.raises(SpecError, match="not UTF-8 at byte 9"):
        read(folder / "latin.yaml")
    (folder / "good é.yaml").write_text(GOOD, "utf-8")
    assert load_spec(folder / "good é.yaml")


@every_spec
def test_specs_round_trip(name: str) -> None:
    spec = spec_of(name)
    assert build_spec(parse(to_yaml(spec))) == spec
    assert spec.description


def test_python_objects_build_the_same_specs() -> None:
    made = cg.GemmSpec(problem={"m": 64, "n": 64, "k": 64}, dtypes={"a": "f16", "b": "f16", "c": "f32"})
    assert made == build_spec(parse(GOOD))
    with pytest.raises(SpecError, match=r"tile.m: wrong type"):
        cg.GemmSpec(problem={"m": 64, "n": 64, "k": 64}, dtypes={"a": "f16", "b": "f16", "c": "f32"}, tile={"m": 1.5})


@given(st.text(alphabet="abc:[]{}'\"\\\n -#&*!|>%@`,?", max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_spec_or_a_spec_error(text: str) -> None:
    try:
        build_spec(parse(text))
    except SpecError as error:
        assert error.faults


def test_schema_tells_the_families_apart() -> None:
    found = schema()
    assert len(found["oneOf"]) == 3 and "GemmSpec" in found["$defs"]
    assert found["$defs"]["GemmSpec"]["properties"]["copy"] and found == schema()
