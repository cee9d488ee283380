"""Partitions cover their tiles exactly once, and every access lands where the tile's element lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutegen import api
from cutegen.plan.kernel_plan import TilePlan
from cutegen.plan.operand import Operand
from tests.specs import PATHS, spec_of

TILE_SPECS = [name for name in PATHS if isinstance(api.resolve(spec_of(name)), TilePlan)]


def plan_of(name: str) -> TilePlan:
    plan = api.resolve(spec_of(name))
    assert isinstance(plan, TilePlan)
    return plan


def evaluate(layout: Any) -> np.ndarray:
    return np.array([layout(i) for i in range(layout.size())])


@pytest.mark.parametrize("name", TILE_SPECS)
def test_the_accumulator_covers_the_tile_once(name: str) -> None:
    plan = plan_of(name)
    m, n, _ = plan.product.tile
    counts = np.zeros((m, n), int)
    start_m, start_n = evaluate(plan.mma.thr_m), evaluate(plan.mma.thr_n)
    inner, outer = evaluate(plan.c.inner), evaluate(plan.c.outer)
    for v in range(plan.c.vec):
        for i in outer:
            for j in inner:
                rows, columns = (start_m + i, start_n + j + v) if plan.c.inner_is_n else (start_m + j + v, start_n + i)
                np.add.at(counts, (rows, columns), 1)
    assert (counts == 1).all()


@pytest.mark.parametrize("name", TILE_SPECS)
def test_copies_fill_the_tile_once_where_fragments_read_it(name: str) -> None:
    plan = plan_of(name)
    for op in (plan.a, plan.b):
        check_copy(op)
        check_fragments(op, plan)


def addresses(op: Operand, view: Any, index: int) -> np.ndarray:
    """Element offsets, after the swizzle, of one access by every thread: as the emitted code computes them."""
    mn, k = evaluate(view.thr_mn), evaluate(view.thr_k)
    if view.affine:
        return np.asarray(op.tile.swizzled(op.tile.linear[mn, k]) + view.smem(index))
    return np.asarray(op.tile.swizzled(op.tile.linear[mn, k] + view.smem(index)))


def check_copy(op: Operand) -> None:
    written = np.zeros(op.tile.stage_stride, int)
    expected = np.full(op.tile.stage_stride, -1)
    where = op.tile.swizzled(op.tile.linear)
    expected[where.reshape(-1)] = np.arange(where.size)
    mn, k = evaluate(op.g2s.thr_mn), evaluate(op.g2s.thr_k)
    per_stage = op.g2s.vector * op.g2s.mn_count * op.g2s.k_count
    for index in range(per_stage):
        v = index % op.g2s.vector
        i = index // op.g2s.vector % op.g2s.mn_count
        j = index // op.g2s.vector // op.g2s.mn_count
        place = addresses(op, op.g2s, index)
        tile_mn = mn + i * op.g2s.mn_step + (v if op.major != "K" else 0)
        tile_k = k + j * op.g2s.k_step + (v if op.major == "K" else 0)
        assert np.array_equal(expected[place], tile_mn * op.blk_k + tile_k)
        np.add.at(written, place, 1)
    assert written.sum() == op.blk_mn * op.blk_k and written.max() == 1


def check_fragments(op: Operand, plan: TilePlan) -> None:
    """Each 16-byte row of ldmatrix, or each vector, lies together; transposed or not, its elements are the fragment's."""
    view = op.s2r
    first = addresses(op, view, 0) * op.dtype.bytes
    assert np.array_equal(first, view.addresses)
    assert (view.addresses % view.width == 0).all()


@pytest.mark.parametrize("name", [name for name in TILE_SPECS if "/ladder/" not in name])
def test_default_layouts_have_no_bank_conflicts(name: str) -> None:
    spec = spec_of(name)
    through_registers = [op.name for op in getattr(api.plan(spec), "transposed", ())]
    for op in api.check(spec).operands:
        assert (op.write_ways, op.read_ways) == (2 if op.name in through_registers else 1, 1), f"{name} {op.name}"


def test_a_missing_swizzle_is_seen_before_compiling() -> None:
    spec = spec_of("gemm/sm90_f16_tn")
    bare = spec.model_copy(update={"smem": type(spec.smem)(a={"atom": "(8,64):(64,1)", "swizzle": "none"})})
    found = api.check(bare)
    assert found.operands[0].read_ways == 8 and found.operands[1].read_ways == 1
