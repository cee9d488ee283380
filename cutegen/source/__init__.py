"""From plan to source: Jinja renders the resolved plan into one standalone `.cu`."""

from __future__ import annotations

from cutegen.source.render import render

__all__ = ["render"]
