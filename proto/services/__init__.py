"""The services that every PocketMQ server has on its port in addition to its own: health, reflection, connections."""
