"""`pocketmq replicas`: replica sets in ZooKeeper."""
