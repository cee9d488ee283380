"""Plain CUDA kernels with signatures, to test launching apart from what cutegen emits."""

from __future__ import annotations

from dataclasses import replace

from cuda.bindings import nvrtc

from cutegen.dtypes import F16, F32
from cutegen.hardware import ARCHS, Arch
from cutegen.kernel import Kernel
from cutegen.kernel.driver import driver
from cutegen.plan.signature import (
    Extent,
    Geometry,
    Pointer,
    Scalar,
    ScalarArg,
    Signature,
    Stride,
    TensorArg,
    TensorMapParam,
)

GEMM = r"""
#include <cuda_fp16.h>
extern "C" __global__ void gemm(
    const __half* a, const __half* b, float* c, int m, int n, int k, long long a_batch, long long a_m,
    long long b_batch, long long b_n, long long c_batch, long long c_m, float alpha, float beta) {
  long long tiles_m = (m + 15) / 16, tiles_n = (n + 15) / 16, tile = blockIdx.x;
  long long batch = tile / (tiles_m * tiles_n);
  long long i = tile / tiles_n % tiles_m * 16 + threadIdx.x / 16, j = tile % tiles_n * 16 + threadIdx.x % 16;
  if (i >= m || j >= n) return;
  float sum = 0.0f;
  if (alpha != 0.0f)
    for (int p = 0; p < k; ++p)
      sum = fmaf(__half2float(a[batch * a_batch + i * a_m + p]), __half2float(b[batch * b_batch + j * b_n + p]), sum);
  float* out = c + batch * c_batch + i * c_m + j;
  *out = alpha * sum + (beta != 0.0f ? beta * *out : 0.0f);
}
"""

GEMM_SIGNATURE = Signature(
    symbol="gemm",
    tensors=(
        TensorArg("a", F16, ("batch", "m", "k"), "k", 1, optional=frozenset({"batch"})),
        TensorArg("b", F16, ("batch", "n", "k"), "k", 1, optional=frozenset({"batch"})),
        TensorArg("c", F32, ("batch", "m", "n"), "n", 1, "inout", frozenset({"batch"}), read_if="beta"),
    ),
    scalars=(ScalarArg("alpha", "float", 1.0), ScalarArg("beta", "float", 0.0)),
    params=(
        Pointer("a"), Pointer("b"), Pointer("c"), Extent("m"), Extent("n"), Extent("k"), Stride("a", "batch"),
        Stride("a", "m"), Stride("b", "batch"), Stride("b", "n"), Stride("c", "batch"), Stride("c", "m"),
        Scalar("alpha"), Scalar("beta"),
    ),
    geometry=Geometry((("batch", 1), ("m", 16), ("n", 16)), 256, 0),
)  # fmt: skip

# Every C type in a jumbled order: what arrives is written out as doubles' bits.
SCALARS = r"""
extern "C" __global__ void scalars(float f, long long l, int i, unsigned long long u, unsigned v, long long* out, int n)
  { if (threadIdx.x) return; out[0] = __float_as_int(f); out[1] = l; out[2] = i; out[3] = (long long)u; out[4] = v;
  out[5] = n; }
"""

# Each block counts itself and writes its cluster rank at the end of its dynamic shared memory, and reads it back.
SHARED = r"""
extern "C" __global__ void shared(float* out, int n, int bytes) {
  extern __shared__ char dynamic[];
  __shared__ volatile int fixed[4];
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  fixed[threadIdx.x % 4] = 1;
  volatile char* last = dynamic + bytes - 1;
  *last = (char)rank;
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = *last + fixed[0] - 1;
}
"""

