"""The parts of pull and push consumers: they share queues, read ahead, and commit offsets."""
