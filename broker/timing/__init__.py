"""Time in a broker: the timing wheel for all waits, waiting requests, and the virtual clock."""
