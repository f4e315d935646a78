"""A cluster without brokers: queues with bounds, offsets of groups, instants; it can lose queues and brokers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pocketmq.client.queue import Queue
from pocketmq.proto.errors import LeaseLost, TopicNotFound
from pocketmq.tools.spark.live.cluster import Bounds
from pocketmq.tools.spark.live.offsets import Offsets, RecordMark
from pocketmq.tools.spark.live.read_options import Choice

TOPIC = "orders"
BROKER = "broker-a"


def queue(number: int, broker: str = BROKER, topic: str = TOPIC) -> Queue:
    return Queue(topic, broker, number)


@dataclass
class FakeCluster:
    """Answers from QUEUES; each commit is noted in COMMITS."""

    queues: dict[Queue, Bounds] = field(default_factory=dict)
    offsets: dict[str, dict[Queue, int]] = field(default_factory=dict)
    commits: list[dict[Queue, int]] = field(default_factory=list)
    unregistered: set[str] = field(default_factory=set)
    #: Every message of a queue is stored this long after the one before, the first at 0.
    step_ms: int = 10
    is_leased: bool = False
    #: When the first message of a queue was stored, if not at 0.
    created_ms: dict[Queue, int] = field(default_factory=dict)
    #: How often marks were asked for.
    asked_marks: int = 0

    def bounds(self, choice: Choice, *, strict: bool) -> dict[Queue, Bounds]:
        found = {one: bounds for one, bounds in self.queues.items() if self._is_chosen(choice, one)}
        if strict and not found:
            raise TopicNotFound("none is there")
        return found

    def _is_chosen(self, choice: Choice, one: Queue) -> bool:
        if one.broker in self.unregistered:
            return False
        return one in choice.queues or one.topic in choice.topics or choice.matches(one.topic)

    def denied(self, queues: Iterable[Queue]) -> set[Queue]:
        there = {one for one in queues if one.broker not in self.unregistered}
        return there - set(self.queues)

    def at_times(self, times: Offsets) -> dict[Queue, int | None]:
        found: dict[Queue, int | None] = {}
        for one, time_ms in times.items():
            later_ms = max(0, time_ms - self.created_ms.get(one, 0))
            offset = max(self.queues[one].least, -(-later_ms // self.step_ms))
            found[one] = offset if offset < self.queues[one].end else None
        return found

    def marks(self, offsets: Offsets) -> dict[Queue, RecordMark]:
        self.asked_marks += 1
        return {
            one: self._mark(one, at - 1)
            for one, at in offsets.items()
            if self.queues[one].least < at <= self.queues[one].end
        }

    def _mark(self, one: Queue, number: int) -> RecordMark:
        stored_ms = self.created_ms.get(one, 0) + number * self.step_ms
        return RecordMark(stored_ms * 100, stored_ms)

    def recreate(self, one: Queue, count: int, created_ms: int = 1_000_000) -> None:
        """Have queue ONE be another one, with COUNT messages from 0 on."""
        self.created_ms[one] = created_ms
        self.queues[one] = Bounds(0, count)

    def committed(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        known = self.offsets.get(group, {})
        return {one: known[one] for one in queues if one in known}

    def commit(self, group: str, offsets: Offsets) -> None:
        if self.is_leased:
            raise LeaseLost("a member holds the queue")
        self.commits.append(dict(offsets))
        self.offsets.setdefault(group, {}).update(offsets)

    def grow(self, one: Queue, count: int) -> None:
        """Have COUNT more messages in queue ONE."""
        least, end = self.queues.get(one, Bounds(0, 0))
        self.queues[one] = Bounds(least, end + count)

    def expire(self, one: Queue, least: int) -> None:
        """Have no message of queue ONE before LEAST any more."""
        self.queues[one] = Bounds(least, max(least, self.queues[one].end))


def cluster_of(*ends: int, least: int = 0) -> FakeCluster:
    """Return a cluster with one topic, whose queues begin at LEAST and end at ENDS."""
    return FakeCluster({queue(number): Bounds(least, end) for number, end in enumerate(ends)})
