"""Finds the fastest spec of a problem: a space of candidates, compiled by an executor, measured, kept in a journal."""

from __future__ import annotations

from cutegen.tune.farm import compile_all
from cutegen.tune.journal import Entry, Journal
from cutegen.tune.search import Measured, tune
from cutegen.tune.space import pinned, space

__all__ = ["Entry", "Journal", "Measured", "compile_all", "pinned", "space", "tune"]
