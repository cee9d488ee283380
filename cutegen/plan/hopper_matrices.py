"""Where the matrices of a tile lie in a GEMM on Hopper's own instructions: in a batch, in groups, or anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from cutegen.plan.batches import Batches, batches_of
from cutegen.plan.hopper import HopperPlan, Ring
from cutegen.spec.gemm import GemmSpec


@dataclass(frozen=True)
class HopperMatrices(HopperPlan):
    """How a kernel names the matrices of a tile. `batch` is the tile's number of a product, or of a group."""

    @property
    def grouped(self) -> bool:
        assert isinstance(self.spec, GemmSpec)
        return self.spec.problem.groups is not None

    @property
    def row_limit(self) -> str:
        """The first row that is not this tile's business."""
        return "end" if self.grouped else "M"

    @property
    def batches(self) -> Batches:
        assert isinstance(self.spec, GemmSpec)
        return batches_of(self.spec)

    @property
    def batches_b(self) -> Batches:
        return Batches(("groups",)) if self.grouped else self.batches

    @property
    def pointers(self) -> bool:
        return self.batches.pointers

    def matrix(self, ring: Ring) -> str:
        """The matrix of a tile of an operand that threads load; those of arrays have been looked up."""
        batches = self.batches_b if ring.name == "B" else self.batches
        return ring.name if self.pointers else batches.matrix(ring.name)

    def index(self, ring: Ring) -> str:
        """The coordinate of a tile's matrix in the tensor that TMA loads, if it has one."""
        return "batch" if (self.batches_b if ring.name == "B" else self.batches).strides else ""

    def map(self, name: str) -> str:
        """The address of the descriptor of a tile's matrix."""
        return f"tma_{name} + batch" if self.pointers else f"&tma_{name}"

    def offset(self, name: str) -> str:
        """From an output to the matrix of a tile."""
        return f" + batch * batch_{name}" if self.batches.strides else ""
