"""`Kernel`: a compiled kernel that is called with arrays.

A call looks its shapes, strides and dtypes up in a dictionary. The first of a kind is checked in full and packed
(`Ready`); after that only addresses change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegen.errors import ArgumentError, CutegenError, LaunchError
from cutegen.hardware import Arch
from cutegen.kernel import host
from cutegen.kernel.arguments import Bound, assign, refuse_unread
from cutegen.kernel.driver import Device, Driver, Loaded, driver
from cutegen.kernel.entry import Entry, Launch, complete, copy_operands
from cutegen.kernel.first import CACHED_CALLS, first_entry, refuse_overlap
from cutegen.kernel.lists import ListAdapter, adapter, members
from cutegen.kernel.packing import scalar_values
from cutegen.kernel.ready import Ready
from cutegen.kernel.tensors import NumpyAdapter, stream_pointer
from cutegen.plan.signature import Signature

if TYPE_CHECKING:
    from cutegen.sim import Result

Vectors = tuple[tuple[str, int], ...]


def has_gpu() -> bool:
    """Whether there is a driver with a GPU."""
    try:
        driver().device(0)
    except CutegenError:
        return False
    return True


class Kernel:
    """A kernel that is called with arrays of torch, cupy, jax, numba (no copy) or numpy (copied to the GPU and back).

    Args:
        signature: the calling convention.
        binary: the cubin, or a function that gives it, called when first needed.
        arch: what the cubin was compiled for.
        ptx: the PTX (or a function that gives it), which only the simulator needs.
        variants: builds the kernel again for narrower vectors, given as (tensor, elements) pairs for every tensor;
            called for tensors less aligned than the kernel assumes, its results are kept.
    """

    def __init__(
        self,
        signature: Signature,
        binary: bytes | Callable[[], bytes],
        arch: Arch,
        *,
        ptx: str | Callable[[], str] | None = None,
        variants: Callable[[Vectors], Kernel] | None = None,
    ) -> None:
        self.signature = signature
        self.arch = arch
        self.variants = variants
        self._binary = binary
        self._ptx = ptx
        self._variants: dict[Vectors, Kernel] = {}
        self._loaded: Loaded | None = None
        # For each device, how many clusters run at once; None where the number of SMs says it.
        self._configured: dict[int, int | None] = {}
        self._entries: dict[Any, Entry] = {}
        # The last kind of call, if torch itself compares its tensors: (its comparison, their count, scalars, entry).
        # Their addresses have none of the bits of `_mask`.
        self._recent: tuple[Callable[..., bool], int, tuple[str, ...], Entry] | None = None
        self._peeks: dict[type, Callable[[Any], tuple[int, Any]]] = {}
        self._scalar_names = frozenset(s.name for s in signature.scalars)
        self._output = [t.name for t in signature.tensors].index(signature.output.name)
        # Address bits that decide whether a vector fits; descriptors want 16 bytes.
        self._mask = max([16, *(t.vector * t.dtype.bytes for t in signature.tensors)]) - 1

    def __repr__(self) -> str:
        return f"Kernel({self.signature.symbol}, {self.arch})"

    @property
    def binary(self) -> bytes:
        """The cubin."""
        if not isinstance(self._binary, bytes):
            self._binary = self._binary()
        return self._binary

    @property
    def ptx(self) -> str:
        """The PTX.

        Raises:
            ArgumentError: the kernel was made without.
        """
        if self._ptx is None:
            raise ArgumentError(f"{self.signature.symbol} was made without PTX, which the simulator runs: pass ptx=")
        if not isinstance(self._ptx, str):
            self._ptx = self._ptx()
        return self._ptx

    # ---- calling

    def __call__(
        self, *tensors: Any, out: Any = None, stream: Any = None, device: str | None = None, **keywords: Any
    ) -> Any:
        """Runs the kernel on the arrays and returns its output; asynchronous on the GPU, as its arrays' library is.

        Args:
            tensors: in the signature's order; also taken by keyword.
            out: the output, if not to be allocated.
            stream: a stream or its address; the current stream of the arrays' library if left out.
            device: `"sim"` runs the PTX on numpy arrays (or torch's on the CPU) without a GPU; `"auto"` does so where
                there is none.
            keywords: scalars.

        Raises:
            ArgumentError: an argument does not fit; nothing was launched.
            LaunchError: the driver refused or failed.
            SimulationError: the simulator found a fault, or could not go on.
            ToolchainError: no driver or no GPU.
        """
        if device is not None and device != "cuda" and not (device == "auto" and has_gpu()):
            if device not in ("sim", "auto"):
                raise ArgumentError(f"device: expected 'cuda', 'sim' or 'auto', got {device!r}")
            output, seen = self.simulate(*tensors, out=out, **keywords)
            if seen is not None:
                seen.raise_findings()
            return output
        if keywords and not self._scalar_names.issuperset(keywords):
            tensors, out, keywords = self._by_name(tensors, out, keywords)
        if out is not None and len(tensors) == self._output:
            tensors, out = (*tensors, out), None
        peeks, mask = self._peeks, self._mask
        recent = self._recent
        if recent is not None and out is None:
            alike, count, names, entry = recent
            if len(tensors) == count and tuple(keywords) == names and alike(*tensors):
                pointers = [tensor.data_ptr() for tensor in tensors]
                if not reduce(or_, pointers) & mask:
                    return self._run(entry, pointers, tensors, None, stream, keywords)
        try:
            pointers = []
            key: list[Any] = [len(tensors), *keywords]
            for tensor in tensors:
                pointer, facts = peeks[type(tensor)](tensor)
                pointers.append(pointer)
                key += (facts, pointer & mask)
            if out is not None:
                pointer, facts = peeks[type(out)](out)
                pointers.append(pointer)
                key += (facts, pointer & mask)
            entry = self._entries[tuple(key)]
        except KeyError:
            return self._first(tensors, out, stream, keywords)
        if entry.alike is not None and out is None:
            self._recent = (entry.alike, len(tensors), tuple(keywords), entry)
        return self._run(entry, pointers, tensors, out, stream, keywords)

    def prepare(self, *tensors: Any, out: Any = None, stream: Any = None, **keywords: Any) -> Launch:
        """Binds arrays and scalars once; the result launches with next to no Python work. Takes what a call takes.

        The output, if not given, is allocated once and overwritten by each launch.
        """
        tensors, out, keywords = self._by_name(tensors, out, keywords)
        names, arrays = self._given(tensors, out)
        if any(isinstance(member, np.ndarray) for array in arrays for member in members(array)):
            raise ArgumentError("a prepared launch keeps its arrays on the GPU: pass torch or cupy arrays, not numpy's")
        entry = first_entry(self, names, arrays, keywords, self._mask)
        refuse_unread(entry.read_if, keywords)
        whole, pointers = complete(entry, arrays, [adapter(a).address(a) for a in arrays], stream)
        refuse_overlap(entry, self.signature, whole, pointers)
        fixed = None if stream is None else stream_pointer(stream)
        copies = copy_operands(entry, whole, pointers, stream)

        def copy_again() -> None:
            for copy, array, into in copies:
                copy(array, into, stream)

        entry.ready.set(pointers, keywords)
        return Launch(
            entry.ready,
            whole,
            entry.outputs,
            fixed,
            entry.adapter.stream,
            entry.ordinal,
            copy_again if copies else None,
        )

    def _run(
        self, entry: Entry, given: list[int], tensors: Sequence[Any], out: Any, stream: Any, scalars: Mapping[str, Any]
    ) -> Any:
        if entry.read_if and scalars:
            refuse_unread(entry.read_if, scalars)
        if entry.plain and stream is None:
            # The usual case, kept short: this is what a call costs.
            library = entry.adapter
            made = [allocate() for allocate in entry.plain]
            given += [library.address(array) for array in made]
            entry.ready.launch(given, library.stream(entry.ordinal), scalars)
            return made[0] if len(made) == 1 else tuple(made)
        arrays = list(tensors) if out is None else [*tensors, out]
        whole, pointers = complete(entry, arrays, given, stream)
        refuse_overlap(entry, self.signature, whole, pointers)
        results = [whole[index] for index in entry.outputs]
        address = entry.adapter.stream(entry.ordinal) if stream is None else stream_pointer(stream)
        copies = copy_operands(entry, whole, pointers, stream)  # which live until the launch is under way
        entry.ready.launch(pointers, address, scalars)
        del copies
        return results[0] if len(results) == 1 else tuple(results)

    # ---- the first call of a kind

    def _first(self, tensors: Sequence[Any], out: Any, stream: Any, keywords: Mapping[str, Any]) -> Any:
        tensors, out, keywords = self._by_name(tensors, out, keywords)
        names, arrays = self._given(tensors, out)
        adapters = [adapter(array, name) for name, array in zip(names, arrays)]
        if all(isinstance(a.of if isinstance(a, ListAdapter) else a, NumpyAdapter) for a in adapters):
            return host.run_on_gpu(self, dict(zip(names, arrays)), stream, keywords)
        peeked = [a.peek(array) for a, array in zip(adapters, arrays)]
        entry = first_entry(self, names, arrays, keywords, self._mask)
        for array, found in zip(arrays, adapters):
            if not isinstance(found, NumpyAdapter):
                self._peeks[type(array)] = found.peek
        key: list[Any] = [len(tensors), *keywords]
        for pointer, facts in peeked:
            key += (facts, pointer & self._mask)
        if len(self._entries) >= CACHED_CALLS:
            self._entries.clear()
        self._entries[tuple(key)] = entry
        return self._run(entry, [pointer for pointer, _ in peeked], tensors, out, stream, keywords)

    def _by_name(
        self, tensors: Sequence[Any], out: Any, keywords: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Any, dict[str, Any]]:
        """The same call with tensors by position, as many as stand without a gap, and the output as `out`."""
        named, scalars = assign(self.signature, tensors, dict(keywords) if out is None else {**keywords, "out": out})
        order = [t.name for t in self.signature.tensors]
        given = [name for name in order if name in named]
        last = self.signature.output.name
        if given == order[: len(given)]:
            return tuple(named.values()), None, scalars
        if given[:-1] == order[: len(given) - 1] and given[-1] == last:
            return tuple(named[name] for name in given[:-1]), named[last], scalars
        raise ArgumentError(f"{self.signature.symbol}: pass {', '.join(n for n in order if n not in named)} too")

    def _given(self, tensors: Sequence[Any], out: Any) -> tuple[list[str], list[Any]]:
        names = [t.name for t in self.signature.tensors[: len(tensors)]]
        return (names, list(tensors)) if out is None else ([*names, self.signature.output.name], [*tensors, out])

    def fitting(self, bound: Bound) -> Kernel:
        """This kernel, or the variant for what the tensors' alignment allows.

        Raises:
            ArgumentError: no variant can be built.
        """
        short = [
            (arg, vector) for arg, (_, vector) in zip(self.signature.tensors, bound.vectors) if vector < arg.vector
        ]
        if not short:
            return self
        if bound.vectors not in self._variants:
            if self.variants is None:
                arg, vector = short[0]
                raise ArgumentError(
                    f"{arg.name}: {self.signature.symbol} moves {arg.vector} elements at once "
                    f"({arg.vector * arg.dtype.bytes} bytes), but its address, strides and extent of {arg.contiguous} "
                    f"are multiples of {vector} only: "
                    f"pad them, or build the kernel with align.{arg.name}: {vector}"
                )
            self._variants[bound.vectors] = self.variants(bound.vectors)
        found = self._variants[bound.vectors]
        given = dict(bound.vectors)
        for arg in found.signature.tensors:
            if given[arg.name] % arg.vector:
                vector = given[arg.name]
                raise ArgumentError(f"{arg.name}: the variant for vectors of {vector} still needs {arg.vector}")
        return found

    def ready(self, bound: Bound, ordinal: int, scalars: Mapping[str, Any]) -> Ready:
        """Packs a checked call for a GPU and loads the kernel there if it isn't yet.

        Raises:
            ArgumentError: a scalar is missing or does not fit.
            LaunchError: the GPU can't run the kernel.
            ToolchainError: no driver or no GPU.
        """
        values = scalar_values(self.signature, scalars, bound.extents)
        device, api = self._device(ordinal)
        if self._loaded is None:
            self._loaded = api.load(self.binary, self.signature.symbol)
        if ordinal not in self._configured:
            geometry = self.signature.geometry
            api.configure(self._loaded, self.signature.symbol, device, geometry.smem_bytes, geometry.cluster)
            self._configured[ordinal] = (
                api.active_clusters(self._loaded, self.signature.symbol, device, geometry)
                if geometry.persistent and math.prod(geometry.cluster) > 2
                else None
            )
        return Ready(api, device, self._loaded, self.signature, bound, values, self._configured[ordinal])

    def _device(self, ordinal: int) -> tuple[Device, Driver]:
        api = driver()
        device = api.device(ordinal)
        if not self.arch.runs_on(device.capability):
            major, minor = device.capability
            raise LaunchError(
                f"{self.signature.symbol} was compiled for {self.arch}, but GPU {ordinal} ({device.name}) is "
                f"sm_{major}{minor}: build it with arch: sm_{major}{minor}"
            )
        return device, api

    def simulate(
        self,
        *tensors: Any,
        out: Any = None,
        schedule_seed: int | None = None,
        profile: bool = False,
        budget: int | None = None,
        **keywords: Any,
    ) -> tuple[Any, Result | None]:
        """Runs the kernel's PTX without a GPU, on numpy arrays or torch's on the CPU: (output, what was seen).

        The result (`sim.Result`) has the checkers' findings and, with `profile`, counters; None if nothing had to run.

        Args:
            tensors: as a call takes them, like `out` and scalars by keyword.
            schedule_seed: None runs threads in step; a number interleaves warps at random, always alike for it.
            profile: count bank conflicts, sectors, bytes and tensor-core operations.
            budget: instructions after which an endless loop is assumed.

        Raises:
            ArgumentError: an argument does not fit.
            SimulationError: an instruction that is not known, a deadlock, an endless loop.
        """
        from cutegen.kernel import simulate

        options: dict[str, Any] = {"seed": schedule_seed, "profile": profile} | (
            {} if budget is None else {"budget": budget}
        )
        positional, out, scalars = self._by_name(tensors, out, keywords)
        names, arrays = self._given(positional, out)
        return simulate.run(self, dict(zip(names, arrays)), scalars, **options)
