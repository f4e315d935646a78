"""Scheduled messages on disk in RocketMQ's format: the timer wheel, its log, and the progress of both."""
