"""Plans: everything that follows from a spec, resolved and checked."""

from __future__ import annotations

from functools import lru_cache

from cutegen.plan.attention import plan_attention_scores
from cutegen.plan.attention_forward import plan_attention_forward
from cutegen.plan.gemm import plan_gemm
from cutegen.plan.kernel_plan import KernelPlan
from cutegen.spec import AttentionForwardSpec, AttentionScoresSpec, GemmSpec, KernelSpec

__all__ = ["KernelPlan", "plan"]


@lru_cache(maxsize=256)
def plan(spec: KernelSpec) -> KernelPlan:
    """The plan of any spec.

    Raises:
        SpecError: the spec can't become a right kernel; every fault names its field.
    """
    if isinstance(spec, GemmSpec):
        return plan_gemm(spec)
    if isinstance(spec, AttentionScoresSpec):
        return plan_attention_scores(spec)
    if isinstance(spec, AttentionForwardSpec):
        return plan_attention_forward(spec)
    raise TypeError(f"no plan for {type(spec).__name__}")
