"""The calling convention of `attention_forward`, its symbol, and the words at the head of the emitted file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from cutegen.dtypes import F32, I32
from cutegen.plan.attention_expressions import Expressions
from cutegen.plan.kernel_plan import parameters
from cutegen.plan.operand import Operand
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
from cutegen.spec.attention_forward import AttentionForwardSpec


def signature_of(
    spec: AttentionForwardSpec,
    symbol: str,
    operands: tuple[Operand, Operand, Operand],
    vector_o: int,
    expressions: Expressions,
    geometry: Geometry,
) -> tuple[Signature, tuple[str, ...]]:
    """The calling convention and the C++ parameters."""
    tensors = ("q", "k", "v", "o")
    length = {"q": "seqlen_q", "k": "seqlen_k", "v": "seqlen_k", "o": "seqlen_q"}
    heads = {"q": "heads", "k": "heads_kv", "v": "heads_kv", "o": "heads"}
    values = spec.problem.value_dim != spec.problem.head_dim
    dims = {"q": "head_dim", "k": "head_dim"} | dict.fromkeys("vo", "head_dim_v" if values else "head_dim")
    vectors = dict(zip(tensors, (*(op.g2s.vector for op in operands), vector_o)))
    dtype = operands[0].dtype
    packed = {"q": "total_q", "k": "total_k", "v": "total_k", "o": "total_q"}
    modes = {
        t: (packed[t], heads[t], dims[t]) if spec.varlen else ("batch", heads[t], length[t], dims[t]) for t in tensors
    }
    length = packed if spec.varlen else length
    args = [
        TensorArg(
            t, dtype, modes[t], dims[t], vectors[t],
            "output" if t == "o" else "input",
        )
        for t in tensors
    ]  # fmt: skip
    params: list[KernelParam] = [Pointer(t) for t in tensors]
    names = [t.upper() for t in tensors]
    sinks = (TensorArg("sinks", F32, ("heads",), "heads", 1),) if spec.sinks else ()
    ends = tuple(TensorArg(f"cu_seqlens_{t}", I32, ("boundaries",), "boundaries", 1) for t in "qk")
    args[3:3] = (*(ends if spec.varlen else ()), *expressions.tensors, *sinks)
    if spec.lse:
        statistics = ("heads", "total_q") if spec.varlen else ("batch", "heads", "seqlen_q")
        args.append(TensorArg("lse", F32, statistics, statistics[-1], 1, "output"))
        params.append(Pointer("lse"))
        names.append("LSE")
    if spec.varlen:
        params += [Pointer("cu_seqlens_q"), Pointer("cu_seqlens_k")]
        names += ["cu_seqlens_q", "cu_seqlens_k"]
    counts = ("total_q", "boundaries") if spec.varlen else ("seqlen_q", "seqlen_k")
    params += [Extent(mode) for mode in ("heads", "heads_kv", *counts)]
    names += ["heads", "heads_kv", *counts]
    strides = [("row", length), ("head", heads)]
    strides += [] if spec.varlen else [("batch", dict.fromkeys(tensors, "batch"))]
    for kind, along in strides:
        params += [Stride(t, along[t]) for t in tensors]
        names += [f"{kind}_{t.upper()}" for t in tensors]
    if spec.lse:
        outer = ("heads",) if spec.varlen else ("heads", "batch")
        params += [Stride("lse", mode) for mode in outer]
        names += ["head_LSE", "batch_LSE"][: len(outer)]
    if spec.sinks:
        params.append(Pointer("sinks"))
        names.append("sinks")
    dropout: tuple[ScalarArg, ...] = ()
    if spec.dropout:
        dropout = (
            ScalarArg("p_dropout", "float", below=1.0),
            ScalarArg("seed", "uint64_t", 0),
            ScalarArg("offset", "uint32_t", 0),
        )
    params += [*(param for param, _ in expressions.params), *(Scalar(s.name) for s in dropout), Scalar("scale")]
    names += [*(name for _, name in expressions.params), *(s.name for s in dropout), "scale"]
    dtypes = {t.name: t.dtype for t in args}
    signature = Signature(
        symbol=symbol,
        tensors=tuple(args),
        scalars=(
            ScalarArg("scale", "float", inverse_root, positive=spec.score is None),
            *expressions.scalars,
            *dropout,
        ),
        params=tuple(params),
        geometry=geometry,
        static=(("head_dim", spec.problem.head_dim), *((("head_dim_v", spec.problem.value_dim),) if values else ())),
        check=_check_extents,
    )
    return signature, parameters(
        tuple(params), names, dtypes, frozenset({"o", "lse"}), {s.name: s.ctype for s in dropout}
    )


def _check_extents(extents: Mapping[str, int]) -> str | None:
    """Lengths whose positions, with a window added, stay within 32 bits; grouped heads."""
    if extents.get("boundaries", 2) < 2 and (extents["total_q"] or extents["boundaries"] < 1):
        return f"cu_seqlens_q and cu_seqlens_k hold batch + 1 ends, got {extents['boundaries']}"
    for mode in ("seqlen_q", "seqlen_k", "total_q", "total_k"):
        if extents.get(mode, 0) > 2**30:
            return f"{mode} is {extents[mode]}, more than the {2**30} that this kernel counts to"
    return grouped(extents)


def _variant(spec: AttentionForwardSpec) -> str:
    """Marks of what is not plain attention, for the symbol."""
    marks = ["_causal"] if spec.causal else []
    if spec.window.left is not None or spec.window.right:
        left, right = (("x" if side is None else str(side)) for side in (spec.window.left, spec.window.right))
        marks.append(f"_w{left}" if spec.causal else f"_w{left}_{right}")
    elif spec.window.right == 0 and not spec.causal:
        marks.append("_wx_0")
    if (spec.causal or spec.window != type(spec.window)()) and spec.causal_align == "top_left":
        marks.append("_tl")
    if spec.softcap is not None:
        marks.append("_cap" + f"{spec.softcap:g}".replace(".", "p").replace("-", "m").replace("+", ""))
    if spec.score is not None or spec.mask is not None:
        # Expressions have no short names: a digest tells their kernels apart.
        text = repr((spec.score, spec.mask, [a.model_dump() for a in spec.arguments]))
        marks.append("_x" + hashlib.sha256(text.encode()).hexdigest()[:8])
    marks += ["_varlen"] if spec.varlen else []
    marks += ["_dropout"] if spec.dropout else []
    marks += ["_sinks"] if spec.sinks else []
    return "".join(marks) + ("_lse" if spec.lse else "")


def _values(spec: AttentionForwardSpec) -> str:
    return "" if spec.problem.value_dim == spec.problem.head_dim else f"v{spec.problem.value_dim}"


def _stages(spec: AttentionForwardSpec) -> str:
    return "_p2" if spec.pipeline.stages == 2 else ""


def symbol_of(
    spec: AttentionForwardSpec, tile: tuple[int, int], warps: int, kept: bool, ops: tuple[Operand, ...], vector_o: int
) -> str:
    vectors = (*((op.name.lower(), op.g2s.vector) for op in ops), ("o", vector_o))
    widest = 16 // ops[0].dtype.bytes
    narrow = "".join(f"{letter}{vector}" for letter, vector in vectors if vector < widest)
    return (
        f"attention_forward_{spec.arch}_{spec.dtypes.multiply or spec.dtypes.q}_d{spec.problem.head_dim}{_values(spec)}{_variant(spec)}"
        f"_{tile[0]}x{tile[1]}_w{warps}{'_qr' if kept else ''}{_stages(spec)}{'_' + narrow if narrow else ''}"
    )


def summary_of(
    spec: AttentionForwardSpec,
    m: int,
    n: int,
    warps: int,
    kept: bool,
    smem_bytes: int,
    ops: tuple[Operand, ...],
    vector_o: int,
) -> tuple[str, ...]:
    dtype = spec.dtypes.q
    score = "scale q.k" if spec.softcap is None else f"{spec.softcap:g} tanh(scale q.k / {spec.softcap:g})"
    if spec.score is not None:
        score = "score"
    lines = [
        f"O = softmax({score}) V for each batch and head      "
        + (
            f"Q, O (M,D) {dtype}      K, V (N,D) {dtype}"
            if not _values(spec)
            else f"Q (M,D), O (M,DV), K (N,D), V (N,DV) {dtype}; DV = head_dim_v = {spec.problem.value_dim}"
        ),
        f"M = seqlen_q, N = seqlen_k, D = head_dim = {spec.problem.head_dim}; scores, softmax and sums in f32{', products of tf32' if spec.dtypes.multiply else ''}; any lengths, batch, heads",
    ]
    left, right = spec.window.left, 0 if spec.causal else spec.window.right
    if left is not None or right is not None:
        at = "i + seqlen_k - seqlen_q" if spec.causal_align == "bottom_right" else "i"
        first = "" if left is None else f"{at} - {left} <= "
        last = "" if right is None else f" <= {at}" + (f" + {right}" if right else "")
        lines.append(f"query i sees key j when {first}j{last}; a query that sees none gives 0")
    if spec.score is not None:
        lines.append(f"score = {spec.score}      s = q.k of query q and key k, head h, batch b")
    if spec.mask is not None:
        lines.append(f"query q sees key k only when {spec.mask}")
    if spec.varlen:
        lines.append(
            "sequences lie one after the other: b is [cu_seqlens[b], cu_seqlens[b + 1]) of total_q and total_k"
        )
    if spec.dropout:
        lines.append("elements of the softmax become 0 with probability p_dropout, by Philox4x32-10 of seed and offset")
    if spec.sinks:
        lines.append("every query of head h also sees a score sinks[h] whose value is 0")
    if spec.lse:
        lines.append("LSE = log(sum(exp(scores))) of each row, f32; -inf for a query that sees no key")
    kept_in = "registers" if kept else "shared memory"
    vectors = ", ".join([f"{op.name} to {op.g2s.vector}" for op in ops] + [f"O to {vector_o}"])
    return (
        *lines,
        "",
        f"block tile ({m},{n})      {warps} warps of {m // warps} rows      Q stays in {kept_in}{', K and V in two stages' if _stages(spec) else ''}      shared memory {smem_bytes} B",
        "grid: one block for each tile of queries of each head and batch, the tiles with most keys first",
        f"rows aligned to elements: {vectors}; head_dim is contiguous{'; scale > 0' if spec.score is None else ''}",
    )
