"""CuTe's MMA atoms: shapes, types and the thread-value layouts of their operands."""

from __future__ import annotations

from cutegen.atoms.mma import MMA_ATOMS, MmaAtom, default_atom, mma_atom

__all__ = ["MMA_ATOMS", "MmaAtom", "default_atom", "mma_atom"]
