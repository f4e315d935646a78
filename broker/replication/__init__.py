"""Replication: which broker of a replica set is the master, what its followers have, and what that acknowledges.

Pure: told frames, answers of the registry and the time; the effects that come back are for a shell to carry out.
"""
