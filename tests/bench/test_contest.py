"""The benchmarks' flow with kernels and a clock that exist without a GPU; nothing is compiled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import attention_tiles, bank_conflicts, contest, gemm_extras, gemm_matrix
from cutegen import api
from cutegen.errors import LaunchError
from cutegen.plan.hopper_gemm_checks import ranked
from cutegen.plan.hopper_tiles import cycles
from cutegen.spec import GemmSpec
from tests.bench.test_timing import FakeClock

SMALL = (64, 64, 64)


def spec_of(**parts: Any) -> GemmSpec:
    return gemm_extras.spec_of(SMALL, "bf16", **parts)


class FakeKernel:
    """Takes `ms`, and is right unless told otherwise."""

    def __init__(self, spec: GemmSpec, clock: FakeClock, ms: float, right: bool = True) -> None:
        self.spec, self.plan = spec, api.resolve(spec)
        self.signature = self.plan.signature
        self.right, self._clock, self._ms = right, clock, ms

    def prepare(self, *arrays: Any) -> Callable[[], None]:
        return self._clock.kernel("candidate", self._ms)

    def validate(self, given: dict[str, Any], **options: Any) -> Any:
        assert sorted(given) == ["a", "b"] and options == {"twice": False, "sampled": 8}
        return SimpleNamespace(ok=self.right)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Replaces what needs a GPU or a compiler: a tile of 64 columns takes 0.2 ms, 128 0.1 ms; 192 are wrong, 256 fail."""
    made = FakeClock()

    def build(spec: GemmSpec) -> FakeKernel:
        if spec.tile.n == 256:
            raise LaunchError("does not load\nand why")
        return FakeKernel(spec, made, {64: 0.2}.get(spec.tile.n or 0, 0.1), spec.tile.n != 192)

    monkeypatch.setattr(contest.api, "build", build)
    monkeypatch.setattr(contest, "kernel_l2", lambda: made.l2_bytes)
    monkeypatch.setattr(contest, "compile_all", lambda specs: list(specs))
    for module, name, fixed in (
        (contest.timing, "compare", {"clock": made}),
        (contest.inputs, "for_signature", {"library": "numpy"}),
    ):
        monkeypatch.setattr(module, name, replaced(getattr(module, name), fixed))
    return made


def replaced(function: Callable[..., Any], fixed: dict[str, Any]) -> Callable[..., Any]:
    return lambda *arguments, **keywords: function(*arguments, **{**keywords, **fixed})


def contest_of(clock: FakeClock, **specs: GemmSpec) -> contest.Contest:
    return contest.Contest(
        title="a problem",
        entry={"case": "small"},
        specs=specs,
        rivals=lambda given: {"slow": clock.kernel("slow", 0.4), "library": clock.kernel("library", 0.15)},
        judge=contest.sampled(8),
        figures=lambda kernel: {"spilled": 8 if kernel else None},
    )


def options_of(*arguments: str) -> Any:
    return contest.parser("", "name").parse_args([*arguments, "--measure-ms", "5"])


def test_a_contest(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contest, "RESULTS", tmp_path)
    tiles = {f"{n} columns": spec_of(tile={"n": n}) for n in (64, 192, 256)}
    held = contest_of(clock, first=spec_of(), **tiles)
    runs = contest.hold([held, held], "name", options_of("--save"))
    assert len(runs) == 2 and [run["case"] for run in runs] == ["small", "small"]
    rows = runs[0]["candidates"]
    first = f"first: {api.resolve(spec_of()).choice}"
    assert list(rows) == [first, "64 columns", "slow", "library"]
    assert [row["median_ms"] for row in rows.values()] == pytest.approx([0.1, 0.2, 0.4, 0.15])
    # Against the faster rival; 2 m n k operations.
    assert rows[first]["ratio"] == pytest.approx(1.5) and rows["slow"]["ratio"] == pytest.approx(0.375)
    assert rows[first]["tflops"] == pytest.approx(2 * 64**3 / 0.1 / 1e9)
    assert rows[first]["spilled"] == 8 and rows["slow"]["spilled"] is None
    assert contest.best(runs[0], "library", "64") == pytest.approx(0.75) and contest.best(runs[0], "", "none") == 0.01

    saved = json.loads((tmp_path / "name.json").read_text())
    assert list(saved) == ["environment", "runs"] and saved["runs"] == runs
    assert saved["environment"]["date"] and saved["environment"]["versions"]["numpy"]

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a problem" and lines[1] == "  256 columns: does not load"
    assert lines[2] == "  192 columns: namespace(ok=False)"
    assert lines[3].split(": ")[0] == "  first" and lines[3].endswith("1.500 x, 8 B spilled")
    assert lines[4].split()[0] == "library" and len(lines) == 14


