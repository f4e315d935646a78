"""Messages in flight of one lite topic for a group: always in order, one batch at a time."""

from __future__ import annotations

from ...proto.lite_topics import LITE_QUEUE, split_lite_queue
from .entries import OrderedQueue, PopEntry, PopQueue
from .ordered_table import OrderedTable
from .receives import ReceiveRequest
from .table import PopParts, Scanned


class LiteTable(OrderedTable):
    """The deliveries of the lite queue TOPIC to a group: all its messages are one lane."""

    def __init__(self, parts: PopParts, group: str, topic: str) -> None:
        super().__init__(parts, group, topic)
        names = split_lite_queue(topic)
        assert names is not None, "the name of a lite queue"
        self.counted_topic, self.lite_topic = names

    @property
    def is_idle(self) -> bool:
        """Is no message in flight, or waiting for one that is?"""
        return not any(queue.entries for queue in self.queues.values())

    @property
    def has_ready(self) -> bool:
        """Is there a message that can be delivered now?"""
        queue = self.queues.get(LITE_QUEUE)
        if queue is None:
            return True
        lanes = self._lanes.get(LITE_QUEUE)
        lane = None if lanes is None else lanes.find(b"")
        if lane is not None and (lane.batch or lane.held):
            return not lane.batch
        return queue.next_offset < self.parts.store.queue_bounds(self.topic, LITE_QUEUE)[1]

    def label(self, record: bytes) -> bytes:
        return b""

    def _scan(
        self, queue: PopQueue, asked: ReceiveRequest, taken: list[tuple[PopEntry, bytes]]
    ) -> bool:
        lane = self._lanes[LITE_QUEUE].find(b"") if LITE_QUEUE in self._lanes else None
        if lane is not None and (lane.held or (lane.batch and lane.turn != self.turn)):
            return False  # Its batch is in flight: later messages wait.
        return super()._scan(queue, asked, taken)

    def _look_after(self, lane: OrderedQueue, number: int) -> None:
        super()._look_after(lane, number)
        if not lane.batch and not self._is_taking:
            self.parts.wake((self.group, self.topic))

    def _stats(self, queue: PopQueue, scanned: Scanned, asked: ReceiveRequest) -> None:
        """Count nothing: the statistics have an entry for each queue, and lite topics are many."""
