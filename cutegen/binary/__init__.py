"""From source to binary: NVRTC and a cache."""

from __future__ import annotations

from cutegen.binary.cache import Cache, CacheInfo
from cutegen.binary.nvrtc import compile
from cutegen.binary.result import Binary, Finding, Resources
from cutegen.binary.toolchain import Toolchain

__all__ = ["Binary", "Cache", "CacheInfo", "Finding", "Resources", "Toolchain", "compile"]
