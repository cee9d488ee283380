"""Each checker on the smallest kernel that it must, and must not, speak up on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutegen.errors import SimulationError
from cutegen.kernel.tensormap import TensorMapSpec
from tests.sim.ptx_text import module, run

OWN = "    mov.u32 %r2, smem;\n    shl.b32 %r3, %r1, 2;\n    add.s32 %r4, %r2, %r3;\n"
NEIGHBOUR = "    xor.b32 %r5, %r3, 4;\n    add.s32 %r5, %r2, %r5;\n"
OUT = "    mul.wide.u32 %rd8, %r1, 4;\n    add.s64 %rd9, %rd1, %rd8;\n    st.global.u32 [%rd9], %r6;"


def kinds(body: str, args: list[Any] | None = None, threads: int = 64, shared: int = 1024, **options: Any) -> list[str]:
    args = [np.zeros(threads, np.uint32)] if args is None else args
    tensors = {f"t{i}": a for i, a in enumerate(args) if isinstance(a, np.ndarray)}
    found = run(module(body, len(args)), args, threads=threads, shared=shared, tensors=tensors, **options)
    return [f.kind for f in found.findings]


def test_neighbours_need_a_barrier() -> None:
    exchange = OWN + NEIGHBOUR + "    st.shared.u32 [%r4], %r1;\n{}    ld.shared.u32 %r6, [%r5];\n" + OUT
    assert kinds(exchange.format("")) == ["shared-race"]
    assert kinds(exchange.format("    bar.sync 0;\n")) == []
    assert kinds(exchange.format("    bar.warp.sync -1;\n")) == []  # neighbours are of one warp
    far = exchange.replace("xor.b32 %r5, %r3, 4", "xor.b32 %r5, %r3, 128")
    assert kinds(far.format("    bar.warp.sync -1;\n")) == ["shared-race"]
    assert kinds(far.format("    bar.sync 3, 64;\n")) == []


def test_a_read_must_be_over_before_the_next_write() -> None:
    reuse = OWN + NEIGHBOUR + "    st.shared.u32 [%r4], %r1;\n    bar.sync 0;\n    ld.shared.u32 %r6, [%r5];\n{}    st.shared.u32 [%r4], %r6;\n" + OUT  # fmt: skip
    assert kinds(reuse.format("")) == ["shared-race"]
    assert kinds(reuse.format("    bar.sync 0;\n")) == []


def test_two_threads_write_one_place() -> None:
    assert kinds("    mov.u32 %r2, smem;\n    st.shared.u32 [%r2], %r1;") == ["shared-race"]


def test_uninitialised() -> None:
    assert kinds(OWN + "    ld.shared.u32 %r6, [%r4];\n" + OUT) == ["uninitialised-shared"]
    assert kinds("    add.s32 %r6, %r100, 1;\n" + OUT) == ["uninitialised-register"]
    half = "    setp.lt.u32 %p1, %r1, 40;\n    @%p1 mov.u32 %r6, 1;\n" + OUT
    (found,) = run(module(half, 1), [np.zeros(64, np.uint32)], threads=64).findings
    assert (found.kind, found.thread, found.count) == ("uninitialised-register", 40, 24)


def test_out_of_bounds_and_misaligned() -> None:
    assert kinds(OWN + "    st.shared.u32 [%r4+900], %r1;") == ["out-of-bounds-shared"]
    assert kinds(OWN + "    st.shared.u32 [%r4+2], %r1;", shared=1024, threads=32) == ["misaligned-shared"]
    assert kinds("    mov.u32 %r6, 0;\n" + OUT.replace("[%rd9]", "[%rd9+4]")) == ["out-of-bounds-global"]
    assert kinds("    mov.u32 %r6, 0;\n" + OUT.replace("[%rd9]", "[%rd9+2]"), threads=32)[0] in ("misaligned-global", "out-of-bounds-global")  # fmt: skip
    found = run(module("    st.global.u32 [%rd1+64], %r1;", 1), [np.zeros(4, np.uint32)], tensors={}).findings
    assert "writes 4 bytes at 48 bytes after the end of argument 0" in str(found[0])


def test_outputs_are_written_once_each() -> None:
    out = np.zeros(64, np.uint32)
    body = "    mov.u32 %r6, 1;\n" + OUT
    assert kinds(body, [out], outputs=["t0"]) == []
    assert kinds(body, [out], outputs=["t0"], threads=32) == ["never-written"]
    twice = "    and.b32 %r7, %r1, 31;\n    mov.u32 %r6, 1;\n" + OUT.replace("%r1, 4", "%r7, 4")
    assert sorted(kinds(twice, [np.zeros(32, np.uint32)], outputs=["t0"])) == ["written-twice"]
    padded = np.zeros((4, 16), np.uint32)[:, :8]
    found = run(module(body, 1), [padded], threads=32, tensors={"c": padded}, outputs=["c"]).findings
    assert [f.kind for f in found] == ["never-written", "stray-write"]
    assert "c: 16 of 32 elements were never written, first at (2, 0)" in str(found[0])


COPY = (
    OWN
    + "    mul.wide.u32 %rd8, %r1, 4;\n    add.s64 %rd9, %rd1, %rd8;\n    cp.async.ca.shared.global [%r4], [%rd9], 4;\n"
)


def test_copies_arrive_when_they_are_waited_for() -> None:
    read = "    ld.shared.u32 %r6, [%r4];\n" + OUT.replace("%rd9, %rd1", "%rd9, %rd2")
    args = lambda: [np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)]
    assert kinds(COPY + read, args()) == ["read-before-arrival", "copy-never-awaited"]
    assert (
        kinds(COPY + "    cp.async.commit_group;\n    cp.async.wait_group 1;\n" + read, args())[0]
        == "read-before-arrival"
    )
    assert kinds(COPY + "    cp.async.wait_group 0;\n" + read, args())[0] == "read-before-arrival"  # never committed
    given = args()
    assert kinds(COPY + "    cp.async.commit_group;\n    cp.async.wait_group 0;\n" + read, given) == []
    assert np.array_equal(given[0], given[1])
    assert kinds(COPY + "    cp.async.wait_all;\n" + read, args()) == []


def test_a_copy_reads_no_more_than_its_source_size() -> None:
    part = COPY.replace("[%rd9], 4;", "[%rd9], 4, %r7;").replace("    cp", "    setp.lt.u32 %p1, %r1, 40;\n    selp.u32 %r7, 4, 0, %p1;\n    cp")  # fmt: skip
    body = part + "    cp.async.wait_all;\n    ld.shared.u32 %r6, [%r4];\n" + OUT.replace("%rd9, %rd1", "%rd9, %rd2")
    source, out = np.arange(1, 41, dtype=np.uint32), np.full(64, 7, np.uint32)
    assert kinds(body, [source, out]) == []
    assert out.tolist() == [*range(1, 41), *[0] * 24]


def test_barriers_that_not_all_reach() -> None:
    assert kinds("    setp.lt.u32 %p1, %r1, 32;\n    @%p1 ret;\n    bar.sync 0;") == ["barrier-after-exit"]
    half = "    setp.lt.u32 %p1, %r1, 16;\n    @%p1 bra L;\n    bar.sync 0;\nL:\n"
    assert "divergent-warp" in kinds(half, threads=32)
    with pytest.raises(SimulationError, match=r"(?s)deadlock: .+block 0, threads 0-31: barrier 1, where 64 threads .+bar.sync 1, 64"):  # fmt: skip
        kinds("    setp.ge.u32 %p1, %r1, 32;\n    @%p1 bra L;\n    bar.sync 1, 64;\nL:\n")
    assert kinds("    bar.sync 1, 48;", threads=64)[:1] == ["bad-barrier"]


def test_an_endless_loop_ends() -> None:
    with pytest.raises(SimulationError, match="1000 instructions are spent and the kernel has not ended"):
        kinds("L:\n    add.s32 %r1, %r1, 1;\n    bra L;", budget=1000)


def test_a_spin_on_memory_lets_others_run() -> None:
    flag = np.zeros(1, np.uint32)
    body = """
    setp.ge.u32 %p1, %r1, 32;
    @%p1 bra SET;
