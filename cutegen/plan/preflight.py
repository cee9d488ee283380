"""What can be said of a kernel before it is compiled: memory, registers, conflicts, occupancy, waves, a roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np

from cutegen.dtypes import DTYPES
from cutegen.expression import Bounded, evaluate, names_in, tensors_in
from cutegen.layout.banks import conflict_ways, sectors
from cutegen.plan.attention_expressions import plan_expressions
from cutegen.plan.attention_forward import AttentionForwardPlan
from cutegen.plan.hopper import HopperPlan
from cutegen.plan.hopper_gemm import HopperGemmPlan
from cutegen.plan.hopper_gemm_checks import ranked
from cutegen.plan.hopper_tiles import CLOCK_GHZ
from cutegen.plan.kernel_plan import KernelPlan, TilePlan
from cutegen.plan.operand import Operand
from cutegen.spec import AttentionForwardSpec, AttentionScoresSpec, GemmSpec, KernelSpec
from cutegen.spec.attention_forward import ForwardProblem


@dataclass(frozen=True)
class SmemUse:
    """Shared memory of one operand: bytes of a stage, stages, and the worst bank-conflict ways of writing and of
    reading it.

    `sectors` are those of 32 B that a warp's global load touches, `sectors_ideal` the fewest possible. None: the
    copy engine does it.
    """

    name: str
    bytes_per_stage: int
    stages: int
    write_ways: int | None
    read_ways: int | None
    sectors: int | None
    sectors_ideal: int | None


@dataclass(frozen=True)
class Preflight:
    """Predictions at the spec's own problem. Times in microseconds; `bound` is `memory` or `compute`.

    `candidates` are the best tiles, clusters and schedules by the plan's model, the chosen one first, with its time.
    """

    symbol: str
    arch: str
    threads: int
    smem_bytes: int
    smem_limit: int
    operands: tuple[SmemUse, ...]
    registers: int | None
    blocks_per_sm: int
    occupancy: float
    work: int
    waves: float
    tail: float
    gflop: float
    megabytes: float
    roofline_us: float
    bound: str
    candidates: tuple[tuple[str, float], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def extents(spec: KernelSpec) -> dict[str, int]:
    """The spec's problem by mode."""
    if isinstance(spec, GemmSpec):
        g = spec.problem
        return {"m": g.m, "n": g.n, "k": g.k, "batch": g.batch, **({"groups": g.groups} if g.groups else {})}
    if isinstance(spec, AttentionScoresSpec | AttentionForwardSpec):
        p = spec.problem
        values = {}
        if isinstance(p, ForwardProblem) and p.value_dim != p.head_dim:
            values = {"head_dim_v": p.value_dim}
        if isinstance(spec, AttentionForwardSpec) and spec.varlen:
            return {
                "boundaries": p.batch + 1,
                "total_q": p.batch * p.seqlen_q,
                "total_k": p.batch * p.seqlen_k,
                "heads": p.heads,
                "heads_kv": p.kv_heads,
                "head_dim": p.head_dim,
                **values,
            }
        return {
            "batch": p.batch,
            "heads": p.heads,
            "heads_kv": p.kv_heads,
            "seqlen_q": p.seqlen_q,
            "seqlen_k": p.seqlen_k,
            "head_dim": p.head_dim,
            **values,
        }
    raise TypeError(f"no problem in {type(spec).__name__}")


def work_and_traffic(spec: KernelSpec) -> tuple[float, float]:
    """(floating-point operations, bytes read once and written once) of the spec's problem.

    A causal problem counts the visible half; its masked half is written all the same.
    """
    e = extents(spec)
    if isinstance(spec, GemmSpec):
        d = spec.dtypes
        flop = 2.0 * e["m"] * e["n"] * e["k"] * e["batch"]
        stored = ((e["m"] * e["n"], name) for name in spec.stored)
        parts = ((e["m"] * e["k"], d.a), (e["n"] * e["k"] * e.get("groups", 1), d.b), *stored)
        return flop, float(e["batch"] * sum(count * DTYPES[name].bytes for count, name in parts))
    if isinstance(spec, AttentionForwardSpec):
        p = spec.problem
        heads = p.batch * p.heads
        size = DTYPES[spec.dtypes.q].bytes
        rows, keys = heads * p.seqlen_q, p.batch * p.kv_heads * p.seqlen_k
        statistics = 4 * rows if spec.lse else 0
        both = p.head_dim + p.value_dim
        return 2.0 * heads * _visible(spec) * both, float((rows + keys) * both * size + statistics)
    assert isinstance(spec, AttentionScoresSpec)
    heads = e["batch"] * e["heads"]
    flop = 2.0 * heads * e["seqlen_q"] * e["seqlen_k"] * e["head_dim"] * (0.5 if spec.causal else 1.0)
    traffic = (
        heads * e["seqlen_q"] * e["head_dim"] * DTYPES[spec.dtypes.q].bytes
        + e["batch"] * e["heads_kv"] * e["seqlen_k"] * e["head_dim"] * DTYPES[spec.dtypes.k].bytes
        + heads * e["seqlen_q"] * e["seqlen_k"] * DTYPES[spec.dtypes.scores].bytes
    )
    return flop, float(traffic)


# Rows on which a mask expression is counted.
_SAMPLED = 256


