"""A transactional outbox: an order and its message are committed together; the message is sent later, and handled once.

python examples/outbox.py --nameserver 127.0.0.1:9876
"""

import argparse
import sqlite3
import time
from functools import partial
from tempfile import TemporaryDirectory
from uuid import uuid4

from pocketmq.client import Deduplicator, Message, Producer, PushConsumer, ReceivedMessage

TOPIC, GROUP = "example-outbox", "example-shipping"
ORDERS = 10


def relay(shop: sqlite3.Connection, producer: Producer) -> None:
    """Send the messages in the outbox. After a crash before the mark they are sent again, with the same keys."""
    for number, name in shop.execute("SELECT id, name FROM outbox WHERE NOT sent").fetchall():
        producer.send(Message(TOPIC, b"ship it", key=name))
        with shop:
            shop.execute("UPDATE outbox SET sent = 1 WHERE id = ?", (number,))


def main(nameserver: str, folder: str) -> None:
    shop, stock_file = sqlite3.connect(f"{folder}/shop"), f"{folder}/stock"
    connect = partial(sqlite3.connect, stock_file, check_same_thread=False)
    once, stock = Deduplicator(sqlite3, connect=connect), connect()

    @once.guard(key=lambda message: message.key)
    def ship(message: ReceivedMessage, stock: sqlite3.Connection) -> None:
        stock.execute("INSERT INTO shipped VALUES (?)", (message.key,))

    with shop, stock:
        shop.execute("CREATE TABLE orders (name TEXT)")
        shop.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY, name TEXT, sent INT DEFAULT 0)")
        stock.execute("CREATE TABLE shipped (name TEXT)")
        once.create_table(stock)
    for name in [uuid4().hex for _ in range(ORDERS)]:
        with shop:  # One transaction: the order is there with its message, or neither is.
            shop.execute("INSERT INTO orders VALUES (?)", (name,))
            shop.execute("INSERT INTO outbox (name) VALUES (?)", (name,))
    shipping = PushConsumer(GROUP, TOPIC, ship, nameserver, delivery="effectively_once")
    with Producer(nameserver) as producer, shipping:
        relay(shop, producer)
        shop.execute("UPDATE outbox SET sent = 0 WHERE id = 3")  # As after a crash.
        relay(shop, producer)
        while shipping.metrics().handled < ORDERS + 1:
            time.sleep(0.05)
    shipped = stock.execute("SELECT count(*), count(DISTINCT name) FROM shipped").fetchone()
    print(f"{ORDERS} orders, {ORDERS + 1} messages, {shipped[0]} shipments of {shipped[1]} orders")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", default="127.0.0.1:9876")
    with TemporaryDirectory() as where:
        main(parser.parse_args().nameserver, where)