# One 64 x 64 box a block through TMA, written out row by row; out-of-range elements come as zeros.
TMA = r"""
struct alignas(64) Map { char bytes[128]; };
extern "C" __global__ void tma(const __grid_constant__ Map map, float* out, int rows, int columns, long long pitch) {
  __shared__ alignas(1024) unsigned short box[64 * 64];
  __shared__ alignas(8) unsigned long long barrier;
  unsigned bar = (unsigned)__cvta_generic_to_shared(&barrier), smem = (unsigned)__cvta_generic_to_shared(box);
  int tiles = (columns + 63) / 64, row = blockIdx.x / tiles * 64, column = blockIdx.x % tiles * 64;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(64 * 64 * 2));
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" :: "r"(smem), "l"(&map), "r"(column), "r"(row), "r"(bar) : "memory");
  }
  __syncthreads();
  asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again; }" ::
    "r"(bar) : "memory");
  for (int e = threadIdx.x; e < 64 * 64; e += blockDim.x) { int r = row + e / 64, c = column + e %
  64; float value; asm("{ .reg .b16 h; mov.b16 h, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "h"(box[e])); if (r < rows
  && c < columns) out[r * pitch + c] = value; }
}
"""

TMA_SIGNATURE = Signature(
    symbol="tma",
    tensors=(
        TensorArg("x", F16, ("rows", "columns"), "columns", 8),
        TensorArg("y", F32, ("rows", "columns"), "columns", 1, "output"),
    ),
    scalars=(),
    params=(
        TensorMapParam("x", ("columns", "rows"), (64, 64), 0),
        Pointer("y"),
        Extent("rows"),
        Extent("columns"),
        Stride("y", "rows"),
    ),
    geometry=Geometry((("rows", 64), ("columns", 64)), 128, 0),
)


def shared_signature(dynamic: int, cluster: tuple[int, int, int] = (1, 1, 1)) -> Signature:
    """`shared` with this much dynamic shared memory; one block for each output element."""
    return Signature(
        symbol="shared",
        tensors=(TensorArg("x", F32, ("n",), "n", 1), TensorArg("y", F32, ("n",), "n", 1, "output")),
        scalars=(ScalarArg("bytes", "int32_t", dynamic),),
        params=(Pointer("y"), Extent("n"), Scalar("bytes")),
        geometry=Geometry((("n", 1),), 128, dynamic, cluster),
    )


def scalars_signature() -> Signature:
    """`scalars`, whose output holds 64-bit words as pairs of floats."""
    return Signature(
        symbol="scalars",
        tensors=(TensorArg("x", F32, ("n",), "n", 1), TensorArg("y", F32, ("words", "n"), "n", 1, "output")),
        scalars=(
            ScalarArg("f", "float"),
            ScalarArg("l", "int64_t"),
            ScalarArg("i", "int32_t"),
            ScalarArg("u", "uint64_t"),
            ScalarArg("v", "uint32_t"),
        ),
        params=(
            Scalar("f"), Scalar("l"), Scalar("i"), Scalar("u"), Scalar("v"), Pointer("y"), Extent("n"),
        ),
        geometry=Geometry((("n", 1024),), 32, 0),
        static=(("words", 6),),
    )  # fmt: skip


def device_arch() -> Arch:
    """The first GPU's architecture, arch-specific where there is such a target."""
    major, minor = driver().device(0).capability
    name = f"sm_{major}{minor}"
    return ARCHS.get(f"{name}a") or ARCHS.get(name) or replace(ARCHS["sm_80"], name=name, capability=(major, minor))


def compile_cubin(source: str, arch: str) -> bytes:
    """A cubin by NVRTC; the half-precision header is looked for in the wheels."""
    from importlib.util import find_spec
    from pathlib import Path

    includes: list[bytes] = []
    for module in ("nvidia", "nvidia.cu13", "nvidia.cuda_runtime"):
        found = find_spec(module) if module == "nvidia" or find_spec("nvidia") else None
        for place in found.submodule_search_locations or [] if found else []:
            includes += [f"-I{p}".encode() for p in (*Path(place).glob("include"), *Path(place).glob("*/include"))]
            includes += [f"-I{p}".encode() for p in Path(place).glob("*/include/cccl")]
    options = [f"--gpu-architecture={arch}".encode(), b"-default-device", *dict.fromkeys(includes)]
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), b"test.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        size = nvrtc.nvrtcGetProgramLogSize(program)[1]
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    size = nvrtc.nvrtcGetCUBINSize(program)[1]
    cubin = b" " * size
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return cubin


def kernel(source: str, signature: Signature) -> Kernel:
    """A kernel for this machine's GPU."""
    arch = device_arch()
    return Kernel(signature, lambda: compile_cubin(source, arch.name), arch)