def test_what_was_measured_is_kept_when_a_later_problem_ends_the_run(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest, "RESULTS", tmp_path)

    def ended(given: Any) -> Any:
        raise KeyboardInterrupt

    whole = contest_of(clock, first=spec_of())
    with pytest.raises(KeyboardInterrupt):
        contest.hold([whole, contest.Contest("", {}, whole.specs, ended, whole.judge)], "name", options_of("--save"))
    assert len(json.loads((tmp_path / "name.json").read_text())["runs"]) == 1


def test_a_problem_of_which_nothing_can_be_built(clock: FakeClock) -> None:
    run = contest.measure(contest_of(clock, first=spec_of(tile={"n": 256})), 5, None)
    assert run == {"case": "small", "candidates": {}} and contest.best(run, "library") == 0.01


def test_compile_only_times_nothing(clock: FakeClock, capsys: pytest.CaptureFixture[str]) -> None:
    assert contest.hold([contest_of(clock, first=spec_of())], "name", options_of("--compile-only")) == []
    assert clock.log == [] and capsys.readouterr().out == ""


def test_each_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[GemmSpec] = []

    class Pool:
        def __enter__(self) -> Any:
            return SimpleNamespace(map=lambda function, specs: (asked.append(spec) for spec in specs))

        def __exit__(self, *ignored: Any) -> None: ...

    monkeypatch.setattr(contest, "ProcessPoolExecutor", Pool)
    made = spec_of(tile={"m": 128, "n": 128}, schedule={"kind": "cooperative", "split_k": 1}, cluster=[1, 1])
    # The same kernel for another problem, another kernel, and none.
    longer = made.model_copy(update={"problem": made.problem.model_copy(update={"k": 4096})})
    other = made.model_copy(update={"cluster": (2, 1)})
    contest.compile_all([made, longer, other, spec_of(tile={"n": 100})])
    assert asked == [made, other] and "tile.n" in capsys.readouterr().out


def test_compile_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(findings=())
    monkeypatch.setattr(contest.api, "compile", lambda spec: found)
    assert contest.compile_one(spec_of()) is None
    found.findings = (SimpleNamespace(message="8 bytes spilled"),)
    assert contest.compile_one(spec_of()) == "8 bytes spilled"


# ---- the three benchmarks


def fixed(rows: dict[str, float]) -> Callable[..., dict[str, Any]]:
    """In place of `measure`: ratios by name."""
    row = {"median_ms": 1.0, "tflops": 1.0}
    return lambda held, *ms: {
        **held.entry,
        "candidates": {name: row | {"ratio": ratio} for name, ratio in rows.items()},
    }


def test_gemm_matrix(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contest, "RESULTS", tmp_path)
    monkeypatch.setattr(contest, "measure", fixed({"first: 128x128": 0.5, "64x64": 0.8, "cublas": 1.0}))
    arguments = ["--dtype", "bf16", "--majors", "TN", "NT", "--only", "64x128x256", "--candidates", "3", "--save"]
    assert gemm_matrix.main(arguments) == 0
    runs = json.loads((tmp_path / "gemm_matrix.json").read_text())["runs"]
    assert [list(run) for run in runs] == [["problem", "dtype", "majors", "candidates"]] * 2
    assert runs[1]["problem"] == {"m": 64, "n": 128, "k": 256} and runs[1]["majors"] == "NT"
    text = capsys.readouterr().out
    assert "64x128x256 bf16 NT" in text
    assert "best choice: geometric mean 0.800 x cuBLAS, least 0.800 x" in text
    assert "first choice: geometric mean 0.500 x cuBLAS, least 0.500 x" in text


