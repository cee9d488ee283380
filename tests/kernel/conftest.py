"""A driver and a torch that exist without a GPU: launches are recorded as bytes."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cutegen.dtypes import F16, F32
from cutegen.hardware import ARCHS
from cutegen.kernel import Kernel, host, launch, tensors
from cutegen.kernel import driver as driver_module
from cutegen.kernel.driver import Device, Loaded
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

CONTEXT = 0xC0DE


class FakeDriver:
    """Records launches; memory is a dictionary of host buffers."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.memory: dict[int, Any] = {}
        self.current = CONTEXT
        self.entered = 0
        self.status = 0
        self.encoded: list[Any] = []
        self.configured: list[Any] = []
        self.capability = (9, 0)
        self.layout: tuple[int, ...] = ()  # sizes of the parameters, to read them back

    def device(self, ordinal: int) -> Device:
        return Device(ordinal, "Fake H200", self.capability, 132, 232448, 50 << 20, CONTEXT)

    def device_of(self, pointer: int) -> int:
        return 0

    def current_device(self) -> int:
        return 0

    def load(self, cubin: bytes, symbol: str) -> Loaded:
        return Loaded(1, 0xBEEF)

    def configure(self, loaded: Loaded, symbol: str, device: Device, smem: int, cluster: Any) -> None:
        self.configured.append((symbol, device.ordinal, smem, cluster))

    def active_clusters(self, loaded: Loaded, symbol: str, device: Device, geometry: Any) -> int:
        return 30

    def get_context(self, address: int) -> int:
        ctypes.c_uint64.from_address(address).value = self.current
        return 0

    def launch(self, config: int, kernel: int, table: int, extra: Any) -> int:
        raw = ctypes.string_at(config, 56)
        fields = struct.unpack("<7I4xQQI4x", raw)
        params = [
            ctypes.string_at(ctypes.c_uint64.from_address(table + 8 * i).value, size)
            for i, size in enumerate(self.layout)
        ]
        addresses = [ctypes.c_uint64.from_address(table + 8 * i).value for i in range(len(self.layout))]
        attribute = ctypes.string_at(fields[8], 72) if fields[9] else b""
        self.launches.append(
            {
                "grid": fields[:3],
                "block": fields[3:6],
                "smem": fields[6],
                "stream": fields[7],
                "attribute": attribute,
                "kernel": kernel,
                "params": params,
                "addresses": addresses,
            }
        )
        return self.status

    def enter(self, device: Device) -> bool:
        self.entered += 1
        return True

    def leave(self) -> None:
        self.entered -= 1

    def error_text(self, status: int) -> str:
        return f"CUDA_ERROR_{status}"

    def encode(self, spec: Any) -> bytes:
        self.encoded.append(spec)
        return bytes([len(self.encoded)]) * 128

    def allocate(self, size: int) -> int:
        buffer = (ctypes.c_char * (size + 256))()
        address = ctypes.addressof(buffer) + -ctypes.addressof(buffer) % 256
        self.memory[address] = buffer
        return address

    def free(self, pointer: int) -> None:
        del self.memory[pointer]

    def copy_in(self, pointer: int, source: int, size: int) -> None:
        ctypes.memmove(pointer, source, size)

    def copy_out(self, target: int, pointer: int, size: int) -> None:
        ctypes.memmove(target, pointer, size)

    def upload(self, device: Device, data: bytes) -> int:
        pointer = self.allocate(len(data))
        ctypes.memmove(pointer, data, len(data))
        return pointer

    def discard(self, device: Device, pointers: Any) -> None:
        for pointer in pointers:
            self.free(pointer)

    def synchronize(self, stream: int, what: str) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    found = FakeDriver()
    for module in (driver_module, launch, host, tensors):
        monkeypatch.setattr(module, "driver", lambda: found)
    return found


class FakeDevice:
    def __init__(self, kind: str, index: int = 0) -> None:
        self.type, self.index = kind, index

    def __repr__(self) -> str:
        return f"{self.type}:{self.index}"


class Tensor:
    """As much of a torch tensor as a launch looks at; `address` stands for device memory."""

    __module__ = "torch"

    def __init__(
        self, shape: Any, strides: Any = None, dtype: str = "torch.float16", address: int = 0x1000, device: int = 0
    ):
        self.shape = tuple(shape)
        self._strides = tensors.dense_strides(self.shape) if strides is None else tuple(strides)
        self.dtype, self._address, self._device = dtype, address, device
        self.recorded: list[int] = []
        self.pool: int | None = None  # the stream whose memory it is

    @property
    def device(self) -> FakeDevice:
        return FakeDevice("cpu" if self._device < 0 else "cuda", self._device)

    def data_ptr(self) -> int:
        return self._address

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def get_device(self) -> int:
        return self._device

    def record_stream(self, stream: Any) -> None:
        self.recorded.append(stream)

    def t(self) -> Tensor:
        return Tensor(self.shape[::-1], self._strides[::-1], self.dtype, self._address, self._device)


