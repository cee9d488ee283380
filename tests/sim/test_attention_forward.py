"""Attention on the simulator: variants, head dimensions, lengths, strides, against the float64 reference and its bounds.

A kernel is compiled once (and cached on disk); each then runs on several problems. Tiles are small, so that short
sequences have whole, crossed and skipped blocks.
"""

from __future__ import annotations

import importlib
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutegen import api, binary
from cutegen.dtypes import DTYPES
from cutegen.errors import ArgumentError, SimulationError
from cutegen.kernel import Kernel
from cutegen.report import inputs, validate_attention
from cutegen.spec import AttentionForwardSpec

SMALL = {"m": 64, "n": 32}
# Every head_dim of the matrix, both types, every mask; each with and without LSE, Q in registers and in shared memory.
KERNELS: dict[str, dict[str, Any]] = {
    "d8_top_left": {"head_dim": 8, "causal": True, "causal_align": "top_left", "lse": True},
    "d32_causal": {"head_dim": 32, "dtype": "bf16", "causal": True, "lse": True, "tile": {"m": 32, "n": 64}},
    "d40_window": {"head_dim": 40, "dtype": "bf16", "window": {"left": 37, "right": 5}, "lse": True},
    "d64_causal": {"head_dim": 64, "causal": True, "lse": True, "q_operand": "shared"},
    "d64_plain": {"head_dim": 64, "tile": {"m": 128, "n": 64}},
    "d80_left_sinks": {"head_dim": 80, "sinks": True, "lse": True, "window": {"left": 20}, "causal_align": "top_left"},
    "d96_softcap": {"head_dim": 96, "softcap": 5.0, "causal": True, "lse": True},
    "d128_causal": {"head_dim": 128, "dtype": "bf16", "causal": True, "lse": True},
    "d192_causal_window": {"head_dim": 192, "causal": True, "window": {"left": 50}, "lse": True},
    "d72_values_24": {"head_dim": 72, "head_dim_v": 24, "causal": True, "lse": True},
    "d40_values_128": {"head_dim": 40, "head_dim_v": 128, "dtype": "bf16"},
    "tf32_d40_window": {"head_dim": 40, "dtype": "f32", "window": {"left": 30, "right": 9}, "lse": True},
    "tf32_d64_causal": {"head_dim": 64, "dtype": "f32", "causal": True, "lse": True},
    "tf32_d24_values_96": {"head_dim": 24, "head_dim_v": 96, "dtype": "f32", "sinks": True, "tile": {"m": 32, "n": 16}},
    "d64_two_stages": {"head_dim": 64, "causal": True, "lse": True, "pipeline": {"stages": 2}},
    "d40_two_stages": {"head_dim": 40, "dtype": "bf16", "pipeline": {"stages": 2}, "tile": {"m": 32, "n": 48}},
    "d256_plain": {"head_dim": 256, "dtype": "bf16", "q_operand": "shared"},
}
PROBLEMS = [
    {"batch": 1, "heads": 1, "heads_kv": 1, "seqlen_q": 1, "seqlen_k": 1},
    {"batch": 2, "heads": 2, "heads_kv": 1, "seqlen_q": 67, "seqlen_k": 131},
    {"batch": 1, "heads": 3, "heads_kv": 1, "seqlen_q": 129, "seqlen_k": 70},
    {"batch": 1, "heads": 2, "heads_kv": 2, "seqlen_q": 64, "seqlen_k": 96},
    {"batch": 1, "heads": 2, "heads_kv": 1, "seqlen_q": 5, "seqlen_k": 0},
    {"batch": 2, "heads": 2, "heads_kv": 1, "seqlen_q": 0, "seqlen_k": 9},
]

# ALiBi with a document mask; a bias for each head and pair, transposed in memory, with run-time scalars.
EXPRESSIONS: dict[str, dict[str, Any]] = {
    "alibi": {
        "head_dim": 64,
        "score": "s * scale + slope[h] * (k - q)",
        "mask": "k <= q and q // 16 - k // 16 < 2",
        "arguments": [{"name": "slope", "modes": ["heads"]}],
        "lse": True,
    },
    "bias": {
        "head_dim": 32,
        "dtype": "bf16",
        "score": "cap * tanh((s * scale + bias[h, k, q]) / cap) - (0.5 if abs(q - k) > 9 else penalty[b, q])",
        "causal": True,
        "arguments": [
            {"name": "bias", "modes": ["heads", "seqlen_k", "seqlen_q"], "dtype": "bf16"},
            {"name": "cap"},
            {"name": "penalty", "modes": ["batch", "seqlen_q"]},
        ],
    },
}


