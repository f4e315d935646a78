"""`pocketmq diff`: compares two stores by what they mean."""
