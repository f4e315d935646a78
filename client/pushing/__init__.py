"""The parts of push consumers: they fetch messages, call listeners in workers, commit offsets, and retry failures."""
