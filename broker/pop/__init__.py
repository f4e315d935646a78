"""Pop consumption: messages are delivered one by one, and stay invisible until they are acknowledged or expire."""
