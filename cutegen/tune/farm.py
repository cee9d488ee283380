"""Compiles candidates through any `concurrent.futures` executor: processes here, or a Dask cluster's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, as_completed

from cutegen import api
from cutegen.binary import Binary
from cutegen.errors import CutegenError
from cutegen.spec import KernelSpec


def compile_all(specs: Sequence[KernelSpec], executor: Executor) -> Iterator[tuple[int, Binary | str]]:
    """(index, binary, or what went wrong) of each spec, as they are done."""
    futures = {executor.submit(compile_one, spec): index for index, spec in enumerate(specs)}
    for future in as_completed(futures):
        yield futures[future], future.result()


def compile_one(spec: KernelSpec) -> Binary | str:
    """What a worker runs; a fault is a result, since exceptions of every kind need not travel."""
    try:
        return api.compile(spec)
    except CutegenError as error:
        return str(error)
