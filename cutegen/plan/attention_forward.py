"""The plan of an `attention_forward` spec: two products with a softmax between them, all in registers.

FlashAttention-2's arrangement (Dao, 2023): a block owns `m` queries, its warps share them along M only, so that a
row of scores lies in one quad of lanes. It walks over K and V `n` keys at a time, from the last that it sees to the
first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from pycute import Layout

from cutegen import hardware
from cutegen.atoms import default_atom
from cutegen.dtypes import DTYPES, F32, DType
from cutegen.errors import Fault, SpecError
from cutegen.plan.bend import Bent, bend, with_xor
from cutegen.plan.fit import fit
from cutegen.plan.kernel_plan import KernelPlan, parameters
from cutegen.plan.operand import Operand, plan_operand
from cutegen.plan.output import word
from cutegen.plan.partition import TiledMma, accumulator_view, warp_mma
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
from cutegen.plan.tile_gemm import Math
from cutegen.spec.attention_forward import AttentionForwardSpec
from cutegen.spec.common import Copy, Smem

# Registers beside accumulators and fragments: addresses, loop counters, row statistics.
_OTHER_REGISTERS = 24
# Up to which estimate Q is kept in registers; above it ptxas begins to spill.
_ROOMY = 224
# log2 of how far scores may rise above a row's reference before accumulator and sum are rescaled: 2^8 is far from
# the overflow of f16, and exp2 of a smaller difference loses nothing.
_RESCALE_ABOVE = 8.0


@dataclass(frozen=True)
class Rows:
    """A thread's accumulator by rows: `regs` ((VEC,COLUMN),ROW) -> register, `columns` (VEC,COLUMN) -> column and
    `rows` ROW -> row, from the thread's first."""

    regs: Layout
    columns: Layout
    rows: Layout

    @property
    def count(self) -> int:
        return int(self.rows.size())


@dataclass(frozen=True)
class Store:
    """How a warp's rows of O leave through shared memory, where Q was.

    `write` (COLUMN,ROW) is where a thread's pairs of columns go; `read` (COLUMN,ROW) is where its vectors come from:
    `along` lanes share a row, `rows` rows are read at once.
    """

    write: Bent
    read: Bent
    vector: int
    along: int
    warp_rows: int
    columns: int
    guarded: bool

    @property
    def rows(self) -> int:
        return 32 // self.along

    @property
    def row_rounds(self) -> int:
        return self.warp_rows // self.rows


@dataclass(frozen=True)
class AttentionForwardPlan(KernelPlan):
    """Everything static of the kernel.

    `head_dim` is the caller's, `blk_d` what it is padded to for the MMA. `left` and `right` bound the keys that a
    query sees relative to its own position, None where nothing does.
    """

    q: Operand
    k: Operand
    v: Operand
    scores: Math
    output: Math
    rows_s: Rows
    rows_o: Rows
    frag_p: Layout
    head_dim: int
    warps: int
    q_in_registers: bool
    left: int | None
    right: int | None
    softcap: float | None
    lse: bool
    bottom_right: bool
    store: Store

    @property
    def dtype(self) -> DType:
        return self.q.dtype

    @property
    def tile_m(self) -> int:
        return self.scores.tiled.tile[0]

    @property
    def tile_n(self) -> int:
        return self.scores.tiled.tile[1]

    @property
    def blk_d(self) -> int:
        return self.scores.tiled.tile[2]

    @property
    def padded(self) -> bool:
        return self.blk_d != self.head_dim

    @property
    def masked(self) -> bool:
        """Whether more than the end of K bounds what a query sees."""
        return self.left is not None or self.right is not None

    @property
    def rescale_above(self) -> float:
        return _RESCALE_ABOVE

    @property
    def pack(self) -> tuple[str, str]:
        """(type of two packed elements, the intrinsic that rounds two floats to it): cuda_fp16.h, cuda_bf16.h."""
        if self.dtype.name == "f16":
            return "__half2", "__floats2half2_rn"
        return "__nv_bfloat162", "__floats2bfloat162_rn"

    @property
    def vector_cpp(self) -> str:
        return word(self.store.vector * self.dtype.bytes)

    @property
    def registers(self) -> int:
        """A floor for the registers of a thread."""
        return _registers(self.scores.tiled, self.output.tiled, self.q_in_registers)

    @property
    def min_blocks(self) -> int:
        by_smem = self.arch.smem_per_sm // (self.smem_bytes + 1024)
        by_registers = self.arch.registers // (self.threads * self.registers)
        return max(1, min(by_smem, by_registers, 2))

    @property
    def headers(self) -> tuple[str, ...]:
        swizzled = any(op.swizzle for op in (self.q, self.k, self.v))
        return (
            *(("cute/swizzle.hpp", "cute/swizzle_layout.hpp") if swizzled else ()),
            "cute/atom/copy_traits_sm75.hpp",
            "cute/atom/copy_traits_sm80.hpp",
            self.scores.atom.header,
        )


