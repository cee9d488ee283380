"""The verdict on a kernel: float64 references, stated error bounds, and the comparison of the two."""

from __future__ import annotations

from cutegen.report.attention import AttentionForward, attention_forward
from cutegen.report.bounds import Numerics
from cutegen.report.compare import Mismatch
from cutegen.report.reference import FAMILIES, attention_scores, gemm
from cutegen.report.validate import Report, validate
from cutegen.report.validate_attention import validate_attention

__all__ = [
    "FAMILIES",
    "AttentionForward",
    "Mismatch",
    "Numerics",
    "Report",
    "attention_forward",
    "attention_scores",
    "gemm",
    "validate",
    "validate_attention",
]
