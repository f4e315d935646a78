"""What a broker says of itself on /metrics: counts of traffic, what clients measured, the page and its families."""
