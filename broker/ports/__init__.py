"""Ports of a broker and of a follower: certificates, registration, calls that are relayed to other replicas."""
