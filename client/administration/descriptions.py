"""Descriptions of topics, groups, queues and brokers: plain values, made from the replies of brokers. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...proto.gen import pocketmq_v1_pb2 as pb
from ..queue import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription:
    """One queue and the offsets of its messages: `min_offset` ≤ offset < `max_offset`."""

    queue: Queue
    """The queue."""
    min_offset: int
    """Offset of the oldest message."""
    max_offset: int
    """Offset after the newest message."""
    offset_at_time: int
    """Offset of the first message stored at or after the requested time; `max_offset` if there is
    none.
    """
    min_store_time_ms: int
    """When the oldest message was stored; −1: the queue is empty."""

    @property
    def message_count(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTraffic:
    """What producers have sent to a topic since its brokers started."""

    messages: int
    """Stored messages."""
    bytes: int
    """Bytes of their records."""
    failed: int
    """Batches that were refused, or not stored in time."""
    last_ms: int
    """When the last message was stored; 0: none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic with the settings of its first broker, and its queues on all brokers."""

    name: str
    """Name of the topic."""
    read_queues: int
    """Queues per broker that consumers read."""
    write_queues: int
    """Queues per broker that producers write."""
    permission: int
    """Sum of read 4, write 2, inherit 1."""
    type: str
    """NORMAL, FIFO, DELAY, TRANSACTION, MIXED, or "" for unspecified."""
    order: bool
    """Its messages are ordered by message group."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Attributes by name."""
    brokers: tuple[str, ...] = ()
    """Brokers that have the topic."""
    queues: tuple[QueueDescription, ...] = ()
    """Its queues on all brokers."""
    sent: TopicTraffic | None = None
    """What producers sent since the brokers started. None: not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A consumer group."""

    name: str
    """Name of the group."""
    retry_max_times: int
    """Retries before a message goes to the dead-letter queue."""
    retry_queues: int
    """Queues of the retry topic."""
    order: bool
    """The group consumes in order (FIFO)."""
    consume_enable: bool
    """Consumers may read."""
    retry_intervals_ms: tuple[int, ...] = ()
    """Delays before the first retry, the second, and so on; further retries use the last one. Empty: by delay level."""
    subscription_check: str = "grace"
    """What happens when members subscribe to different things: "grace", "warn" or "refuse"."""
    lite_topic: str = ""
    """The topic whose lite topics the group consumes; empty for an ordinary group."""
    lite_exclusive: bool = False
    """Each lite topic has one subscriber."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """The committed offset of a group in a queue."""

    queue: Queue
    """The queue."""
    offset: int
    """Offset of the next message to read; −1: never committed."""
    min_offset: int
    """Offset of the oldest message of the queue."""
    max_offset: int
    """Offset after the newest message of the queue."""

    @property
    def lag(self) -> int:
        """Number of stored messages that are not committed: all, if the group has never committed."""
        return max(0, self.max_offset - max(self.offset, self.min_offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """The state of a broker."""

    cluster: str
    """Name of the cluster."""
    broker_name: str
    """Name of the broker."""
    broker_id: int
    """Number of the broker; 0 is the master."""
    address: str
    """Address for clients."""
    version: str
    """Version of PocketMQ."""
    started_ms: int
    """When the process started, in Unix milliseconds."""
    min_log_offset: int
    """Offset of the oldest record of the commit log."""
    max_log_offset: int
    """Offset after the newest record of the commit log."""
    flushed_offset: int
    """Everything before this log offset is on disk."""
    dispatched_offset: int
    """Everything before this log offset is in the queues."""
    disk_used_ratio: float
    """Used part of the disk, 0 to 1."""
    store_path: str
    """Folder of the store."""
    recovery: str
    """What the last recovery found, as JSON."""
    rss_bytes: int
    """Resident memory of the process."""
    cpu_seconds: float
    """Processor time of the process."""
    writable: bool
    """Messages are accepted."""
    not_writable_because: str
    """Why they are not; empty if they are."""
    delayed_waiting: int
    """Scheduled messages that are not due yet."""
    transactions_open: int
    """Half messages whose transaction is neither committed nor rolled back."""
    now_ms: int
    """Time of the broker's clock for messages, in Unix milliseconds."""
    virtual_clock: bool
    """That clock moves only when you advance it."""
    epoch: int
    """Epoch of the replica set; 0: the broker has no replicas."""
    in_sync: int
    """Replicas that are in sync, the master included; 0: the broker has no replicas."""
    code: str
    """Which code reads and encodes batches: `core` (the C core) or `pure` (Python); empty: an older broker."""


