"""Messages that come while a test does something else: numbers, from 0 on."""

from __future__ import annotations

import threading

from pocketmq.client import Producer


class Load:
    """Sends RATE numbers to TOPIC fifty times a second, from a thread of its own, for the time of a `with` block."""

    def __init__(self, nameserver: str, topic: str, rate: int = 50) -> None:
        self._nameserver = nameserver
        self._topic = topic
        self._rate = rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        #: So many were acknowledged.
        self.count = 0
        #: Set once some were.
        self.begun = threading.Event()

    def _send(self) -> None:
        with Producer(self._nameserver) as producer:
            while not self._over.wait(0.02):
                numbers = range(self.count, self.count + self._rate)
                producer.send_many(self._topic, [b"%d" % at for at in numbers])
                self.count = numbers.stop
                self.begun.set()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
