"""What is said while something takes long: a line on a terminal, nothing elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def coloured(text: str, code: str) -> str:
    """`text` in an ANSI colour where standard output is a terminal and NO_COLOR is not set."""
    return f"\x1b[{code}m{text}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


@contextmanager
def step(text: str, quiet: bool = False) -> Iterator[None]:
    """Shows `text ...` on a terminal's standard error while the block runs, and clears it afterwards."""
    shown = sys.stderr.isatty() and not quiet
    if shown:
        print(f"{text} ...", end="", file=sys.stderr, flush=True)
    started = time.perf_counter()
    try:
        yield
    finally:
        if shown:
            print(f"\r\x1b[K{text}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
