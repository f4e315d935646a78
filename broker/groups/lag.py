"""Exact consumer lag of groups at one moment, as `/metrics` shows it, and unread messages of queues.

    note_lag(…)        on the event loop, in one turn: copies the tables; about 2 µs per group and topic
    lags(noted)        on any thread: computes the numbers
    StoredTimes        on the loop, in steps: when the oldest waiting messages were stored, about 7 µs each

A group and topic are reported once the group has committed an offset of it, or uses pop on it. Lag is the number of
messages in the topic's queues that the group has not finished (docs/lag-reference.md). In a queue without a committed
offset, it is all messages.

    lag = ready + in flight
    in flight     popped and not acknowledged; or fetched under a lease and not committed
    ready         not delivered yet, and popped messages that are redelivered

Filters are not applied: a message counts until the group has filtered it out. Lag is never negative.

Unconfirmed messages do not count. Limit: UNREAD_ENTRIES_MAX entries are added up per request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from ...proto.errors import InvalidArgument, InvalidRecord
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.record import decode_record
from ...proto.topics import DEAD_LETTERS_GROUP, MARK_GROUPS, RETRY_PREFIX, dead_letter_topic
from ...store.message_store import MessageStore
from ..offsets import Offsets
from ..pop.entries import PopQueue
from ..pop.service import PopService
from ..topics import Topics

#: Times that are read before other work of the event loop continues: one or two milliseconds.
_SLICE: Final = 256
#: Topic, queue and offset of a message.
Place: TypeAlias = tuple[str, int, int]


class Held(NamedTuple):
    """Messages of a queue that a pop group holds: `in_flight` ones are in flight, `due` ones are to be redelivered.

    The offset of the first of all, and of the first due one; None: there is none.
    """

    in_flight: int
    due: int
    first: int | None
    first_due: int | None


class PopStand(NamedTuple):
    """Progress of a pop group in a queue: all below LOW is acknowledged, all below NEXT_OFFSET was scanned.

    FIRST: messages that are in their first delivery. RETRIED: messages that were delivered before.
    """

    low: int
    next_offset: int
    first: Held
    retried: Held


@dataclass(frozen=True, kw_only=True, slots=True)
class NotedLag:
    """Copy of the tables at one moment, by group and topic. LEFT_OUT: how many are missing because of the limit.

    committed, pulled: offsets by queue;  popped: likewise;  bounds: of all queues of a topic.
    """

    committed: Mapping[tuple[str, str], Mapping[int, int]]
    pulled: Mapping[tuple[str, str], Mapping[int, int]]
    popped: Mapping[tuple[str, str], Mapping[int, PopStand]]
    bounds: Mapping[str, Mapping[int, tuple[int, int]]]
    left_out: int


class GroupLag(NamedTuple):
    """Lag of GROUP in TOPIC. UNFINISHED, UNREAD: the first such message of each queue.

    RETRIED: the messages were delivered before, to a pop group.
    """

    group: str
    topic: str
    ready: int
    in_flight: int
    unfinished: Sequence[Place]
    unread: Sequence[Place]
    retried: bool = False

    @property
    def messages(self) -> int:
        """Return the number of unfinished messages."""
        return self.ready + self.in_flight

    @property
    def is_retry(self) -> bool:
        """Return whether it counts messages that the group failed to process."""
        return self.retried or self.topic.startswith(RETRY_PREFIX)


def note_lag(
    store: MessageStore, topics: Topics, offsets: Offsets, pops: PopService, limit: int
) -> NotedLag:
    """Copy the tables for up to LIMIT groups and topics, those that committed first. Call it on the event loop."""
    committed: dict[tuple[str, str], Mapping[int, int]] = {}
    pulled: dict[tuple[str, str], Mapping[int, int]] = {}
    bounds: dict[str, dict[int, tuple[int, int]]] = {}
    table = offsets.tables["offsetTable"].entries
    pull_table = offsets.tables["pullOffsetTable"].entries
    left_out = 0
    for name, queues in table.items():
        topic, _, group = name.partition("@")
        if group in MARK_GROUPS:
            continue
        if topic not in bounds:
            found = None if topics.is_system(topic) else topics.find(topic)
            count = 0 if found is None else max(found.read_queues, found.write_queues)
            bounds[topic] = {queue: store.queue_bounds(topic, queue) for queue in range(count)}
        if not bounds[topic]:
            continue
        if len(committed) >= limit:
            left_out += 1
            continue
        committed[group, topic] = queues.copy()
        if topic == dead_letter_topic(group):
            purged = table.get(f"{topic}@{DEAD_LETTERS_GROUP}", {})
            committed[group, topic] = {at: max(queues[at], purged.get(at, 0)) for at in queues}
        if name in pull_table:
            pulled[group, topic] = pull_table[name].copy()
    popped: dict[tuple[str, str], dict[int, PopStand]] = {}
    for queue in pops.queues():
        key = queue.key
        if (key.group, key.topic) in committed:  # A new pop queue starts at the committed offset.
            popped.setdefault((key.group, key.topic), {})[key.queue] = _stand(queue)
    return NotedLag(
        committed=committed, pulled=pulled, popped=popped, bounds=bounds, left_out=left_out
    )


def _stand(queue: PopQueue) -> PopStand:
    popped: tuple[list[int], list[int]] = ([], [])
    due: tuple[list[int], list[int]] = ([], [])
    for offset, entry in queue.entries.items():
        if not entry.acknowledged:
            # A message in flight is a retry from its second delivery on. One that waits for
            # redelivery will be a retry.
            in_flight = entry.lease is not None
            retried = entry.attempt > (1 if in_flight else 0)
            (popped if in_flight else due)[retried].append(offset)
    first, retried_ones = (_held(popped[which], due[which]) for which in (False, True))
    return PopStand(queue.low, queue.next_offset, first, retried_ones)


def _held(in_flight: Sequence[int], due: Sequence[int]) -> Held:
    return Held(
        len(in_flight), len(due), min((*in_flight, *due), default=None), min(due, default=None)
    )


def lags(noted: NotedLag) -> Iterator[GroupLag]:
    """Yield the lag of each group and topic in NOTED. Pure."""
    nothing: Mapping[int, int] = {}
    for (group, topic), committed in noted.committed.items():
        popped = noted.popped.get((group, topic), {})
        pulled = noted.pulled.get((group, topic), nothing)
        ready = in_flight = 0
        unfinished: list[Place] = []
        unread: list[Place] = []
        for queue, (low, high) in noted.bounds[topic].items():
            at = committed.get(queue, low)
            stand = popped.get(queue)
            if stand is not None and stand.low == at:
                held = stand.first
                ahead = max(stand.next_offset, low)
                in_flight += held.in_flight
                ready += max(0, high - ahead) + held.due
                first = ahead if held.first_due is None else min(held.first_due, ahead)
                waits = held.first is not None
                at = ahead if held.first is None else held.first
            else:
                at = max(at, low)
                first = min(max(pulled.get(queue, at), at), max(high, at))
                in_flight += first - at
                ready += max(0, high - first)
                waits = first > at
            begin = max(at, low)
            if begin < high and (waits or first < high):
                unfinished.append((topic, queue, begin))
            if low <= first < high:
                unread.append((topic, queue, first))
        yield GroupLag(group, topic, ready, in_flight, unfinished, unread)
        if popped:
            yield _retried(group, topic, popped)


def _retried(group: str, topic: str, popped: Mapping[int, PopStand]) -> GroupLag:
    """Return the lag of GROUP in messages of TOPIC that were delivered to it before."""
    held = {queue: stand.retried for queue, stand in popped.items()}
    return GroupLag(
        group,
        topic,
        ready=sum(one.due for one in held.values()),
        in_flight=sum(one.in_flight for one in held.values()),
        unfinished=[(topic, at, one.first) for at, one in held.items() if one.first is not None],
        unread=[
            (topic, at, one.first_due) for at, one in held.items() if one.first_due is not None
        ],
        retried=True,
    )


class StoredTimes:
    """When the unfinished messages of groups were stored; results of the last page are cached."""

    def __init__(self, store: MessageStore, topics: Topics) -> None:
        self._store = store
        self._topics = topics
        #: Version of the topics: after a topic is deleted and created again, its times are read
        #: again.
        self._version = topics.version
        self._known: dict[Place, int] = {}

    async def read(self, noted: NotedLag) -> tuple[list[GroupLag], dict[Place, int]]:
        """Return the lag in NOTED, and when its first messages were stored; deleted messages have no time."""
        if self._version != self._topics.version:
            self._version, self._known = self._topics.version, {}
        found, stored, wanted = await asyncio.to_thread(_known_and_wanted, noted, self._known)
        for begin in range(0, len(wanted), _SLICE):
            for place in wanted[begin : begin + _SLICE]:
                at_ms = self._store.stored_ms(*place)
                if at_ms is None:  # That message is missing: use the next one that exists.
                    at_ms = stored_ms(self._store, *place)
                if at_ms >= 0:
                    stored[place] = at_ms
            await asyncio.sleep(0)
        self._known = stored
        return found, stored


def _known_and_wanted(
    noted: NotedLag, known: Mapping[Place, int]
) -> tuple[list[GroupLag], dict[Place, int], list[Place]]:
    found = list(lags(noted))
    places = dict.fromkeys(place for lag in found for place in (*lag.unfinished, *lag.unread))
    stored = {place: known[place] for place in places if place in known}
    return found, stored, [place for place in places if place not in stored]


def age_ms(places: Sequence[Place], stored: Mapping[Place, int], now_ms: int) -> int:
    """Return how long the oldest message at PLACES has waited, by the times STORED; 0 if none waits."""
    found = [stored[place] for place in places if place in stored]
    return max(0, now_ms - min(found)) if found else 0


#: Limit of queues per request, and of queues per turn of the event loop: reading one takes about
#: 0.1 ms.
QUEUES_MAX: Final = 10_000
IN_A_TURN: Final = 100
#: Limit of queue entries that are added up per request: about 20 ms.
UNREAD_ENTRIES_MAX: Final = 2_000_000


def stored_ms(store: MessageStore, topic: str, queue: int, offset: int) -> int:
    """Return when the first message from OFFSET on was stored; −1: there is none, or it is damaged."""
    low, high = store.queue_bounds(topic, queue)
    if max(low, offset) < high:
        found = store.read_queue(topic, queue, max(low, offset), 1, 1).records
        with contextlib.suppress(InvalidRecord):
            return decode_record(found).store_timestamp_ms
    return -1


def add_unread(
    store: MessageStore, offsets: Iterable[pb.GroupOffset]
) -> Generator[None, None, None]:
    """Add to each of OFFSETS the age and the size of its unread messages. Yields so that other work can continue."""
    left = UNREAD_ENTRIES_MAX
    for at, one in enumerate(offsets, 1):
        if at % IN_A_TURN == 0:
            yield
        first = max(one.offset, one.purged_below)
        one.unread_store_time_ms = stored_ms(store, one.topic, one.queue, first)
        if one.offset < 0:
            continue  # The group has no offset: where it starts is its own choice.
        size, count = store.unread_bytes(one.topic, one.queue, first, left)
        left -= count
        if size is not None:
            one.unread_bytes = size


def check_count(field: str, count: int) -> None:
    """Raise InvalidArgument if COUNT, the number of queues in FIELD, exceeds QUEUES_MAX."""
    if count > QUEUES_MAX:
        raise InvalidArgument(
            f"{field}: {count} queues in one request, the limit is {QUEUES_MAX}: use several requests",
            field=field,
            limit=QUEUES_MAX,
            value=count,
        )


def check_natural(field: str, value: int) -> None:
    """Raise InvalidArgument if VALUE of FIELD is negative."""
    if value < 0:
        raise InvalidArgument(
            f"{field} is {value}: must not be negative", field=field, limit=0, value=value
        )
