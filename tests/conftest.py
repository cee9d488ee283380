"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# An example may compile a kernel: what is slow here is the machine, not the code.
settings.register_profile("cutegen", deadline=None)
settings.load_profile("cutegen")
