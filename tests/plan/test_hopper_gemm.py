"""What a `gemm` spec for sm_90a becomes: the path, the tile, what is refused, and the rings of tiles."""

from __future__ import annotations

from typing import Any

import pytest

from cutegen import api, hardware
from cutegen.dtypes import DTYPES
from cutegen.errors import SpecError
from cutegen.layout import Swizzle
from cutegen.plan.hopper import Ring
from cutegen.plan.hopper_gemm import HopperGemmPlan
from cutegen.plan.hopper_gemm_checks import ranked
from cutegen.plan.hopper_tiles import Choice, Kind, Shape, candidates, cycles, energy, group_rows, sustained
from cutegen.plan.signature import TensorMapParam
from cutegen.source import render
from cutegen.spec import GemmSpec
from tests.specs import PATHS, spec_of

BF16 = {"a": "bf16", "b": "bf16", "c": "bf16"}
TF32 = {"a": "f32", "b": "f32", "c": "f32", "multiply": "tf32"}
HOPPER = [name for name in PATHS if isinstance(api.resolve(spec_of(name)), HopperGemmPlan)]


def gemm(m: int = 4096, n: int = 4096, k: int = 4096, **parts: Any) -> GemmSpec:
    return GemmSpec(**{"arch": "sm_90a", "problem": {"m": m, "n": n, "k": k}, "dtypes": BF16, **parts})


def hopper(*extents: int, **parts: Any) -> HopperGemmPlan:
    plan = api.resolve(gemm(*extents, **parts))
    assert isinstance(plan, HopperGemmPlan)
    return plan


def test_shipped() -> None:
    assert len(HOPPER) >= 12


@pytest.mark.parametrize("majors", ["TN", "NN", "NT", "TT"])
def test_five_lines_are_enough(majors: str) -> None:
    plan = hopper(majors=majors)
    assert plan.tma_store and plan.stages >= 3 and plan.storage_bytes <= plan.arch.smem_per_block


@pytest.mark.parametrize(
    ("extents", "parts"),
    [
        ((512, 512, 512), {"dtypes": TF32, "majors": "NT"}),
        ((512, 512, 512), {"dtypes": {"a": "f32", "b": "f32", "c": "f32"}}),
        ((512, 512, 512), {"dtypes": {"a": "f16", "b": "f16", "c": "f16", "accumulate": "f16"}}),
        ((512, 512, 512), {"c_major": "M", "epilogue": {"out": "relu(acc)"}}),
        ((512, 512, 512), {"mma": {"warps": [2, 2, 1]}}),
        ((512, 512, 512), {"arch": "sm_90"}),
    ],
)
def test_what_tma_and_wgmma_cannot_do_takes_the_common_path(extents: tuple[int, ...], parts: dict[str, Any]) -> None:
    assert api.resolve(gemm(*extents, **parts)).template == "gemm.cu.jinja"


def test_rows_of_c_decide_who_stores() -> None:
    assert hopper().vector == 8
    odd = hopper(8191, 8191, 8192)
    assert odd.vector == 1 and not odd.tma_store and odd.symbol.endswith("_c1")
    assert hopper(512, 8190, 512).vector == 2
    assert not hopper(epilogue={"store": "vector"}).tma_store


