"""Transports for the task queues that people use: Celery (through kombu) and dramatiq, on single leases of messages."""
