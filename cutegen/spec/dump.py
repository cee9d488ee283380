"""Specs as YAML that `cutegen.spec.yaml` reads back to the same spec."""

from __future__ import annotations

import re
from typing import Any

from cutegen.spec.common import KernelSpec

# A text that needs no quotes: it begins with a letter, holds nothing that YAML or a flow mapping would read, and is
# no word of YAML's.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def to_yaml(spec: KernelSpec) -> str:
    """The fields that differ from their defaults, in the order of the model, one line for each field at the top."""
    data = spec.model_dump(exclude_defaults=True, by_alias=True)
    head = {"kernel": spec.model_dump()["kernel"], "arch": spec.arch}
    lines = {**head, **{key: value for key, value in data.items() if key not in head}}
    return "".join(f"{key}: {_flow(value)}\n" for key, value in lines.items())


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return repr(value)
