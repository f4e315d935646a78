"""What an admin tells of topics, groups, queues and brokers: plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...proto.gen import pocketmq_v1_pb2 as pb
from ..queue import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription:
    """One queue and the messages that it holds: `min_offset` ≤ offset < `max_offset`."""

    queue: Queue
    min_offset: int
    max_offset: int
    #: Of the first message stored at or after the instant asked for; max_offset if there is none.
    offset_at_time: int
    #: When the oldest message was stored; −1: the queue is empty.
    min_store_time_ms: int

    @property
    def message_count(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSent:
    """What producers sent to a topic since its brokers started."""

    messages: int
    #: Of their records.
    bytes: int
    #: Runs that were refused, or not stored in time.
    failed: int
    #: When the last message was stored; 0: none was.
    last_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as the first of its brokers has it, and its queues on all of them."""

    name: str
    #: Of each broker.
    read_queues: int
    write_queues: int
    #: The sum of read 4, write 2, inherit 1.
    permission: int
    #: NORMAL, FIFO, DELAY, TRANSACTION, MIXED, or "" for unspecified.
    type: str
    order: bool
    attributes: Mapping[str, str] = field(default_factory=dict)
    brokers: tuple[str, ...] = ()
    queues: tuple[QueueDescription, ...] = ()
    #: What producers sent since the brokers started: None where that was not asked for.
    sent: TopicSent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A consumer group."""

    name: str
    retry_max_times: int
    retry_queues: int
    #: FIFO.
    order: bool
    consume_enable: bool
    #: How long a message waits before its first retry, its second …; the last one repeats. None: by delay level.
    retry_intervals_ms: tuple[int, ...] = ()
    #: What becomes of a member that wants something else than the others: "refuse" or "warn".
    subscription_check: str = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """How far a group has come in a queue."""

    queue: Queue
    #: The next offset to consume; −1: never committed.
    offset: int
    min_offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        """Messages that are there and not finished: all, where the group never committed."""
        return max(0, self.max_offset - max(self.offset, self.min_offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """A broker's state."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    version: str
    started_ms: int
    min_log_offset: int
    max_log_offset: int
    flushed_offset: int
    dispatched_offset: int
    disk_used_ratio: float
    store_path: str
    #: What the last recovery found, as JSON.
    recovery: str
    rss_bytes: int
    cpu_seconds: float
    writable: bool
    not_writable_because: str
    #: Messages that wait for their time.
    delayed_waiting: int
    #: Half messages whose transaction has no outcome.
    transactions_open: int
    #: The time of its messages; VIRTUAL_CLOCK: it moves only when it is told to.
    now_ms: int
    virtual_clock: bool
    #: Of the master of a replica set: its epoch, and how many replicas are in sync, itself among them; 0: it has none.
    epoch: int
    in_sync: int


def topic_description(
    config: pb.TopicConfig,
    brokers: Iterable[str],
    queues: Iterable[QueueDescription],
    sent: Sequence[pb.TopicSent] = (),
) -> TopicDescription:
    """Return the description of the topic with CONFIG on BROKERS; SENT: to each of them."""
    return TopicDescription(
        name=config.name,
        read_queues=config.read_queues,
        write_queues=config.write_queues,
        permission=config.permission,
        type=config.type,
        order=config.order,
        attributes=dict(config.attributes),
        brokers=tuple(brokers),
        queues=tuple(queues),
        sent=TopicSent(
            messages=sum(one.messages for one in sent),
            bytes=sum(one.bytes for one in sent),
            failed=sum(one.failed_runs for one in sent),
            last_ms=max(one.last_ms for one in sent),
        )
        if sent
        else None,
    )


def queue_description(broker: str, offsets: pb.QueueOffsets) -> QueueDescription:
    """Return the description of a queue on BROKER."""
    return QueueDescription(
        queue=Queue(offsets.topic, broker, offsets.queue),
        min_offset=offsets.min_offset,
        max_offset=offsets.max_offset,
        offset_at_time=offsets.offset_at_time,
        min_store_time_ms=offsets.min_store_time_ms,
    )


def group_description(group: pb.GroupConfig) -> GroupDescription:
    """Return the description of GROUP."""
    return GroupDescription(
        name=group.name,
        retry_max_times=group.retry_max_times,
        retry_queues=group.retry_queues,
        order=group.order,
        consume_enable=group.consume_enable,
        retry_intervals_ms=tuple(group.retry_intervals_ms),
        subscription_check=group.subscription_check or "refuse",
    )


def broker_description(status: pb.BrokerStatusReply) -> BrokerDescription:
    """Return the description of the broker that answered STATUS."""
    names = BrokerDescription.__dataclass_fields__
    return BrokerDescription(**{name: getattr(status, name) for name in names})
