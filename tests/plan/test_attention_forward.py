"""Plans of attention: what is refused and how, what is chosen, and that accesses are regular and free of conflicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutegen import api
from cutegen.errors import SpecError
from cutegen.plan.attention_forward import AttentionForwardPlan
from cutegen.plan.preflight import work_and_traffic
from cutegen.spec import AttentionForwardSpec

HALF = dict.fromkeys("qkvo", "f16")
TF32 = {**dict.fromkeys("qkvo", "f32"), "multiply": "tf32"}


def forward(head_dim: int = 64, problem: dict[str, Any] | None = None, **parts: Any) -> AttentionForwardSpec:
    given = {
        "problem": {"seqlen_q": 64, "seqlen_k": 64, "head_dim": head_dim, **(problem or {})},
        "dtypes": HALF,
    }
    return AttentionForwardSpec(**{**given, **parts})


def plan_of(spec: AttentionForwardSpec) -> AttentionForwardPlan:
    plan = api.resolve(spec)
    assert isinstance(plan, AttentionForwardPlan)
    return plan


SLOPE = [{"name": "slope", "modes": ["heads"]}]


@pytest.mark.parametrize(
    ("parts", "field", "words"),
    [
        ({"head_dim": 60}, "problem.head_dim", ["multiple of 8 up to 256"]),
        ({"head_dim": 264}, "problem.head_dim", ["multiple of 8 up to 256"]),
        ({"problem": {"head_dim_v": 4}}, "problem.head_dim_v", ["multiple of 8 up to 256"]),
        ({"problem": {"heads": 6, "heads_kv": 4}}, "problem.heads", ["multiple of heads_kv"]),
        ({"dtypes": {**HALF, "v": "bf16"}}, "dtypes.v", ["must equal dtypes.q"]),
        ({"dtypes": {**HALF, "o": "f32"}}, "dtypes.o", ["f16"]),
        ({"dtypes": dict.fromkeys("qkvo", "f32")}, "dtypes.multiply", ["as tf32 only", "multiply: tf32"]),
        ({"dtypes": {**HALF, "multiply": "tf32"}}, "dtypes.multiply", ["multiplies f32 data, not f16"]),
        ({"head_dim": 256, "dtypes": TF32, "arch": "sm_86"}, "tile", ["shared memory", "a smaller tile"]),
        ({"causal": True, "window": {"right": 3}}, "window.right", ["causal hides every later key"]),
        ({"window": {"left": -1}}, "window.left", ["greater than or equal to 0"]),
        ({"softcap": 0.0}, "softcap", ["greater than 0"]),
        ({"softcap": 5.0, "score": "s"}, "softcap", ["c * tanh"]),
        ({"tile": {"m": 100}}, "tile.m", ["multiple of 16"]),
        ({"tile": {"m": 64}, "warps": 8}, "tile.m", ["multiple of 128"]),
        ({"tile": {"n": 24}}, "tile.n", ["multiple of 16"]),
        ({"tile": {"m": 128, "n": 256}}, "tile", ["registers a thread"]),
        ({"head_dim": 256, "tile": {"m": 128}, "warps": 8, "arch": "sm_86"}, "tile", ["shared memory"]),
        ({"pipeline": {"stages": 3}}, "pipeline.stages", ["less than or equal to 2"]),
        ({"head_dim": 256, "pipeline": {"stages": 2}, "arch": "sm_86"}, "tile", ["shared memory", "pipeline.stages: 1"]),
        ({"align": {"q": 3}}, "align.q", ["power of two"]),
        ({"score": "s * slope[h]"}, "score", ["not a tensor of this expression"]),
        ({"score": "s * slope[q]", "arguments": SLOPE}, "score", ["slope[h]"]),
        ({"mask": "s > 0"}, "mask", ["unknown name"]),
        ({"arguments": [*SLOPE, *SLOPE]}, "arguments", ["names one twice"]),
        ({"arguments": [{"name": "scale"}]}, "arguments[0].name", ["something else"]),
        ({"arguments": [{"name": "a", "modes": ["heads", "heads"]}]}, "arguments[0].modes", ["twice"]),
        ({"varlen": True, "arguments": [{"name": "a", "modes": ["seqlen_k"]}]}, "arguments", ["heads only"]),
    ],
)  # fmt: skip
def test_refusals(parts: dict[str, Any], field: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        api.resolve(forward(**parts))
    assert error.value.faults[0].field == field, str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("dtypes", [HALF, TF32], ids=["f16", "tf32"])
@pytest.mark.parametrize("head_dim", range(8, 257, 8))
def test_every_head_dim_is_planned_without_bank_conflicts(head_dim: int, dtypes: dict[str, str]) -> None:
    spec = forward(head_dim, causal=True, arch="sm_90", dtypes=dtypes)
    plan = plan_of(spec)
    assert plan.blk_d % 16 == 0 and plan.blk_d - head_dim in (0, 8)
    for op in api.check(spec).operands:
        assert (op.write_ways, op.read_ways) == (1, 1), op


@pytest.mark.parametrize("align", [1, 2, 4])
@pytest.mark.parametrize("m", [16, 32, 64])
def test_every_head_dim_is_stored_in_narrow_vectors(align: int, m: int) -> None:
    for head_dim in range(8, 257, 8):
        store = plan_of(forward(head_dim, tile={"m": m, "n": 32}, align={"o": align})).store
        assert store.vector == align and store.along * store.rows == 32
        assert store.along * store.columns * align >= head_dim and store.row_rounds * store.rows == store.warp_rows


def test_what_is_chosen() -> None:
    assert [plan_of(forward(d)).q_in_registers for d in (32, 64, 80, 96, 128)] == [True, False, True, False, False]
    assert [(plan_of(forward(d)).tile_m, plan_of(forward(d)).tile_n) for d in (32, 64, 128, 256)] == [
        (128, 128), (128, 128), (128, 64), (64, 64),
    ]  # fmt: skip
    assert [
        plan_of(forward(64, **extra)).tile_n for extra in ({"softcap": 5.0}, {"mask": "q < k"}, {"dropout": True})
    ] == [64] * 3
    assert plan_of(forward(64, tile={"m": 256})).warps == 8 and plan_of(forward(64, tile={"m": 32})).warps == 2
    wide = plan_of(forward(192, problem={"head_dim_v": 128}))
    assert wide.tile_m == 128 and wide.blk_dv == 128 and wide.signature.tensor("o").modes[-1] == "head_dim_v"


@pytest.mark.parametrize("dtypes", [HALF, TF32], ids=["f16", "tf32"])
def test_p_is_the_operand_that_the_scores_already_are(dtypes: dict[str, str]) -> None:
    """The order of FlashAttention-2's `convert_layout_acc_Aregs`: ((2,2),2) values over two atoms along N. For tf32 the
    middle two of an atom change places, and V's rows are read in that order."""
    plan = plan_of(forward(64, dtypes=dtypes))
    if dtypes is TF32:
        assert [plan.frag_p(i) for i in range(4)] == [0, 2, 1, 3]
        keys = plan.output.tiled.k_b[:4, :, 0, 0]
        assert keys.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    m, n = plan.scores.tiled.m_c, plan.scores.tiled.n_c
    flat_m, flat_n = (x.transpose(0, 3, 2, 1).reshape(x.shape[0], -1) for x in (m, n))
    frag = np.array([plan.frag_p(i) for i in range(plan.frag_p.size())])
    operand = plan.output.tiled
    order = operand.mn_a.transpose(0, 3, 2, 1).reshape(m.shape[0], -1)
    assert np.array_equal(flat_m[:, frag], order)
    assert np.array_equal(flat_n[:, frag], operand.k_a.transpose(0, 3, 2, 1).reshape(m.shape[0], -1))


