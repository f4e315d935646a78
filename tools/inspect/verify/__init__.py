"""Holding the whole of a store together: log, queues, index."""