@pytest.mark.parametrize(
    ("parts", "field", "words"),
    [
        ({"tile": {"m": 96}}, "tile.m", ["64, 128, 192 or 256"]),
        ({"tile": {"n": 100}}, "tile.n", ["multiple of 8", "nearest: 96 or 104"]),
        ({"tile": {"n": 200}, "dtypes": {**BF16, "c": "f32"}}, "tile.n", ["multiple of 16", "nearest: 192 or 208"]),
        ({"tile": {"k": 32}}, "tile.k", ["128 bytes"]),
        ({"tile": {"m": 256, "n": 256}}, "tile", ["too many accumulators"]),
        ({"schedule": {"kind": "ping_pong"}, "tile": {"m": 256, "n": 128}}, "tile", ["too many accumulators"]),
        ({"dtypes": {**BF16, "promote": 100}}, "dtypes.promote", ["multiple of tile.k, 64", "nearest: 64 or 128"]),
        ({"dtypes": {**BF16, "promote": 128}, "tile": {"m": 128, "n": 256}, "schedule": {"kind": "ping_pong"}}, "tile", ["too many"]),
        ({"arch": "sm_80", "problem": {"m": 64, "n": 64, "k": 64, "groups": 2}}, "problem.groups", ["TMA and WGMMA"]),
        ({"arch": "sm_80", "scales": {"a": "row"}}, "scales", ["TMA and WGMMA"]),
        ({"cluster": [4, 1]}, "cluster", ["[2, 1]", "[4, 2]"]),
        ({"align": {"a": 1}, "cluster": [2, 2]}, "cluster", ["rows of A", "can't share A"]),
        ({"align": {"a": 1, "b": 1}, "cluster": [2, 2]}, "cluster", ["rows of A and B", "can't share A and B"]),
        ({"schedule": {"run_n": 4}}, "schedule.run_n", ["group_m"]),
        ({"schedule": {"split_k": 2, "kind": "ping_pong"}}, "schedule.split_k", ["cooperative"]),
        ({"schedule": {"split_k": 2}, "cluster": [2, 1]}, "schedule.split_k", ["leave out cluster"]),
        ({"schedule": {"split_k": 4}, "tile": {"n": 128}}, "schedule.split_k", ["multiple of 256"]),
        ({"schedule": {"split_k": 8}}, "schedule.split_k", ["multiple of 512, at most 256", "smaller split_k"]),
        ({"schedule": {"split_k": 2}, "problem": {"m": 64, "n": 64, "k": 64, "groups": 2}}, "schedule.split_k", ["groups"]),
        ({"schedule": {"split_k": 2}, "tile": {"m": 128, "n": 256}, "pipeline": {"stages": 2}}, "tile", ["for the stages"]),
        ({"arch": "sm_80", "schedule": {"split_k": 2}}, "schedule.split_k", ["TMA and WGMMA"]),
        ({"pipeline": {"stages": 1}}, "pipeline.stages", ["one step late", "2 or more"]),
        ({"pipeline": {"stages": 9}, "tile": {"n": 256}}, "pipeline.stages", ["B of shared memory"]),
        ({"align": {"c": 2}, "epilogue": {"store": "tma"}}, "epilogue.store", ["aligned to 16 B"]),
        ({"mma": {"atom": "SM90_64x128x16_F32F16F16_SS"}}, "mma.atom", ["SM90_64x128x16_F32BF16BF16_SS would do"]),
        ({"mma": {"atom": "SM90_64x128x16_F32BF16BF16_SS"}, "tile": {"n": 256}}, "tile.n", ["128"]),
        ({"mma": {"a_operand": "registers"}, "majors": "NT"}, "mma.a_operand", ["K-major", "TN or TT"]),
        ({"mma": {"a_operand": "registers"}, "c_major": "M"}, "mma.a_operand", ["transposed product"]),
        ({"mma": {"a_operand": "registers"}, "arch": "sm_80"}, "mma.a_operand", ["TMA and WGMMA"]),
        ({"mma": {"a_operand": "registers"}, "tile": {"m": 256, "n": 192}}, "tile", ["too many accumulators"]),
        ({"mma": {"a_operand": "registers"}, "tile": {"n": 160}}, "tile.n", ["no RS atom of this width", "96, 128, 192"]),
        ({"mma": {"atom": "SM90_64x128x16_F32F16F16_RS"}}, "mma.atom", ["SM90_64x128x16_F32BF16BF16_RS would do"]),
        ({"mma": {"atom": "SM90_64x128x16_F32BF16BF16_SS"}, "c_major": "M", "epilogue": {"out": "relu(acc)"}}, "c_major", ["rows"]),
        ({"mma": {"atom": "SM90_64x128x16_F32BF16BF16_SS"}, "arch": "sm_90"}, "arch", ["sm_90a"]),
        ({"arch": "sm_80", "dtypes": {"a": "e4m3", "b": "e5m2", "c": "f16"}}, "dtypes.a", ["TMA and WGMMA"]),
        ({"arch": "sm_80", "dtypes": {**BF16, "c": "e4m3"}}, "dtypes.c", ["TMA and WGMMA"]),
        ({"dtypes": {**BF16, "c": "e4m3"}, "tile": {"n": 96}}, "tile.n", ["multiple of 64", "nearest: 64 or 128"]),
        ({"arch": "sm_80", "cluster": [2, 1]}, "cluster", ["TMA and WGMMA"]),
        ({"arch": "sm_80", "schedule": {"kind": "ping_pong"}}, "schedule.kind", ["TMA and WGMMA"]),
        ({"align": {"a": 4}, "schedule": {"kind": "ping_pong"}}, "schedule.kind", ["rows of A", "threads load", "cooperative"]),
        ({"align": {"b": 1}, "cluster": [2, 1]}, "cluster", ["rows of B", "can't share B", "leave it out, or pad rows"]),
        ({"align": {"a": 1}, "cluster": [1, 2]}, "cluster", ["rows of A", "can't share A"]),
        ({"align": {"a": 1}, "cluster": [2, 1], "c_major": "M"}, "cluster", ["rows of A", "can't share A"]),
        ({"align": {"a": 1, "b": 2}, "schedule": {"split_k": 2}}, "schedule.split_k", ["rows of A and B", "share no tile"]),
        ({"align": {"a": 1}, "tile": {"m": 192}}, "tile.m", ["64, 128 or 256", "two that multiply"]),
        ({"align": {"a": 1}, "tile": {"m": 128, "n": 256}}, "tile", ["too many accumulators"]),
    ],
)  # fmt: skip
def test_refused_by_field(parts: dict[str, Any], field: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        api.resolve(gemm(**parts))
    assert field in [fault.field for fault in error.value.faults], str(error.value)
    for word in words:
        assert word in str(error.value)


def test_less_aligned_tensors() -> None:
    spec = gemm(epilogue={"store": "tma"}, cluster=[2, 1], tile={"m": 128, "n": 256})
    stored = api.resolve(api.narrower(spec, (("a", 8), ("b", 8), ("c", 1))))
    assert isinstance(stored, HopperGemmPlan) and not stored.tma_store and stored.choice == hopper_choice(spec)
    moved = api.resolve(api.narrower(spec, (("a", 1), ("b", 8), ("c", 8))))
    assert isinstance(moved, HopperGemmPlan) and moved.by_threads == (True, False)
    assert moved.tma_store and moved.choice.cluster == (2, 1)


def test_an_expression_outlives_a_change_of_loads() -> None:
    spec = gemm(epilogue={"out": "gelu(acc + bias[n])", "store": "tma"}, cluster=[2, 1])
    moved = api.narrower(spec, (("a", 2), ("b", 8), ("bias", 1), ("c", 8)))
    assert isinstance(moved, GemmSpec) and moved.epilogue.out == spec.epilogue.out
    assert [t.name for t in api.resolve(moved).signature.tensors] == ["a", "b", "bias", "c"]


@pytest.mark.parametrize(
    ("extents", "parts", "loaded"),
    [
        ((512, 512, 4097), {}, "AB"),
        ((511, 512, 512), {"majors": "NT"}, "A"),
        ((511, 511, 512), {"majors": "NN"}, "A"),
        ((512, 510, 512), {"majors": "TT"}, "B"),
        ((512, 512, 512), {"align": {"a": 4}}, "A"),
        ((512, 512, 511), {"dtypes": TF32}, "AB"),
        ((512, 512, 264), {"dtypes": {"a": "e4m3", "b": "e5m2", "c": "bf16"}}, "AB"),
        ((512, 512, 512), {"align": {"a": 4}, "c_major": "M"}, "B"),
    ],
)
def test_threads_load_what_tma_cannot(extents: tuple[int, ...], parts: dict[str, Any], loaded: str) -> None:
    plan = hopper(*extents, **parts)
    assert "".join(ring.name for ring in plan.word_rings) == loaded
    maps = [p for p in plan.signature.params if isinstance(p, TensorMapParam) and p.tensor != "c"]
    assert len(maps) + len(loaded) == 2
    assert plan.writers == 8 + len(maps) and int(plan.stage_bytes) == sum(ring.stage_bytes for ring in plan.tma_rings)
    assert plan.block_threads == 128 * (plan.consumers + 2)
    for ring in plan.rings:
        tensor = plan.signature.tensors["AB".index(ring.name) if plan.spec.c_major == "N" else "BA".index(ring.name)]
        assert (tensor.vector == 1) == ring.by_threads
    assert all(f"_{name.lower()}1" in plan.symbol for name in loaded)


def test_blocks_share_what_tma_loads() -> None:
    both, first, second = ((True, True), (True, False), (False, True))
    kinds: tuple[Kind, ...] = ("cooperative", "ping_pong")
    clusters = [{choice.cluster for choice in candidates(kinds, None, (1, 2), way)} for way in (both, first, second)]
    assert clusters == [{(1, 1)}, {(1, 1), (2, 1)}, {(1, 1), (1, 2)}]


def test_groups_whose_rows_begin_anywhere() -> None:
    plan = hopper(problem={"m": 4096, "n": 512, "k": 511, "groups": 8})
    assert plan.by_threads == (True, True) and not plan.tma_rings
    assert (plan.matrix(plan.a), plan.matrix(plan.b)) == ("A", "B + batch * batch_B")


def hopper_choice(spec: GemmSpec) -> Choice:
    plan = api.resolve(spec)
    assert isinstance(plan, HopperGemmPlan)
    return plan.choice


def test_groups() -> None:
    plan = hopper(problem={"m": 4096, "n": 512, "k": 512, "groups": 8})
    assert [t.name for t in plan.signature.tensors] == ["a", "b", "ends", "c"] and not plan.tma_store
    with pytest.raises(SpecError, match="grouped problems have none"):
        gemm(problem={"m": 4096, "n": 512, "k": 512, "groups": 8, "batch": 2})


GELU = {"out": "gelu(acc + bias[n])", "aux": "acc + bias[n]"}


@pytest.mark.parametrize(
    ("c", "aux", "rows"), [("bf16", "bf16", (128, 128)), ("bf16", "f32", (64, 128)), ("f32", "bf16", (128, 64))]
)
def test_boxes_of_two_outputs_have_the_same_columns(c: str, aux: str, rows: tuple[int, int]) -> None:
    plan = hopper(dtypes={**BF16, "c": c, "aux": aux}, epilogue=GELU)
    assert [output.name for output in plan.outputs] == ["C", "Aux"] and plan.tma_store
    assert tuple(output.row_bytes for output in plan.outputs) == rows
    assert [output.map(plan.batches).swizzle for output in plan.outputs] == list(rows)
    assert plan.tile_n % plan.out_row == 0 and plan.storage_bytes <= plan.arch.smem_per_block
    assert plan.staging_bytes <= hopper().staging_bytes, "a second output takes no room from the stages"


def test_a_in_registers() -> None:
    plan = hopper(mma={"a_operand": "registers"})
    assert "_RS<" in plan.atom and "_rs" in plan.symbol and "_SS<" in hopper().atom
    assert plan.readers == 4 * hopper().readers, "each warp says that it has loaded a stage's A"
    named = hopper(mma={"atom": "SM90_64x128x16_F32BF16BF16_RS"})
    assert named.tile_n == 128 and named.a_in_registers
    with pytest.raises(SpecError, match="takes A from registers, got shared"):
        gemm(mma={"atom": "SM90_64x128x16_F32BF16BF16_RS", "a_operand": "shared"})
    # 192 accumulators leave no room for a stage's A.
    ranked_choices = [choice for _, choice in ranked(gemm(mma={"a_operand": "registers"}))]
    assert ranked_choices and all(choice.accumulators + 16 * choice.rows <= 192 for choice in ranked_choices)


def test_fp8_output() -> None:
    plan = hopper(dtypes={**BF16, "c": "e4m3"}, epilogue={"out": "acc * s[n]", "aux": "acc"})
    assert plan.vector == 16 and plan.tma_store and [o.row_bytes for o in plan.outputs] == [32, 128]
    assert plan.signature.tensor("s").dtype.name == plan.signature.tensor("aux").dtype.name == "f32"
    with pytest.raises(SpecError, match="output of f32 operands, got e4m3"):
        gemm(dtypes={**TF32, "c": "e4m3"})


def test_the_calling_convention_of_two_outputs() -> None:
    plan = hopper(dtypes={**BF16, "aux": "f16"}, epilogue=GELU)
    assert [(t.name, t.role) for t in plan.signature.tensors][2:] == [
        ("bias", "input"),
        ("c", "output"),
        ("aux", "output"),
    ]
    assert plan.signature.tensor("aux").dtype.name == "f16"
    grouped = hopper(epilogue={**GELU, "aux": "acc * s[m]"}, problem={"m": 4096, "n": 512, "k": 512, "groups": 8})
    modes = {t.name: t.modes for t in grouped.signature.tensors}
    assert modes["bias"] == ("groups", "n") and modes["s"] == ("m",) and modes["aux"] == ("m", "n")


def test_a_second_output_that_tma_cannot_store() -> None:
    plan = hopper(epilogue=GELU, align={"aux": 2})
    assert not plan.tma_store and plan.symbol.endswith("_aux2_gelu_acc_bias_aux_acc_bias")
    with pytest.raises(SpecError, match="rows of Aux aligned to 16 B, got 2 elements"):
        hopper(epilogue={**GELU, "store": "tma"}, align={"aux": 2})
    narrow = api.narrower(gemm(epilogue=GELU), (("a", 8), ("b", 8), ("bias", 1), ("c", 8), ("aux", 4)))
    found = api.resolve(narrow)
    assert isinstance(found, HopperGemmPlan) and [output.vector for output in found.outputs] == [8, 4]


def test_an_epilogue_that_would_spill_takes_a_smaller_tile() -> None:
    for epilogue in ({"out": "gelu(acc)"}, {"out": "acc", "aux": "2 * acc"}):
        (_, best), *_, (_, last) = ranked(gemm(8192, 8192, 8192, epilogue=epilogue))
        assert best.accumulators <= 160 < last.accumulators
    assert (
        hopper(epilogue={"out": "gelu(acc)"}, tile={"m": 128, "n": 192}, schedule={"kind": "ping_pong"}).accumulators
        == 192
    )


def test_column_major_output_is_the_transposed_product() -> None:
    plan = hopper(256, 1024, 512, majors="NN", c_major="M")
    assert plan.signature.symbol.startswith("gemm_sm_90a_nnm_bf16")
    a, b, c = plan.signature.tensors
    assert (a.name, a.modes, a.contiguous) == ("a", ("batch", "m", "k"), "m")
    assert (b.name, b.modes, b.contiguous) == ("b", ("batch", "n", "k"), "k")
    assert (c.name, c.modes, c.contiguous) == ("c", ("batch", "m", "n"), "m")
    assert [mode for mode, _ in plan.signature.geometry.axes] == ["n", "m", "batch"]


def test_operands_of_few_rows_are_clipped() -> None:
    few = hopper(16, 8192, 8192, cluster=[1, 1])
    assert few.clipped == "A" and few.signature.params[0].clipped and not few.signature.params[1].clipped
    assert few.stage_bytes == "min(M, BLK_M{}) * 128 + 8192" and few.symbol.endswith("_fewa")
    assert hopper(16, 8192, 8192, cluster=[1, 2]).clipped == "", "blocks of a cluster load equal parts"
    assert hopper(16, 8192, 8192, majors="NN").clipped == "", "rows run along M"
    assert hopper(8192, 24, 8192, cluster=[1, 1]).clipped == "B"
    # C's rows are what the kernel calls columns: it multiplies B by A.
    assert hopper(8192, 24, 8192, cluster=[1, 1], c_major="M").clipped == "A"


@pytest.mark.parametrize(("n", "row", "bits"), [(96, 32, 2), (160, 32, 2), (128, 64, 3), (224, 32, 2)])
def test_boxes_divide_the_tile(n: int, row: int, bits: int) -> None:
    plan = hopper(tile={"m": 64, "n": n})
    assert (plan.out_row, plan.outputs[0].swizzle[8], plan.out_boxes * plan.out_row) == (row, str(bits), n)
    assert plan.signature.params[2].box == (row, 64, 1) and plan.signature.params[2].swizzle == 2 * row


@pytest.mark.parametrize(("n", "own"), [(160, True), (224, True), (96, False), (192, False)])
def test_widths_that_the_usual_header_lacks_are_written_out(n: int, own: bool) -> None:
    plan = hopper(tile={"m": 64, "n": n})
    assert (plan.own_atom is not None) == own
    source = render(plan)
    assert (f"m64n{n}k16.f32.bf16.bf16" in source) == own
    if own:
        assert f'%{n // 2 - 1}"' in source and f'"+f"(D[{n // 2 - 1}])' in source


# ---- the model


@pytest.mark.parametrize(
    ("extents", "tile", "cluster", "kind"),
    [
        ((8192, 8192, 8192), (256, 192), (1, 1), "cooperative"),
        ((4096, 4096, 4096), (128, 256), (1, 1), "cooperative"),
        ((1024, 1024, 1024), (64, 128), (1, 1), "cooperative"),
        ((5120, 5120, 5120), (256, 160), (1, 1), "cooperative"),
        ((4096, 11008, 4096), (128, 160), (1, 1), "ping_pong"),
        ((8192, 8192, 512), (128, 192), (1, 1), "ping_pong"),
        ((2048, 2048, 2048), (128, 256), (1, 1), "cooperative"),
        ((16, 8192, 8192), (64, 64), (1, 1), "cooperative"),
        ((128, 8192, 8192), (64, 128), (1, 1), "cooperative"),
        ((8191, 8191, 8191), (256, 160), (1, 2), "cooperative"),
        ((127, 127, 127), (64, 64), (1, 1), "cooperative"),
    ],
)
def test_choice(extents: tuple[int, ...], tile: tuple[int, int], cluster: tuple[int, int], kind: str) -> None:
    choice = hopper(*extents).choice
    assert ((choice.m, choice.n), choice.cluster, choice.kind) == (tile, cluster, kind)


def test_power_favours_tiles_that_move_less() -> None:
    """Long launches are bound by power: of two tiles with as many cycles the one with fewer loads is faster. In a short
    one, and where tensor cores wait for memory, both times are the same.
    """
    arch = hardware.arch("sm_90a")
    wide, square = Choice(256, 192, (1, 1), "cooperative"), Choice(128, 192, (1, 1), "ping_pong")
    cube = Shape(8192, 8192, 8192, 1, 2, 2)
    assert energy(wide, cube, arch) < energy(square, cube, arch)
    assert cycles(wide, cube, arch) > cycles(square, cube, arch)
    assert sustained(wide, cube, arch) < sustained(square, cube, arch)
    for shape in (Shape(1024, 1024, 1024, 1, 2, 2), Shape(16, 8192, 8192, 1, 2, 2)):
        assert sustained(square, shape, arch) == cycles(square, shape, arch)
    # Multicast saves reads of L2, not the writes to shared memory that count here.
    shared = Choice(128, 192, (2, 1), "ping_pong")
    assert energy(shared, cube, arch) == energy(square, cube, arch)


def test_threads_that_store_want_ping_pong() -> None:
    """128x160 in ping-pong took 2857 us on an H200, 256x160 cooperative 3056 us: groups are stored by threads."""
    grouped = hopper(problem={"m": 32768, "n": 7168, "k": 4096, "groups": 8})
    assert (str(grouped.choice), grouped.tma_store) == ("128x160 ping-pong", False)


def test_every_candidate_fits() -> None:
    arch = hardware.arch("sm_90a")
    kinds: tuple[Kind, ...] = ("cooperative", "ping_pong")
    for choice in [*candidates(kinds, None, (1, 2, 4, 8)), *candidates(kinds, None, by_threads=(True, False))]:
        assert choice.accumulators <= choice.most_accumulators
        registers = choice.registers
        if registers:  # of 65536, given out to warpgroups in multiples of 8
            assert 128 * (choice.producers * registers[0] + choice.consumers * registers[1]) <= 65536
            assert all(r % 8 == 0 for r in registers) and choice.accumulators + 24 <= registers[1]
        assert 1 <= group_rows(choice, arch) <= 32
        assert cycles(choice, Shape(512, 512, 512, 1, 2, 2), arch) > 0


def test_few_tiles_are_shared_along_k() -> None:
    plan = hopper(128, 512, 16384)
    assert plan.choice.split > 1 and plan.symbol.endswith(f"_k{plan.choice.split}")
    assert plan.slice_n * plan.choice.split == plan.tile_n
    assert plan.signature.geometry.cluster == (plan.choice.split, 1, 1)
    assert hopper(128, 512, 16384, cluster=[1, 1]).choice.split == 1
    assert hopper(128, 512, 16384, schedule={"split_k": 1}).choice.split == 1
    assert hopper(8192, 8192, 8192).choice.split == 1
    with pytest.raises(SpecError, match="for the stages"):
        hopper(schedule={"split_k": 2}, tile={"m": 256, "n": 192}, dtypes={**BF16, "c": "f32"})
    wide = hopper(128, 8192, 8192, schedule={"split_k": 8}, dtypes={**BF16, "c": "f32"})
    assert wide.slice_n * wide.out.bytes % 128 == 0 and wide.choice.split == 8


@pytest.mark.parametrize(
    "parts", [{}, {"dtypes": {**BF16, "c": "f32"}}, {"dtypes": TF32}, {"align": {"c": 1}}, {"majors": "NT"}]
)
@pytest.mark.parametrize("split", [2, 4, 8])
def test_stages_hold_the_sums_of_a_block(parts: dict[str, Any], split: int) -> None:
    if split == 8 and parts.get("dtypes", BF16)["c"] != "f32":
        return
    spec = gemm(256, 4096, 4096, schedule={"split_k": split}, **parts)
    for _, choice in ranked(spec):
        tiles = {"tile": {"m": choice.m, "n": choice.n}}
        plan = hopper(256, 4096, 4096, schedule={"split_k": split}, **tiles, **parts)
        assert plan.choice == choice
        assert choice.partial_bytes <= plan.stages * (plan.a.stage_bytes + plan.b.stage_bytes)
        assert plan.slice_n % plan.out_row == 0


def test_cluster_divides_the_grid() -> None:
    geometry = hopper(8192, 8192, 8192, cluster=[2, 1]).signature.geometry
    assert geometry.cluster == (2, 1, 1)
    assert geometry.grid({"m": 8192, "n": 8192, "batch": 1}, 133) == (132, 1, 1)
    assert geometry.grid({"m": 1, "n": 1, "batch": 1}, 132) == (2, 1, 1)
    assert geometry.grid({"m": 0, "n": 1, "batch": 1}, 132) == (0, 1, 1)


# ---- rings


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("mn", [64, 128, 256])
def test_descriptors_point_at_what_smem_holds(dtype: str, major: Any, mn: int) -> None:
    """A descriptor's start is the place of the first element that its WGMMA reads, for every block, step and stage."""
    ring = Ring("A", DTYPES[dtype], major, mn, 128 // DTYPES[dtype].bytes, 3)
    blocks = mn // 64
    where = ring.descriptors_by_rows(blocks)
    step = 32 // ring.dtype.bytes
    for block in range(blocks):
        for k in range(ring.steps):
            for stage in range(ring.stages):
                offset = ring.smem(64 * block, step * k, stage) * ring.dtype.bytes
                assert where(0, block, k, stage) * 16 == offset
                assert block or ring.descriptors(0, k, stage) * 16 == offset


@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("mn", [96, 160, 192, 224, 256])
def test_loads_fill_a_stage(major: Any, slices: int, mn: int) -> None:
    ring = Ring("B", DTYPES["bf16"], major, mn, 64, 2, slices)
    rows, box = ring.box[1], ring.box[0] * ring.box[1]
    assert ring.loads * box * slices * ring.dtype.bytes == ring.stage_bytes and rows <= 256
    held = mn if major == "K" else -(-mn // 64) * 64
    places = {ring.smem(mn, k, 0) for mn in range(held) for k in range(64)}
    assert places == set(range(ring.stage_bytes // 2))
    assert ring.smem(0, 0, 1) == ring.stage_bytes // 2
    assert ring.slice_mn % 8 == 0
    # Blocks of a cluster share columns, or rows along K where three boxes can't be shared out.
    along_k = major == "MN" and held % (64 * slices) != 0
    assert ring.part == (("", "") if slices == 1 else ("", "rank * 32") if along_k else (f"rank * {ring.slice_mn}", ""))
    assert ring.slice_mn * (1 if along_k else slices) == held


def test_an_n_major_tile_is_held_in_whole_boxes() -> None:
    plan = hopper(5120, 5120, 5120, majors="NT", tile={"m": 128, "n": 160}, cluster=(2, 1))
    assert plan.b.stage_bytes == 192 * 128 and plan.b.boxes == 3 and int(plan.stage_bytes) == (128 + 192) * 128
    chosen = hopper(5120, 5120, 5120, majors="NT").choice
    assert (chosen.m, chosen.n, chosen.kind) == (256, 160, "cooperative")
    for n in (96, 160, 224):
        with pytest.raises(SpecError, match="multiple of 64"):
            hopper(511, 511, 512, majors="NT", tile={"n": n})


@pytest.mark.parametrize(("dtype", "major"), [("bf16", "K"), ("bf16", "MN"), ("f32", "K"), ("e4m3", "K")])
@pytest.mark.parametrize("mn", [64, 128, 192])
def test_words_lie_where_wgmma_reads_them(dtype: str, major: Any, mn: int) -> None:
    """Every element of a tile, at its place by the layout of elements and by that of words, both swizzled."""
    size = DTYPES[dtype].bytes
    ring = Ring("A", DTYPES[dtype], major, mn, 128 // size, 2, by_threads=True)
    by_bytes, by_words = Swizzle(3, 4, 3), Swizzle(3, 2, 3)
    rows, boxes = ring.warp_rows
    seen = set()
    for row in range(8 * rows * boxes):
        box, inner = divmod(row, ring.box_rows)
        for word in range(32):
            at = by_words(ring.words(word, row, 1)) * 4
            along = box * ring.row + word * (ring.spare + 1)
            mn_at, k_at = (inner, along) if major == "K" else (along, inner)
            for v in range(ring.spare + 1):
                element = (mn_at, k_at + v) if major == "K" else (mn_at + v, k_at)
                assert by_bytes(ring.smem(*element, 1) * size) == at + v * size
                seen.add(element)
    assert len(seen) == mn * ring.depth
