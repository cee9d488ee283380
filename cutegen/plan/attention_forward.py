"""The plan of an `attention_forward` spec: two products with a softmax between them, all in registers.

FlashAttention-2's arrangement (Dao, 2023): a block owns `m` queries, its warps share them along M only, so that a
row of scores lies in one quad of lanes. It walks over K and V `n` keys at a time, from the last that it sees to the
first.
"""

from __future__ import annotations

from dataclasses import dataclass

from pycute import Layout

from cutegen import hardware
from cutegen.atoms import default_atom
from cutegen.dtypes import DTYPES, DType
from cutegen.errors import Fault, SpecError
from cutegen.plan.attention_expressions import Expressions, plan_expressions
from cutegen.plan.attention_layouts import Rows, Store, as_operand, by_neighbours, rows_of, store_of, value_smem
from cutegen.plan.attention_signature import signature_of, summary_of, symbol_of
from cutegen.plan.bend import with_xor
from cutegen.plan.kernel_plan import KernelPlan
from cutegen.plan.operand import Operand, plan_operand
from cutegen.plan.output import word
from cutegen.plan.partition import TiledMma, warp_mma
from cutegen.plan.shared import SharedTile, shared_tile
from cutegen.plan.shared import default_atom as default_smem
from cutegen.plan.signature import Geometry
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
class AttentionForwardPlan(KernelPlan):
    """Everything static of the kernel.

    `head_dim` and `head_dim_v` are the caller's, `blk_d` and `blk_dv` what they are padded to for the MMA. `left` and `right` bound the keys that a
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
    head_dim_v: int
    o: SharedTile
    stages: int
    warps: int
    q_in_registers: bool
    left: int | None
    right: int | None
    softcap: float | None
    lse: bool
    sinks: bool
    varlen: bool
    dropout: bool
    bottom_right: bool
    store: Store
    expressions: Expressions

    @property
    def dtype(self) -> DType:
        return self.q.dtype

    @property
    def tf32(self) -> bool:
        return self.scores.tiled.atom.multiply == "tf32"

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
    def blk_dv(self) -> int:
        return self.output.tiled.tile[1]

    @property
    def padded(self) -> bool:
        return self.blk_d != self.head_dim

    @property
    def padded_v(self) -> bool:
        return self.blk_dv != self.head_dim_v

    @property
    def other_values(self) -> bool:
        """Whether V and O have a head_dim of their own; O then lies otherwise than Q did."""
        return self.head_dim_v != self.head_dim

    @property
    def value_dim(self) -> str:
        """What the kernel calls the head_dim of V and O."""
        return "HEAD_DIM_V" if self.other_values else "HEAD_DIM"

    @property
    def elements_q(self) -> int:
        """Of Q's place in shared memory, which O takes in the end."""
        return max(self.q.tile.elements, self.o.elements)

    @property
    def masked(self) -> bool:
        """Whether more than the end of K bounds what a query sees."""
        return self.left is not None or self.right is not None

    @property
    def rescale_above(self) -> float:
        return _RESCALE_ABOVE

    @property
    def pack(self) -> tuple[str, str]:
        """(type of two packed elements, what makes it of two floats): cuda_fp16.h, cuda_bf16.h, vector_functions.h."""
        if self.tf32:
            return "float2", "make_float2"
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
    def jumps(self) -> bool:
        """Whether the walk over keys jumps over blocks that the mask expression hides."""
        return self.expressions.hidden_cpp is not None

    @property
    def addresses(self) -> str:
        """Offsets from which every address of the main loop is made, as operands of an empty asm statement."""
        read = [
            f"{op.name.lower()}_at" for op in (self.q, self.k, self.v) if op is not self.q or not self.q_in_registers
        ]
        written = [f"{op.name.lower()}_to" for op in (self.k, self.v) if op.g2s.affine]
        return ", ".join(f'"+r"({name})' for name in (*read, *written))

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
    atom = default_atom(spec.dtypes.multiply or dtype.name, "f32")
    atom.check_arch(arch, "arch")
    head_dim = spec.problem.head_dim
    blk_d = -(-head_dim // 16) * 16
    head_dim_v = spec.problem.value_dim
    blk_dv = -(-head_dim_v // 16) * 16
    m = spec.tile.m or (128 if blk_dv <= 128 else 64)
    n = spec.tile.n or _keys(spec, max(blk_d, blk_dv), dtype)
    warps = spec.warps or _warps(m)
    _check_tile(m, n, warps)
    scores = warp_mma(atom, (m, n, blk_d), (warps, 1))
    output = by_neighbours(warp_mma(atom, (m, blk_dv, n), (warps, 1)))
    kept = spec.q_operand == "registers" or (spec.q_operand is None and _registers(scores, output, True) <= _ROOMY)
    floor = _registers(scores, output, kept)
    if floor > 255:
        raise SpecError(
            Fault("tile", f"needs at least {floor} registers a thread, of 255", hint="a smaller tile, or more warps")
        )
    q = _operand(spec, "Q", "A", dtype, scores, ("M", "D"), "D", "seqlen_q")
    k = _operand(spec, "K", "B", dtype, scores, ("N", "D"), "D", "seqlen_k")
    v = _operand(spec, "V", "B", dtype, output, ("D" if head_dim_v == head_dim else "DV", "N"), "N", "HEAD_DIM")
    o = q.tile
    if head_dim_v != head_dim:
        smem, swizzle = default_smem(dtype, m, blk_dv, False, False, False)
        o = shared_tile(Smem(atom=smem, swizzle=swizzle), "tile", dtype, m, blk_dv, 1)
    stages = spec.pipeline.stages or 1
    smem_bytes = max(q.smem_bytes, o.elements * dtype.bytes) + k.smem_bytes + v.smem_bytes
    if smem_bytes > arch.smem_per_block:
        raise SpecError(
            Fault(
                "tile",
                f"needs {smem_bytes} B of shared memory, {arch.name} has {arch.smem_per_block} B a block",
                hint="a smaller tile" if stages == 1 else "a smaller tile, or pipeline.stages: 1",
            )
        )
    vector_o = _power_of_two(spec.align.o or 16 // dtype.bytes, "align.o", 16 // dtype.bytes)
    expressions = plan_expressions(spec)
    symbol = spec.name or symbol_of(spec, (m, n), warps, kept, (q, k, v), vector_o)
    axes = (("heads", 1),) if spec.varlen else (("seqlen_q", m), ("heads", 1), ("batch", 1))
    ragged = ("total_q", m, "boundaries") if spec.varlen else None
    geometry = Geometry(axes, 32 * warps, smem_bytes, ragged=ragged)
    signature, params_cpp = signature_of(spec, symbol, (q, k, v), vector_o, expressions, geometry)
    return AttentionForwardPlan(
        spec=spec,
        symbol=symbol,
        template="attention_forward.cu.jinja",
        arch=arch,
        signature=signature,
        summary=summary_of(spec, m, n, warps, kept, smem_bytes, (q, k, v), vector_o),
        params_cpp=params_cpp,
        q=q,
        k=k,
        v=v,
        scores=Math(scores),
        output=Math(output),
        rows_s=rows_of(scores),
        rows_o=rows_of(output),
        frag_p=as_operand(scores, output),
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        o=o,
        stages=stages,
        warps=warps,
        q_in_registers=kept,
        left=spec.window.left,
        right=0 if spec.causal else spec.window.right,
        softcap=spec.softcap,
        lse=spec.lse,
        sinks=spec.sinks,
        varlen=spec.varlen,
        dropout=spec.dropout,
        bottom_right=spec.causal_align == "bottom_right",
        store=store_of(o, output, warps, head_dim_v, vector_o),
        expressions=expressions,
    )


def _keys(spec: AttentionForwardSpec, blk_d: int, dtype: DType) -> int:
    """Keys of a block: 128 where their scores fit beside O, and go to the softmax as they are or are few registers; of
    f32 as many bytes of K and V as of the others."""
    if dtype.bytes == 4:
        return 64 if blk_d <= 64 else 32
    worked_on = spec.score is not None or spec.mask is not None or spec.softcap is not None or spec.dropout
    return 128 if blk_d <= (32 if worked_on else 64) else 64


def _warps(m: int) -> int:
    """Four, eight for more than 128 rows, or as many as there are 16 rows for."""
    if m % 64 == 0:
        return 8 if m > 128 and m % 128 == 0 else 4
    return max(1, min(m // 16, 8)) if m % 16 == 0 and m <= 128 else 1


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
    q = values * count // (1 if scores.atom.multiply == "tf32" else 2) * (steps if q_kept else 1)
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
    """Q, K or V with its tiles in shared memory; head_dim, the contiguous mode, is letter D."""
    field = name.lower()
    widest = 16 // dtype.bytes
    align = _power_of_two(getattr(spec.align, field) or widest, f"align.{field}", widest)
    found = plan_operand(
        name=name,
        side=side,
        paths=("tile", "tile"),
        dtype=dtype,
        major="K" if side == "A" or name == "K" else "N",
        mma=mma,
        stages=1 if name == "Q" else spec.pipeline.stages or 1,
        smem=value_smem(mma.tile[1]) if name == "V" and dtype.bytes == 4 else Smem(),
        copy=Copy(),
        align=align,
        multiply=mma.atom.multiply,
        extent=extent,
        stride=f"row_{name}",
        letters=letters,
    )
    return with_xor(found, "tile")
