"""Users and permissions: Apache RocketMQ's ACL 2.0, for every server and for our own clients."""
