"""A problem cut down to a few tiles, for where each tile costs seconds: the simulator."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cutegen.plan.signature import Signature

_EXTRA = 16  # elements beyond the half tile: keeps rows aligned to 16 bytes, fp8 too, and not to a tile
_ALIKE = 16  # an extent is cut by a multiple of this, so that rows are as badly aligned as they were
_DEPTH = 272  # of a mode that a block loops over
_LONG = 256  # a block that takes more of a mode than this loops over tiles of it


def reduced(signature: Signature, extents: Mapping[str, int], keep: Collection[str] = ()) -> dict[str, int]:
    """Extents of at most one and a half tiles along each tiled mode, one batch (two of lists) and one group of heads.

    So that partial tiles, and a pipeline that goes round, are part of it. Modes in `keep` and static ones stay.
    """
    axes = dict(signature.geometry.axes)
    listed = {arg.listed for arg in signature.tensors}
    fixed = {*keep, *(mode for mode, _ in signature.static)}
    found = dict(extents)
    for mode, extent in extents.items():
        size = axes.get(mode)
        if mode in fixed or mode in ("heads", "heads_kv"):
            continue
        if size is None:
            found[mode] = _cut(extent, _DEPTH)
        elif mode in listed:
            found[mode] = min(extent, 2)
        else:
            few = size + size // 2 + _EXTRA if 1 < size <= _LONG else 1 if size == 1 else _DEPTH + _LONG // 2
            found[mode] = _cut(extent, few)
    if "heads" in extents and not {"heads", "heads_kv"} & fixed:
        group = extents["heads"] // max(1, extents.get("heads_kv", extents["heads"]))
        found |= {"heads": group} | ({"heads_kv": 1} if "heads_kv" in extents else {})
    return found


def _cut(extent: int, most: int) -> int:
    """`extent`, or the largest extent up to `most` that is as well aligned; 1 stays possible."""
    if extent <= most or most < _ALIKE:
        return min(extent, most)
    return most - (most - extent) % _ALIKE
