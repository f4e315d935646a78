"""The broker process: requests in, store below, waiting and timers between."""
