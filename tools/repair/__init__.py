"""A repaired copy of a store that both brokers open."""
