"""Events of each account are processed in the order in which they were sent, different accounts at the same time.

python examples/ordered_events.py --nameserver 127.0.0.1:9876
"""

import argparse
from collections import defaultdict
from contextlib import suppress
from threading import Event
from uuid import uuid4

from pocketmq.client import Admin, Message, Producer, PushConsumer, ReceivedMessage
from pocketmq.proto.errors import TopicExists

TOPIC, GROUP = "example-accounts", "example-ledger"
ACCOUNTS, EVENTS = 10, 50


def main(nameserver: str) -> None:
    run = uuid4().hex[:8]
    seen: dict[str, list[int]] = defaultdict(list)
    tried: set[str] = set()
    complete = Event()

    def book(message: ReceivedMessage) -> None:
        account = message.key or ""
        if not account.startswith(run):
            return  # From an earlier run.
        number = int(message.body)
        if number % 20 == 7 and f"{account} {number}" not in tried:
            tried.add(f"{account} {number}")
            # The account waits until this event is processed; other accounts continue.
            raise TimeoutError("the ledger is busy")
        seen[account].append(number)
        if sum(map(len, seen.values())) == ACCOUNTS * EVENTS:
            complete.set()

    with Admin(nameserver) as admin, suppress(TopicExists):
        admin.create_topic(TOPIC, queues=4)
    consumer = PushConsumer(
        GROUP, TOPIC, book, nameserver, ordered=True, suspend_current_queue_ms=50
    )
    with consumer, Producer(nameserver) as producer:
        for number in range(EVENTS):
            for account in range(ACCOUNTS):
                name = f"{run}-account-{account}"
                # The sharding key puts all events of an account into one queue.
                producer.send(Message(TOPIC, b"%d" % number, key=name, sharding_key=name))
        assert complete.wait(60), "the events did not come"
    in_order = sum(numbers == list(range(EVENTS)) for numbers in seen.values())
    print(
        f"{in_order} of {ACCOUNTS} accounts have their {EVENTS} events in order, {len(tried)} after a failure"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", default="127.0.0.1:9876")
    main(parser.parse_args().nameserver)
