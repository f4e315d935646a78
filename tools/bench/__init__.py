"""Measurements, each beside what it ran on: a copy of the same bytes, an echo of the same sizes."""
