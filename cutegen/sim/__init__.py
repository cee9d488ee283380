"""Runs emitted kernels without a GPU: an interpreter of PTX in numpy that also checks what a GPU hides.

`launch` runs one kernel; its `Result` holds what the checkers found and the counters.
"""

from cutegen.sim.findings import Finding
from cutegen.sim.launch import Result, launch
from cutegen.sim.profile import Counts, Profile

__all__ = ["Counts", "Finding", "Profile", "Result", "launch"]
