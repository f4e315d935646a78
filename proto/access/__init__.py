"""Users and permissions: Apache RocketMQ's ACL 2.0, for all servers and for PocketMQ's clients."""
