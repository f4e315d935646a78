"""Pop consumption: messages are lent to whoever asks, one by one, and stay until each is acknowledged."""
