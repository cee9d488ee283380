"""One command on a machine with a GPU: tests, sanitizer, benchmarks; result files go to benchmarks/results/.

    python benchmarks/gpu_checks.py [tests] [sanitizer] [bench]        all three if none is named
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def tests() -> bool:
    """All tests marked gpu."""
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"], cwd=ROOT).returncode == 0


def sanitizer() -> bool:
    """compute-sanitizer's four tools over every shipped spec at small problems."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        print("compute-sanitizer is not on the PATH: skipped")
        return True
    right = True
    for name in TOOLS:
        command = [tool, "--tool", name, "--error-exitcode", "9", sys.executable, "benchmarks/sanitizer_target.py"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if "SUMMARY" in line or "right" in line]
        print(f"{name:<10} {'clean' if done.returncode == 0 else 'FAULTS'}  {' '.join(lines)}", flush=True)
        if done.returncode:
            print(done.stdout[-3000:], done.stderr[-2000:])
            right = False
    return right


def bench() -> bool:
    """Every shipped spec against cuBLAS, in one run each; validated before it is timed."""
    sys.path.insert(0, str(ROOT))
    from cutegen.cli.commands import shipped

    right = True
    for path in shipped().values():
        command = [sys.executable, "-m", "cutegen", "bench", str(path), "--against", "cublas", "--save", str(RESULTS), "--allow-spills"]
        right &= subprocess.run(command, cwd=ROOT).returncode == 0
    return right


def main() -> int:
    steps = {"tests": tests, "sanitizer": sanitizer, "bench": bench}
    chosen = sys.argv[1:] or list(steps)
    outcome = {name: steps[name]() for name in chosen}
    print(json.dumps(outcome))
    return 0 if all(outcome.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
