"""What every spec model is: frozen, closed, strict; and how its faults are worded.

One written rule for numbers: an integer field takes an integer, never a float (`128.0`), a text (`"128"`) or a
boolean; a boolean field takes `true` or `false` only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from cutegen.errors import Fault, SpecError


class FieldFault(ValueError):
    """Raised by a validator to name the precise field, by its path below the model that is validated."""

    def __init__(
        self, path: str, message: str, got: str | None = None, expected: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.fault = Fault(path, message, got=got, expected=expected, hint=hint)


class SpecModel(BaseModel):
    """Base of all parts of a spec."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """A hint that names the closest of `known`, or None."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else None


def faults_of(error: ValidationError, model: type[BaseModel]) -> tuple[Fault, ...]:
    """The faults that a pydantic error reports, in cutegen's words, with dotted paths below `model`."""
    return tuple(_fault(detail, model) for detail in error.errors(include_url=False))


def as_spec_error(error: ValidationError, model: type[BaseModel]) -> SpecError:
    """A pydantic error as a SpecError."""
    return SpecError(faults_of(error, model))


def dotted(location: Iterable[int | str]) -> str:
    """`("mma", "warps", 0)` as `mma.warps[0]`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _fault(detail: ErrorDetails, model: type[BaseModel]) -> Fault:
    location = detail["loc"]
    path, kind, value = dotted(location), detail["type"], detail["input"]
    context: Mapping[str, Any] = detail.get("ctx") or {}
    if kind == "value_error" and isinstance(context.get("error"), FieldFault):
        inner: Fault = context["error"].fault
        joined = ".".join(part for part in (path, inner.field) if part)
        return Fault(joined, inner.message, got=inner.got, expected=inner.expected, hint=inner.hint)
    if kind == "extra_forbidden":
        known = _names(_model_at(model, location[:-1]))
        return Fault(path, "unknown key", expected=", ".join(known), hint=nearest_name(str(location[-1]), known))
    if kind == "missing":
        return Fault(path, "missing")
    if kind == "literal_error":
        expected = str(context.get("expected", "")).replace("'", "")
        options = expected.replace(" or ", ", ").split(", ")
        return Fault(
            path,
            "not one of the choices",
            got=repr(value),
            expected=expected,
            hint=_hint(kind, value) or nearest_name(str(value), options),
        )
    words = {
        "int_type": "an integer",
        "int_from_float": "an integer",
        "int_parsing": "an integer",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_type": "true or false",
        "string_type": "a text",
        "tuple_type": "a list",
        "model_type": "a mapping",
        "model_attributes_type": "a mapping",
        "dict_type": "a mapping",
    }
    if kind in words:
        return Fault(path, "wrong type", got=_shown(value), expected=words[kind], hint=_hint(kind, value))
    return Fault(path, detail["msg"][0].lower() + detail["msg"][1:], got=_shown(value))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _hint(kind: str, value: object) -> str | None:
    if kind == "bool_type":
        return "write true or false"
    if kind.startswith("int") and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if kind.startswith(("int", "float")) and isinstance(value, str):
        return f"write {value} without quotes" if value.strip("+-").isdigit() else None
    if kind == "string_type" and isinstance(value, int | float) and not isinstance(value, bool):
        return "write it in quotes, or by its name"
    if kind == "literal_error" and isinstance(value, bool):
        return "write the name in full"
    return None


def _names(model: type[BaseModel] | None) -> list[str]:
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _model_at(model: type[BaseModel], location: Iterable[int | str]) -> type[BaseModel] | None:
    """The model class that stands at `location` below `model`."""
    current: type[BaseModel] | None = model
    for part in location:
        if current is None:
            return None
        field = next((f for name, f in current.model_fields.items() if part in (name, f.alias)), None)
        candidates = [] if field is None else [field.annotation, *get_args(field.annotation)]
        current = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return current
