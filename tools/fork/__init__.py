"""A store as it was at a moment, as a store of its own beside the first."""
