"""What each GPU architecture offers, as far as a static check or a prediction needs it.

Shared memory and registers: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability". The
block limit is the opt-in maximum; one kibibyte of each SM's shared memory is reserved for the system per resident
block. Rates: NVIDIA's datasheets and architecture papers of the named card (dense), used for roofline predictions only.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from cutegen.errors import Fault, SpecError

# A CUtensorMap: its size, and what its address must be a multiple of (cuda.h).
TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT = 128, 64


@dataclass(frozen=True)
class Arch:
    """A compilation target. `name` is NVRTC's (`sm_90a`), `feature_set` what code may use (`sm_90a` includes WGMMA).

    Sizes in bytes; `registers` counts 32-bit registers of one SM; `tensor_tflops` maps a multiplicand dtype to dense
    TFLOP/s of `card`, `f32_tflops` is without tensor cores; `dram` in GB/s.
    """

    name: str
    capability: tuple[int, int]
    smem_per_block: int
    smem_per_sm: int
    registers: int
    threads_per_sm: int
    blocks_per_sm: int
    card: str
    sms: int
    dram: float
    f32_tflops: float
    tensor_tflops: tuple[tuple[str, float], ...]

    def peak_tflops(self, dtype: str) -> float:
        """Dense tensor-core TFLOP/s for multiplicands of `dtype`; without tensor cores for f32."""
        return dict(self.tensor_tflops).get(dtype, self.f32_tflops)

    @property
    def hopper(self) -> bool:
        """Whether WGMMA, TMA and setmaxnreg exist (PTX ISA: `sm_90a` target)."""
        return self.name == "sm_90a"

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a cubin for this target loads on a device: same major, not newer; arch-specific ones exactly."""
        if self.name.endswith("a"):
            return capability == self.capability
        return capability[0] == self.capability[0] and capability[1] >= self.capability[1]

    def __str__(self) -> str:
        return self.name


_KIB = 1024
_A100 = (("f16", 312.0), ("bf16", 312.0), ("tf32", 156.0))
_H200 = (("f16", 989.0), ("bf16", 989.0), ("tf32", 494.0), ("e4m3", 1979.0), ("e5m2", 1979.0))
_L40S = (("f16", 362.0), ("bf16", 362.0), ("tf32", 183.0), ("e4m3", 733.0), ("e5m2", 733.0))

ARCHS: dict[str, Arch] = {
    a.name: a
    for a in (
        Arch("sm_80", (8, 0), 163 * _KIB, 164 * _KIB, 65536, 2048, 32, "A100 SXM", 108, 2039.0, 19.5, _A100),
        Arch(
            "sm_86",
            (8, 6),
            99 * _KIB,
            100 * _KIB,
            65536,
            1536,
            16,
            "RTX A6000",
            84,
            768.0,
            38.7,
            (("f16", 155.0), ("bf16", 155.0), ("tf32", 77.0)),
        ),
        Arch("sm_89", (8, 9), 99 * _KIB, 100 * _KIB, 65536, 1536, 24, "L40S", 142, 864.0, 91.6, _L40S),
        Arch("sm_90", (9, 0), 227 * _KIB, 228 * _KIB, 65536, 2048, 32, "H200 SXM", 132, 4800.0, 67.0, _H200),
        Arch("sm_90a", (9, 0), 227 * _KIB, 228 * _KIB, 65536, 2048, 32, "H200 SXM", 132, 4800.0, 67.0, _H200),
        Arch(
            "sm_100",
            (10, 0),
            227 * _KIB,
            228 * _KIB,
            65536,
            2048,
            32,
            "B200",
            148,
            8000.0,
            75.0,
            (("f16", 2250.0), ("bf16", 2250.0), ("tf32", 1100.0), ("e4m3", 4500.0), ("e5m2", 4500.0)),
        ),
        Arch(
            "sm_120",
            (12, 0),
            99 * _KIB,
            100 * _KIB,
            65536,
            1536,
            24,
            "RTX PRO 6000",
            188,
            1792.0,
            125.0,
            (("f16", 503.0), ("bf16", 503.0), ("tf32", 251.0)),
        ),
    )
}


def arch(name: str, field: str = "arch") -> Arch:
    """The architecture called `name`: `sm_90a`, also written `90a`, `9.0a`, `compute_90a`, in any case.

    Raises:
        SpecError: not an architecture that kernels are made for; names the nearest one.
    """
    match = re.fullmatch(r"(?:sm_?|compute_?)?(\d{1,2})\.?(\d)(a?)", str(name).strip().lower())
    known = f"sm_{match[1]}{match[2]}{match[3]}" if match else ""
    if known in ARCHS:
        return ARCHS[known]
    near = difflib.get_close_matches(str(name).lower(), ARCHS, n=1, cutoff=0.5)
    raise SpecError(
        Fault(
            field,
            "not a supported architecture",
            got=repr(name),
            expected=" or ".join(ARCHS),
            hint=f"did you mean {near[0]}?" if near else None,
        )
    )
