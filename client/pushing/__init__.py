"""The parts of push consumers: messages are fetched, held, passed to workers, handled, returned or retried."""