def topic_description(
    config: pb.TopicConfig,
    brokers: Iterable[str],
    queues: Iterable[QueueDescription],
    sent: Sequence[pb.TopicSent] = (),
) -> TopicDescription:
    """Return the description of the topic with CONFIG on BROKERS. SENT has one entry per broker."""
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
        sent=TopicTraffic(
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
        subscription_check=group.subscription_check or "grace",
        lite_topic=group.lite_topic,
        lite_exclusive=group.lite_exclusive,
    )


def broker_description(status: pb.BrokerStatusReply) -> BrokerDescription:
    """Return the description of the broker that answered STATUS."""
    names = BrokerDescription.__dataclass_fields__
    return BrokerDescription(**{name: getattr(status, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member of a group, as the coordinator reports it."""

    member_id: str
    """Id of the member."""
    instance_id: str
    """Instance id of a static member; "" for others."""
    peer: str
    """Its address."""
    kind: str
    """"push" or "pull"."""
    room: str
    """Its data center or rack, if it has sent one."""
    subscriptions: tuple[str, ...]
    """What it reads: "orders", "orders: a || b"."""
    joined_ms: int
    """When it joined, in Unix milliseconds."""
    last_heard_ms: int
    """When its last request came, in Unix milliseconds."""
    is_leader: bool
    """It assigns the queues."""
    queues: tuple[Queue, ...]
    """Queues assigned to it. If each member computes its own share: the queues that it last
    reported.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterStats:
    """Messages of a queue that one filter has filtered out, so that the group does not get them."""

    filter: str
    """"a || b", an SQL expression, or "*"; "" is the sum of several filters that are no longer
    distinguished.
    """
    count: int
    """Number of skipped messages."""
    first: int
    """Offset of the first of them."""
    last: int
    """Offset of the last of them. Matching messages may be between the two."""
    members: tuple[str, ...]
    """Members that did not get them: the first three, the fourth entry is for all others."""
    at_ms: int
    """When the last of them was skipped, in Unix milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetReset:
    """An administrator reset the group's offset of a queue."""

    at_ms: int
    """When, in Unix milliseconds."""
    who: str
    """The administrator: "user@host (address)"."""
    from_offset: int | None
    """Offset before. None: the group had not started."""
    to_offset: int
    """Offset after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueue:
    """The progress of a group in one queue."""

    queue: Queue
    """The queue."""
    offset: int
    """Offset of the next message to read; −1: never committed."""
    metadata: str = ""
    """Text that a consumer committed with the offset; "": none."""
    min_offset: int
    """Offset of the oldest message of the queue."""
    max_offset: int
    """Offset after the newest message of the queue."""
    oldest_unread_ms: int
    """When the oldest unread message was stored; 0: all are read."""
    unread_bytes: int | None
    """Bytes of the unread records; None: so many that the broker has not added them up."""
    in_flight_count: int = 0
    """Popped messages that are not acknowledged."""
    popped_to: int = 0
    """Offset up to which the group has popped; 0: it has not."""
    purged_below: int = 0
    """Dead letters of the group below this offset were purged; 0: none were, or the queue has no
    dead letters.
    """
    processed_per_s: float | None
    """Processed messages per second between two looks; None: there was only one."""
    arrived_per_s: float | None
    """New messages per second between two looks; None: there was only one."""
    owner: str
    """Member that has the lease of the queue; "": none."""
    assigned_to: str
    """Member that the queue is assigned to; "": none."""
    filtered_count: int
    """Messages that filters skipped, each counted once."""
    lost_count: int = 0
    """Messages that the group skipped because they are damaged or deleted."""
    skipped: tuple[FilterStats, ...] = ()
    """`filtered_count` by filter."""
    moves: tuple[OffsetReset, ...] = ()
    """The last resets of the group's offset by administrators."""

    @property
    def first_offset(self) -> int:
        """The offset of the first message that counts. Purged dead letters do not count."""
        return max(self.min_offset, self.purged_below)

    @property
    def lag(self) -> int:
        """Number of stored messages that are not committed: all, if the group has never committed."""
        return max(0, self.max_offset - max(self.offset, self.first_offset))

    @property
    def ready(self) -> int:
        """Messages of the lag that no consumer has popped: the whole lag if the group does not pop."""
        return max(0, self.max_offset - max(self.offset, self.first_offset, self.popped_to))

    @property
    def catches_up_s(self) -> float | None:
        """Estimated seconds until the lag is 0, from the rates between the two looks; None: never, or unknown."""
        return catches_up_s(self.lag, self.processed_per_s, self.arrived_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """The members of a group, and its progress in all queues."""

    name: str
    """Name of the group."""
    coordinator: str
    """Broker that coordinates the group; "": no member has joined."""
    generation: int
    """Number of the current generation."""
    leader: str
    """Member that assigns the queues."""
    strategy: str
    """Name of the allocation strategy."""
    assigned_by_clients: bool
    """Each member computes its own share."""
    rebalance_count: int
    """Generations that the coordinator has started."""
    subscription_check: str
    """What happens when members subscribe to different things: "grace", "warn" or "refuse"."""
    grace_left_ms: int | None = None
    """Members subscribe to different things; after this time only the newest subscription is
    served. None: they do not.
    """
    members: tuple[GroupMember, ...]
    """Members of the group."""
    queues: tuple[GroupQueue, ...]
    """Queues that the group reads."""
    clients: tuple[GroupMember, ...] = ()
    """Official clients (apache.rocketmq.v2) that consume for the group."""
    hidden_topics: int = 0
    """Number of its topics that you may not see, on the broker that has most of them. They are left
    out.
    """

    @property
    def lag(self) -> int:
        """Number of stored messages that are not committed."""
        return sum(queue.lag for queue in self.queues)

    @property
    def oldest_unread_ms(self) -> int:
        """The highest `oldest_unread_ms` of its queues; 0: all are read."""
        return max((queue.oldest_unread_ms for queue in self.queues), default=0)

    @property
    def processed_per_s(self) -> float | None:
        return _sum(queue.processed_per_s for queue in self.queues)

    @property
    def arrived_per_s(self) -> float | None:
        return _sum(queue.arrived_per_s for queue in self.queues)

    @property
    def catches_up_s(self) -> float | None:
        """Estimated seconds until the lag of all queues is 0; None: never, or unknown."""
        times = [queue.catches_up_s for queue in self.queues]
        return None if None in times else max((one for one in times if one is not None), default=0)


def catches_up_s(
    lag: int, processed_per_s: float | None, arrived_per_s: float | None
) -> float | None:
    """Return the estimated seconds until LAG messages are processed while others arrive; None: never, or unknown."""
    if lag == 0:
        return 0.0
    if processed_per_s is None or arrived_per_s is None or processed_per_s <= arrived_per_s:
        return None
    return lag / (processed_per_s - arrived_per_s)


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if known or not found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The replies of the brokers at one time, by queue."""

    #: The time of the reply of each broker, by the clock of the client.
    at_ms: Mapping[str, int]
    committed: Mapping[Queue, int]
    #: Metadata of the committed offsets that have some.
    metadata: Mapping[Queue, str]
    bounds: Mapping[Queue, tuple[int, int]]
    #: Only in the first look.
    oldest_unread_ms: Mapping[Queue, int]
    unread_bytes: Mapping[Queue, int]
    #: Number of popped messages that are in flight, and the offset up to which the group has popped.
    in_flight: Mapping[Queue, tuple[int, int]]
    #: The offset below which dead letters of the group were purged.
    purged: Mapping[Queue, int]


def coordinating(states: Mapping[str, pb.GroupStateReply]) -> str:
    """Return the broker of STATES with the newest request of a member, which is the coordinator; "": none."""
    last_heard = {
        broker: max(member.last_heard_ms for member in state.members)
        for broker, state in states.items()
        if state.members
    }
    return max(last_heard, key=last_heard.__getitem__, default="")


def members_of(state: pb.GroupStateReply) -> tuple[GroupMember, ...]:
    """Return the members in STATE."""
    shares = {share.member_id: share.queues for share in state.shares}
    return tuple(
        GroupMember(
            member_id=one.member_id,
            instance_id=one.instance_id,
            peer=one.peer,
            kind=one.kind,
            room=one.room,
            subscriptions=tuple(map(_words, one.subscriptions)),
            joined_ms=one.joined_ms,
            last_heard_ms=one.last_heard_ms,
            is_leader=one.member_id == state.leader,
            queues=tuple(map(_queue, shares.get(one.member_id, one.held))),
        )
        for one in state.members
    )


def queues_of(
    states: Mapping[str, pb.GroupStateReply], looks: Sequence[Look]
) -> tuple[GroupQueue, ...]:
    """Return the progress of the group in each queue, from one look or two."""
    owners: dict[Queue, str] = {}
    assigned: dict[Queue, str] = {}
    filtered: dict[Queue, pb.FilteredCount] = {}
    nothing = pb.FilteredCount()
    for broker, state in states.items():
        owners |= {Queue(one.topic, broker, one.queue): one.member_id for one in state.leases}
        filtered |= {Queue(one.topic, broker, one.queue): one for one in state.filtered}
    chosen = states.get(coordinating(states))
    for share in chosen.shares if chosen is not None else ():
        assigned |= {_queue(one): share.member_id for one in share.queues}
    first, last = looks[0], looks[-1]
    found = []
    for queue in sorted(first.committed.keys() & last.committed.keys()):
        low, high = last.bounds[queue]
        seconds = (last.at_ms[queue.broker] - first.at_ms[queue.broker]) / 1000
        in_flight_count, popped_to = first.in_flight.get(queue, (0, 0))
        finished = last.committed[queue] - max(first.committed[queue], 0)
        account = filtered.get(queue, nothing)
        arrived = high - first.bounds[queue][1]
        found.append(
            GroupQueue(
                queue=queue,
                offset=last.committed[queue],
                metadata=last.metadata.get(queue, ""),
                min_offset=low,
                max_offset=high,
                oldest_unread_ms=first.oldest_unread_ms[queue],
                unread_bytes=first.unread_bytes.get(queue),
                in_flight_count=in_flight_count,
                popped_to=popped_to,
                purged_below=last.purged.get(queue, 0),
                processed_per_s=max(0, finished) / seconds if seconds > 0 else None,
                arrived_per_s=max(0, arrived) / seconds if seconds > 0 else None,
                owner=owners.get(queue, ""),
                assigned_to=assigned.get(queue, ""),
                filtered_count=account.count,
                lost_count=account.lost_count,
                skipped=tuple(map(_skipped, account.skipped)),
                moves=tuple(map(_move, account.moves)),
            )
        )
    return tuple(found)


def clients_of(states: Mapping[str, pb.GroupStateReply]) -> tuple[GroupMember, ...]:
    """Return the official clients of the group in STATES, each once."""
    found: dict[str, pb.Member] = {}
    for state in states.values():
        for one in state.official:
            known = found.setdefault(one.member_id, pb.Member())
            one.last_heard_ms = max(one.last_heard_ms, known.last_heard_ms)
            found[one.member_id] = one
    return tuple(
        GroupMember(
            member_id=one.member_id,
            instance_id="",
            peer=one.peer,
            kind=one.kind,
            room="",
            subscriptions=tuple(map(_words, one.subscriptions)),
            joined_ms=0,
            last_heard_ms=one.last_heard_ms,
            is_leader=False,
            queues=(),
        )
        for _, one in sorted(found.items())
    )


def _skipped(one: pb.SkippedBy) -> FilterStats:
    return FilterStats(
        filter="*" if one.kind == "ALL" else one.expression,
        count=one.count,
        first=one.first,
        last=one.last,
        members=tuple(one.members),
        at_ms=one.at_ms,
    )


def _move(one: pb.MovedBy) -> OffsetReset:
    before = one.before if one.before >= 0 else None
    return OffsetReset(at_ms=one.at_ms, who=one.who, from_offset=before, to_offset=one.after)


def _queue(held: pb.HeldQueue) -> Queue:
    return Queue(held.topic, held.broker_name, held.queue)


def _words(subscription: pb.Subscription) -> str:
    if subscription.filter.kind == pb.Filter.ALL:
        return subscription.topic
    return f"{subscription.topic}: {subscription.filter.expression}"
