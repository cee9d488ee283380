"""The plan of an `attention_scores` spec."""

from __future__ import annotations

from cutegen import hardware
from cutegen.dtypes import DTYPES
from cutegen.plan.gemm import align_suffix, resources
from cutegen.plan.hopper_scores import plan_hopper_scores, wants_hopper
from cutegen.plan.kernel_plan import KernelPlan, TilePlan, parameters
from cutegen.plan.output import Naming
from cutegen.plan.scores import grouped, inverse_root
from cutegen.plan.signature import (
    Extent,
    Geometry,
    KernelParam,
    Pointer,
    Scalar,
    ScalarArg,
    Signature,
    Stride,
    TensorArg,
)
from cutegen.plan.tile_gemm import Request, TileGemm, plan_tile_gemm
from cutegen.spec.attention import AttentionScoresSpec

_NAMING = Naming(
    letters=("Q", "K", "S"),
    fields=("q", "k", "scores"),
    extents=("seqlen_q", "seqlen_k", "HEAD_DIM"),
    strides=("row_Q", "row_K", "row_S"),
)


def plan_attention_scores(spec: AttentionScoresSpec) -> KernelPlan:
    """Resolves S = scale * Q K^T.

    Raises:
        SpecError: the spec can't become a right kernel.
    """
    if wants_hopper(spec):
        return plan_hopper_scores(spec)
    d = spec.dtypes
    dtypes = (DTYPES[d.q], DTYPES[d.k], DTYPES[d.scores])
    head_dim = spec.problem.head_dim
    product = plan_tile_gemm(
        Request(
            arch=hardware.arch(spec.arch),
            dtypes=dtypes,
            multiply=d.multiply or d.q,
            accumulate=d.accumulate,
            majors=("K", "K", "N"),
            tile=spec.tile,
            mma=spec.mma,
            smem=(spec.smem.q, spec.smem.k),
            copy=(spec.copy_.q, spec.copy_.k),
            pipeline=spec.pipeline,
            epilogue=spec.epilogue,
            schedule=spec.schedule,
            align=(spec.align.q, spec.align.k, spec.align.scores),
            naming=_NAMING,
            depth=head_dim,
        )
    )
    symbol = spec.name or _symbol(spec, product)
    tensors = ("q", "k", "scores")
    rows = {"q": "seqlen_q", "k": "seqlen_k", "scores": "seqlen_q"}
    heads = {"q": "heads", "k": "heads_kv", "scores": "heads"}
    params: tuple[KernelParam, ...] = (
        *(Pointer(t) for t in tensors),
        Extent("heads"),
        Extent("heads_kv"),
        Extent("seqlen_q"),
        Extent("seqlen_k"),
        *(Stride(t, rows[t]) for t in tensors),
        *(Stride(t, heads[t]) for t in tensors),
        *(Stride(t, "batch") for t in tensors),
        Scalar("scale"),
    )
    letters = "QKS"
    names = (
        *letters,
        "heads",
        "heads_kv",
        "seqlen_q",
        "seqlen_k",
        *(f"{kind}_{x}" for kind in ("row", "head", "batch") for x in letters),
        "scale",
    )
    signature = Signature(
        symbol=symbol,
        tensors=(
            TensorArg("q", dtypes[0], ("batch", "heads", "seqlen_q", "head_dim"), "head_dim", product.a.g2s.vector),
            TensorArg("k", dtypes[1], ("batch", "heads_kv", "seqlen_k", "head_dim"), "head_dim", product.b.g2s.vector),
            TensorArg(
                "scores", dtypes[2], ("batch", "heads", "seqlen_q", "seqlen_k"), "seqlen_k", product.c.vector, "output"
            ),
        ),
        scalars=(ScalarArg("scale", "float", inverse_root),),
        params=params,
        geometry=Geometry(
            (("seqlen_q", product.tile[0]), ("seqlen_k", product.tile[1]), ("heads", 1), ("batch", 1)),
            product.threads,
            product.smem_bytes,
        ),
        static=(("head_dim", head_dim),),
        check=grouped,
    )
    return TilePlan(
        spec=spec,
        symbol=symbol,
        arch=product.request.arch,
        template="attention_scores.cu.jinja",
        product=product,
        signature=signature,
        summary=_summary(spec, product),
        params_cpp=parameters(params, names, dict(zip(tensors, dtypes)), frozenset({"scores"})),
        k_extent="HEAD_DIM{}",
        causal=spec.causal,
        head_dim=head_dim,
    )


def _symbol(spec: AttentionScoresSpec, product: TileGemm) -> str:
    d = spec.dtypes
    types = [d.multiply or d.q, d.accumulate, d.scores]
    if types[1] == "f32":
        del types[1]
    tile = "x".join(map(str, product.tile))
    causal = "_causal" if spec.causal else ""
    return f"attention_scores_{spec.arch}_{'_'.join(types)}_d{spec.problem.head_dim}{causal}_{tile}_p{product.stages}{align_suffix(product, 'qks')}"


def _summary(spec: AttentionScoresSpec, product: TileGemm) -> tuple[str, ...]:
    d = spec.dtypes
    as_what = f" multiplied as {d.multiply}" if d.multiply and d.multiply != d.q else ""
    causal = (
        ("query i sees key j when j <= i + seqlen_k - seqlen_q; what it does not see is -inf",) if spec.causal else ()
    )
    return (
        f"S = scale Q K^T for each batch and head      Q (M,K) {d.q}      K (N,K) {d.k}      S (M,N) {d.scores}",
        f"M = seqlen_q, N = seqlen_k, K = head_dim = {spec.problem.head_dim}; accumulated in {d.accumulate}{as_what}; any lengths, batch, heads",
        *causal,
        "",
        *resources(product),
        f"rows of Q aligned to {product.a.g2s.vector} elements, of K to {product.b.g2s.vector}, of S to {product.c.vector}; head_dim is contiguous",
    )
