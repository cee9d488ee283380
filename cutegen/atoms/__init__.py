"""CuTe's MMA and copy atoms: shapes, types and thread-value layouts."""

from __future__ import annotations

from cutegen.atoms.copy import COPY_ATOMS, CopyAtom
from cutegen.atoms.mma import MMA_ATOMS, MmaAtom, default_atom, mma_atom

__all__ = ["COPY_ATOMS", "MMA_ATOMS", "CopyAtom", "MmaAtom", "default_atom", "mma_atom"]
