"""One command on a machine with a GPU: tests, sanitizer, benchmarks; result files go to benchmarks/results/.

    python benchmarks/gpu_checks.py [STEP...]

Steps, all of them if none is named: compile, tests, sanitizer, bench (every shipped spec), matrix (GEMM over problems,
types and majors), extras (fp8, tf32, fused, grouped), attention (tiles against FlashAttention-2), overhead (a launch),
conflicts (the simulator's bank conflicts beside ncu's).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
# The launcher asks the driver whether there is a context: an answer of "none" is no error of a kernel. initcheck does
# not see what TMA stores, and would call the copy of an output to the host a read of uninitialised memory.
OPTIONS = {"memcheck": ["--report-api-errors", "no"], "initcheck": ["--check-api-memory-access", "no"]}
# Each tool looks at the specs in so many processes.
SHARDS = 3
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def compiled() -> bool:
    """Every shipped spec compiled for the GPU that is here, all at once: what follows finds it in the cache."""
    sys.path.insert(0, str(ROOT))
    from concurrent.futures import ProcessPoolExecutor

    from cutegen.cli.commands import shipped

    with ProcessPoolExecutor() as workers:
        return all(workers.map(_compile, [str(path) for path in shipped().values()]))


def _compile(path: str) -> bool:
    import cutegen as cg
    from cutegen.cli.running import native, the_gpu

    cg.compile(native(cg.load(path), the_gpu()[1], quiet=True))
    return True


def tests() -> bool:
    """All tests marked gpu."""
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"], cwd=ROOT).returncode == 0


def sanitizer() -> bool:
    """compute-sanitizer's four tools over every shipped spec at small problems."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        print("compute-sanitizer is not on the PATH: skipped")
        return True
    command = [sys.executable, "benchmarks/sanitizer_target.py"]
    started = {
        (name, shard): subprocess.Popen(
            [tool, "--tool", name, "--error-exitcode", "9", *OPTIONS.get(name, []), *command, f"{shard}/{SHARDS}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in TOOLS
        for shard in range(SHARDS)
    }
    right = True
    for (name, shard), process in started.items():
        output = process.communicate()[0]
        lines = [line for line in output.splitlines() if "SUMMARY" in line or "right" in line]
        verdict = "clean" if process.returncode == 0 else "FAULTS"
        print(f"{name:<10} {shard + 1}/{SHARDS} {verdict}  {' '.join(lines)}", flush=True)
        if process.returncode:
            print(output[-2500:])
            right = False
    return right


def bench() -> bool:
    """Every shipped spec against cuBLAS, all in one run; validated before it is timed."""
    sys.path.insert(0, str(ROOT))
    from cutegen.cli.commands import shipped

    paths = [str(path) for path in shipped().values()]
    command = [
        sys.executable,
        "-m",
        "cutegen",
        "bench",
        *paths,
        "--against",
        "library",
        "--save",
        str(RESULTS),
        "--allow-spills",
    ]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def conflicts() -> bool:
    """The simulator's bank conflicts beside ncu's."""
    if shutil.which("ncu") is None:
        print("ncu is not on the PATH: skipped")
        return True
    return subprocess.run([sys.executable, "benchmarks/bank_conflicts.py"], cwd=ROOT).returncode == 0


def script(name: str) -> Callable[[], bool]:
    """A benchmark of its own, which writes its result file."""
    return lambda: subprocess.run([sys.executable, f"benchmarks/{name}.py", "--save"], cwd=ROOT).returncode == 0


def main() -> int:
    steps = {
        "compile": compiled,
        "tests": tests,
        "sanitizer": sanitizer,
        "bench": bench,
        "matrix": script("gemm_matrix"),
        "extras": script("gemm_extras"),
        "attention": script("attention_tiles"),
        "overhead": script("launch_overhead"),
        "conflicts": conflicts,
    }
    chosen = sys.argv[1:] or list(steps)
    outcome = {name: steps[name]() for name in chosen}
    print(json.dumps(outcome))
    return 0 if all(outcome.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
