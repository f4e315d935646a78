"""The `pocketmq` command: one file a verb."""