def plan_attention_forward(spec: AttentionForwardSpec) -> AttentionForwardPlan:
    """Resolves O = softmax(mask(scale * Q K^T)) V.

    Raises:
        SpecError: the spec can't become a right kernel.
    """
    arch = hardware.arch(spec.arch)
    dtype = DTYPES[spec.dtypes.q]
    atom = default_atom(dtype.name, "f32")
    atom.check_arch(arch, "arch")
    head_dim = spec.problem.head_dim
    blk_d = -(-head_dim // 16) * 16
    m = spec.tile.m or (128 if blk_d <= 128 else 64)
    n = spec.tile.n or (128 if blk_d <= 64 else 64)
    warps = spec.warps or (8 if m > 128 else 4 if m % 64 == 0 else max(1, m // 16))
    _check_tile(m, n, warps)
    scores = warp_mma(atom, (m, n, blk_d), (warps, 1))
    output = warp_mma(atom, (m, blk_d, n), (warps, 1))
    kept = spec.q_operand == "registers" or (spec.q_operand is None and _registers(scores, output, True) <= _ROOMY)
    floor = _registers(scores, output, kept)
    if floor > 255:
        raise SpecError(
            Fault("tile", f"needs at least {floor} registers a thread, of 255", hint="a smaller tile, or more warps")
        )
    q = _operand(spec, "Q", "A", dtype, scores, ("M", "D"), "D", "seqlen_q")
    k = _operand(spec, "K", "B", dtype, scores, ("N", "D"), "D", "seqlen_k")
    v = _operand(spec, "V", "B", dtype, output, ("D", "N"), "N", "HEAD_DIM")
    smem_bytes = q.smem_bytes + k.smem_bytes + v.smem_bytes
    if smem_bytes > arch.smem_per_block:
        raise SpecError(
            Fault(
                "tile",
                f"needs {smem_bytes} B of shared memory, {arch.name} has {arch.smem_per_block} B a block",
                hint="a smaller tile",
            )
        )
    vector_o = _power_of_two(spec.align.o or 16 // dtype.bytes, "align.o", 16 // dtype.bytes)
    symbol = spec.name or _symbol(spec, (m, n), warps, kept, (q, k, v), vector_o)
    signature, params_cpp = _signature(spec, symbol, (q, k, v), vector_o, Geometry(
        (("seqlen_q", m), ("heads", 1), ("batch", 1)), 32 * warps, smem_bytes
    ))  # fmt: skip
    return AttentionForwardPlan(
        spec=spec,
        symbol=symbol,
        template="attention_forward.cu.jinja",
        arch=arch,
        signature=signature,
        summary=_summary(spec, m, n, warps, kept, smem_bytes, (q, k, v), vector_o),
        params_cpp=params_cpp,
        q=q,
        k=k,
        v=v,
        scores=Math(scores),
        output=Math(output),
        rows_s=_rows(scores),
        rows_o=_rows(output),
        frag_p=_as_operand(scores, output),
        head_dim=head_dim,
        warps=warps,
        q_in_registers=kept,
        left=spec.window.left,
        right=0 if spec.causal else spec.window.right,
        softcap=spec.softcap,
        lse=spec.lse,
        bottom_right=spec.causal_align == "bottom_right",
        store=_store(q, output, warps, head_dim, vector_o),
    )


def _check_tile(m: int, n: int, warps: int) -> None:
    faults = []
    if m % (16 * warps):
        faults.append(
            Fault("tile.m", f"must be a multiple of {16 * warps}, 16 rows for each of {warps} warps", got=str(m))
        )
    if n % 16:
        faults.append(Fault("tile.n", "must be a multiple of 16", got=str(n)))
    if faults:
        raise SpecError(faults)


def _registers(scores: TiledMma, output: TiledMma, q_kept: bool) -> int:
    """Accumulators, Q's fragments if they are kept (else those of one step), one ldmatrix of K or V ahead, the rest."""
    values, count, steps = scores.mn_a.shape[1:]
    q = values * count // 2 * (steps if q_kept else 1)
    return int(scores.accumulators + output.accumulators + q + 8 + _OTHER_REGISTERS)


def _power_of_two(value: int, field: str, limit: int) -> int:
    if value & (value - 1):
        raise SpecError(Fault(field, "must be a power of two", got=str(value)))
    return min(value, limit)


def _operand(
    spec: AttentionForwardSpec,
    name: str,
    side: str,
    dtype: DType,
    mma: TiledMma,
    letters: tuple[str, str],
    contiguous: str,
    extent: str,
) -> Operand:
    """Q, K or V with one tile in shared memory; head_dim, the contiguous mode, is letter D."""
    field = name.lower()
    widest = 16 // dtype.bytes
    align = _power_of_two(getattr(spec.align, field) or widest, f"align.{field}", widest)
    found = plan_operand(
        name=name,
        side=side,
        paths=("tile", "tile"),
        dtype=dtype,
        major="K" if letters[1] == "D" else "N",
        mma=mma,
        stages=1,
        smem=Smem(),
        copy=Copy(),
        align=align,
        multiply=dtype.name,
        extent=extent,
        stride=f"row_{name}",
        letters=letters,
    )
    return with_xor(found, "tile")


def _rows(mma: TiledMma) -> Rows:
    """The accumulator sorted by rows."""
    view = accumulator_view(mma, True, 2)
    shape, stride = view.regs.shape, view.regs.stride
    return Rows(
        Layout((shape[:2], shape[2]), (stride[:2], stride[2])),
        Layout((view.vec, view.inner.shape[0]), (1, view.inner.stride[0])),
        view.outer,
    )


def _store(q: Operand, output: TiledMma, warps: int, head_dim: int, vector: int) -> Store:
    """O through Q's tile; as many lanes along a row as its vectors allow."""
    linear = q.tile.linear
    rows = _rows(output)
    m, n = output.m_c[:, 0, 0, 0], output.n_c[:, 0, 0, 0]
    pairs = np.array([rows.columns(2 * j) for j in range(rows.columns.size() // 2)])
    down = np.array([rows.rows(r) for r in range(rows.count)])
    write = linear[m[0] + down[None, :], n[0] + pairs[:, None]] - linear[m[0], n[0]]

    warp_rows = output.tile[0] // warps
    per_row = head_dim // vector
    along = max(per_row & -per_row, 32 // warp_rows)
    along = min(along, 32)
    columns = -(-per_row // along)
    lane, warp = np.arange(output.threads) % 32, np.arange(output.threads) // 32
    first_m, first_d = warp * warp_rows + lane // along, lane % along * vector
    down = np.arange(warp_rows // (32 // along)) * (32 // along)
    right = np.arange(columns) * along * vector
    read = linear[down[None, :], right[:, None]] - linear[0, 0]
    return Store(
        bend(q.tile, linear[m, n], write, "tile"),
        bend(q.tile, linear[first_m, first_d], read, "tile"),
        vector,
        along,
        warp_rows,
        columns,
        bool(per_row % along),
    )


def _as_operand(scores: TiledMma, output: TiledMma) -> Layout:
    """(MMA,MMA_M,MMA_K) of P as operand A of the second product -> register of the scores' accumulator.

    The accumulator of m16n8 holds what operand A of m16n8k16 wants, two atoms along N for one step along K (PTX ISA,
    "Matrix fragments for mma.m16n8k16"); here it is found by comparing coordinates.

    Raises:
        SpecError: a thread would need values that another holds.
    """
    count = scores.accumulators
    columns = scores.tile[1]
    where = (scores.m_c * columns + scores.n_c).transpose(0, 3, 2, 1).reshape(scores.threads, count)
    wanted = output.mn_a * columns + output.k_a
    register = np.argsort(where[0])[np.searchsorted(np.sort(where[0]), wanted[0])]
    layout = fit(register)
    if layout is None or not np.array_equal(where[:, register], wanted):
        raise SpecError(Fault("tile", "the scores of a thread are not the operand that it needs"))
    return layout


def _signature(
    spec: AttentionForwardSpec,
    symbol: str,
    operands: tuple[Operand, Operand, Operand],
    vector_o: int,
    geometry: Geometry,
) -> tuple[Signature, tuple[str, ...]]:
    """The calling convention and the C++ parameters."""
    tensors = ("q", "k", "v", "o")
    length = {"q": "seqlen_q", "k": "seqlen_k", "v": "seqlen_k", "o": "seqlen_q"}
    heads = {"q": "heads", "k": "heads_kv", "v": "heads_kv", "o": "heads"}
    vectors = dict(zip(tensors, (*(op.g2s.vector for op in operands), vector_o)))
    dtype = operands[0].dtype
    args = [
        TensorArg(
            t, dtype, ("batch", heads[t], length[t], "head_dim"), "head_dim", vectors[t],
            "output" if t == "o" else "input",
        )
        for t in tensors
    ]  # fmt: skip
    params: list[KernelParam] = [Pointer(t) for t in tensors]
    names = [t.upper() for t in tensors]
    if spec.lse:
        args.append(TensorArg("lse", F32, ("batch", "heads", "seqlen_q"), "seqlen_q", 1, "output"))
        params.append(Pointer("lse"))
        names.append("LSE")
    params += [Extent(mode) for mode in ("heads", "heads_kv", "seqlen_q", "seqlen_k")]
    names += ["heads", "heads_kv", "seqlen_q", "seqlen_k"]
    for kind, modes in (("row", length), ("head", heads), ("batch", dict.fromkeys(tensors, "batch"))):
        params += [Stride(t, modes[t]) for t in tensors]
        names += [f"{kind}_{t.upper()}" for t in tensors]
    if spec.lse:
        params += [Stride("lse", "heads"), Stride("lse", "batch")]
        names += ["head_LSE", "batch_LSE"]
    params.append(Scalar("scale"))
    names.append("scale")
    dtypes = {t.name: t.dtype for t in args}
    signature = Signature(
        symbol=symbol,
        tensors=tuple(args),
        scalars=(ScalarArg("scale", "float", inverse_root, positive=True),),
        params=tuple(params),
        geometry=geometry,
        static=(("head_dim", spec.problem.head_dim),),
        check=_check_extents,
    )
    return signature, parameters(tuple(params), names, dtypes, frozenset({"o", "lse"}))


def _check_extents(extents: Mapping[str, int]) -> str | None:
    """Lengths whose positions, with a window added, stay within 32 bits; grouped heads."""
    for mode in ("seqlen_q", "seqlen_k"):
        if extents[mode] > 2**30:
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
    return "".join(marks) + ("_lse" if spec.lse else "")


def _symbol(
    spec: AttentionForwardSpec, tile: tuple[int, int], warps: int, kept: bool, ops: tuple[Operand, ...], vector_o: int
) -> str:
    vectors = (*((op.name.lower(), op.g2s.vector) for op in ops), ("o", vector_o))
    narrow = "".join(f"{letter}{vector}" for letter, vector in vectors if vector < 8)
    return (
        f"attention_forward_{spec.arch}_{spec.dtypes.q}_d{spec.problem.head_dim}{_variant(spec)}"
        f"_{tile[0]}x{tile[1]}_w{warps}{'_qr' if kept else ''}{'_' + narrow if narrow else ''}"
    )


def _summary(
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
    lines = [
        f"O = softmax({score}) V for each batch and head      Q, O (M,D) {dtype}      K, V (N,D) {dtype}",
        f"M = seqlen_q, N = seqlen_k, D = head_dim = {spec.problem.head_dim}; scores, softmax and sums in f32; any lengths, batch, heads",
    ]
    left, right = spec.window.left, 0 if spec.causal else spec.window.right
    if left is not None or right is not None:
        at = "i + seqlen_k - seqlen_q" if spec.causal_align == "bottom_right" else "i"
        first = "" if left is None else f"{at} - {left} <= "
        last = "" if right is None else f" <= {at}" + (f" + {right}" if right else "")
        lines.append(f"query i sees key j when {first}j{last}; a query that sees none gives 0")
    if spec.lse:
        lines.append("LSE = log(sum(exp(scores))) of each row, f32; -inf for a query that sees no key")
    kept_in = "registers" if kept else "shared memory"
    vectors = ", ".join([f"{op.name} to {op.g2s.vector}" for op in ops] + [f"O to {vector_o}"])
    return (
        *lines,
        "",
        f"block tile ({m},{n})      {warps} warps of {m // warps} rows      Q stays in {kept_in}      shared memory {smem_bytes} B",
        "grid: one block for each tile of queries of each head and batch, the tiles with most keys first",
        f"rows aligned to elements: {vectors}; head_dim is contiguous; scale > 0",
    )
