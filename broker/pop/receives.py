"""Receives: requests and results of pop, receipt handles, receives that wait, and leases of delivered messages.

A receive that waits is an operation of the purgatory, found by group and topic, and by client.

A receipt handle identifies one delivery of one message:

    p, r or l    from the requested topic, from the group's retry topic, or of a lite topic
    queue - offset - serial    hexadecimal
    - lite topic    for l

The serial is a random number of 64 bits. So clients cannot guess handles, and no two deliveries share one, also over
restarts and without the journal. A handle is valid as long as any version of the journal has its serial.

A lease is the time for which delivered messages stay invisible to other consumers. All messages of one receive share a
lease and its timer. A message whose invisible duration is changed gets its own. A lease with automatic renewal ends
only when its owner was silent for RENEWED_MS, or after RENEWED_MAX_MS. Only when the timer fires, the
lease checks for signs of life.

Leases use the time of messages. Whether clients are alive is decided by the machine's time. Not thread-safe: the event
loop owns it.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from ...proto.errors import InvalidReceiptHandle, Overloaded, PocketMQError
from ...proto.topics import RETRY_PREFIX, retry_topic
from ..config import BrokerConfig
from ..messages.filters import FilterChoice
from ..timing.purgatory import Purgatory, WatchedOperation, end_of_wait
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from .deliveries import PopKey

logger = logging.getLogger(__name__)
_KINDS: Final = {"p": False, "r": True}
#: The first letter of handles of lite topics.
LITE_HANDLE: Final = "l"
_SHOWN_MAX: Final = 80
#: Serials that are drawn at once: a draw costs more than a serial.
_DRAWN: Final = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiveRequest:
    """One receive request. CHOICE is a filter at work (filters.py); None: every message.

    BATCH is the maximum number of messages. Each is invisible to other consumers for INVISIBLE_MS or, with AUTO_RENEW,
    while the client lives. A receive with the ATTEMPT_ID of an earlier one gets its messages again.
    WAIT_MS: how long it waits if there are no messages.
    """

    group: str
    topic: str
    client_id: str
    batch: int
    invisible_ms: int
    wait_ms: int = 0
    auto_renew: bool = False
    attempt_id: str = ""
    choice: FilterChoice | None = None


class Rules(NamedTuple):
    """Properties of the group and the topic that a receive depends on."""

    attempts_max: int
    #: The topic's queues, in the order in which they are scanned.
    queues: Sequence[int]
    #: Whether a new group starts with the oldest message of a queue, or after the newest.
    from_oldest: bool = True


class PoppedMessage(NamedTuple):
    """One delivery. RECORD has all bytes as stored. ATTEMPT counts from 1."""

    record: bytes
    topic: str
    queue: int
    offset: int
    attempt: int
    handle: str
    invisible_ms: int


class TakenMessages(NamedTuple):
    """Result of a scan. `dead_lettered`: number of new dead letters; `more`: whether there is more to scan."""

    deliveries: list[PoppedMessage]
    dead_lettered: int
    more: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiveResult:
    """Result of a receive. FILTERED_ONLY: nothing was delivered, because all due messages became dead letters.

    ERROR: nothing was delivered, and why.
    """

    deliveries: Sequence[PoppedMessage] = ()
    filtered_only: bool = False
    error: PocketMQError | None = None


class Handle(NamedTuple):
    """The content of a receipt handle."""

    is_retry: bool
    queue: int
    offset: int
    serial: int
    #: "": the message is not of a lite topic, or is delivered as one of its parent.
    lite_topic: str = ""


def encode_handle(
    is_retry: bool, queue: int, offset: int, serial: int, lite_topic: str = ""
) -> str:
    """Return the handle of delivery SERIAL of the message at OFFSET."""
    if lite_topic:
        return f"{LITE_HANDLE}{queue:x}-{offset:x}-{serial:x}-{lite_topic}"
    return f"{'r' if is_retry else 'p'}{queue:x}-{offset:x}-{serial:x}"


def decode_handle(text: str) -> Handle:
    """Return the content of the handle TEXT; raise InvalidReceiptHandle."""
    try:
        if text.startswith(LITE_HANDLE):
            queue, offset, serial, lite_topic = text[1:].split("-", 3)
            return Handle(False, int(queue, 16), int(offset, 16), int(serial, 16), lite_topic)
        queue, offset, serial = text[1:].split("-")
        return Handle(_KINDS[text[0]], int(queue, 16), int(offset, 16), int(serial, 16))
    except (ValueError, LookupError):
        raise InvalidReceiptHandle(
            f"receipt handle {text[:_SHOWN_MAX]!r} is not of this broker: use the handle of the received message",
            field="receipt_handle",
            value=text[:_SHOWN_MAX],
        ) from None


def finished(text: str) -> InvalidReceiptHandle:
    """Return the error for TEXT, the handle of a message that is finished."""
    return InvalidReceiptHandle(
        f"receipt handle {text[:_SHOWN_MAX]!r}: its message was already acknowledged",
        field="receipt_handle",
    )


def serials_from(random_bytes: Callable[[int], bytes]) -> Iterator[int]:
    """Yield serials from RANDOM_BYTES, which returns unpredictable bytes. A serial is never 0."""
    form = struct.Struct(f"<{_DRAWN}Q")
    while True:
        yield from filter(None, form.unpack(random_bytes(form.size)))


class ReceiveServer(Protocol):
    """Serves receives."""

    def take(self, asked: ReceiveRequest) -> TakenMessages:
        """Deliver the messages that exist for ASKED."""
        ...

    def scan_more(self, receive: Receive) -> None:
        """Let RECEIVE continue to scan in a later turn of the event loop."""
        ...


class Receive:
    """The receive ASKED, served by SERVER, in WAITS. DONE is called with the result, once."""

    __slots__ = ("_done", "_is_scanning", "_server", "_waits", "asked", "waiting")

    def __init__(
        self,
        server: ReceiveServer,
        waits: PopWaits,
        asked: ReceiveRequest,
        done: Callable[[ReceiveResult], None],
    ) -> None:
        self._server = server
        self._waits = waits
        self._done = done
        #: Whether a later turn continues the scan; then no other event does.
        self._is_scanning = False
        self.asked = asked
        self.waiting: WatchedOperation | None = None

    def try_complete(self) -> bool:
        if self._is_scanning:
            return False
        try:
            taken = self._server.take(self.asked)
        except PocketMQError as error:
            self._answer(ReceiveResult(error=error))
            return True
        except Exception:
            # A send may have caused this call: it must not fail because of a bug here.
            logger.exception("receive failed group=%s topic=%s", self.asked.group, self.asked.topic)
            self._answer(
                ReceiveResult(error=PocketMQError("the receive failed, see the log of the broker"))
            )
            return True
        if taken.deliveries or taken.dead_lettered:
            self._answer(
                ReceiveResult(deliveries=taken.deliveries, filtered_only=not taken.deliveries)
            )
            return True
        if taken.more:
            self._is_scanning = True
            self._server.scan_more(self)
        return False

    def on_deadline(self) -> None:
        self._answer(ReceiveResult())

    def scan_more(self) -> bool:
        """Continue to scan; return whether the receive was still waiting."""
        self._is_scanning = False
        return self._waits.try_again(self)

    def end(self) -> None:
        """Answer with no messages, if it waits."""
        if self.waiting is not None and self.waiting.cancel():
            self.on_deadline()

    def cancel(self) -> None:
        """Remove it without an answer."""
        if self.waiting is not None and self.waiting.cancel():
            self._waits.over(self)

    def _answer(self, popped: ReceiveResult) -> None:
        self._waits.over(self)
        self._done(popped)


class PopWaits:
    """Receives that wait in PURGATORY. NOW_MS returns the machine's time."""

    def __init__(
        self, config: BrokerConfig, purgatory: Purgatory, now_ms: Callable[[], int]
    ) -> None:
        self._config = config
        self._purgatory = purgatory
        self._now_ms = now_ms
        #: Groups with a waiting receive, by topic.
        self._waiting: dict[str, set[tuple[str, str]]] = {}
        self._of_client: dict[str, dict[Receive, None]] = {}

    def watch(self, receive: Receive) -> None:
        """Let RECEIVE wait; raise Overloaded if too many do."""
        asked = receive.asked
        limit = self._config.fetches_waiting_max
        if len(self._purgatory) >= limit:
            raise Overloaded(
                f"{len(self._purgatory)} receives and fetches wait, the limit is {limit} (broker.fetches_waiting_max):"
                " use fewer consumers, or raise the limit",
                field="fetches_waiting_max",
                limit=limit,
            )
        wait_ms = min(asked.wait_ms, self._config.fetch_wait_max_ms)
        deadline_ms = end_of_wait(self._now_ms(), wait_ms)
        key = (asked.group, asked.topic)
        receive.waiting = self._purgatory.watch(receive, key, deadline_ms)
        self._waiting.setdefault(asked.topic, set()).add(key)
        self._of_client.setdefault(asked.client_id, {})[receive] = None

    def is_waiting(self, key: tuple[str, str]) -> bool:
        """Return whether a receive with KEY, (group, topic), waits."""
        return self._purgatory.is_watched(key)

    def try_again(self, receive: Receive) -> bool:
        """Let RECEIVE try again; return whether it was still waiting."""
        if receive.waiting is None:
            return False
        was_there = self._purgatory.try_again(receive.waiting)
        # While it was scanning, receives after it were not tried.
        self.wake((receive.asked.group, receive.asked.topic))
        return was_there

    def over(self, receive: Receive) -> None:
        """Called when RECEIVE, which may have waited, has ended."""
        client_id = receive.asked.client_id
        owned = self._of_client.get(client_id)
        if owned is None or receive not in owned:
            return
        del owned[receive]
        if not owned:
            del self._of_client[client_id]

    def end_of(self, client_id: str) -> None:
        """End all waiting receives of CLIENT_ID, without messages."""
        for receive in list(self._of_client.get(client_id, ())):
            receive.end()

    def arrived(self, topic: str) -> None:
        """Called when messages of TOPIC were stored: waiting receives try again."""
        if topic.startswith(RETRY_PREFIX):
            self._wake_group(topic.removeprefix(RETRY_PREFIX))
        for key in list(self._waiting.get(topic, ())):
            self.wake(key)

    def _wake_group(self, group: str) -> None:
        for keys in list(self._waiting.values()):
            for key in [key for key in keys if key[0] == group]:
                self.wake(key)

    def wake(self, key: tuple[str, str]) -> None:
        """Let the receives that wait for KEY, (group, topic), try again."""
        if key[1] == retry_topic(key[0]) and key[1] not in self._waiting:
            self._wake_group(key[0])
            return
        self._purgatory.notify_in_turn(key)
        waiting = self._waiting.get(key[1])
        if waiting is not None and not self._purgatory.is_watched(key):
            waiting.discard(key)
            if not waiting:
                del self._waiting[key[1]]


