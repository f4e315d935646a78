"""A stage of a pipeline that stops at any point and still makes one invoice of each order.

python examples/exactly_once.py --nameserver 127.0.0.1:9876
"""

import argparse

from pocketmq.client import Admin, Producer, PullConsumer

ORDERS, INVOICES, GROUP = "example-raw-orders", "example-invoices", "example-invoicing"
COUNT = 12


class Crash(Exception):
    """Ends a stage in the middle of its work."""


def stage(nameserver: str, producer: Producer, *, crash_at: int | None = None) -> int:
    """Make an invoice of each order that is there, a few in a commit; return how many were made."""
    made = 0
    with PullConsumer(GROUP, ORDERS, nameserver, auto_commit=False, max_poll_records=5) as consumer:
        while batch := consumer.poll(timeout_ms=3_000):
            # Both at the end of the block, or neither: the orders are finished, the invoices are there.
            with producer.atomic_commit(consumer) as commit:
                for order in batch:
                    commit.send(INVOICES, b"invoice of " + order.body, key=order.key)
                    if order.queue_offset == crash_at:
                        raise Crash
            made += len(batch)
    return made


def main(nameserver: str) -> None:
    with Admin(nameserver) as admin:
        for topic in (ORDERS, INVOICES):
            admin.create_topic(topic, queues=1)
    with Producer(nameserver) as producer:
        for number in range(COUNT):
            producer.send(ORDERS, b"order %d" % number, key=f"order-{number}")
        try:
            stage(nameserver, producer, crash_at=7)
        except Crash:
            print("crashed during the second commit")
        print(f"started again, {stage(nameserver, producer)} orders were left")
    with PullConsumer("example-readers", INVOICES, nameserver) as consumer:
        found = [invoice.key for invoice in consumer.messages(timeout_ms=3_000)]
    print(f"{COUNT} orders, {len(found)} invoices of {len(set(found))} orders")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", default="127.0.0.1:9876")
    main(parser.parse_args().nameserver)
