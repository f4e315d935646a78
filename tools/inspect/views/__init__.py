"""The sub-views of `pocketmq inspect STORE`: a file a view."""
