"""Consumers below their faces: queues are read ahead, positions kept and committed."""
