"""Services that every PocketMQ server has in addition to its own: health, reflection, connections, settings."""
