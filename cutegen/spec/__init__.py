"""Specs: what a person decides, and nothing else."""

from __future__ import annotations

from cutegen.spec.attention import AttentionScoresSpec
from cutegen.spec.attention_forward import AttentionForwardSpec
from cutegen.spec.common import KernelSpec
from cutegen.spec.gemm import GemmSpec

FAMILIES: dict[str, type[KernelSpec]] = {
    "gemm": GemmSpec,
    "attention_scores": AttentionScoresSpec,
    "attention_forward": AttentionForwardSpec,
}

__all__ = ["FAMILIES", "AttentionForwardSpec", "AttentionScoresSpec", "GemmSpec", "KernelSpec"]
