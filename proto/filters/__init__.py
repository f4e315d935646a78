"""Filters of consumers: tag expressions and SQL92 over properties, and their encoding. No input or output."""
