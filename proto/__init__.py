"""Protocols between processes, and the record, which is the same on the wire and on disk."""
