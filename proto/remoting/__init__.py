"""Apache RocketMQ's remoting protocol: commands, their frames, and the JSON of their bodies."""
