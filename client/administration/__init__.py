"""Questions and changes to all brokers of a cluster."""
