"""A store as it was at a moment, as another store."""
