"""What both ways to compute attention scores share: the default scale, and the rule of grouped heads."""

from __future__ import annotations

from collections.abc import Mapping


def inverse_root(extents: Mapping[str, int]) -> float:
    return float(extents["head_dim"] ** -0.5)


def grouped(extents: Mapping[str, int]) -> str | None:
    heads, heads_kv = extents["heads"], extents["heads_kv"]
    if heads_kv == 0 or heads % heads_kv:
        return f"heads ({heads}) must be a multiple of heads_kv ({heads_kv})" if heads or heads_kv else None
    return None
