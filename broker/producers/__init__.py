"""Idempotent sending: who sent what into which queue, so that a run that comes again is stored once."""
