"""Loading and launching: a compiled kernel as a function of arrays."""

from __future__ import annotations

from cutegen.kernel.entry import Launch
from cutegen.kernel.launch import Kernel

__all__ = ["Kernel", "Launch"]
