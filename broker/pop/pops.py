"""Pop: messages are lent to whoever asks for some, one by one, until each is acknowledged or its time is over.

    receive ─► table of (group, topic): due again, or not looked at yet ─► lent, with a receipt handle
                  nothing there: waits, until something arrives, a lease lapses, or its time is over
    acknowledge, change_invisible, forward_to_dead_letters     by the handle of the latest delivery

Receives of one group and topic that wait want the same: what arrives goes to the one that has waited longest, and
the others are asked only while there is more. A wait of 10 s or more ends up to 1/64 before its time, with others.

Leases, attempts and when a message comes again are in messages' time; how long a receive waits, and whether clients
live, is in the machine's. The event loop owns it.

Bounds: `pop_in_flight_max` messages in flight, `fetches_waiting_max` receives that wait; further ones are refused
(Overloaded). BATCH_MAX messages a receive, of `fetch_bytes_max` together, or one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ...proto.errors import NotReadable, Overloaded
from ...store.state_tables import GroupConfig, TopicConfig
from ..config import BrokerConfig
from ..filters.filters import Filters
from ..groups import Groups
from ..topics import TYPE_ATTRIBUTE, Topics
from ..waiting import Purgatory
from .asked import Asked, Popped
from .changes import Change, Forgotten, Found
from .entries import Entry
from .handles import decode_handle, encode_handle, finished
from .ordered import OrderedTable
from .parts import PopParts, Rules, Taken
from .receive import Receive
from .table import Table, times_of

BATCH_MAX: Final = 32
#: Waits of _LONG_WAIT_MS or more end in bunches: each is shorter than asked for by less than this part of it.
_WAIT_PARTS: Final = 64
_LONG_WAIT_MS: Final = 10_000
_PRIORITY: Final = "PRIORITY"


class Pops:
    """All groups that pop."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        groups: Groups,
        filters: Filters,
        purgatory: Purgatory,
        parts: PopParts,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._purgatory = purgatory
        self._parts = parts
        self._journal = parts.journal
        self._leases = parts.leases
        parts.wake = self._wake
        self._tables: dict[tuple[str, str], Table] = {}
        #: The groups whose receives of a topic wait.
        self._waiting: dict[str, set[tuple[str, str]]] = {}
        self._of_client: dict[str, dict[Receive, None]] = {}
        #: Raises GroupInUse for a group whose members share queues.
        self.check_pops: Callable[[str], None] = lambda group: None

    # --- beginning and ending

    def start(self) -> None:
        """Find again what is in flight."""
        found = Found(self._journal.replay())
        clean = self._parts.store.recovery.clean
        for key, queue in found.queues.items():
            if self._topics.has_queue(key.topic, key.queue):
                table = self._table(key.group, key.topic, self._groups.is_ordered(key.group))
                table.restore(key.queue, queue, clean=clean)
        self._journal.start(self._changes)

    def close(self) -> None:
        """Keep what is in flight."""
        self._journal.close()

    def _changes(self) -> Iterator[Change]:
        for table in self._tables.values():
            yield from table.changes()

    # --- receiving

    def receive(self, asked: Asked, done: Callable[[Popped], None]) -> Receive | None:
        """Tell DONE what is delivered, now or later; return the receive that waits, None if it is over.

        Raises InvalidName, TopicNotFound, NotReadable (the topic, or a group that is switched off), GroupInUse, or
        Overloaded if too many wait already. What goes wrong later DONE is told.
        """
        self._checked(asked)
        self.check_pops(asked.group)
        receive = Receive(self, asked, done)
        if receive.try_complete():
            # What it has put away may have been in the way of others.
            self._wake((asked.group, asked.topic))
            return None
        if asked.wait_ms <= 0:
            receive.on_deadline()
            return None
        self._watch(receive)
        return receive

    def _watch(self, receive: Receive) -> None:
        """Have RECEIVE wait."""
        asked = receive.asked
        limit = self._config.fetches_waiting_max
        if len(self._purgatory) >= limit:
            raise Overloaded(
                f"{len(self._purgatory)} receives and fetches wait, the limit is {limit}: use fewer consumers, or raise"
                " broker.fetches_waiting_max",
                field="fetches_waiting_max",
                limit=limit,
            )
        deadline_ms = _together(self._leases.wall_ms() + asked.wait_ms, asked.wait_ms)
        key = (asked.group, asked.topic)
        receive.waiting = self._purgatory.watch(receive, key, deadline_ms)
        self._waiting.setdefault(asked.topic, set()).add(key)
        self._of_client.setdefault(asked.client_id, {})[receive] = None

    def take(self, asked: Asked) -> Taken:
        """Deliver what there is for ASKED."""
        group, topic = self._checked(asked)
        table = self._table(asked.group, asked.topic, group.consume_message_orderly)
        table.turn += 1
        return table.take(asked, _rules_of(group, topic, table.turn))

    def look_on(self, receive: Receive) -> None:
        """Have RECEIVE, which found nothing yet, look on in a later turn of the loop."""
        self._filters.go_on(receive.look_on)

    def try_again(self, receive: Receive) -> bool:
        """Have RECEIVE try again; return whether it was still there."""
        return receive.waiting is not None and self._purgatory.try_again(receive.waiting)

    def over(self, receive: Receive) -> None:
        """Hear that RECEIVE, which may have waited, is over."""
        client_id = receive.asked.client_id
        owned = self._of_client.get(client_id)
        if owned is None or receive not in owned:
            return
        del owned[receive]
        if not owned:
            del self._of_client[client_id]

    def _checked(self, asked: Asked) -> tuple[GroupConfig, TopicConfig]:
        """Return group and topic of ASKED, if it may be served."""
        topic = self._topics.for_reading(asked.topic, 0)
        group = self._groups.ensure(asked.group)
        if not group.consume_enable:
            raise NotReadable(
                f"group {group.name!r} is switched off (consumeEnable is false): switch it on, or use another",
                group=group.name,
            )
        return group, topic

    def _table(self, group: str, topic: str, ordered: bool) -> Table:
        """Return the table of GROUP and TOPIC, made or made anew if it is to be ORDERED and is not, or the reverse."""
        table = self._tables.get((group, topic))
        if table is None or table.is_ordered != ordered:
            made = (OrderedTable if ordered else Table)(self._parts, group, topic)
            if table is not None:
                made.take_over(table)
            table = self._tables[group, topic] = made
        return table

    # --- waking

    def arrived(self, topic: str) -> None:
        """Hear that messages of TOPIC were stored: who waits for them tries again."""
        for key in list(self._waiting.get(topic, ())):
            self._wake(key)

    def _wake(self, key: tuple[str, str]) -> None:
        self._purgatory.notify_in_turn(key)
        waiting = self._waiting.get(key[1])
        if waiting is not None and not self._purgatory.is_watched(key):
            waiting.discard(key)
            if not waiting:
                del self._waiting[key[1]]

    # --- finishing

    def acknowledge(self, group: str, topic: str, handle: str) -> None:
        """Finish what HANDLE means; again is fine. Raises InvalidReceiptHandle."""
        table, entry = self._find(group, topic, handle)
        if entry is not None:
            table.finish(entry)

    def change_invisible(
        self, group: str, topic: str, handle: str, invisible_ms: int, *, suspend: bool = False
    ) -> str:
        """Have what HANDLE means come again in INVISIBLE_MS (0: at once), and return its new handle.

        The old one is dead. SUSPEND: the next delivery counts as the same attempt. Raises InvalidReceiptHandle.
        """
        table, entry = self._find(group, topic, handle)
        if entry is None:
            raise finished(handle)
        serial = table.change(entry, invisible_ms, suspend=suspend)
        is_retry = table.topic != topic
        return encode_handle(is_retry, entry.queue.key.queue, entry.offset, serial)

    def forward_to_dead_letters(self, group: str, topic: str, handle: str, reason: str) -> None:
        """Finish what HANDLE means as a dead letter, because of REASON; again is fine, and makes no second copy.

        Raises InvalidReceiptHandle, and what keeps the dead letters' topic from taking it.
        """
        table, entry = self._find(group, topic, handle)
        if entry is None:
            return
        data = table.read(entry)
        if data is not None:
            self._parts.bury(data, group, reason, times_of(entry, data))
        table.finish(entry)

    def _find(self, group: str, topic: str, handle: str) -> tuple[Table, Entry | None]:
        found = decode_handle(handle)
        table = self._tables.get((group, topic)) or Table(self._parts, group, topic)
        entry = table.find(found)
        # Only what is there may make a table.
        return self._tables.setdefault((group, topic), table), entry

    # --- clients

    def client_alive(self, client_id: str) -> None:
        """Hear that CLIENT_ID lives: what it got with auto-renewal stays its own."""
        self._leases.alive(client_id)

    def client_gone(self, client_id: str) -> None:
        """Hear that CLIENT_ID has gone: its receives end, and what it got with auto-renewal comes again in a second."""
        for receive in list(self._of_client.get(client_id, ())):
            receive.end()
        self._leases.gone(client_id)

    # --- what is deleted, or taken by retention

    def forget_topic(self, topic: str) -> None:
        """Forget what is in flight of TOPIC, which is deleted."""
        self._forget([key for key in self._tables if key[1] == topic])
        self._journal.note(Forgotten("", topic))

    def forget_group(self, group: str) -> None:
        """Forget what is in flight for GROUP, which is deleted."""
        self._forget([key for key in self._tables if key[0] == group])
        self._journal.note(Forgotten(group, ""))

    def _forget(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            table = self._tables.pop(key)
            for number in list(table.queues):
                table.drop(number)

    def retain(self) -> None:
        """Finish what retention has taken."""
        for table in self._tables.values():
            table.retain()

    def move(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Have GROUP go on at OFFSET of QUEUE: everything below is finished, nothing is in flight."""
        self._table(group, topic, self._groups.is_ordered(group)).move(queue, offset)


def _rules_of(group: GroupConfig, topic: TopicConfig, turn: int) -> Rules:
    """Return the rules of GROUP and TOPIC for the receive that is the TURN-th."""
    queues = topic.read_queues
    if topic.attributes.get(TYPE_ATTRIBUTE) == _PRIORITY and not group.consume_message_orderly:
        order: list[int] | range = range(queues - 1, -1, -1)
    else:
        first = turn % queues
        order = [*range(first, queues), *range(first)]
    return Rules(max(1, group.retry_times_max + 1), order, group.consume_from_min_enable)


def _together(deadline_ms: int, wait_ms: int) -> int:
    """Return an instant at or before DEADLINE_MS, if WAIT_MS is long: one at which others of that length end as well.

    Idle receives are answered, and come again, in bunches then. Before and not after: whoever asked has a deadline too.
    """
    if wait_ms < _LONG_WAIT_MS:
        return deadline_ms
    step_ms = wait_ms // _WAIT_PARTS
    return deadline_ms // step_ms * step_ms