def _visible(spec: AttentionForwardSpec) -> int:
    """Pairs of a query and a key that it sees, of one head; an estimate under a mask expression."""
    m, n = spec.problem.seqlen_q, spec.problem.seqlen_k
    position = np.arange(m, dtype=np.int64) + (n - m if spec.causal_align == "bottom_right" else 0)
    right = 0 if spec.causal else spec.window.right
    end = np.full(m, n) if right is None else np.clip(position + right + 1, 0, n)
    begin = np.zeros(m, np.int64) if spec.window.left is None else np.clip(position - spec.window.left, 0, n)
    mask = plan_expressions(spec).mask
    if mask is None or not m or {*tensors_in(mask), *names_in(mask)} & {a.name for a in spec.arguments}:
        return int(np.maximum(end - begin, 0).sum())
    # A mask expression that no argument decides, on some rows of the first head
    rows = np.unique(np.linspace(0, m - 1, min(m, _SAMPLED)).astype(np.int64))
    key = np.arange(n)[None, :]
    here = {"q": rows[:, None], "k": key, "b": 0, "h": 0, "seqlen_q": m, "seqlen_k": n, "scale": 1.0}
    told = np.broadcast_to(evaluate(mask, {x: Bounded(value) for x, value in here.items()}, {}).value, (len(rows), n))
    seen = told & (key >= begin[rows, None]) & (key < end[rows, None])
    return int(seen.mean() * m * n) if n else 0


def multiply_name(spec: KernelSpec) -> str:
    """How the spec multiplies: a dtype's name."""
    d = spec.dtypes  # type: ignore[attr-defined]
    return str(d.multiply or (d.a if isinstance(spec, GemmSpec) else d.q))


def preflight(plan: KernelPlan) -> Preflight:
    """Predictions for a plan."""
    arch, geometry = plan.arch, plan.signature.geometry
    problem: Mapping[str, int] = extents(plan.spec)
    by_smem = arch.smem_per_sm // (plan.smem_bytes + 1024)
    registers = (
        plan.product.registers
        if isinstance(plan, TilePlan)
        else plan.registers
        if isinstance(plan, AttentionForwardPlan)
        else None
    )
    blocks = max(1, min(by_smem, arch.threads_per_sm // plan.threads, arch.blocks_per_sm))
    if registers:
        blocks = max(1, min(blocks, arch.registers // (registers * plan.threads)))
    if geometry.persistent:
        blocks = geometry.blocks_per_sm
    work = geometry.work(problem)
    slots = arch.sms * blocks // prod(geometry.cluster)  # a cluster works on one piece
    waves = work / slots
    flop, traffic = work_and_traffic(plan.spec)
    compute = flop / (arch.peak_tflops(multiply_name(plan.spec)) * 1e6)
    memory = traffic / (arch.dram * 1e3)
    return Preflight(
        symbol=plan.symbol,
        arch=arch.name,
        threads=plan.threads,
        smem_bytes=plan.smem_bytes,
        smem_limit=arch.smem_per_block,
        operands=_operands(plan),
        registers=registers,
        blocks_per_sm=blocks,
        occupancy=blocks * plan.threads / arch.threads_per_sm,
        work=work,
        waves=waves,
        tail=(waves / max(1, -(-work // slots))) if work else 1.0,
        gflop=flop / 1e9,
        megabytes=traffic / 1e6,
        roofline_us=max(compute, memory),
        bound="compute" if compute > memory else "memory",
        candidates=_candidates(plan),
    )


def _candidates(plan: KernelPlan, most: int = 5) -> tuple[tuple[str, float], ...]:
    if not isinstance(plan, HopperGemmPlan):
        return ()
    assert isinstance(plan.spec, GemmSpec)
    found = ranked(plan.spec)[:most]
    return tuple((str(choice), cycles / CLOCK_GHZ / 1e3) for cycles, choice in found)


def _operands(plan: KernelPlan) -> tuple[SmemUse, ...]:
    if isinstance(plan, TilePlan):
        return tuple(_tile_operand(op, plan.stages) for op in (plan.a, plan.b))
    if isinstance(plan, AttentionForwardPlan):
        return tuple(_tile_operand(op, 1) for op in (plan.q, plan.k, plan.v))
    assert isinstance(plan, HopperPlan)
    rings = tuple(SmemUse(ring.name, ring.stage_bytes, ring.stages, None, None, None, None) for ring in plan.rings)
    return (*rings, SmemUse(plan.output_letter, plan.staging_bytes, 1, None, None, None, None))


def _tile_operand(op: Operand, stages: int) -> SmemUse:
    def worst(addresses: np.ndarray, width: int) -> int:
        return max(conflict_ways(addresses[warp : warp + 32], width) for warp in range(0, len(addresses), 32))

    tid = np.arange(32)
    mn = np.array([op.g2s.thr_mn(int(t)) for t in tid])
    k = np.array([op.g2s.thr_k(int(t)) for t in tid])
    # A row pitch that no two rows share a sector at, so that only the arrangement of threads counts.
    pitch = 4096
    inner, outer = (k, mn) if op.major == "K" else (mn, k)
    touched, ideal = sectors((outer * pitch + inner) * op.dtype.bytes, op.g2s.vector * op.dtype.bytes)
    return SmemUse(
        op.name,
        op.smem_bytes // stages,
        stages,
        worst(op.g2s.addresses, op.g2s.width),
        worst(op.s2r.addresses, op.s2r.width),
        touched,
        ideal,
    )
