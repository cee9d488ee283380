"""The verdict on a kernel: float64 references, stated error bounds, and the comparison of the two."""

from __future__ import annotations

from cutegen.report.bounds import Numerics
from cutegen.report.compare import Mismatch
from cutegen.report.reference import FAMILIES, attention_scores, gemm
from cutegen.report.validate import Report, validate

__all__ = ["FAMILIES", "Mismatch", "Numerics", "Report", "attention_scores", "gemm", "validate"]
