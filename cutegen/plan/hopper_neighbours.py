"""What a block of a GEMM on Hopper's own instructions knows of its neighbours: blocks of a cluster that share loads, or
that share a tile along K.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutegen.plan.hopper_matrices import HopperMatrices
from cutegen.plan.hopper_tiles import Choice


@dataclass(frozen=True)
class HopperNeighbours(HopperMatrices):
    """How many there are, and how a kernel names them and the tile's place among theirs."""

    choice: Choice

    # ---- blocks that share loads

    @property
    def clustered(self) -> bool:
        return self.cluster_size > 1

    @property
    def cluster_size(self) -> int:
        return self.choice.cluster[0] * self.choice.cluster[1]

    @property
    def two_ways(self) -> bool:
        """Whether a cluster has neighbours along M and along N, which share both operands."""
        return min(self.choice.cluster) > 1

    @property
    def cluster_axis(self) -> str:
        return "M" if self.choice.cluster[0] > 1 else "N"

    @property
    def row_sharers(self) -> str:
        """The bits of the blocks that share A with the first of a two-way cluster, which counts its blocks down M first."""
        down, along = self.choice.cluster
        return hex(sum(1 << down * n for n in range(along)))

    @property
    def column_sharers(self) -> str:
        """Likewise of those that share B."""
        return hex((1 << self.choice.cluster[0]) - 1)

    @property
    def sharers(self) -> int:
        """Blocks that load into a block: those that share one of its operands."""
        return sum(self.choice.cluster) - 1

    @property
    def step_m(self) -> str:
        """Rows of C that a block or cluster covers."""
        return f"CLUSTER{self._along[0]}{{}} * BLK_M{{}}" if self.choice.cluster[0] > 1 else "BLK_M{}"

    @property
    def step_n(self) -> str:
        return f"CLUSTER{self._along[1]}{{}} * BLK_N{{}}" if self.choice.cluster[1] > 1 else "BLK_N{}"

    @property
    def origin_m(self) -> str:
        along = self._along[0]
        many = self.choice.cluster[0] > 1
        return f"(m * CLUSTER{along}{{}} + rank{along.lower()}) * BLK_M{{}}" if many else "m * BLK_M{}"

    @property
    def origin_n(self) -> str:
        along = self._along[1]
        many = self.choice.cluster[1] > 1
        return f"(n * CLUSTER{along}{{}} + rank{along.lower()}) * BLK_N{{}}" if many else "n * BLK_N{}"

    @property
    def _along(self) -> tuple[str, str]:
        """What the names of a cluster's extents and ranks end in."""
        return ("_M", "_N") if self.two_ways else ("", "")

    # ---- blocks that share a tile along K

    @property
    def split(self) -> int:
        """How many blocks share a tile; 0 if they don't."""
        return self.choice.split if self.choice.split > 1 else 0

    @property
    def first_known(self) -> bool:
        """Whether a block finds its first tile while it waits for its cluster; where groups lie is read from memory."""
        return self.clustered and not self.grouped

    def origin(self, m0: str) -> str:
        """The tile's place, with the caller's name for its first row."""
        names = f"auto const [{m0}, n0, batch{', end' if self.grouped else ''}]"
        return f"{names} = {'i == first ? first_origin : ' if self.first_known else ''}origin(i);"

    @property
    def worker(self) -> str:
        """Who takes a tile, for a comment."""
        return "cluster" if self.clustered or self.split else "block"

    @property
    def per_worker(self) -> str:
        """From blocks to those who take tiles."""
        return " / CLUSTER{}" if self.clustered else " / SPLIT{}" if self.split else ""
