"""Sequence numbers of an idempotent producer. Brokers recognise duplicates by them.

The broker accepts a batch that starts with the number it expects, answers a duplicate as it answered the original, and
refuses a gap. So the producer assigns numbers in the order in which it sends batches, and retries keep them. If a batch
was definitely not stored, its numbers are released. The queue starts a new epoch if later numbers are assigned already,
or if the batch may have been stored but is not sent again.
"""

from __future__ import annotations

from typing import NamedTuple

from ..queue import Queue


class BatchSequence(NamedTuple):
    """The EPOCH of a batch, and the number of its FIRST message."""

    epoch: int
    first: int


class SequenceAllocator:
    """Assigns the sequence numbers of one producer.

    Each queue has its own numbers, which start at 0 in each epoch. A new epoch is higher than all epochs of the
    producer before. Limit: one entry per queue that was sent to.
    """

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self._latest_epoch = 0
        #: The sequence of the next batch of each queue.
        self._next: dict[Queue, BatchSequence] = {}

    def allocate(self, queue: Queue, count: int) -> BatchSequence:
        """Assign the sequence of the next COUNT messages of QUEUE."""
        sequence = self._next.get(queue, BatchSequence(self._latest_epoch, 0))
        self._next[queue] = BatchSequence(sequence.epoch, sequence.first + count)
        return sequence

    def release(self, queue: Queue, sequence: BatchSequence, count: int) -> bool:
        """Release the SEQUENCE of COUNT messages if it is the last one of QUEUE. Return whether it was released."""
        if self._next.get(queue) != BatchSequence(sequence.epoch, sequence.first + count):
            return False
        self._next[queue] = sequence
        return True

    def bump_epoch(self, queue: Queue) -> None:
        """Start a new epoch in QUEUE."""
        self._latest_epoch += 1
        self._next[queue] = BatchSequence(self._latest_epoch, 0)

    def is_current(self, queue: Queue, sequence: BatchSequence) -> bool:
        """Return whether SEQUENCE is of the present epoch of QUEUE."""
        return self._next[queue].epoch == sequence.epoch

    @property
    def latest_epoch(self) -> int:
        """The newest epoch of any queue."""
        return self._latest_epoch
