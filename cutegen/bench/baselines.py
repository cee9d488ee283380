"""What a user would call instead: cuBLAS, and FlashAttention-2, through torch, given every advantage.

Tensor cores are on for f16, bf16 and, with `tf32`, for f32. Operands are made contiguous beforehand, outputs are given,
a grouped key head is multiplied once by all its query heads; nothing is masked, since cuBLAS can't.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cutegen.dtypes import DType
from cutegen.errors import ToolchainError


def _torch() -> Any:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise ToolchainError(f"cuBLAS is measured through torch ({error}): pip install torch") from None
    if not torch.cuda.is_available():
        raise ToolchainError("cuBLAS is measured on a GPU, and torch sees none")
    return torch


@contextmanager
def tensor_cores(tf32: bool) -> Iterator[None]:
    """Sets whether cuBLAS may multiply f32 as tf32; puts it back afterwards."""
    flags = _torch().backends.cuda.matmul
    before = flags.allow_tf32
    flags.allow_tf32 = tf32
    try:
        yield
    finally:
        flags.allow_tf32 = before


def _with_tf32(call: Callable[[], Any], tf32: bool) -> Callable[[], Any]:
    # Set around each call, not once: other candidates run in between.
    flags = _torch().backends.cuda.matmul

    def run() -> Any:
        before = flags.allow_tf32
        flags.allow_tf32 = tf32
        call()
        flags.allow_tf32 = before

    return run


def gemm(
    a: Any,
    b: Any,
    out: DType,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    tf32: bool = False,
    scales: tuple[Any, Any] | None = None,
) -> tuple[Callable[[], Any], Any]:
    """cuBLAS for alpha * A B^T + beta * C with a ([batch,] m, k), b ([batch,] n, k); the call and its output.

    Operands keep their majors. An output wider than the operands needs torch 2.8 or newer. fp8 operands go through
    `torch._scaled_mm`, with `scales` of rows if given, else with scales of 1.

    Raises:
        ToolchainError: torch or a GPU is missing, or torch can't do this.
    """
    torch = _torch()
    if a.element_size() == 1:
        return _scaled(torch, a, b, getattr(torch, out.torch), scales)
    transposed = b.mT
    kind = getattr(torch, out.torch)
    if a.ndim == 2 and b.ndim == 3:
        a = a.expand(b.shape[0], *a.shape)
    elif a.ndim == 3 and b.ndim == 2:
        transposed = transposed.expand(a.shape[0], *transposed.shape)
    result = torch.empty((*a.shape[:-1], b.shape[-2]), dtype=kind, device=a.device)
    if c is not None and beta != 0:
        result.copy_(c)
    if kind != a.dtype:
        return _wide(torch, a, transposed, result, alpha, beta), result
    if alpha == 1 and beta == 0:
        return _with_tf32(lambda: torch.matmul(a, transposed, out=result), tf32), result
    add = torch.baddbmm if a.ndim == 3 else torch.addmm
    return _with_tf32(lambda: add(result, a, transposed, alpha=alpha, beta=beta, out=result), tf32), result


def grouped(a: Any, b: Any, ends: Any) -> tuple[Callable[[], Any], Any]:
    """torch's grouped product of rows a (m, k), in groups that end at `ends`, with b (groups, n, k).

    Raises:
        ToolchainError: torch or a GPU is missing, or torch can't do this.
    """
    torch = _torch()

    def call() -> Any:
        return torch._grouped_mm(a, b.mT, offs=ends)

    try:
        return call, call()
    except (AttributeError, RuntimeError) as error:
        raise ToolchainError(f"torch {torch.__version__} has no grouped product of {a.dtype}: {error}") from None


def loop(a: Any, b: Any, ends: Any) -> tuple[Callable[[], Any], Any]:
    """The same as `grouped` by one cuBLAS call for each group, their sizes known on the host.

    Raises:
        ToolchainError: torch or a GPU is missing.
    """
    torch = _torch()
    bounds = [0, *(int(end) for end in ends.cpu())]
    result = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    parts = [(a[i:j], b[g].mT, result[i:j]) for g, (i, j) in enumerate(itertools.pairwise(bounds)) if j > i]

    def call() -> Any:
        for rows, matrix, out in parts:
            torch.matmul(rows, matrix, out=out)

    call()
    return call, result


def one_by_one(a: Sequence[Any], b: Sequence[Any], out: DType, *, tf32: bool = False) -> tuple[Callable[[], Any], Any]:
    """A B^T of each pair of two lists by a cuBLAS call of its own: torch has none that takes arrays of pointers.

    Raises:
        ToolchainError: torch or a GPU is missing, or torch can't do this.
    """
    found = [gemm(left, right, out, tf32=tf32) for left, right in zip(a, b, strict=True)]
    calls = [call for call, _ in found]

    def call_all() -> Any:
        for call in calls:
            call()

    return call_all, [result for _, result in found]


def linear(a: Any, b: Any, bias: Any, activation: str) -> tuple[Callable[[], Any], Any]:
    """torch's `activation(linear(a, b, bias))`, the activation's name as in torch.nn.functional.

    Raises:
        ToolchainError: torch or a GPU is missing.
    """
    functional = _torch().nn.functional
    act = getattr(functional, activation)

    def call() -> Any:
        return act(functional.linear(a, b, bias))

    return call, call()


def _scaled(torch: Any, a: Any, b: Any, kind: Any, scales: tuple[Any, Any] | None) -> tuple[Callable[[], Any], Any]:
    """fp8 operands, K-major, with one scale for each row or for the whole of them."""
    if scales is None:
        one = torch.ones((), device=a.device)
        factors = (one, one)
    else:
        factors = (scales[0].reshape(-1, 1), scales[1].reshape(1, -1))

    def call() -> Any:
        return torch._scaled_mm(a, b.mT, scale_a=factors[0], scale_b=factors[1], out_dtype=kind, use_fast_accum=True)

    try:
        return call, call()
    except (AttributeError, RuntimeError) as error:
        raise ToolchainError(f"torch {torch.__version__} can't multiply {a.dtype} this way: {error}") from None


def _wide(torch: Any, a: Any, transposed: Any, result: Any, alpha: float, beta: float) -> Callable[[], Any]:
    """f16 or bf16 operands with an f32 output."""
    batched = a.ndim == 3
    plain = alpha == 1 and beta == 0
    function = (torch.bmm if batched else torch.mm) if plain else (torch.baddbmm if batched else torch.addmm)

    def call() -> Any:
        if plain:
            return function(a, transposed, out_dtype=torch.float32, out=result)
        return function(result, a, transposed, out_dtype=torch.float32, alpha=alpha, beta=beta, out=result)

    try:
        call()
    except (TypeError, RuntimeError) as error:
        raise ToolchainError(f"torch {torch.__version__} can't give float32 from {a.dtype} operands: {error}") from None
    return call


def attention_scores(
    q: Any, k: Any, out: DType, *, scale: float = 1.0, tf32: bool = False
) -> tuple[Callable[[], Any], Any]:
    """cuBLAS for scale * Q K^T with q (batch, heads, seqlen_q, head_dim), k (batch, heads_kv, seqlen_k, head_dim).

    The output has q's shape with head_dim replaced by seqlen_k.

    Raises:
        ToolchainError: torch or a GPU is missing, or torch can't do this.
    """
    batch, heads, seqlen_q, depth = q.shape
    heads_kv, seqlen_k = k.shape[1], k.shape[2]
    rows = heads // heads_kv * seqlen_q
    left = q.contiguous().view(batch * heads_kv, rows, depth)
    right = k.contiguous().view(batch * heads_kv, seqlen_k, depth)
    call, result = gemm(left, right, out, alpha=scale, tf32=tf32)
    return call, result.view(batch, heads, seqlen_q, seqlen_k)


def attention_forward(
    q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None
) -> tuple[Callable[[], Any], Any]:
    """torch's scaled_dot_product_attention with its FLASH_ATTENTION backend, FlashAttention-2; the call and an output.

    torch aligns a causal mask top left, which is the same for square problems only.

    Raises:
        ToolchainError: torch or a GPU is missing, or this backend refuses the problem.
    """
    torch = _torch()
    functional = torch.nn.functional
    attention = importlib.import_module("torch.nn.attention")
    if causal and q.shape[2] != k.shape[2]:
        raise ToolchainError("torch aligns a causal mask top left: compare causal kernels at equal lengths")
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}

    def call() -> Any:
        with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, **grouped)

    try:
        return call, call()
    except RuntimeError as error:
        raise ToolchainError(f"FLASH_ATTENTION refuses this problem: {error}") from None