def test_variants_have_symbols_of_their_own() -> None:
    variants: list[dict[str, Any]] = [
        {}, {"causal": True}, {"causal": True, "causal_align": "top_left"}, {"window": {"left": 3}},
        {"window": {"right": 3}}, {"window": {"right": 0}}, {"causal": True, "window": {"left": 3}}, {"softcap": 5.0},
        {"softcap": 0.5}, {"lse": True}, {"sinks": True}, {"varlen": True}, {"dropout": True}, {"score": "s"},
        {"score": "s * 2"}, {"mask": "q < k"}, {"q_operand": "registers", "tile": {"n": 64}}, {"warps": 8}, {"tile": {"n": 32}},
        {"align": {"k": 4}}, {"problem": {"head_dim_v": 32}}, {"arch": "sm_90"}, {"dtypes": TF32},
        {"dtypes": TF32, "align": {"k": 2}}, {"pipeline": {"stages": 2}},
    ]  # fmt: skip
    symbols = [plan_of(forward(**parts)).symbol for parts in variants]
    assert len(set(symbols)) == len(symbols), symbols


def test_work_of_packed_sequences_covers_any_lengths() -> None:
    geometry = plan_of(forward(varlen=True)).signature.geometry
    rng = np.random.default_rng(0)
    for _ in range(50):
        lengths = rng.integers(0, 400, rng.integers(1, 9))
        extents = {"total_q": int(lengths.sum()), "boundaries": len(lengths) + 1, "heads": 3}
        slots = geometry.work(extents) // 3
        starts = np.concatenate([[0], np.cumsum(lengths)]) // 128 + np.arange(len(lengths) + 1)
        assert slots == (starts[-1] if extents["total_q"] else 0)
        assert not slots or (np.diff(starts) >= -(-lengths // 128)).all()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    head_dim=st.integers(1, 32).map(lambda x: 8 * x),
    head_dim_v=st.none() | st.integers(1, 32).map(lambda x: 8 * x),
    m=st.none() | st.sampled_from([16, 32, 48, 64, 96, 128, 256]),
    n=st.none() | st.sampled_from([16, 32, 48, 64, 80, 96, 128]),
    warps=st.none() | st.integers(1, 8),
    align=st.sampled_from([1, 2, 4, 8]),
    q_operand=st.sampled_from([None, "shared", "registers"]),
    arch=st.sampled_from(["sm_80", "sm_86", "sm_90", "sm_90a", "sm_120"]),
    dtypes=st.sampled_from([HALF, TF32]),
    pipeline=st.sampled_from([{"stages": 1}, {"stages": 2}]),
)
def test_planned_and_rendered_or_refused_by_field(
    head_dim: int, head_dim_v: int | None, m: int | None, n: int | None, warps: int | None, align: int, **parts: Any
) -> None:
    try:
        assert api.emit(
            forward(
                head_dim,
                {"head_dim_v": head_dim_v},
                tile={"m": m, "n": n},
                warps=warps,
                align=dict.fromkeys("qkvo", align),
                **parts,
            )
        )
    except SpecError as error:
        assert all(fault.field for fault in error.faults), str(error)


def test_a_mask_expression_counts_what_it_leaves() -> None:
    size = {"seqlen_q": 512, "seqlen_k": 512, "batch": 1, "heads": 1}
    full, half = (work_and_traffic(forward(64, size, mask=mask))[0] for mask in ("k >= 0", "k <= q"))
    assert half / full == pytest.approx(513 / 1024, rel=3e-3)  # of every other row
    assert half == pytest.approx(work_and_traffic(forward(64, size, causal=True))[0], rel=3e-3)
    narrow = work_and_traffic(forward(64, size, causal=True, mask="q - k < 16"))[0]
    assert narrow == pytest.approx(full * (16 * 512 - 120) / 512**2, rel=1e-2)
    assert work_and_traffic(forward(64, size, mask="k < w", arguments=[{"name": "w"}]))[0] == full
