"""Benchmarks: problems, and the results that were measured; the timing protocol is the package's."""