SPIN:
    ld.volatile.global.u32 %r6, [%rd1];
    setp.eq.u32 %p2, %r6, 0;
    @%p2 bra SPIN;
    bra END;
SET:
    mov.u32 %r7, 1;
    setp.eq.u32 %p3, %r1, 32;
    @%p3 st.volatile.global.u32 [%rd1], %r7;
END:
"""
    assert kinds(body, [flag]) == [] and flag[0] == 1


BARRIER = """
    mov.u32 %r2, smem;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r2+512], {count};
READY:
    bar.sync 0;
"""


def test_mbarriers_order_what_threads_do() -> None:
    body = (
        BARRIER.format(count=32)
        + """
    shl.b32 %r3, %r1, 2;
    and.b32 %r3, %r3, 127;
    add.s32 %r4, %r2, %r3;
    setp.ge.u32 %p2, %r1, 32;
    @%p2 bra READER;
    st.shared.u32 [%r4], %r1;
    mbarrier.arrive.shared::cta.b64 %rd20, [%r2+512];
    bra END;
READER:
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2+512], {phase};
    @!%p3 bra WAIT;
    ld.shared.u32 %r6, [%r4];
    mul.wide.u32 %rd8, %r3, 1;
    add.s64 %rd9, %rd1, %rd8;
    st.global.u32 [%rd9], %r6;
