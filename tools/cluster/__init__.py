"""`pocketmq cluster`: the brokers that run, and the replica sets that ZooKeeper knows."""
