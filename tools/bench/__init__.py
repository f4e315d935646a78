"""Benchmarks. Each result has a baseline of the same run: a copy of the same bytes, an echo of the same sizes."""
