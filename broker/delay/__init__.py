"""Messages that are delivered later than they were sent: by delay level, or at any time."""