END:
"""
    )
    out = np.zeros(32, np.uint32)
    assert kinds(body.replace("{phase}", "0"), [out]) == []
    assert out.tolist() == list(range(32))
    with pytest.raises(SimulationError, match="deadlock"):  # phase 0 is over when the readers come
        kinds(body.replace("{phase}", "1"), [np.zeros(32, np.uint32)])
    with pytest.raises(SimulationError, match=r"phase 0 of the mbarrier at offset 512 \(1 arrivals, 0 B missing\)"):
        kinds(body.replace("{phase}", "0").replace("b64 [%r2+512], 32", "b64 [%r2+512], 33"), [np.zeros(32, np.uint32)])
    few = body.replace("{phase}", "0").replace("b64 [%r2+512], 32", "b64 [%r2+512], 31")
    assert "mbarrier-overflow" not in kinds(few, [np.zeros(32, np.uint32)])  # the 32nd opens the next phase


@pytest.mark.parametrize("noinc", [True, False])
def test_copies_that_arrive_at_an_mbarrier(noinc: bool) -> None:
    count = 64 if noinc else 1  # without noinc each thread adds the arrival that it will make; one more opens the phase
    body = (
        BARRIER.format(count=count)
        + """
    shl.b32 %r3, %r1, 2;
    add.s32 %r4, %r2, %r3;
    mul.wide.u32 %rd8, %r1, 4;
    add.s64 %rd9, %rd1, %rd8;
    cp.async.ca.shared.global [%r4], [%rd9], 4;
    cp.async.mbarrier.arrive{noinc}.shared::cta.b64 [%r2+512];
    {arrive}
W:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2+512], 0;
    @!%p3 bra W;
    xor.b32 %r5, %r3, 252;
    add.s32 %r5, %r2, %r5;
    ld.shared.u32 %r6, [%r5];
