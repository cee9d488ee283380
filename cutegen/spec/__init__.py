"""Specs: what a person decides, and nothing else."""

from __future__ import annotations

from cutegen.spec.attention import AttentionScoresSpec
from cutegen.spec.common import KernelSpec
from cutegen.spec.gemm import GemmSpec

FAMILIES: dict[str, type[KernelSpec]] = {"gemm": GemmSpec, "attention_scores": AttentionScoresSpec}

__all__ = ["FAMILIES", "AttentionScoresSpec", "GemmSpec", "KernelSpec"]
