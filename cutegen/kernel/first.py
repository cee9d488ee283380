"""The first call of a kind: everything is checked, and what later calls need is kept as an `Entry`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cutegen.errors import ArgumentError
from cutegen.kernel.arguments import bind, refuse_unread
from cutegen.kernel.copies import copied, copier
from cutegen.kernel.entry import Entry, view_span
from cutegen.kernel.lists import ListAdapter, adapter, addresses, is_list
from cutegen.kernel.overlap import first_overlap, meet
from cutegen.kernel.packing import scalar_values
from cutegen.kernel.tensors import HOST, TorchAdapter
from cutegen.plan.signature import Signature

if TYPE_CHECKING:
    from cutegen.kernel.launch import Kernel

CACHED_CALLS = 1024


def first_entry(
    kernel: Kernel, names: Sequence[str], arrays: Sequence[Any], keywords: Mapping[str, Any], mask: int
) -> Entry:
    """Checks a call in full and loads what it runs. Addresses without a bit of `mask` hold every vector.

    Raises:
        ArgumentError: an argument does not fit.
        LaunchError, ToolchainError: as `Kernel.ready` does.
    """
    signature = kernel.signature
    adapters = [adapter(array, name) for name, array in zip(names, arrays)]
    views = {name: found.view(array, name) for name, array, found in zip(names, arrays, adapters)}
    bound = bind(signature, views, {name: found.remedy for name, found in zip(names, adapters)})
    first, main = names[0], adapters[0]
    main = main.of if isinstance(main, ListAdapter) else main
    ordinal = views[first].device
    if ordinal == HOST:
        raise ArgumentError(
            f"{first} is on the host: pass {'.cuda() of each' if is_list(arrays[0]) else f'{first}.cuda()'}, numpy "
            "arrays throughout, or device='sim'"
        )
    values = scalar_values(signature, keywords, bound.extents)
    refuse_unread(bound.read_if, values)
    aligned = copied(signature, bound, views, dict(zip(names, adapters)))
    lying = bind(signature, {**views, **aligned}) if aligned else bound
    ready = kernel.fitting(lying).ready(lying, ordinal, keywords)
    order = [t.name for t in signature.tensors]
    sizes = {t.name: t.dtype.bytes for t in signature.tensors}
    outputs = [t.name for t in signature.tensors if t.role != "input"]
    spans = [
        (order.index(o), order.index(n), view_span(views[o], sizes[o]), view_span(views[n], sizes[n]))
        for o in outputs
        for n in names
        if o in views and (o != n or signature.tensor(o).listed)
    ]
    listed = any(t.listed for t in signature.tensors)
    allocators = tuple(
        (order.index(m.arg.name), partial(m.made, main.allocator(m.shape, m.strides, m.arg.dtype, ordinal)))
        if m.count is not None
        else (order.index(m.arg.name), main.allocator(m.shape, m.strides, m.arg.dtype, ordinal))
        for m in bound.missing
    )
    plain = names == order[: len(names)] and outputs == order[len(names) :] == [m.arg.name for m in bound.missing]
    return Entry(
        ready=ready,
        order=tuple(order.index(name) for name in names),
        count=len(order),
        allocators=allocators,
        adapter=main,
        ordinal=ordinal,
        outputs=tuple(order.index(name) for name in outputs),
        plain=tuple(allocate for _, allocate in allocators) if plain and not aligned and not listed else (),
        read_if=tuple((tensor, scalar) for tensor, scalar in bound.read_if if scalar in keywords),
        spans=tuple(spans),
        apart=set() if listed else None,
        alike=main.comparison(arrays)
        if isinstance(main, TorchAdapter) and not listed and not any(v.pointer & mask for v in views.values())
        else None,
        copies=tuple(
            (order.index(n), copier(views[n], to, signature.tensor(n), kernel.arch.name, found))
            for n, found in zip(names, adapters)
            if (to := aligned.get(n)) is not None and isinstance(found, TorchAdapter)
        ),
    )


def refuse_overlap(entry: Entry, signature: Signature, arrays: Sequence[Any], pointers: Sequence[int]) -> None:
    """Refuses outputs that share memory with another tensor; lists that were found apart are not compared again.

    Raises:
        ArgumentError: they share memory.
    """
    key = tuple(addresses(pointer) for pointer in pointers) if entry.apart is not None else ()
    if entry.apart is not None and key in entry.apart:
        return
    for output, other, output_span, span in entry.spans:
        if meet(pointers[output], pointers[other], output_span, span, output == other):
            args = [signature.tensors[index] for index in (output, other)]
            views = [adapter(arrays[index]).view(arrays[index], arg.name) for index, arg in zip((output, other), args)]
            found = first_overlap(views[0], views[0 if output == other else 1], *(arg.dtype.bytes for arg in args))
            if found is not None:
                names = [arg.name + index for arg, index in zip(args, found)]
                raise ArgumentError(f"{names[0]} and {names[1]} share memory: pass another out=")
    if entry.apart is not None:
        if len(entry.apart) >= CACHED_CALLS:
            entry.apart.clear()
        entry.apart.add(key)
