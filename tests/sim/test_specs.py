"""Every shipped spec on the simulator: right, and without a finding."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import cutegen as cg
from cutegen import api
from cutegen.cli.running import reads_c, trial_scalars
from cutegen.layout.banks import conflict_ways
from cutegen.plan.reduced import reduced
from cutegen.report import inputs
from tests.specs import PATHS, spec_of

# One of each kind of kernel.
KINDS = [
    "gemm/simt_f32_tn", "gemm/sm80_bf16_nn", "gemm/sm80_bf16_tt_column_major", "gemm/sm80_f16_accumulate_f16",
    "gemm/sm80_tf32_nt", "gemm/sm90_wgmma_bf16_nt", "gemm/sm90_wgmma_f16_ping_pong",
]  # fmt: skip
SCORES = [n for n in PATHS if "scores" in n]


@lru_cache
def build(name: str) -> Any:
    return cg.build(spec_of(name))


def check(kernel: Any, extents: dict[str, int], scalars: dict[str, float] | None = None, **options: Any) -> None:
    arrays = inputs.for_signature(kernel.signature, extents, 3, **options)
    report = kernel.validate(arrays, scalars or {}, device="sim", twice=False)
    assert report.ok, f"{kernel.signature.symbol} {extents}: {report}"


@pytest.mark.parametrize("name", PATHS)
def test_a_few_tiles(name: str) -> None:
    kernel = build(name)
    extents = reduced(kernel.signature, api.problem(kernel.spec))
    check(kernel, extents, trial_scalars(kernel.spec), inouts=reads_c(kernel.spec))


@pytest.mark.parametrize("name", KINDS)
def test_gemm_smaller_than_a_tile_with_batch_beta_and_strides(name: str) -> None:
    kernel = build(name)
    extents = {"m": 80, "n": 32, "k": 48, "batch": 3}
    arrays = inputs.for_signature(kernel.signature, extents, 5, inouts=True, pads={"a": 8, "b": 16})
    report = kernel.validate(arrays, {"alpha": 1.5, "beta": 0.5}, device="sim", twice=False)
    assert report.ok, str(report)


@pytest.mark.parametrize("name", KINDS)
def test_gemm_without_k_is_beta_c(name: str) -> None:
    kernel = build(name)
    arrays = inputs.for_signature(kernel.signature, {"m": 136, "n": 16, "k": 0}, 5, inouts=True)
    report = kernel.validate(arrays, {"alpha": 1.5, "beta": 0.5}, device="sim", twice=False)
    assert report.ok, str(report)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (7, 129, 65), (129, 1, 127)])
def test_gemm_of_any_size(m: int, n: int, k: int) -> None:
    check(build("gemm/sm80_bf16_unaligned"), {"m": m, "n": n, "k": k}, {"alpha": 0.75})


@pytest.mark.parametrize("name", ["bf16_grouped", "e4m3_scaled", "e4m3_out"])
def test_hopper_gemm_of_rows_that_start_anywhere(name: str) -> None:
    """Groups, scales of rows, promotion and fp8 outputs come with operands that TMA can't load, too."""
    kernel = build(f"gemm/sm90_wgmma_{name}")
    groups = {"groups": 3} if kernel.spec.problem.groups else {}
    check(kernel, {"m": 65, "n": 129, "k": 135, **groups}, trial_scalars(kernel.spec), pads={"a": 2}, offsets={"b": 1})
    (variant,) = kernel._variants.values()
    assert variant.plan.by_threads == (True, True)


@pytest.mark.parametrize("name", SCORES)
def test_scores_with_groups_padding_and_few_keys(name: str) -> None:
    kernel = build(name)
    head_dim = dict(kernel.signature.static)["head_dim"]
    extents = {"batch": 2, "heads": 4, "heads_kv": 2, "seqlen_q": 16, "seqlen_k": 8, "head_dim": head_dim}
    check(kernel, extents, pads={"q": 8, "k": 16})


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "name", ["gemm/sm80_f16_tn", "attention/scores_sm90_bf16_d128", "attention/scores_sm90_f16_d64"]
)
def test_the_order_of_warps_does_not_matter(name: str, seed: int) -> None:
    kernel = build(name)
    small = {"m": 136, "n": 72, "k": 200} if name.startswith("gemm") else {"seqlen_q": 72, "seqlen_k": 392}
    arrays = inputs.for_signature(kernel.signature, {**reduced(kernel.signature, api.problem(kernel.spec)), **small}, 3)
    given = [arrays[t.name] for t in kernel.signature.tensors if t.name in arrays]
    in_step, _ = kernel.simulate(*given)
    shuffled, seen = kernel.simulate(*given, schedule_seed=seed)
    assert seen.findings == ()
    assert np.array_equal(in_step.view(np.uint8), shuffled.view(np.uint8))


@pytest.mark.parametrize(
    "name", ["gemm/sm80_f16_tn", "gemm/sm80_bf16_nn", "gemm/simt_f32_nt", "attention/scores_sm80_f16_d64"]
)
def test_conflicts_counted_are_those_predicted(name: str) -> None:
    kernel = build(name)
    arrays = inputs.for_signature(kernel.signature, {**api.problem(kernel.spec), **_whole_tiles(name)}, 3)
    given = [arrays[t.name] for t in kernel.signature.tensors if t.name in arrays]
    _, seen = kernel.simulate(*given, profile=True)
    by_line = seen.profile.by_line()
    lines = kernel.source.splitlines()
    for use in api.check(kernel.spec).operands:
        for verb, ways in (("G2S", use.write_ways), ("S2R", use.read_ways)):
            counted = [c for line, c in by_line.items() if line and f"copy_unpack({verb}_{use.name}" in lines[line - 1]]
            for counts in counted:
                assert counts.wavefronts == ways * counts.wavefronts_ideal, (use.name, verb)
            assert counted


def _whole_tiles(name: str) -> dict[str, int]:
    if name.startswith("gemm"):
        return {"m": 128, "n": 128, "k": 128, "batch": 1}
    return {"batch": 1, "heads": 1, "heads_kv": 1, "seqlen_q": 128, "seqlen_k": 128}


def test_a_missing_swizzle_shows_as_conflicts() -> None:
    addresses = np.arange(8, dtype=np.int64) * 128
    assert conflict_ways(addresses, 16) == 8
    kernel = cg.build(cg.load("specs/attention/scores_sm80_f16_d64.yaml", ["smem.q.swizzle=Sw<0,3,3>"]))
    arrays = inputs.for_signature(kernel.signature, {**api.problem(kernel.spec), **_whole_tiles("attention")}, 3)
    _, seen = kernel.simulate(arrays["q"], arrays["k"], profile=True)
    total = seen.profile.total()
    assert total.wavefronts > 2 * total.wavefronts_ideal


def test_counters_of_a_gemm() -> None:
    kernel = build("gemm/sm80_f16_tn")
    arrays = inputs.for_signature(kernel.signature, {"m": 256, "n": 128, "k": 192}, 3)
    _, seen = kernel.simulate(arrays["a"], arrays["b"], profile=True)
    total = seen.profile.total()
    assert total.tensor_flop == 2 * 256 * 128 * 192
    loads, stores = 2 * (128 * 192 + 128 * 192) * 2, 256 * 128 * 4
    assert total.global_bytes == loads + stores
    assert total.sectors == total.sectors_ideal == (loads + stores) // 32
