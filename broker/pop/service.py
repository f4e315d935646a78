"""Pop consumption: each message is delivered to one receive, and is in flight until it is acknowledged or expires.

    receive ─► table of (group, topic): due again, or not scanned yet ─► delivered, with a receipt handle
                  no message: waits, until one arrives, a lease expires, or its time is over
    acknowledge, change_invisible, forward_to_dead_letters     by the handle of the latest delivery

New messages go to the receive of the group and topic that has waited longest. The others are asked only while there are
more. A wait of 10 s or more ends up to 1/64 early, together with others.

Leases, attempts and redeliveries use the messages' time. The waits of receives and the liveness of clients use the
machine's. The event loop owns it.

Limits: `pop_in_flight_max` messages in flight, `fetches_waiting_max` receives that wait; more are refused (Overloaded).
A receive gets up to BATCH_MAX messages, and no more once they exceed `fetch_max_bytes` together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeAlias

from ...proto.errors import GroupInUse, PocketMQError, Unsupported
from ...proto.lite_topics import LITE_PREFIX, LITE_QUEUE, lite_queue_name, split_lite_queue
from ...proto.topics import retry_topic
from ...store.flush import Waiter
from ...store.format.state_tables import GroupConfig, TopicConfig
from ..config import BrokerConfig
from ..consumer_groups import Groups
from ..events import BrokerEvents
from ..messages.filters import Filters
from ..timing.purgatory import Purgatory
from ..topics import QUEUE_TYPE_ATTRIBUTE, TYPE_ATTRIBUTE, Topics
from .deliveries import DeliveryRow, PopKey, forgotten
from .entries import PopEntry, PopQueue
from .handles import decode_handle, encode_handle, finished
from .lite_receives import BIND_TOPIC, LiteReceives
from .lite_table import LiteTable
from .ordered_table import OrderedTable
from .receives import PopWaits, Receive, ReceiveRequest, ReceiveResult, Rules, TakenMessages
from .retry_table import RetryTable
from .table import PopParts, PopTable, times_of

BATCH_MAX: Final = 32
#: How long a group counts as popping after its last receive started.
POPS_MS: Final = 60_000
_PRIORITY: Final = "PRIORITY"
#: Called with the result of a receive.
Answer: TypeAlias = Callable[[ReceiveResult], None]


class PopService:
    """All groups that pop."""

    def __init__(  # noqa: PLR0913  (it uses all these parts)
        self,
        config: BrokerConfig,
        topics: Topics,
        groups: Groups,
        filters: Filters,
        purgatory: Purgatory,
        parts: PopParts,
        has_members: Callable[[str], bool] = lambda group: False,
        events: BrokerEvents | None = None,
    ) -> None:
        """Create it; `has_members` returns whether a group has members that share queues."""
        self._has_members = has_members
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._deliveries = parts.deliveries
        self._leases = parts.leases
        self._waits = PopWaits(config, purgatory, parts.leases.wall_ms)
        self._parts = replace(parts, wake=self._wake)
        self._tables: dict[tuple[str, str], PopTable] = {}
        #: Consumers of lite topics.
        self.lite = LiteReceives(config, self, self._parts, purgatory)
        #: When each group popped last, unless it has shared queues since.
        self._popped_ms: dict[str, int] = {}
        self._began = (events or BrokerEvents()).receive_began

    def arrived(self, topic: str) -> None:
        """Called when messages of a topic were stored."""
        self._waits.arrived(topic)
        self.lite.arrived()

    def _wake(self, key: tuple[str, str]) -> None:
        """Let receives that wait for messages of (group, topic) try again."""
        if key[1].startswith(LITE_PREFIX):
            self.lite.woken(*key)
        else:
            self._waits.wake(key)

    # --- starting

    def start(self) -> None:
        """Restore the messages in flight."""
        is_lower_valid = self._parts.store.last_stop_was_clean or self._deliveries.lacks_changes
        for key, queue in self._deliveries.found().items():
            if self._has_queue(key):
                table = self._table(key.group, key.topic, self._groups.is_ordered(key.group))
                table.restore(key.queue, queue, is_lower_valid=is_lower_valid)
            else:
                self._deliveries.note([forgotten(key)])
        self._deliveries.start(self.rows)

    def _has_queue(self, key: PopKey) -> bool:
        names = split_lite_queue(key.topic)
        return self._topics.has_queue(key.topic if names is None else names[0], key.queue)

    @property
    def in_flight(self) -> int:
        """The number of messages that are not finished."""
        return self._parts.in_flight

    def delivered(self, group: str, topic: str, queue: int) -> tuple[int, int]:
        """Return how many messages of a queue a group has got and not finished, and the offset after those scanned."""
        table = self._tables.get((group, topic))
        found = None if table is None else table.queues.get(queue)
        if found is None:
            return 0, 0
        entries = found.entries.values()
        count = sum(1 for entry in entries if entry.serial and not entry.acknowledged)
        return count, found.next_offset

    def unacknowledged(self) -> dict[str, int]:
        """Return how many messages each push consumer has got and not acknowledged, by client id."""
        return self._leases.unacknowledged()

    def is_in_flight(self, group: str, topic: str, handle: str) -> bool:
        """Is a handle valid, and its message not finished?"""
        try:
            return self._find(group, topic, handle)[1] is not None
        except PocketMQError:
            return False

    def has_some_left(self, group: str, topic: str) -> bool:
        """Has a topic messages for a group for which no receive waits?"""
        if self._waits.is_waiting((group, topic)):
            return False
        tables = (self._tables.get((group, name)) for name in (topic, retry_topic(group)))
        return any(table is not None and table.has_some() for table in tables)

    def rows(self) -> Iterator[DeliveryRow]:
        """Yield the rows of the table `deliveries`. The tables may change meanwhile."""
        for table in list(self._tables.values()):
            yield from table.rows()

    # --- receiving

    def receive(self, asked: ReceiveRequest, done: Answer) -> Receive | None:
        """Call `done` with the delivered messages, now or later, or with an error.

        Returns:
            The receive, if it waits.

        Raises:
            InvalidName, TopicNotFound: There is no such topic.
            NotReadable: Consumption of the topic or group is switched off.
            GroupInUse: Members of the group share its queues.
            Overloaded: Too many receives wait.
        """
        self._checked(asked)
        if self._left_ms(asked.group) <= 0:  # Otherwise no client can have become a member.
            self._check_alone(asked.group)
        if asked.group not in self._popped_ms:
            self._catch_up(asked.group)
        self._popped_ms[asked.group] = self._leases.wall_ms()
        for callback in self._began:
            done = callback(asked, done)
        if self.lite_parent(asked.group):
            return self.lite.receive(asked, self._groups.get(asked.group), done)
        receive = Receive(self, self._waits, asked, done)
        if receive.try_complete():
            # Messages that it moved to the dead-letter queue may have blocked others.
            self._waits.wake((asked.group, asked.topic))
            return None
        if asked.wait_ms <= 0:
            receive.on_deadline()
            return None
        self._waits.watch(receive)
        return receive

    def take(self, asked: ReceiveRequest) -> TakenMessages:
        """Deliver the messages that a receive can have now."""
        taken = self._take(asked)
        if taken.deliveries:
            # Handles stay valid after a kill.
            self._deliveries.write()
        return taken

    def queues(self) -> Iterator[PopQueue]:
        """Yield every queue that a group pops, without lite queues."""
        for table in self._tables.values():
            if not table.lite_topic:
                yield from table.queues.values()

    def _take(self, asked: ReceiveRequest) -> TakenMessages:
        group, topic = self._checked(asked)
        table = self._table(asked.group, asked.topic, group.consume_message_orderly)
        table.turn += 1
        rules = _rules_of(group, topic, table.turn)
        retries = self._retries(asked.group)
        if retries is None or retries is table:
            return table.take(asked, rules)
        # Messages that were returned before the group popped are no news.
        queues = range(self._queues(retries.topic))
        first = retries.take(asked, rules._replace(queues=queues, from_oldest=True))
        room = asked.batch - len(first.deliveries) - first.dead_lettered
        if room <= 0:
            return first
        try:
            then = table.take(replace(asked, batch=room), rules)
        except PocketMQError:
            if first.deliveries:
                return first
            raise
        return TakenMessages(
            [*first.deliveries, *then.deliveries],
            first.dead_lettered + then.dead_lettered,
            then.more,
        )

    def _retries(self, group: str) -> PopTable | None:
        """Return the table of a group's retry topic, if that exists."""
        topic = retry_topic(group)
        queues = self._queues(topic)
        if not queues:
            return None
        return self._table(group, topic, False)

    def _queues(self, topic: str) -> int:
        """Return how many queues a topic has; 0 if it does not exist."""
        return self._topics.get(topic).read_queues if self._topics.has_queue(topic, 0) else 0

    def scan_more(self, receive: Receive) -> None:
        """Continue the scan of a receive, which found nothing yet, in a later turn of the loop."""
        self._filters.go_on(receive.scan_more)

    def _checked(self, asked: ReceiveRequest) -> tuple[GroupConfig, TopicConfig]:
        """Return group and topic of a receive that is permitted."""
        topic = self._topics.for_reading(asked.topic, 0)
        if topic.attributes.get(QUEUE_TYPE_ATTRIBUTE) == "BatchCQ":
            raise Unsupported(
                f"topic {topic.name!r} has batch queues ({QUEUE_TYPE_ATTRIBUTE}=BatchCQ), whose messages are not"
                " acknowledged one by one: use a topic with plain queues",
                topic=topic.name,
            )
        group = self._groups.ensure(asked.group)
        self._groups.check_consuming(group.name)
        return group, topic

    def _table(self, group: str, topic: str, ordered: bool) -> PopTable:
        """Return the table of a group and topic; create it if there is none, or if it has the other order."""
        table = self._tables.get((group, topic))
        if ordered and topic == retry_topic(group):
            ordered = False
        if table is None or table.is_ordered != ordered:
            made = _kind_of(group, topic, ordered)(self._parts, group, topic)
            if table is not None:
                made.take_over(table)
            table = self._tables[group, topic] = made
        return table

    # --- lite topics

    def lite_parent(self, group: str) -> str:
        """Return the topic whose lite topics a group consumes; "" for an ordinary group."""
        found = self._groups.find(group)
        return "" if found is None else found.attributes.get(BIND_TOPIC, "")

    def lite_table(self, group: str, name: str) -> LiteTable:
        """Return the table of the lite queue NAME for a group; create it if there is none."""
        table = self._table(group, name, True)
        assert isinstance(table, LiteTable)
        return table

    def known_lite_table(self, group: str, name: str) -> LiteTable | None:
        """Return the table of the lite queue NAME for a group; None if there is none."""
        table = self._tables.get((group, name))
        return table if isinstance(table, LiteTable) else None

    def drop_lite_table(self, group: str, name: str) -> None:
        """Drop the table of the lite queue NAME if nothing is in flight: committed offsets are enough then."""
        table = self.known_lite_table(group, name)
        if table is not None and table.is_idle:
            del self._tables[group, name]
            self._deliveries.note([forgotten(PopKey(group, name, one)) for one in table.queues])

    def rules_of_lite(self, asked: ReceiveRequest) -> Rules:
        """Return the rules for lite topics of the topic of a receive."""
        group, _ = self._checked(asked)
        return Rules(max(1, group.retry_times_max + 1), (LITE_QUEUE,))

    # --- one group, one way

    def _check_alone(self, group: str) -> None:
        """Raise GroupInUse if members of a group share queues: they would finish messages in flight."""
        if self._has_members(group):
            raise GroupInUse(
                f"group {group!r} has members that share its queues (PocketMQ or RocketMQ 4.x clients), and cannot pop"
                " as well: stop them, or use another group",
                group=group,
            )

    def check_not_popped(self, group: str) -> None:
        """Raise GroupInUse if a group pops: its queues cannot be shared as well."""
        left_ms = self._left_ms(group)
        if left_ms > 0:
            raise GroupInUse(
                f"group {group!r} has official clients that pop, and cannot share queues as well: stop them and try"
                f" again in {left_ms} ms, or use another group",
                group=group,
            )
        self._popped_ms.pop(group, None)

    def _left_ms(self, group: str) -> int:
        """Return how long a group, if it pops, must not share queues."""
        popped_ms = self._popped_ms.get(group)
        return 0 if popped_ms is None else popped_ms + POPS_MS - self._leases.wall_ms()

    def _catch_up(self, group: str) -> None:
        """Continue at the offsets that members may have committed since the group popped last."""
        for table in [table for key, table in self._tables.items() if key[0] == group]:
            table.catch_up()

    # --- finishing

    def acknowledge(self, group: str, topic: str, handle: str) -> None:
        """Finish the message of a handle; twice is once. Raises InvalidReceiptHandle."""
        table, entry = self._find(group, topic, handle)
        if entry is not None:
            table.finish(entry)
            if table.lite_topic:
                self.drop_lite_table(group, table.topic)

    def change_invisible(
        self, group: str, topic: str, handle: str, invisible_ms: int, *, suspend: bool = False
    ) -> str:
        """Redeliver the message of a handle in `invisible_ms` (0: at once), and return its new handle.

        The old handle is invalid then. With `suspend`, the next delivery is the same attempt.

        Raises:
            InvalidReceiptHandle: The handle is not that of the latest delivery, or the message is finished.
        """
        table, entry = self._find(group, topic, handle)
        if entry is None:
            raise finished(handle)
        serial = table.change(entry, invisible_ms, suspend=suspend)
        is_retry = table.topic != topic
        lite_topic = table.lite_topic
        return encode_handle(is_retry, entry.queue.key.queue, entry.offset, serial, lite_topic)

    def renewed_attempt(self, group: str, topic: str, handle: str) -> int:
        """Return the attempt of a handle's delivery, if its lease renews; 0 otherwise. Raises InvalidReceiptHandle."""
        table, entry = self._find(group, topic, handle)
        if entry is None or entry.lease is None or not entry.lease.ends_ms:
            return 0
        data = table.read(entry)
        return 0 if data is None else times_of(entry, data)

    def forward_to_dead_letters(self, group: str, topic: str, handle: str, reason: str) -> None:
        """Move the message of a handle to the dead-letter queue; a second call makes no second copy.

        Raises:
            InvalidReceiptHandle: The handle is not that of the latest delivery.
            PocketMQError: The message could not be copied.
        """
        table, entry = self._find(group, topic, handle)
        if entry is None:
            return
        data = table.read(entry)
        if data is None:
            table.finish(entry)
            return
        self._parts.make_dead_letter(data, group, reason, times_of(entry, data))
        table.finish(entry, is_dead=True)
        if table.lite_topic:
            self.drop_lite_table(group, table.topic)

    def when_safe(self, done: Waiter) -> None:
        """Call `done`, with None or the error, once all changes are as safe as `store.flush` promises.

        With async, they survive a kill of the process then. Do not answer before.
        """
        self._deliveries.when_safe(done)

    def when_durable(self, done: Waiter) -> None:
        """Call `done`, with None or the error, once all changes are on disk."""
        self._deliveries.when_durable(done)

    def has_popped(self, group: str, topic: str) -> bool:
        """Has a group got messages of a topic by receives?"""
        return (group, topic) in self._tables

    def _find(self, group: str, topic: str, handle: str) -> tuple[PopTable, PopEntry | None]:
        found = decode_handle(handle)
        if found.is_retry:
            topic = retry_topic(group)
        elif found.lite_topic:
            topic = lite_queue_name(topic, found.lite_topic)
            if self._parts.store.queues.lite.get(topic) is None:
                raise finished(handle)
        table = self._tables.get((group, topic)) or _kind_of(group, topic, False)(
            self._parts, group, topic
        )
        entry = table.find(found)
        # Only a handle of a delivery may create a table.
        if found.lite_topic and entry is None:
            return table, entry
        return self._tables.setdefault((group, topic), table), entry

    # --- clients

    def client_alive(self, client_id: str) -> None:
        """Renew the leases of a client that is connected."""
        self._leases.alive(client_id)

    def client_gone(self, client_id: str) -> None:
        """End the receives of a client that has gone, and redeliver its messages with auto-renewal in a second."""
        self._waits.end_of(client_id)
        self.lite.client_gone(client_id)
        self._leases.gone(client_id)

    # --- topics, groups and messages that are deleted

    def forget_topic(self, topic: str) -> None:
        """Forget the messages in flight of a topic that is deleted. Raises StoreFull; then do not delete it."""
        lite = (split_lite_queue(key[1]) or ("",) for key in self._tables)
        named = zip(list(self._tables), [names[0] for names in lite], strict=True)
        self._forget([key for key, parent in named if topic in (key[1], parent)])

    def forget_group(self, group: str) -> None:
        """Forget the messages in flight of a group that is deleted. Raises StoreFull; then do not delete it."""
        self._forget([key for key in self._tables if key[0] == group])
        self._popped_ms.pop(group, None)
        self.lite.forget_group(group)
        self._parts.traffic.forget_group(group)

    def _forget(self, keys: list[tuple[str, str]]) -> None:
        if not keys:
            return
        # A kill must not bring them back for a topic or a group of the same name: it would skip messages.
        self._deliveries.write_all()
        for group, topic in keys:
            table = self._tables.pop((group, topic))
            numbers = list(table.queues)
            self._deliveries.note([forgotten(PopKey(group, topic, one)) for one in numbers])
            for number in numbers:
                table.drop(number)
        self._deliveries.write_all()
        self._deliveries.sync()

    def retain(self) -> None:
        """Finish messages that retention has deleted."""
        for table in list(self._tables.values()):
            table.retain()

    def moved(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Restart a group, if it pops, at an offset that was reset.

        Raises StoreFull if a kill could bring back the earlier offset, at which the group would skip messages.
        """
        if self.has_popped(group, topic):
            self.check_kept(group)
            self.move(group, topic, queue, offset)
            self._deliveries.write_all()

    def check_kept(self, group: str) -> None:
        """Raise StoreFull if GROUP uses pop, and its messages in flight cannot be written now."""
        if any(key[0] == group for key in self._tables):
            self._deliveries.write_all()

    def move(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Restart a group at an offset of a queue: all messages below are finished, and none is in flight."""
        self._table(group, topic, self._groups.is_ordered(group)).move(queue, offset)


def _kind_of(group: str, topic: str, ordered: bool) -> type[PopTable]:
    if topic.startswith(LITE_PREFIX):
        return LiteTable
    if topic == retry_topic(group):
        return RetryTable
    return OrderedTable if ordered else PopTable


def _rules_of(group: GroupConfig, topic: TopicConfig, turn: int) -> Rules:
    """Return the rules of a group and topic for its receive number `turn`."""
    queues = topic.read_queues
    if topic.attributes.get(TYPE_ATTRIBUTE) == _PRIORITY and not group.consume_message_orderly:
        order: list[int] | range = range(queues - 1, -1, -1)
    else:
        first = turn % queues
        order = [*range(first, queues), *range(first)]
    return Rules(max(1, group.retry_times_max + 1), order, group.consume_from_min_enable)
