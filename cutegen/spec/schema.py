"""JSON Schema of all specs, for editors."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from cutegen.spec import FAMILIES


def schema() -> dict[str, Any]:
    """One schema whose alternatives are told apart by `kernel`; the same on every machine."""
    references, definitions = models_json_schema([(model, "validation") for model in FAMILIES.values()], by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "cutegen spec",
        "oneOf": [references[(model, "validation")] for model in FAMILIES.values()],
        "discriminator": {"propertyName": "kernel"},
        **definitions,
    }
