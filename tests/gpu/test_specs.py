"""Every shipped spec on a GPU: right at odd problems, with strides and padding, in every variant."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import pytest

import cutegen as cg
from cutegen import api
from cutegen.cli.running import native, reads_c, trial_scalars
from cutegen.kernel.driver import driver
from cutegen.kernel.lists import members
from cutegen.report import inputs
from tests.specs import PATHS, every_spec, spec_of

pytestmark = pytest.mark.gpu

_ODD = (1, 7, 64, 127, 129, 1000)
# Each size meets each other one in some place: a Latin square over the three extents.
_GEMM = [(_ODD[i], _ODD[(i + j) % 6], _ODD[(2 * i + j + 1) % 6]) for i, j in itertools.product(range(6), range(6))]
_built: dict[str, Any] = {}
# Where inputs are held, and what every validation is told.
LIBRARY = "torch"
OPTIONS: dict[str, Any] = {}
# Rows of a large problem that are computed in float64.
SAMPLED = 16


def build(name: str) -> Any:
    if name not in _built:
        _built[name] = cg.build(native(spec_of(name), driver().device(0).capability, quiet=True))
    return _built[name]


def arrays_of(kernel: Any, extents: dict[str, int], seed: int, **options: Any) -> dict[str, Any]:
    options = {"library": LIBRARY, "inouts": reads_c(kernel.spec), **options}
    return inputs.for_signature(kernel.signature, extents, seed, **options)


def right(kernel: Any, arrays: dict[str, Any], scalars: dict[str, float] | None = None, **options: Any) -> None:
    """Validates, with scalars that are seen to work; those given are taken where the kernel has them."""
    names = {s.name for s in kernel.signature.scalars}
    given = {n: v for n, v in {**trial_scalars(kernel.spec), **(scalars or {})}.items() if n in names}
    report = kernel.validate(arrays, given, **OPTIONS, **options)
    shapes = {name: [tuple(a.shape) for a in members(given)] for name, given in arrays.items()}
    assert report.ok, f"{kernel.signature.symbol} {shapes}: {report}"


def check(kernel: Any, extents: dict[str, int], scalars: dict[str, float] | None = None, **options: Any) -> None:
    right(kernel, arrays_of(kernel, extents, 3, **options), scalars)
    right(kernel, arrays_of(kernel, extents, 4, integers=True, **options), scalars)


def fitted(kernel: Any, extents: dict[str, int]) -> dict[str, int]:
    """The extents as the kernel has them: groups in place of a batch."""
    if not kernel.spec.problem.groups:
        return extents
    return {**{mode: extent for mode, extent in extents.items() if mode != "batch"}, "groups": 3}


@pytest.fixture(autouse=True)
def _torch() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch holds the inputs")


@pytest.mark.parametrize("name", [n for n in PATHS if n.startswith("gemm/")])
def test_gemm_odd_sizes(name: str) -> None:
    kernel = build(name)
    for index, (m, n, k) in enumerate(_GEMM):
        batch = {} if index % 3 else {"batch": 1 + 2 * (index % 2)}
        check(kernel, fitted(kernel, {"m": m, "n": n, "k": k, **batch}), {"alpha": 0.75})


@pytest.mark.parametrize("name", [n for n in PATHS if n.startswith("gemm/")])
def test_gemm_beta_and_empty_k(name: str) -> None:
    kernel = build(name)
    for m, n, k, batch in ((136, 72, 48, 3), (64, 129, 0, 1), (1, 1, 0, 2)):
        extents = fitted(kernel, {"m": m, "n": n, "k": k, "batch": batch})
        right(kernel, arrays_of(kernel, extents, 5, inouts=True), {"alpha": 1.5, "beta": 0.5})
    right(kernel, arrays_of(kernel, fitted(kernel, {"m": 65, "n": 0, "k": 16}), 5))


@pytest.mark.parametrize("name", [n for n in PATHS if n.startswith("gemm/")])
def test_gemm_padded_rows_and_offsets(name: str) -> None:
    kernel = build(name)
    for pad, offset in ((16, 0), (8, 0), (1, 0), (3, 1), (0, 2)):
        check(
            kernel,
            fitted(kernel, {"m": 130, "n": 72, "k": 144}),
            {},
            pads={"a": pad, "b": pad},
            offsets={"a": offset, "b": offset},
        )


@pytest.mark.parametrize("name", [n for n in PATHS if n.startswith("attention/scores")])
def test_scores_odd_sizes(name: str) -> None:
    kernel = build(name)
    head_dim = dict(kernel.signature.static)["head_dim"]
    for batch, heads, heads_kv, seqlen_q, seqlen_k in (
        (1, 1, 1, 1, 1),
        (3, 4, 2, 7, 129),
        (1, 6, 1, 200, 70),
        (2, 3, 3, 127, 1000),
        (1, 2, 2, 64, 8),
        (2, 8, 4, 1000, 136),
    ):
        extents = {"batch": batch, "heads": heads, "heads_kv": heads_kv, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k}
        check(kernel, {**extents, "head_dim": head_dim})


@pytest.mark.parametrize("name", [n for n in PATHS if n.startswith("attention/scores")])
def test_scores_of_packed_views_and_padded_rows(name: str) -> None:
    kernel = build(name)
    head_dim = dict(kernel.signature.static)["head_dim"]
    q, k, _ = inputs.packed(3, 2, 264, 4, head_dim, kernel.signature.tensors[0].dtype, 1, library=LIBRARY)
    right(kernel, {"q": q, "k": k})
    sizes = {"batch": 1, "heads": 2, "heads_kv": 2, "seqlen_q": 65, "seqlen_k": 66, "head_dim": head_dim}
    for pad, offset in ((8, 0), (1, 0), (4, 2), (1, 1)):
        check(kernel, sizes, pads={"q": pad, "k": pad}, offsets={"q": offset, "k": offset})


FORWARD = [n for n in PATHS if n.startswith("attention/forward") and "varlen" not in n]


@pytest.mark.parametrize("name", FORWARD)
def test_forward_odd_sizes(name: str) -> None:
    kernel = build(name)
    for batch, heads, heads_kv, seqlen_q, seqlen_k in (
        (1, 1, 1, 1, 1),
        (3, 4, 2, 7, 129),
        (1, 6, 1, 200, 70),
        (2, 3, 3, 127, 1000),
        (1, 2, 2, 64, 0),
        (2, 2, 1, 0, 64),
        (2, 8, 4, 1000, 1136),
    ):
        extents = {"batch": batch, "heads": heads, "heads_kv": heads_kv, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k}
        for pad, offset in ((0, 0), (8, 8), (2, 2)):
            pads, offsets = dict.fromkeys("qkv", pad), dict.fromkeys("qkv", offset)
            right(kernel, arrays_of(kernel, extents, 3, pads=pads, offsets=offsets))


@pytest.mark.parametrize("name", FORWARD)
def test_forward_of_packed_views(name: str) -> None:
    kernel = build(name)
    head_dim = dict(kernel.signature.static)["head_dim"]
    parts = inputs.packed(3, 2, 264, 4, head_dim, kernel.signature.tensors[0].dtype, 1, library=LIBRARY)
    extents = {"batch": 2, "heads": 4, "heads_kv": 4, "seqlen_q": 264, "seqlen_k": 264}
    right(kernel, {**arrays_of(kernel, extents, 2), **dict(zip("qkv", parts))})


def test_forward_of_sequences() -> None:
    kernel = build("attention/forward_sm80_bf16_d128_varlen")
    for total_q, total_k, boundaries in ((1000, 1000, 2), (3001, 2500, 9), (700, 900, 65), (5, 0, 4)):
        extents = {"heads": 4, "heads_kv": 2, "total_q": total_q, "total_k": total_k, "boundaries": boundaries}
        right(kernel, arrays_of(kernel, extents, 3))


@every_spec
def test_shipped_problem(name: str) -> None:
    kernel = build(name)
    right(kernel, arrays_of(kernel, api.problem(kernel.spec), 0), sampled=SAMPLED)


def test_more_than_2_31_elements() -> None:
    kernel = build("gemm/sm80_bf16_nt")
    m, n, k = 2**17 + 8, 2**14 + 8, 16  # C has 2.15e9 elements
    right(kernel, arrays_of(kernel, {"m": m, "n": n, "k": k}, 0), twice=False, sampled=SAMPLED)
    scores = build("attention/scores_sm90_bf16_d64")
    sizes = {"batch": 1, "heads": 33, "heads_kv": 1, "seqlen_q": 8192, "seqlen_k": 8200, "head_dim": 64}
    right(scores, arrays_of(scores, sizes, 0), twice=False, sampled=SAMPLED)
