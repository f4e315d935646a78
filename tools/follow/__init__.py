"""`pocketmq follow` and `promote`: a store that takes the log of a Java broker, and then its place."""
