"""Sequence numbers of an idempotent producer, by which brokers recognise duplicates.

The broker accepts a batch that starts with the number it expects, answers a duplicate as it answered the original, and
refuses a gap. So numbers are assigned in the order in which batches leave, and are kept over retries. If a batch was
definitely not stored, its numbers are taken back; if others were assigned after them, or it may have been stored but is
not sent again, the queue starts a new epoch.
"""

from __future__ import annotations

from typing import NamedTuple

from ..queue import Queue


class BatchSequence(NamedTuple):
    """The EPOCH of a batch, and the number of its FIRST message."""

    epoch: int
    first: int


class SequenceAllocator:
    """Assigns numbers for the producer PRODUCER_ID. Each queue has its own; epochs rise over the whole producer.

    A new epoch starts at 0. Limit: one entry for each queue that was ever written.
    """

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self._latest_epoch = 0
        #: Where the next batch of each queue begins.
        self._next: dict[Queue, BatchSequence] = {}

    def give(self, queue: Queue, count: int) -> BatchSequence:
        """Return the sequence of the next COUNT messages of QUEUE."""
        sequence = self._next.get(queue, BatchSequence(self._latest_epoch, 0))
        self._next[queue] = BatchSequence(sequence.epoch, sequence.first + count)
        return sequence

    def take_back(self, queue: Queue, sequence: BatchSequence, count: int) -> bool:
        """Take back the SEQUENCE of COUNT messages, if they are the last that were given in QUEUE."""
        if self._next.get(queue) != BatchSequence(sequence.epoch, sequence.first + count):
            return False
        self._next[queue] = sequence
        return True

    def bump_epoch(self, queue: Queue) -> None:
        """Begin a new epoch in QUEUE."""
        self._latest_epoch += 1
        self._next[queue] = BatchSequence(self._latest_epoch, 0)

    def is_current(self, queue: Queue, sequence: BatchSequence) -> bool:
        """Tell whether SEQUENCE are of the epoch in which QUEUE is now."""
        return self._next[queue].epoch == sequence.epoch

    @property
    def latest_epoch(self) -> int:
        """The newest epoch of any queue."""
        return self._latest_epoch
