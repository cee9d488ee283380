"""Stand-in, replaced soon."""
from __future__ import annotations
from pydantic import BaseModel, ConfigDict

class FieldFault(ValueError):
    def __init__(self, path, message, got=None, expected=None, hint=None):
        super().__init__(f"{path}: {message}, got {got}; expected {expected} ({hint})")
        self.path, self.message, self.got, self.expected, self.hint = path, message, got, expected, hint

class SpecModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
