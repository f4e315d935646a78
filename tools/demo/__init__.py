"""`pocketmq demo`: PocketMQ's main operations on real data."""