class TensorGuards:
    """Likewise of torch's comparison of tensors; `asked` counts the comparisons of all."""

    asked = 0
    blind: tuple[str, ...] = ()  # what it overlooks

    def __init__(self, *tensors: Tensor, dynamic_dims_sizes: None, dynamic_dims_strides: None) -> None:
        self._facts = [self._described(tensor) for tensor in tensors]

    @classmethod
    def _described(cls, tensor: Tensor) -> dict[str, Any]:
        facts = {"shape": tensor.shape, "stride": tensor.stride(), "dtype": tensor.dtype, "device": str(tensor.device)}
        return {name: value for name, value in facts.items() if name not in cls.blind}

    def check(self, *tensors: Any) -> bool:
        type(self).asked += 1
        if len(tensors) != len(self._facts):
            raise TypeError("wrong length")
        return all(isinstance(t, Tensor) and self._described(t) == facts for t, facts in zip(tensors, self._facts))


@pytest.fixture
def comparing(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch with its comparison."""

    def empty(shape: Any, dtype: str, device: str = "cpu") -> Tensor:
        return Tensor(shape, dtype=dtype, device=-1 if device == "cpu" else -2)

    torch.empty = empty
    torch._C._dynamo = types.SimpleNamespace(guards=types.SimpleNamespace(TensorGuards=TensorGuards))
    monkeypatch.setattr(TensorGuards, "asked", 0)
    monkeypatch.setattr(TensorGuards, "blind", ())
    return torch


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("torch")
    module.float32, module.float16, module.bfloat16 = "torch.float32", "torch.float16", "torch.bfloat16"  # type: ignore[attr-defined]
    module.device = str  # type: ignore[attr-defined]
    module.current = 0x77  # type: ignore[attr-defined]

    def empty_strided(shape: Any, strides: Any, dtype: str, device: str) -> Tensor:
        made = Tensor(shape, strides, dtype, 0x900000, int(device.rsplit(":")[-1]))
        made.pool = module.current
        return made

    @contextlib.contextmanager
    def current(stream: int) -> Iterator[None]:
        before, module.current = module.current, stream
        yield
        module.current = before

    module.empty_strided = empty_strided  # type: ignore[attr-defined]
    module._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: module.current)  # type: ignore[attr-defined]
    module.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        # As torch has it: an address of 0 is none given.
        ExternalStream=lambda stream, device: stream or 0xDEAD,
        default_stream=lambda device: 0,
        current_stream=lambda device: module.current,
        stream=current,
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(tensors, "_adapters", {})
    return module


GEMM = Signature(
    symbol="gemm_test",
    tensors=(
        TensorArg("a", F16, ("batch", "m", "k"), "k", 8, optional=frozenset({"batch"})),
        TensorArg("b", F16, ("batch", "n", "k"), "k", 8, optional=frozenset({"batch"})),
        TensorArg("c", F32, ("batch", "m", "n"), "n", 4, "inout", frozenset({"batch"}), read_if="beta"),
    ),
    scalars=(ScalarArg("alpha", "float", 1.0), ScalarArg("beta", "float", 0.0)),
    params=(
        Pointer("a"),
        Pointer("b"),
        Pointer("c"),
        Extent("m"),
        Extent("n"),
        Extent("k"),
        Stride("a", "batch"),
        Stride("a", "m"),
        Stride("b", "batch"),
        Stride("c", "m"),
        Scalar("alpha"),
        Scalar("beta"),
    ),
    geometry=Geometry((("batch", 1), ("m", 128), ("n", 128)), 256, 98304),
)
GEMM_SIZES = (8, 8, 8, 4, 4, 4, 8, 8, 8, 8, 4, 4)

SCORES = Signature(
    symbol="scores_test",
    tensors=(
        TensorArg("q", F16, ("batch", "heads", "seqlen_q", "head_dim"), "head_dim", 8),
        TensorArg("k", F16, ("batch", "heads_kv", "seqlen_k", "head_dim"), "head_dim", 8),
        TensorArg("scores", F32, ("batch", "heads", "seqlen_q", "seqlen_k"), "seqlen_k", 4, "output"),
    ),
    scalars=(ScalarArg("scale", "float", lambda extents: extents["head_dim"] ** -0.5),),
    params=(
        Extent("seqlen_q"),
        TensorMapParam("q", ("head_dim", "seqlen_q", "heads", "batch"), (64, 128, 1, 1), 128),
        Pointer("scores"),
        Scalar("scale"),
    ),
    geometry=Geometry((("seqlen_q", 1),), 384, 200000, (2, 1, 1), persistent=True),
    static=(("head_dim", 64),),
    check=lambda e: None if e["heads"] % max(e["heads_kv"], 1) == 0 else "heads must be a multiple of heads_kv",
)
SCORES_SIZES = (4, 128, 8, 4)


@pytest.fixture
def gemm(fake: FakeDriver) -> Kernel:
    fake.layout = GEMM_SIZES
    return Kernel(GEMM, b"cubin", ARCHS["sm_90"])


@pytest.fixture
def scores(fake: FakeDriver) -> Kernel:
    fake.layout = SCORES_SIZES
    return Kernel(SCORES, b"cubin", ARCHS["sm_90a"])


def integer(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def number(data: bytes) -> float:
    return float(np.frombuffer(data, np.float32)[0])