def test_gemm_matrix_candidates() -> None:
    spec = gemm_matrix.spec_of((8192, 8192, 8192), "bf16", "TN")
    own = api.resolve(spec)
    found = gemm_matrix.candidates(spec, 6)
    assert len(found) == 6 and found["first"] is spec
    brief = str(ranked(spec, cycles)[0][1])
    assert list(found)[1] == brief != str(own.choice), "what is faster where clocks don't fall is measured, too"
    for limit in range(1, 6):
        assert list(gemm_matrix.candidates(spec, limit)) == list(found)[:limit]
    grouped = api.resolve(found[f"{own.choice} group_m 2"])
    assert (grouped.choice, grouped.group_m) == (own.choice, 2)
    for name, candidate in list(found.items())[3:]:
        assert str(api.resolve(candidate).choice) == name
    named = gemm_matrix.candidates(spec, 6, ["128x128 cooperative"])
    assert list(named) == ["first", "128x128 cooperative"]
    # Where threads load an operand, what any arch can do is a candidate too.
    assert list(gemm_matrix.candidates(gemm_matrix.spec_of((63, 63, 63), "f16", "TN"), 1)) == ["first", "mma.sync"]


def test_gemm_extras(clock: FakeClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    entries: list[Any] = []
    monkeypatch.setattr(contest, "measure", lambda held, *ms: (entries.append(held.entry), fixed({})(held, *ms))[1])
    assert gemm_extras.main(["--candidates", "1"]) == 0
    assert entries == [{"case": name} for name in gemm_extras.cases()]
    assert capsys.readouterr().out.splitlines() == list(gemm_extras.cases())


def test_attention_tiles(clock: FakeClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    device = SimpleNamespace(capability=(9, 0))
    monkeypatch.setattr(attention_tiles, "driver", lambda: SimpleNamespace(device=lambda ordinal: device))
    seen: list[contest.Contest] = []
    measure = fixed({"128x64": 2.0, attention_tiles.RIVAL: 1.0})
    monkeypatch.setattr(contest, "measure", lambda held, *ms: (seen.append(held), measure(held, *ms))[1])
    assert attention_tiles.main(["--head-dim", "64", "--seqlen", "1024", "--best", "2"]) == 0
    assert [list(held.entry) for held in seen] == [["problem", "causal"]] * 3
    assert all(list(held.specs) == ["128x128x4xsharedx1", "128x64x4xregistersx1"] for held in seen)
    assert {spec.arch for held in seen for spec in held.specs.values()} == {"sm_90"}
    assert list(seen[0].figures(None)) == ["registers", "spilled"]
    assert capsys.readouterr().out.endswith("geometric mean of the best tiles: 2.000 x FlashAttention-2\n")


def test_every_tile_has_a_plan() -> None:
    for head_dim, tiles in attention_tiles.TILES.items():
        for tile in tiles:
            problem = {"seqlen_q": 64, "seqlen_k": 64, "head_dim": head_dim}
            assert api.resolve(attention_tiles.spec_of(problem, True, tile)).symbol


def test_bank_conflicts_say_where_they_were_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"ld.shared": 7, "st.shared": 5}
    counted = SimpleNamespace(profile=SimpleNamespace(of=lambda first, *_: SimpleNamespace(wavefronts=counts[first])))
    kernel = SimpleNamespace(simulate=lambda profile: (None, counted))
    monkeypatch.setattr(bank_conflicts, "ROOT", tmp_path)
    monkeypatch.setattr(bank_conflicts, "kernel_and_inputs", lambda name, overrides: (kernel, []))
    monkeypatch.setattr(
        bank_conflicts, "measured", lambda name, overrides: {"loads": 8 if overrides else 7, "stores": 5}
    )
    monkeypatch.setattr("sys.argv", ["bank_conflicts.py"])
    assert bank_conflicts.main() == 1
    saved = json.loads((tmp_path / "benchmarks/results/bank_conflicts.json").read_text())
    assert list(saved) == ["environment", "metrics", "rows"] and saved["environment"]["date"]
    assert len(saved["rows"]) == len(bank_conflicts.CASES)
    seven = {"loads": 7, "stores": 5}
    assert saved["rows"][0] == {"spec": "gemm/sm80_f16_tn", "overrides": [], "simulated": seven, "ncu": seven}
