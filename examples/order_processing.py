"""Charges orders. A failed message is retried a second later; one that always fails ends in the dead-letter queue.

python examples/order_processing.py --nameserver 127.0.0.1:9876
"""

import argparse
import time
from contextlib import suppress
from threading import Event
from uuid import uuid4

from pocketmq.client import Admin, Message, Producer, PushConsumer, ReceivedMessage
from pocketmq.proto.errors import TopicExists

TOPIC, GROUP = "example-orders", "example-billing"
ORDERS = 20


def main(nameserver: str) -> None:
    run = uuid4().hex[:8]
    charged: dict[str, int] = {}
    all_but_one_charged = Event()

    def charge(message: ReceivedMessage) -> None:
        if not (message.key or "").startswith(run):
            return  # From an earlier run.
        number = int(message.body)
        if number == 13:
            raise ValueError("no such account")
        if number % 5 == 0 and message.reconsume_times == 0:
            raise TimeoutError("the bank did not answer")
        charged[message.key or ""] = message.reconsume_times
        if len(charged) == ORDERS - 1:
            all_but_one_charged.set()

    def is_13(message: ReceivedMessage) -> bool:
        return message.key == f"{run}-13"

    with Admin(nameserver) as admin:
        with suppress(TopicExists):
            admin.create_topic(TOPIC)
        # A message that failed waits for a second, and is dead after two retries.
        admin.create_group(GROUP, retry_intervals_ms=[1_000], retry_max_times=2)
        with PushConsumer(GROUP, TOPIC, charge, nameserver), Producer(nameserver) as producer:
            for number in range(ORDERS):
                producer.send(Message(TOPIC, b"%d" % number, key=f"{run}-{number}"))
            assert all_but_one_charged.wait(60), "the orders did not come"
            while not (dead := [one for one in admin.dead_letters(GROUP) if is_13(one.message)]):
                time.sleep(0.1)
    print(
        f"{len(charged)} orders charged, {sum(map(bool, charged.values()))} of them at the second try"
    )
    print(f"{len(dead)} dead letter: order {dead[0].message.body.decode()}: {dead[0].reason}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", default="127.0.0.1:9876")
    main(parser.parse_args().nameserver)
