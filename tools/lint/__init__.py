"""`pocketmq lint`: likely mistakes in topics, groups and messages, from the files of stores or a cluster."""
