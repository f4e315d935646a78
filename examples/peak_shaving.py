"""A peak of requests waits in the topic, and a service that takes 500 a second takes 500 a second.

python examples/peak_shaving.py --nameserver 127.0.0.1:9876
"""

import argparse
import time
from contextlib import suppress
from uuid import uuid4

from pocketmq.client import Admin, Message, Producer, PullConsumer
from pocketmq.proto.errors import TopicExists

TOPIC, GROUP = "example-requests", "example-service"
REQUESTS = 1_500
LIMIT_PER_S = 500
WINDOW_S = 0.1


def main(nameserver: str) -> None:
    run = uuid4().hex[:8].encode()
    with Admin(nameserver) as admin, suppress(TopicExists):
        admin.create_topic(TOPIC, queues=8)
    with Producer(nameserver) as producer:
        began_s = time.monotonic()
        producer.send_many(Message(TOPIC, run + b" %d" % number) for number in range(REQUESTS))
        accepted_s = time.monotonic() - began_s

    handled_of_window: list[int] = []
    window_began_s = began_s = time.monotonic()
    with PullConsumer(GROUP, TOPIC, nameserver) as consumer:
        while sum(handled_of_window) < REQUESTS and time.monotonic() - began_s < 60:
            room = round(LIMIT_PER_S * WINDOW_S)
            while room and (batch := consumer.poll(max_messages=room, timeout_ms=20)):
                room -= sum(body.startswith(run) for body in batch.bodies)
            handled_of_window.append(round(LIMIT_PER_S * WINDOW_S) - room)
            window_began_s += WINDOW_S
            time.sleep(max(0.0, window_began_s - time.monotonic()))
    took_s = time.monotonic() - began_s
    print(
        f"{REQUESTS} requests accepted in {accepted_s:.2f} s, {sum(handled_of_window)} handled in {took_s:.1f} s"
    )
    print(f"at most {max(handled_of_window) / WINDOW_S:.0f} a second")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", default="127.0.0.1:9876")
    main(parser.parse_args().nameserver)
