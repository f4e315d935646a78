"""`apache.rocketmq.v2.MessagingService`: what the official clients of RocketMQ 5 say, for the broker's own parts."""
