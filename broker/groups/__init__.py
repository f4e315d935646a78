"""Consumer groups: members and their assignments, leases of queues, retries, dead letters, consumer lag."""