#: How long a lease with automatic renewal continues after the last sign of life of its owner.
RENEWED_MS: Final = 60_000
#: Maximum duration of a lease with automatic renewal.
RENEWED_MAX_MS: Final = 3 * 3_600_000
#: How long it continues after its owner has closed.
_GONE_MS: Final = 1_000
#: Offsets that are tried one by one before the lowest entry is searched.
_STEPS_MAX: Final = 256


class PopEntry:
    """One message: in flight while LEASE is not None, otherwise due or held."""

    __slots__ = (
        "acknowledged",
        "attempt",
        "lane",
        "lease",
        "log_offset",
        "offset",
        "queue",
        "serial",
    )

    def __init__(self, queue: PopQueue, offset: int, log_offset: int = -1) -> None:
        self.queue = queue
        self.offset = offset
        #: Log offset of its record; -1: not known.
        self.log_offset = log_offset
        #: Number of its deliveries.
        self.attempt = 0
        #: Serial of its latest delivery.
        self.serial = 0
        self.lease: PopLease | None = None
        #: The message group whose order it must keep; None: none.
        self.lane: OrderedQueue | None = None
        #: Whether it is acknowledged, but will be redelivered if an earlier one of its batch is.
        self.acknowledged = False


class PopQueue:
    """One queue for a group: all below `low` is finished; nothing from `next_offset` on was scanned."""

    __slots__ = ("entries", "key", "low", "next_offset")

    def __init__(self, key: PopKey, next_offset: int) -> None:
        self.key = key
        self.low = self.next_offset = next_offset
        #: Entries by offset, all in [low, next_offset).
        self.entries: dict[int, PopEntry] = {}

    def advance_low(self) -> bool:
        """Raise `low` to the lowest entry, or to `next_offset`; return whether it changed."""
        entries, low = self.entries, self.low
        if not entries:
            self.low = self.next_offset
            return low != self.next_offset
        for at in range(low, low + _STEPS_MAX):
            if at in entries:
                self.low = at
                return at != low
        self.low = min(entries)
        return True

    def check(self) -> None:
        """Assert the invariants that hold between calls."""
        assert self.low <= self.next_offset
        assert all(self.low <= offset < self.next_offset for offset in self.entries)
        assert self.low == min(self.entries, default=self.next_offset)


