"""cutegen: short tile and layout specs to readable, validated CuTe kernels.

    import cutegen as cg
    spec = cg.load("specs/gemm/sm80_f16_tn.yaml")
    kernel = cg.build(spec)
    c = kernel(a, b)                      # torch, cupy, jax, numba without a copy; numpy with one

`load`, `resolve`, `emit`, `compile`, `build` are the steps of the pipeline; `check` predicts without compiling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cutegen.api import Kernel, build, check, compile, emit, load, resolve
    from cutegen.binary import Binary
    from cutegen.errors import ArgumentError, CompileError, CutegenError, LaunchError, SpecError, ToolchainError
    from cutegen.plan.kernel_plan import KernelPlan
    from cutegen.report import Report
    from cutegen.spec import AttentionForwardSpec, AttentionScoresSpec, GemmSpec, KernelSpec

_WHERE = {
    "cutegen.api": ("Kernel", "build", "check", "compile", "emit", "load", "resolve"),
    "cutegen.binary": ("Binary",),
    "cutegen.errors": ("ArgumentError", "CompileError", "CutegenError", "LaunchError", "SpecError", "ToolchainError"),
    "cutegen.plan.kernel_plan": ("KernelPlan",),
    "cutegen.report": ("Report",),
    "cutegen.spec": ("AttentionForwardSpec", "AttentionScoresSpec", "GemmSpec", "KernelSpec"),
}
_LAZY = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "ArgumentError",
    "AttentionForwardSpec",
    "AttentionScoresSpec",
    "Binary",
    "CompileError",
    "CutegenError",
    "GemmSpec",
    "Kernel",
    "KernelPlan",
    "KernelSpec",
    "LaunchError",
    "Report",
    "SpecError",
    "ToolchainError",
    "build",
    "check",
    "compile",
    "emit",
    "load",
    "resolve",
]


def __getattr__(name: str) -> Any:
    # Lazily, so that `cutegen --help` and editors don't wait for numpy and pydantic.
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'cutegen' has no attribute {name!r}")