"""
        + OUT.replace("%rd9, %rd1", "%rd9, %rd2")
    )
    one = "bar.sync 0;\n    @%p1 bra W;\n    mbarrier.arrive.shared::cta.b64 %rd20, [%r2+512];"
    body = body.replace("{noinc}", ".noinc" if noinc else "").replace("{arrive}", "" if noinc else one)
    source, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    assert kinds(body, [source, out]) == []
    assert out.tolist() == list(range(63, -1, -1))


def _tensor_map(array: np.ndarray[Any, Any], box: tuple[int, ...], swizzle: int) -> TensorMapSpec:
    return TensorMapSpec("t0", "FLOAT32", array.ctypes.data, array.shape[::-1], (array.strides[0],), box, swizzle)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_tma_loads_fill_with_zeros_and_swizzle(swizzle: int) -> None:
    source = np.arange(1, 6 * 40 + 1, dtype=np.float32).reshape(6, 40)
    columns = (swizzle or 128) // 4
    out = np.zeros((8, columns), np.float32)
    spec = _tensor_map(source, (columns, 8), swizzle)
    body = f"""
    mov.u32 %r2, smem;
    mbarrier.init.shared::cta.b64 [%r2+4096], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2+4096], {columns * 32};
    mov.b64 %rd3, k_param_1;
    cvta.param.u64 %rd4, %rd3;
    mov.u32 %r10, {40 - columns // 2};
    mov.u32 %r11, 1;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd4, {{%r10, %r11}}], [%r2+4096];
W:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2+4096], 0;
    @!%p3 bra W;
    mov.u32 %r20, 0;
L:
    add.s32 %r21, %r2, %r20;
    ld.shared.u32 %r22, [%r21];
    cvt.u64.u32 %rd20, %r20;
    add.s64 %rd21, %rd1, %rd20;
    st.global.u32 [%rd21], %r22;
    add.s32 %r20, %r20, 4;
    setp.lt.u32 %p4, %r20, {columns * 32};
    @%p4 bra L;
"""
    text = module(body, 2).replace(".param .u64 k_param_1", ".param .align 64 .b8 k_param_1[128]")
    text = text.replace("    ld.param.u64 %rd2, [k_param_1];\n", "")
    found = run(text, [out, spec], threads=1, shared=8192, tensors={"out": out, "t0": source})
    assert found.findings == ()
    wanted = np.zeros((8, columns), np.float32)
    wanted[:5, : columns // 2] = source[1:, 40 - columns // 2 :]
    # Chunk c of 16 bytes of row r lies at c XOR the row's number in units of 128 bytes, modulo the span's chunks.
    for row in range(8):
        for chunk in range(columns // 4):
            line = row * columns * 4 // 128
            place = chunk ^ (line % max(1, swizzle // 16)) if swizzle else chunk
            assert np.array_equal(out[row, place * 4 : place * 4 + 4], wanted[row, chunk * 4 : chunk * 4 + 4])


def test_a_store_needs_a_proxy_fence() -> None:
    target = np.zeros((8, 32), np.float32)
    spec = _tensor_map(target, (32, 1), 0)
    body = """
    mov.u32 %r2, smem;
    shl.b32 %r3, %r1, 2;
    add.s32 %r4, %r2, %r3;
    st.shared.u32 [%r4], %r1;
    {fence}
    bar.sync 0;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra END;
    mov.b64 %rd3, k_param_0;
    cvta.param.u64 %rd4, %rd3;
    mov.u32 %r10, 0;
    mov.u32 %r11, 2;
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd4, {%r10, %r11}], [%r2];
    cp.async.bulk.commit_group;
    {wait}
END:
"""

    def seen(fence: str, wait: str) -> list[str]:
        text = module(body.replace("{fence}", fence).replace("{wait}", wait), 1)
        text = text.replace(".param .u64 k_param_0", ".param .align 64 .b8 k_param_0[128]")
        text = text.replace("    ld.param.u64 %rd1, [k_param_0];\n", "")
        return [f.kind for f in run(text, [spec], shared=1024, tensors={"t0": target}).findings]

    wait = "cp.async.bulk.wait_group 0;"
    assert seen("fence.proxy.async.shared::cta;", wait) == []
    assert target[2].view(np.uint32).tolist() == list(range(32)) and not target[[0, 1, 3]].any()
    assert seen("", wait) == ["missing-proxy-fence"]
    assert seen("fence.proxy.async.shared::cta;", "") == ["copy-after-exit"]


def test_clusters_share_their_memory() -> None:
    body = """
    mov.u32 %r2, smem;
    mov.u32 %r3, %cluster_ctarank;
    shl.b32 %r4, %r1, 2;
    add.s32 %r5, %r2, %r4;
    mad.lo.s32 %r6, %r3, 100, %r1;
    st.shared.u32 [%r5], %r6;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    xor.b32 %r7, %r3, 1;
    mapa.shared::cluster.u32 %r8, %r5, %r7;
    ld.shared::cluster.u32 %r9, [%r8];
    mov.u32 %r10, %ctaid.x;
    mad.lo.s32 %r11, %r10, 32, %r1;
    mul.wide.u32 %rd8, %r11, 4;
    add.s64 %rd9, %rd1, %rd8;
    st.global.u32 [%rd9], %r9;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
