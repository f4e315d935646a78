"""What a consumer wants of a topic: tag expressions and SQL92 over properties, and their form on the wire. Pure."""