def spec_for(
    head_dim: int, dtype: str = "f16", tile: Any = None, head_dim_v: int | None = None, **parts: Any
) -> AttentionForwardSpec:
    return AttentionForwardSpec(
        problem={"seqlen_q": 64, "seqlen_k": 64, "head_dim": head_dim, "head_dim_v": head_dim_v},
        dtypes=dict.fromkeys("qkvo", dtype) | ({"multiply": "tf32"} if dtype == "f32" else {}),
        tile=tile or SMALL,
        **parts,
    )


@lru_cache
def kernel(name: str) -> Any:
    return api.build(spec_for(**{**KERNELS, **EXPRESSIONS}[name]))


def check(built: Any, arrays: dict[str, Any], scalars: dict[str, float] | None = None) -> None:
    spec = built.spec
    report = validate_attention(
        partial(built, device="sim"), api.family(spec), arrays, scalars,
        dtype=DTYPES[spec.dtypes.q], lse=spec.lse, twice=False,
    )  # fmt: skip
    assert report.ok, f"{built.signature.symbol}: {report}"


def random(built: Any, problem: dict[str, int], seed: int = 0, **options: Any) -> dict[str, Any]:
    return inputs.for_signature(built.signature, problem, seed, **options)


@pytest.mark.parametrize("name", KERNELS)
def test_lengths_and_grouped_heads(name: str) -> None:
    for problem in PROBLEMS:
        check(kernel(name), random(kernel(name), problem))


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(KERNELS)),
    seqlen_q=st.integers(1, 140),
    seqlen_k=st.integers(1, 140),
    scale=st.sampled_from([0.02, 0.125, 1.0]),
    seed=st.integers(0, 100),
)
def test_random_lengths(name: str, seqlen_q: int, seqlen_k: int, scale: float, seed: int) -> None:
    problem = {"batch": 1, "heads": 1, "heads_kv": 1, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k}
    check(kernel(name), random(kernel(name), problem, seed), {"scale": scale})


@pytest.mark.parametrize("name", ["d64_causal", "d128_causal", "tf32_d64_causal"])
def test_hard_inputs(name: str) -> None:
    """Large scores, constant rows, rows that see one key only through its score."""
    built = kernel(name)
    problem = {"batch": 1, "heads": 1, "heads_kv": 1, "seqlen_q": 70, "seqlen_k": 100}
    plain = random(built, problem)
    dtype = plain["q"].dtype
    check(built, {**plain, "q": plain["q"] * dtype.type(30)})
    check(built, {**plain, "q": np.ones_like(plain["q"]), "k": np.ones_like(plain["k"])})
    check(built, {**plain, "k": -np.abs(plain["k"]) * dtype.type(16), "q": np.abs(plain["q"]) * dtype.type(16)})
    depth = plain["q"].shape[-1]
    rows = (np.arange(100)[:, None] % depth == np.arange(depth)) * 40.0
    one_hot = rows.astype(dtype)[None, None]
    check(built, {"q": one_hot[:, :, :70], "k": one_hot, "v": plain["v"]})
    rising = (np.arange(100) / 8.0).astype(dtype)[None, None, :, None]  # each block raises the maximum, or none does
    for order in (1, -1):
        check(built, {**plain, "q": np.ones_like(plain["q"]), "k": np.ones_like(plain["k"]) * rising[:, :, ::order]})


def test_expressions() -> None:
    for problem in PROBLEMS[1:4]:
        check(kernel("alibi"), random(kernel("alibi"), problem))
        check(kernel("bias"), random(kernel("bias"), problem), {"cap": 3.0, "scale": 0.25})
    with pytest.raises(ArgumentError, match="cap is missing"):
        kernel("bias")(*random(kernel("bias"), PROBLEMS[1]).values(), device="sim")


def test_dropout() -> None:
    """The same elements are dropped whatever the tile; the sum counts them all."""
    big = api.build(spec_for(64, dropout=True, causal=True, lse=True))
    arrays = random(big, PROBLEMS[1])
    for scalars in ({"p_dropout": 0.3}, {"p_dropout": 0.75, "seed": 2**40 + 7, "offset": 5}, {"p_dropout": 0.0}):
        check(big, arrays, scalars)
    dense = kernel("d64_causal")(*arrays.values(), device="sim")
    assert np.array_equal(dense[1], big(*arrays.values(), device="sim", p_dropout=0.5)[1])
    with pytest.raises(ArgumentError, match="p_dropout: expected a number from 0 to below 1"):
        big(*arrays.values(), device="sim", p_dropout=1.0)


