"""Idempotent producers: sequence numbers of batches, so that a batch that is sent again is stored once."""
