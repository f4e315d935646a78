"""Replication: which broker of a replica set is the master, what its followers have, and what it may acknowledge.

The core is pure: it takes frames, answers of the metadata store and the time, and returns effects, which a shell
executes.
"""