@pytest.mark.parametrize("causal", [True, False])
def test_sequences_of_any_lengths(causal: bool) -> None:
    score: dict[str, Any] = {"score": "s * scale + slope[h] * b", "arguments": [{"name": "slope", "modes": ["heads"]}]}
    built = api.build(spec_for(64, causal=causal, varlen=True, lse=True, **({} if causal else score)))
    totals = {"total_q": 190, "total_k": 260, "heads": 2, "heads_kv": 1}
    for boundaries, seed in ((2, 0), (4, 1), (9, 2)):
        arrays = random(built, {**totals, "boundaries": boundaries}, seed)
        check(built, arrays)
    # Sequences of no queries, of no keys, of one of each, at multiples of the tile and beside them.
    ends = {"cu_seqlens_q": [0, 0, 64, 64, 128, 129, 190], "cu_seqlens_k": [0, 32, 32, 64, 65, 97, 260]}
    check(built, {**arrays, **{name: np.array(values, np.int32) for name, values in ends.items()}})
    with pytest.raises(ArgumentError, match=r"hold batch \+ 1 ends, got 1"):
        built(*{**arrays, **dict.fromkeys(ends, np.zeros(1, np.int32))}.values(), device="sim")


def test_packed_and_padded_views() -> None:
    built = kernel("d64_causal")
    q, k, v = inputs.packed(3, 2, 70, 3, 64, DTYPES["f16"], 1)
    check(built, {"q": q, "k": k, "v": v})
    problem = {"batch": 2, "heads": 2, "heads_kv": 1, "seqlen_q": 40, "seqlen_k": 50}
    check(built, random(built, problem, pads={"q": 8, "k": 16, "v": 24}))
    room = np.zeros((2, 40, 2, 64), np.float16)
    o, _ = built(*random(built, problem).values(), out=room.transpose(0, 2, 1, 3), device="sim")
    assert np.shares_memory(o, room) and np.abs(room).min(axis=-1).max() > 0


@pytest.mark.parametrize("name", ["d40_window", "tf32_d40_window"])
@pytest.mark.parametrize(("pad", "offset"), [(4, 0), (1, 1)])
def test_less_aligned_tensors(name: str, pad: int, offset: int) -> None:
    built = kernel(name)
    problem = {"batch": 1, "heads": 2, "heads_kv": 1, "seqlen_q": 70, "seqlen_k": 50}
    check(built, random(built, problem, pads=dict.fromkeys("qkv", pad), offsets=dict.fromkeys("qkv", offset)))


def test_an_output_that_is_not_aligned_at_all() -> None:
    """Single elements leave through a swizzled tile; head_dim 64 has a whole row of chunks to bend."""
    built = kernel("d64_causal")
    arrays = random(built, {"batch": 1, "heads": 1, "heads_kv": 1, "seqlen_q": 70, "seqlen_k": 50})
    room = np.zeros(1 + 70 * 65, np.float16)
    o = room[1:].reshape(1, 1, 70, 65)[..., :64]
    expected, _ = built(*arrays.values(), device="sim")
    built(*arrays.values(), out=o, device="sim")
    assert np.array_equal(o, expected) and not room[1:].reshape(70, 65)[:, 64].any()


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_warps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = importlib.import_module("cutegen.sim")
    monkeypatch.setattr(simulator, "launch", partial(simulator.launch, seed=seed))
    problem = {"batch": 1, "heads": 1, "heads_kv": 1, "seqlen_q": 100, "seqlen_k": 100}
    for name in ("d64_causal", "d40_window"):
        check(kernel(name), random(kernel(name), problem))


def test_refusals() -> None:
    built = kernel("d64_causal")
    arrays = random(built, PROBLEMS[1])
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(ArgumentError, match="scale: expected a number greater than 0"):
            built(*arrays.values(), scale=scale, device="sim")
    with pytest.raises(ArgumentError, match="heads"):
        built(arrays["q"], arrays["k"][:, :0], arrays["v"][:, :0], device="sim")


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "    __syncthreads();                         // K(n) is there",
        "    __syncthreads();                         // V(n) is there",
        "    cp_async_wait<0>();\n    __syncthreads();                         // V(n)",
        "    cp_async_wait<0>();                      // K(n - 1)",
        "  __syncwarp();\n",
    ],
)
def test_every_wait_and_barrier_is_needed(line: str) -> None:
    """The simulator sees a fault as soon as one of them is taken away."""
    _needed("d64_causal", line)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "    cp_async_wait<0>();                      // this thread's part",
        "    __syncthreads();                         // ... and all others'",
    ],
)
def test_two_stages_need_their_wait_and_barrier(line: str) -> None:
    _needed("d64_two_stages", line)


def _needed(name: str, line: str) -> None:
    plan = api.resolve(spec_for(**KERNELS[name]))
    source = api.emit(plan.spec)
    assert source.count(line) == 1
    kept = line[line.index("\n") + 1 :] if "cp_async_wait" in line and "\n" in line else "//"
    made = binary.compile(source.replace(line, kept), stem="less", arch=plan.arch.name, kernel=plan.symbol)
    less = Kernel(plan.signature, made.cubin, plan.arch, ptx=made.ptx)
    arrays = random(less, {"batch": 1, "heads": 1, "heads_kv": 1, "seqlen_q": 130, "seqlen_k": 130})
    with pytest.raises(SimulationError):
        less(*arrays.values(), device="sim")