class PopLease:
    """A lease of ENTRIES; it ends when it has no entries left."""

    __slots__ = (
        "attempt_id",
        "deadline_ms",
        "ends_ms",
        "entries",
        "is_suspended",
        "live",
        "owner",
        "timer",
    )

    def __init__(self, entries: Sequence[PopEntry], deadline_ms: int, owner: str) -> None:
        self.entries = entries
        self.live = len(entries)
        self.deadline_ms = deadline_ms
        self.owner = owner
        #: The maximum end of a lease with automatic renewal; 0: no renewal.
        self.ends_ms = 0
        self.attempt_id = ""
        #: Whether it was granted by a suspension.
        self.is_suspended = False
        self.timer: Timer | None = None


class OrderedQueue:
    """One message group of one queue."""

    __slots__ = ("batch", "held", "label", "turn")

    def __init__(self, label: bytes) -> None:
        self.label = label
        self.batch: list[PopEntry] = []
        self.held: deque[PopEntry] = deque()
        #: The latest receive that took messages from it: it may take more.
        self.turn = 0

    @property
    def is_leased(self) -> bool:
        """Return whether a message of the batch is in flight."""
        return any(entry.lease is not None for entry in self.batch)

    def take_back(self) -> None:
        """Move the batch back to the front of the held messages: it is redelivered."""
        self.held.extendleft(reversed(self.batch))
        self.batch.clear()


