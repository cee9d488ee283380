"""`cutegen`: the command line. Parsing only; the work is in `commands`, imported when a command runs.

Exit status: 0 right, 1 a wrong result, 2 a fault in a spec or in the command's own words, 3 something missing on
this machine, 4 the compiler refused a source, 5 arguments that don't fit a kernel, 6 the driver refused, 7 the
simulator found a fault.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cutegen import __version__

_EPILOG = __doc__.split("\n\n", 1)[1] if __doc__ else ""


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="cutegen", description="Short tile and layout specs to readable, validated CuTe kernels.", epilog=_EPILOG
    )
    top.add_argument("--version", action="version", version=f"cutegen {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, specs: str | None = None, json: bool = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        if specs:
            sub.add_argument(
                "spec", nargs=specs, metavar="SPEC", help="a .yaml or .json file, or the name of a shipped spec"
            )
            sub.add_argument(
                "--set",
                action="append",
                default=[],
                metavar="FIELD=VALUE",
                dest="overrides",
                help="change a field, such as tile.m=64; may be repeated",
            )
        if json:
            sub.add_argument("--json", action="store_true", help="print JSON")
        return sub

    emit = add("emit", "Write the .cu of each spec.", "*", json=False)
    emit.add_argument("-o", "--output", metavar="DIR", default=".", help="folder to write into (default: here)")
    emit.add_argument("--stdout", action="store_true", help="print instead")
    emit.add_argument("--shipped", action="store_true", help="all shipped specs, each into the folder of its family")
    add("check", "Check specs without compiling, and predict memory, conflicts, occupancy, waves and a bound.", "+")
    add("compile", "Compile specs to PTX and cubin; needs no GPU.", "+")
    run = add("run", "Emit, check, compile, run and validate specs.", "+")
    run.add_argument(
        "--device",
        default="auto",
        choices=["auto", "cuda", "sim"],
        help="where to run (default: a GPU if there is one, else the simulator on a problem of a few tiles)",
    )
    run.add_argument("--seed", type=int, default=0, help="seed of the inputs")
    run.add_argument("--schedule-seed", type=int, metavar="N", help="sim: interleave warps at random, by this seed")
    run.add_argument("--profile", action="store_true", help="sim: count bank conflicts and sectors by line of the .cu")
    bench = add("bench", "Time specs on a GPU; outputs are validated first.", "+")
    bench.add_argument(
        "--against",
        choices=["library", "cublas", "flash_attention_2"],
        help="time what a user would call instead in the same run; library: what fits the family",
    )
    bench.add_argument("--save", metavar="DIR", help="write a result file into this folder")
    bench.add_argument("--allow-spills", action="store_true", help="time a kernel that spills registers")
    tune = add("tune", "Measure candidates of a spec on a GPU, and write the fastest.", "+")
    tune.add_argument("-o", "--output", metavar="FILE", help="spec to write (default: SPEC.tuned.yaml here)")
    tune.add_argument("--limit", type=int, default=16, help="candidates, the model's best first (default: 16)")
    tune.add_argument("--jobs", type=int, help="compiling processes (default: one a core)")
    tune.add_argument("--scheduler", metavar="ADDRESS", help="compile on this Dask cluster instead, tcp://host:port")
    tune.add_argument(
        "--journal", metavar="DIR", default="tuning", help="folder of what was measured (default: tuning)"
    )
    add("specs", "List the shipped specs.")
    add("schema", "Print the JSON Schema of specs, for editors.", json=False)
    cache = add("cache", "Show or empty the cache of compiled kernels.")
    cache.add_argument("action", choices=["info", "clear"])
    add("doctor", "Look at GPU, driver, compiler, headers and cache; say what is missing and what mends it.")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    options = parser().parse_args(arguments)
    from cutegen.cli import commands
    from cutegen.errors import CutegenError

    try:
        return int(getattr(commands, options.command)(options))
    except CutegenError as error:
        print(f"cutegen: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("cutegen: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
