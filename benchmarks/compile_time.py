"""Compile times of all shipped specs against a yardstick, in one run on one machine, all through the same NVRTC.

    python benchmarks/compile_time.py [YARDSTICK.cu] [--save]

The yardstick is an ordinary CuTe kernel that leaves layout algebra to the compiler; without one, absolute times are
printed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import cutegen as cg  # noqa: E402
from cutegen.bench import results  # noqa: E402
from cutegen.binary import Cache, compile  # noqa: E402
from cutegen.cli.commands import shipped  # noqa: E402

YARDSTICK_ARCH = "sm_90a"


def main() -> int:
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    off = Cache(None)
    times: dict[str, float] = {}
    yardstick = 0.0
    if arguments:
        source = Path(arguments[0]).read_text("utf-8")
        yardstick = compile(source, stem="yardstick", arch=YARDSTICK_ARCH, kernel="gemm", cache=off).seconds
        print(f"{'yardstick ' + Path(arguments[0]).name:<44} {yardstick:6.2f} s")
    for name, path in shipped().items():
        times[name] = cg.compile(cg.load(path), cache=off).seconds
        ratio = f"  {times[name] / yardstick:.3f} x" if yardstick else ""
        print(f"{name:<44} {times[name]:6.2f} s{ratio}", flush=True)
    if "--save" in sys.argv:
        found = {"yardstick_s": yardstick or None, "seconds": times, "cores": os.cpu_count()}
        print(results.write(ROOT / "benchmarks" / "results", "compile_time", "all shipped specs", found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