class PopLeases:
    """All leases, with their timers in TIMERS. WALL_MS returns the machine's time."""

    def __init__(self, timers: Timers, wall_ms: Callable[[], int]) -> None:
        self._timers = timers
        self.wall_ms = wall_ms
        self.now_ms = timers.now_ms
        #: Leases with automatic renewal by owner; and the last sign of life of each of these
        #: owners.
        self._by_owner: dict[str, dict[PopLease, None]] = {}
        self._heard_ms: dict[str, int] = {}

    def grant(
        self,
        entries: Sequence[PopEntry],
        deadline_ms: int,
        owner: str,
        expired: Callable[[PopLease], None],
        *,
        renews_until_ms: int = 0,
    ) -> PopLease:
        """Lease ENTRIES to OWNER until DEADLINE_MS; call LAPSED at the end.

        With RENEWS_UNTIL_MS the lease is renewed while the owner lives, up to this time; it ends when the owner closes.
        """
        lease = PopLease(entries, deadline_ms, owner)
        for entry in entries:
            entry.lease = lease
        if renews_until_ms:
            lease.ends_ms = renews_until_ms
            self._by_owner.setdefault(owner, {})[lease] = None
            self._heard_ms[owner] = self.wall_ms()
        lease.timer = self._timers.at(deadline_ms, partial(self._fire, lease, expired))
        return lease

    def release(self, entry: PopEntry) -> None:
        """Remove ENTRY from its lease, which ends with the last one."""
        lease, entry.lease = entry.lease, None
        if lease is None:
            return
        lease.live -= 1
        if not lease.live:
            self._end(lease)

    def _end(self, lease: PopLease) -> None:
        assert lease.timer is not None, "set when granted"
        self._timers.cancel(lease.timer)
        self._forget(lease)

    def _forget(self, lease: PopLease) -> None:
        if lease.ends_ms:
            owned = self._by_owner[lease.owner]
            del owned[lease]
            if not owned:
                del self._by_owner[lease.owner], self._heard_ms[lease.owner]

    def _fire(self, lease: PopLease, expired: Callable[[PopLease], None]) -> None:
        if lease.ends_ms:
            now_ms = self.now_ms()
            left_ms = self._heard_ms[lease.owner] + RENEWED_MS - self.wall_ms()
            if left_ms > 0 and now_ms < lease.ends_ms:
                self._move(lease, min(now_ms + left_ms, lease.ends_ms))
                return
        self._forget(lease)
        expired(lease)

    def _move(self, lease: PopLease, deadline_ms: int) -> None:
        assert lease.timer is not None, "set when granted"
        lease.deadline_ms = deadline_ms
        self._timers.reschedule(lease.timer, deadline_ms)

    def unacknowledged(self) -> dict[str, int]:
        """Return the number of messages per owner that are in leases with automatic renewal."""
        return {
            owner: sum(lease.live for lease in leases) for owner, leases in self._by_owner.items()
        }

    def alive(self, owner: str) -> None:
        """Record a sign of life of OWNER: its leases with automatic renewal continue."""
        if owner in self._heard_ms:
            self._heard_ms[owner] = self.wall_ms()

    def gone(self, owner: str) -> None:
        """End the leases of OWNER with automatic renewal in one second."""
        leases = self._by_owner.pop(owner, None)
        if leases is None:
            return
        del self._heard_ms[owner]
        for lease in leases:
            lease.ends_ms = 0
            self._move(lease, min(lease.deadline_ms, self.now_ms() + _GONE_MS))
