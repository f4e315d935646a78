"""The formats of a store's files, one module each: bytes to values or columns and back. No disk, no clock.

Records are the log's; proto/record.py and proto/record_run.py encode and decode them.
"""
