"""PocketMQ: a RocketMQ-style message broker in one Python process."""

__version__ = "0.2.0"
