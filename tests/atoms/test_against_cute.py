"""The Python algebra against CuTe's own: `static_assert`s that NVRTC evaluates, grouped into few compilations.

For each tile the idiomatic CuTe expression (`make_tiled_mma`, `make_tiled_copy`, `tile_to_shape`) is written down, and its values at
random coordinates are asserted to be those that the plan computed. Warps own contiguous blocks here, so the tiled MMA gets the
permutation that keeps each warp's atoms together.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from cutegen import api
from cutegen.atoms import COPY_ATOMS, MMA_ATOMS, MmaAtom
from cutegen.binary import Cache, compile
from cutegen.dtypes import DTYPES
from cutegen.layout import cpp_layout, cpp_swizzle, parse_layout
from cutegen.plan.hopper import atom_cpp
from cutegen.plan.kernel_plan import TilePlan
from cutegen.plan.operand import Operand
from cutegen.spec import GemmSpec

_HEAD = """#include <cute/tensor.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/copy_traits_sm80.hpp>
using namespace cute;
"""
_TAIL = 'extern "C" __global__ void nothing() {}\n'


def accept(body: str) -> None:
    """NVRTC accepts the assertions."""
    compile(_HEAD + body + _TAIL, stem="assertions", arch="sm_80", kernel="nothing", cache=Cache(None))


def test_every_atom() -> None:
    lines = []
    for atom in MMA_ATOMS.values():
        traits = f"MMA_Traits<{atom.cpp}>"
        m, n, k = atom.shape_mnk
        lines.append(f"static_assert(is_same_v<{traits}::Shape_MNK, Shape<_{m},_{n},_{k}>>);")
        lines.append(f"static_assert(size({traits}::ThrID{{}}) == {atom.threads});")
        for operand, layout in (("A", atom.layout_a), ("B", atom.layout_b), ("C", atom.layout_c)):
            theirs = f"{traits}::{operand}Layout{{}}"
            lines.append(
                f"static_assert(size<0>({theirs}) == {layout[0].size()} && size<1>({theirs}) == {layout[1].size()});"
            )
            for thread, value in itertools.product(range(layout[0].size()), range(layout[1].size())):
                lines.append(f"static_assert({theirs}({thread},{value}) == {layout[0](thread) + layout[1](value)});")
    accept("\n".join(lines))


def test_every_copy_atom() -> None:
    lines = []
    for atom in COPY_ATOMS.values():
        traits = f"Copy_Traits<{atom.cpp}>"
        lines.append(f"static_assert(size({traits}::ThrID{{}}) == {atom.threads});")
        for name, layout in (("Src", atom.source), ("Dst", atom.destination)):
            theirs = f"{traits}::{name}Layout{{}}"
            lines.append(
                f"static_assert(size<0>({theirs}) == {layout[0].size()} && size<1>({theirs}) == {layout[1].size()});"
            )
            for thread, bit in itertools.product(range(0, layout[0].size(), 3), range(0, layout[1].size(), 5)):
                lines.append(f"static_assert({theirs}({thread},{bit}) == {layout[0](thread) + layout[1](bit)});")
    accept("#include <cute/atom/copy_traits_sm75.hpp>\n#include <cute/atom/copy_traits_sm90.hpp>\n" + "\n".join(lines))


@pytest.mark.parametrize(("first", "second"), [("f16", "f16"), ("bf16", "bf16"), ("tf32", "tf32"), ("e4m3", "e5m2")])
def test_ldmatrix_loads_what_a_wgmma_takes_from_registers(first: str, second: str) -> None:
    """The fragment of A by CuTe's RS traits is what four matrices of `ldmatrix` give a warp: thread t names row t % 16 and
    the 16 bytes t / 16 of the step's 32. The two sources of A have one name but for SS and RS, and one accumulator.
    """
    atom = COPY_ATOMS["SM75_U32x4_LDSM_N"]
    bits = DTYPES[first].bits
    registers, shared = (f"MMA_Traits<{atom_cpp((first, second), 128, ('K', 'K'), source)}>" for source in ("RS", "SS"))
    lines = [f"static_assert(is_same_v<{registers}::CLayout, {shared}::CLayout>);"]
    lines += [f"static_assert(size<0>({registers}::ALayout{{}}) == 128);"]
    lines += [f"static_assert(size<1>({registers}::ALayout{{}}) == {128 // bits});"]
    for thread, value in itertools.product(range(128), range(128 // bits)):
        place = atom.destination[0](thread % 32) + atom.destination[1](value * bits)
        named, within = divmod(place, 128)
        m = thread // 32 * 16 + named % 16
        k = (named // 16 * 128 + within) // bits
        lines.append(f"static_assert({registers}::ALayout{{}}({thread},{value}) == {m + 64 * k});")
    accept("#include <cute/atom/mma_traits_sm90_gmma.hpp>\n" + "\n".join(lines))


def combinations() -> list[GemmSpec]:
    """At least 200 tiles, atoms and layouts that a plan accepts."""
    found = []
    atoms = [atom for atom in MMA_ATOMS.values() if atom.threads == 32]
    tiles = [(64, 64), (128, 128), (128, 64), (64, 128), (96, 64), (32, 128), (128, 256), (16, 32)]
    for atom, (m, n), warps, majors in itertools.product(atoms, tiles, ((2, 2, 1), (1, 4, 1), (4, 1, 1)), ("TN", "NT")):
        storage = {"f16": "f16", "bf16": "bf16", "tf32": "f32"}[atom.multiply]
        dtypes = {"a": storage, "b": storage, "c": storage, "accumulate": atom.accumulate, "multiply": atom.multiply}
        spec = GemmSpec(
            problem={"m": 1, "n": 1, "k": 1},
            dtypes=dtypes,
            majors=majors,
            tile={"m": m, "n": n, "k": 32},
            mma={"atom": atom.name, "warps": warps},
            pipeline={"stages": 2},
        )
        try:
            api.resolve(spec)
        except Exception:
            continue
        found.append(spec)
    return found


COMBINATIONS = combinations()
_GROUPS = 4


def test_there_are_enough_combinations() -> None:
    assert len(COMBINATIONS) >= 200


def tiled_mma(plan: TilePlan) -> str:
    atom: MmaAtom = plan.mma.atom
    warps_m, warps_n = plan.mma.tiled.arrangement
    m, n, _ = plan.product.tile

    def permutation(extent: int, unit: int, warps: int) -> str:
        repeats = extent // unit // warps
        return f"Layout<Shape<Int<{unit}>,Int<{warps}>,Int<{repeats}>>, Stride<_1,Int<{unit * repeats}>,Int<{unit}>>>"

    tile = (
        f"Tile<{permutation(m, atom.shape_mnk[0], warps_m)}, {permutation(n, atom.shape_mnk[1], warps_n)}, Underscore>"
    )
    return f"TiledMMA<MMA_Atom<{atom.cpp}>, Layout<Shape<Int<{warps_m}>,Int<{warps_n}>,_1>>, {tile}>"


def mma_lines(name: str, plan: TilePlan, rng: np.random.Generator) -> list[str]:
    tiled = plan.mma.tiled
    m_c, n_c = tiled.m_c, tiled.n_c
    values = m_c.shape[1:]
    lines = [f"using {name} = {tiled_mma(plan)};", f"constexpr auto {name}_C = {name}{{}}.get_layoutC_TV();"]
    for _ in range(3):
        tid, v, i, j = (int(rng.integers(0, extent)) for extent in m_c.shape)
        flat = v + values[0] * (i + values[1] * j)
        lines.append(
            f"static_assert({name}_C({tid},{flat}) == {int(m_c[tid, v, i, j]) + plan.product.tile[0] * int(n_c[tid, v, i, j])});"
        )
    return lines


def smem_lines(name: str, op: Operand, stages: int, rng: np.random.Generator) -> list[str]:
    """`tile_to_shape` of the swizzled atom, where the atom repeats as CuTe repeats it."""
    assert op.smem_spec.atom is not None
    atom = cpp_layout(parse_layout(op.smem_spec.atom))
    whole = f"composition({cpp_swizzle(op.swizzle)}{{}}, {atom}{{}})" if op.swizzle else f"{atom}{{}}"
    lines = [
        f"constexpr auto {name} = tile_to_shape({whole}, Shape<Int<{op.blk_mn}>,Int<{op.blk_k}>,Int<{stages}>>{{}});"
    ]
    for _ in range(3):
        mn, k, stage = int(rng.integers(0, op.blk_mn)), int(rng.integers(0, op.blk_k)), int(rng.integers(0, stages))
        offset = op.tile.swizzled(op.tile.linear[mn, k] + stage * op.tile.stage_stride)
        lines.append(f"static_assert({name}({mn},{k},{stage}) == {int(offset)});")
    return lines


def copy_lines(name: str, op: Operand, rng: np.random.Generator) -> list[str]:
    """`make_tiled_copy`: which element of the tile is a thread's first, and which are its vector's others."""
    threads, values = cpp_layout(parse_layout(op.g2s.threads)), cpp_layout(parse_layout(op.g2s.values))
    word = {16: "uint128_t", 8: "uint64_t", 4: "uint32_t", 2: "uint16_t"}[op.g2s.vector * op.dtype.bytes]
    lines = [
        f"using {name} = decltype(make_tiled_copy(Copy_Atom<UniversalCopy<{word}>, {op.cpp}>{{}}, {threads}{{}}, {values}{{}}));",
        f"constexpr auto {name}_TV = {name}{{}}.get_layoutS_TV();",
    ]
    rows = parse_layout(op.g2s.threads)[0].size() * parse_layout(op.g2s.values)[0].size()
    for _ in range(2):
        tid, v = int(rng.integers(0, parse_layout(op.g2s.threads).size())), int(rng.integers(0, op.g2s.vector))
        mn = op.g2s.thr_mn(tid) + (0 if op.major == "K" else v)
        k = op.g2s.thr_k(tid) + (v if op.major == "K" else 0)
        lines.append(f"static_assert({name}_TV({tid},{v}) == {mn + rows * k});")
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("group", range(_GROUPS))
def test_resolved_partitions(group: int) -> None:
    rng = np.random.default_rng(group)
    lines: list[str] = []
    for index, spec in enumerate(COMBINATIONS[group::_GROUPS]):
        plan: Any = api.resolve(spec)
        lines += mma_lines(f"Mma{index}", plan, rng)
        for op in (plan.a, plan.b):
            lines += smem_lines(f"Smem{op.name}{index}", op, plan.stages, rng)
            lines += copy_lines(f"Copy{op.name}{index}", op, rng)
    accept("\n".join(lines) + "\n")
