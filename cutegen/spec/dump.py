from __future__ import annotations
from cutegen.spec.base import SpecModel

def _flow(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and not value.replace("_", "").replace(".", "").isalnum():
        return '"' + value + '"'
    return str(value)

def to_yaml(model: SpecModel) -> str:
    data = {"kernel": model.kernel, **model.model_dump(exclude_defaults=True, by_alias=True)}
    data.setdefault("arch", model.arch)
    return "\n".join(f"{k}: {_flow(v)}" for k, v in data.items())