"""
    out = np.zeros(128, np.uint32)
    assert kinds(body, [out], threads=32, blocks=4, cluster=(2, 1, 1)) == []
    assert out.reshape(4, 32)[:, 0].tolist() == [100, 0, 100, 0]
    torn = body.replace(
        "    barrier.cluster.arrive.release.aligned;\n    barrier.cluster.wait.acquire.aligned;\n    xor", "    xor"
    )
    assert "shared-race" in kinds(torn, [np.zeros(128, np.uint32)], threads=32, blocks=4, cluster=(2, 1, 1))


@pytest.mark.parametrize("seed", range(4))
def test_the_barrier_of_a_cluster_opens_again_and_again(seed: int) -> None:
    """A warp may be back at the barrier before another has left it."""
    body = "    barrier.cluster.arrive.aligned;\n    barrier.cluster.wait.aligned;\n" * 4
    assert kinds(body, threads=96, blocks=4, cluster=(2, 1, 1), seed=seed) == []


def test_an_order_that_matters_shows_under_seeds_and_can_be_replayed() -> None:
    body = """
    shr.u32 %r2, %r1, 5;
    and.b32 %r3, %r1, 31;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra END;
    atom.global.exch.b32 %r4, [%rd1], %r2;
END:
"""

    def last(seed: int | None) -> int:
        out = np.zeros(1, np.uint32)
        run(module(body, 1), [out], threads=256, seed=seed)
        return int(out[0])

    results = [last(seed) for seed in range(12)]
    assert len(set(results)) > 1
    assert results == [last(seed) for seed in range(12)]
    assert {last(None) for _ in range(3)} == {7}


def test_a_finding_names_the_line_of_the_source() -> None:
    text = module("    .loc 1 42 3\n    st.global.u32 [%rd1+64], %r1;", 1) + '\n.file 1 "kernel.cu"\n'
    (found,) = run(text, [np.zeros(4, np.uint32)]).findings
    assert found.source == 42 and ".cu line 42, PTX line" in str(found) and found.count == 32


def test_a_load_over_what_threads_wrote_needs_a_proxy_fence() -> None:
    source = np.arange(8 * 32, dtype=np.float32).reshape(8, 32)
    body = """
    mov.u32 %r2, smem;
    st.shared.u32 [%r2], %r1;
    mbarrier.init.shared::cta.b64 [%r2+4096], 1;
    {fence}
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2+4096], 1024;
    mov.b64 %rd3, k_param_0;
    cvta.param.u64 %rd4, %rd3;
    mov.u32 %r10, 0;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd4, {%r10, %r10}], [%r2+4096];
W:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2+4096], 0;
    @!%p3 bra W;
"""

    def seen(fence: str) -> list[str]:
        text = module(body.replace("{fence}", fence), 1)
        text = text.replace(".param .u64 k_param_0", ".param .align 64 .b8 k_param_0[128]")
        text = text.replace("    ld.param.u64 %rd1, [k_param_0];\n", "")
        spec = _tensor_map(source, (32, 8), 0)
        return [f.kind for f in run(text, [spec], threads=1, shared=8192, tensors={"t0": source}).findings]

    assert seen("fence.proxy.async.shared::cta;") == []
    assert seen("") == ["missing-proxy-fence"]
