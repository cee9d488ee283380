"""The MMA atoms that kernels are made of, with the layouts of CuTe's `MMA_Traits`.

A layout maps (thread, value) to an element of the atom's (M,K), (N,K) or (M,N) tile, counted column by column.
Sources: CUTLASS
`cute/atom/mma_traits_sm80.hpp`, `mma_traits_sm75.hpp`, `cute/arch/mma.hpp`; fragments as in PTX ISA, "Matrix
fragments for mma.m16n8k16 with floating point type", "mma.m16n8k8", and their tf32 tables.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from pycute import Layout

from cutegen.errors import Fault, SpecError
from cutegen.hardware import Arch


@dataclass(frozen=True)
class MmaAtom:
    """D = A B + C over `shape_mnk`. `threads` take part; `header` defines `cpp`; `min_capability` is the first GPU
    that has it.
    """

    name: str
    cpp: str
    shape_mnk: tuple[int, int, int]
    multiply: str
    accumulate: str
    threads: int
    layout_a: Layout
    layout_b: Layout
    layout_c: Layout
    min_capability: tuple[int, int]
    header: str
    ptx: str

    def check_arch(self, arch: Arch, field: str) -> None:
        """Raises SpecError if `arch` lacks the instruction."""
        if arch.capability < self.min_capability:
            needs = f"sm_{self.min_capability[0]}{self.min_capability[1]}"
            raise SpecError(
                Fault(
                    field,
                    f"{self.name} needs {needs} or newer",
                    got=arch.name,
                    hint=f"write arch: {needs}, or another atom",
                )
            )


_C_16x8 = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))
_A_16x8_B16 = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))
_B_8x8_B16 = Layout(((4, 8), 2), ((16, 1), 8))
_A_16x16_B16 = Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
_B_8x16_B16 = Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))
_A_16x4_B32 = Layout(((4, 8), 2), ((16, 1), 8))
_B_8x4_B32 = Layout(((4, 8), 1), ((8, 1), 0))
_A_16x8_B32 = Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))
_B_8x8_B32 = Layout(((4, 8), 2), ((8, 1), 32))
_ONE = Layout((1, 1), (0, 0))
_SM80 = "cute/atom/mma_traits_sm80.hpp"


def _sm80(name: str, k: int, multiply: str, accumulate: str, a: Layout, b: Layout, types: str) -> MmaAtom:
    return MmaAtom(
        name,
        name,
        (16, 8, k),
        multiply,
        accumulate,
        32,
        a,
        b,
        _C_16x8,
        (8, 0),
        _SM80,
        f"mma.sync.aligned.m16n8k{k}.row.col.{types}",
    )


MMA_ATOMS: dict[str, MmaAtom] = {
    atom.name: atom
    for atom in (
        MmaAtom(
            "UniversalFMA",
            "UniversalFMA<float,float,float,float>",
            (1, 1, 1),
            "f32",
            "f32",
            1,
            _ONE,
            _ONE,
            _ONE,
            (7, 0),
            "cute/arch/mma.hpp",
            "fma.rn.f32",
        ),
        _sm80("SM80_16x8x16_F32F16F16F32_TN", 16, "f16", "f32", _A_16x16_B16, _B_8x16_B16, "f32.f16.f16.f32"),
        _sm80("SM80_16x8x8_F32F16F16F32_TN", 8, "f16", "f32", _A_16x8_B16, _B_8x8_B16, "f32.f16.f16.f32"),
        _sm80("SM80_16x8x16_F16F16F16F16_TN", 16, "f16", "f16", _A_16x16_B16, _B_8x16_B16, "f16.f16.f16.f16"),
        _sm80("SM80_16x8x8_F16F16F16F16_TN", 8, "f16", "f16", _A_16x8_B16, _B_8x8_B16, "f16.f16.f16.f16"),
        _sm80("SM80_16x8x16_F32BF16BF16F32_TN", 16, "bf16", "f32", _A_16x16_B16, _B_8x16_B16, "f32.bf16.bf16.f32"),
        _sm80("SM80_16x8x8_F32BF16BF16F32_TN", 8, "bf16", "f32", _A_16x8_B16, _B_8x8_B16, "f32.bf16.bf16.f32"),
        _sm80("SM80_16x8x8_F32TF32TF32F32_TN", 8, "tf32", "f32", _A_16x8_B32, _B_8x8_B32, "f32.tf32.tf32.f32"),
        _sm80("SM80_16x8x4_F32TF32TF32F32_TN", 4, "tf32", "f32", _A_16x4_B32, _B_8x4_B32, "f32.tf32.tf32.f32"),
    )
}


def mma_atom(name: str, field: str = "mma.atom") -> MmaAtom:
    """The atom called `name`.

    Raises:
        SpecError: unknown; names the nearest.
    """
    if name in MMA_ATOMS:
        return MMA_ATOMS[name]
    near = difflib.get_close_matches(name, MMA_ATOMS, n=1, cutoff=0.3)
    raise SpecError(
        Fault(
            field,
            "unknown MMA atom",
            got=name,
            expected="one of " + ", ".join(MMA_ATOMS),
            hint=f"did you mean {near[0]}?" if near else None,
        )
    )


def default_atom(multiply: str, accumulate: str) -> MmaAtom:
    """The deepest atom for these types; the scalar FMA for f32."""
    fitting = [a for a in MMA_ATOMS.values() if (a.multiply, a.accumulate) == (multiply, accumulate)]
    return max(fitting, key=lambda atom: atom.shape_mnk[2])
