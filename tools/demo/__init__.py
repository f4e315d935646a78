"""The demo: real data through real processes, each claim checked."""
