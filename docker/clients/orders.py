"""Send an order and receive one, with Apache RocketMQ's own Python client: `python orders.py 127.0.0.1:8081`."""

import sys

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

configuration = ClientConfiguration(sys.argv[1], Credentials())
producer = Producer(configuration, ["orders"])
producer.startup()
message = Message()
message.topic = "orders"
message.body = b"an order, from Python"
print("sent", producer.send(message).message_id, flush=True)
producer.shutdown()

consumer = SimpleConsumer(configuration, "billing", {"orders": FilterExpression()})
consumer.startup()
received = []
while not received:
    received = consumer.receive(1, 15)
for one in received:
    print("received", one.body.decode(), flush=True)
    consumer.ack(one)
consumer.shutdown()
