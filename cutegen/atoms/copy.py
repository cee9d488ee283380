"""The copy atoms that kernels are made of, with the layouts of CuTe's `Copy_Traits`.

A layout maps (thread, bit of its value) to a bit of the copied matrices, source and destination each. Sources: CUTLASS
`cute/atom/copy_traits.hpp`, `copy_traits_sm75.hpp`, `copy_traits_sm80.hpp`, `copy_traits_sm90.hpp`; PTX ISA,
"ldmatrix", "stmatrix", "cp.async".
"""

from __future__ import annotations

from dataclasses import dataclass

from pycute import Layout


@dataclass(frozen=True)
class CopyAtom:
    """`threads` copy `bytes` each between `source` and `destination`; `name` is what a spec may write, `cpp` CuTe's."""

    name: str
    cpp: str
    bytes: int
    threads: int
    asynchronous: bool
    source: Layout
    destination: Layout
    min_capability: tuple[int, int]
    header: str
    ptx: str


def _plain(name: str, cpp: str, size: int, asynchronous: bool, capability: tuple[int, int], ptx: str) -> CopyAtom:
    """One thread, `size` bytes as they are."""
    bits = Layout((1, 8 * size), (0, 1))
    header = "cute/atom/copy_traits_sm80.hpp" if asynchronous else "cute/atom/copy_traits.hpp"
    return CopyAtom(name, cpp, size, 1, asynchronous, bits, bits, capability, header, ptx)


_INTEGERS = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t", 16: "uint128_t"}

UNIVERSAL = {
    size: _plain(f"UniversalCopy_{size}B", f"UniversalCopy<{cpp}>", size, False, (5, 0), "ld, st")
    for size, cpp in _INTEGERS.items()
}

# cp.async copies 4, 8 or 16 bytes, 16 only past L1 with .cg; ZFILL reads nothing where its predicate is false.
CP_ASYNC = {
    **{
        f"SM80_CP_ASYNC_CACHEALWAYS_{size}B": _plain(
            f"SM80_CP_ASYNC_CACHEALWAYS_{size}B",
            f"SM80_CP_ASYNC_CACHEALWAYS_ZFILL<{_INTEGERS[size]}>",
            size,
            True,
            (8, 0),
            "cp.async.ca.shared.global",
        )
        for size in (4, 8, 16)
    },
    "SM80_CP_ASYNC_CACHEGLOBAL_16B": _plain(
        "SM80_CP_ASYNC_CACHEGLOBAL_16B",
        "SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>",
        16,
        True,
        (8, 0),
        "cp.async.cg.shared.global",
    ),
}

# What `copy.X.atom` of a spec may name.
GLOBAL_COPIES = {**CP_ASYNC, **{atom.name: atom for size, atom in UNIVERSAL.items() if size > 1}}


def _rows(matrices: int) -> Layout:
    """Rows of 16 bytes in shared memory: lane 8 j + r holds the address of row r of matrix j."""
    if matrices == 4:
        return Layout((32, 128), (128, 1))
    return Layout(((8 * matrices, 4 // matrices), 128), ((128, 0), 1))


def _registers(matrices: int, transposed: bool) -> Layout:
    """Registers: 32 bits of each matrix a lane; transposed ones take two rows of a column."""
    if transposed:
        values = ((16, 2, matrices), (1, 128, 1024)) if matrices > 1 else ((16, 2), (1, 128))
        return Layout(((4, 8), values[0]), ((256, 16), values[1]))
    return Layout((32, (32, matrices)), (32, (1, 1024))) if matrices > 1 else Layout((32, 32), (32, 1))


def _matrix(matrices: int, transposed: bool, store: bool) -> CopyAtom:
    kind = f"U16x{2 * matrices}" if transposed else f"U32x{matrices}"
    name = f"{'SM90' if store else 'SM75'}_{kind}_{'STSM' if store else 'LDSM'}_{'T' if transposed else 'N'}"
    rows, registers = _rows(matrices), _registers(matrices, transposed)
    word = "stmatrix" if store else "ldmatrix"
    ptx = f"{word}.sync.aligned.m8n8.x{matrices}{'.trans' if transposed else ''}.shared.b16"
    return CopyAtom(
        name,
        name,
        4 * matrices,
        32,
        False,
        registers if store else rows,
        rows if store else registers,
        (9, 0) if store else (7, 5),
        f"cute/atom/copy_traits_{'sm90' if store else 'sm75'}.hpp",
        ptx,
    )


LDMATRIX = {
    (count, transposed): _matrix(count, transposed, False) for count in (1, 2, 4) for transposed in (False, True)
}
STMATRIX = {
    (count, transposed): _matrix(count, transposed, True) for count in (1, 2, 4) for transposed in (False, True)
}

COPY_ATOMS: dict[str, CopyAtom] = {
    atom.name: atom for atom in (*UNIVERSAL.values(), *CP_ASYNC.values(), *LDMATRIX.values(), *STMATRIX.values())
}
