"""Metrics of a broker: counters of traffic, metrics from clients, the /metrics page and its families."""
