"""Measuring: one timing protocol, what kernels are measured against, and the result files."""

from __future__ import annotations
