"""The numbers of idempotent sending: a producer's id, and for each queue an epoch and the next number in it.

The broker keeps, for each queue, what a producer sent last. It takes a run whose first number is the one that it
expects, answers a repeat as it answered the first time, and refuses a gap. So numbers are given in the order in which
runs leave, are kept over retries, and must leave no gap:

    a run was definitely not stored, and its numbers are the last that were given     they are given back
    it will not be sent again, and may have been stored, or later numbers are given   the queue begins a new epoch

A new epoch begins at 0, and what the broker still hears of an old one it drops. Epochs rise over the whole producer,
but a queue begins a new one only when it has to: what is under way to other queues is not disturbed.

Pure. Bounds: one entry for each queue that was ever written.
"""

from __future__ import annotations

from typing import NamedTuple

from ..queue import Queue


class Numbers(NamedTuple):
    """The EPOCH of a run, and the number of its FIRST message."""

    epoch: int
    first: int


class Sequences:
    """Gives numbers for the producer PRODUCER_ID."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self._latest_epoch = 0
        #: Where the next run of each queue begins.
        self._next: dict[Queue, Numbers] = {}

    def give(self, queue: Queue, count: int) -> Numbers:
        """Return the numbers of the next COUNT messages of QUEUE."""
        numbers = self._next.get(queue, Numbers(self._latest_epoch, 0))
        self._next[queue] = Numbers(numbers.epoch, numbers.first + count)
        return numbers

    def give_back(self, queue: Queue, numbers: Numbers, count: int) -> bool:
        """Take back the NUMBERS of COUNT messages, if they are the last that were given in QUEUE."""
        if self._next.get(queue) != Numbers(numbers.epoch, numbers.first + count):
            return False
        self._next[queue] = numbers
        return True

    def begin_anew(self, queue: Queue) -> None:
        """Begin a new epoch in QUEUE."""
        self._latest_epoch += 1
        self._next[queue] = Numbers(self._latest_epoch, 0)

    def is_current(self, queue: Queue, numbers: Numbers) -> bool:
        """Tell whether NUMBERS are of the epoch in which QUEUE is now."""
        return self._next[queue].epoch == numbers.epoch

    @property
    def latest_epoch(self) -> int:
        """The newest epoch of any queue."""
        return self._latest_epoch
