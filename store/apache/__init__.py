"""A model of Apache RocketMQ 5.5.0's opening of a store: what its broker would see after its load and recovery."""
