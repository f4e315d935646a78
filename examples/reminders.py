"""Reminders are delivered when they are due, with millisecond resolution; one is recalled before.

python examples/reminders.py --nameserver 127.0.0.1:9876
"""

import argparse
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Event
from uuid import uuid4

from pocketmq.client import Admin, Message, Producer, PushConsumer, ReceivedMessage
from pocketmq.proto.errors import TopicExists

TOPIC, GROUP = "example-reminders", "example-calendar"
LEVEL_1_MS = 1_000


def main(nameserver: str) -> None:
    run = uuid4().hex[:8]
    late_ms: dict[str, int] = {}
    all_came = Event()

    def remind(message: ReceivedMessage) -> None:
        if message.key != run:
            return  # From an earlier run.
        # A message with a delay level has no delivery time: the level counts from the sending.
        due_ms = message.due_ms or message.born_timestamp_ms + LEVEL_1_MS
        late_ms[message.body.decode()] = message.store_timestamp_ms - due_ms
        if len(late_ms) == 3:
            all_came.set()

    with Admin(nameserver) as admin, suppress(TopicExists):
        admin.create_topic(TOPIC, type="DELAY")
    with PushConsumer(GROUP, TOPIC, remind, nameserver), Producer(nameserver) as producer:
        # After a delay, at a time, or after one of the broker's delay levels (the first: 1 s).
        producer.send(Message(TOPIC, b"tea is ready", key=run, delay="1500ms"))
        at = datetime.now(UTC) + timedelta(seconds=2)
        producer.send(Message(TOPIC, b"the bus leaves", key=run, deliver_at=at))
        producer.send(Message(TOPIC, b"look at the oven", key=run, delay_level=1))
        dentist = producer.send(Message(TOPIC, b"the dentist", key=run, delay="1h"))
        producer.recall(dentist)
        assert all_came.wait(30), "the reminders did not come"
    for reminder, late in late_ms.items():
        print(f"{reminder}: {late} ms late")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", default="127.0.0.1:9876")
    main(parser.parse_args().nameserver)
