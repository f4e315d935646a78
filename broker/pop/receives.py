"""Receives: what is asked of a pop and what comes of it, the handles of what was delivered, and receives that wait.

A receive that waits is an operation of the purgatory, found by group and topic, and by client.

A receipt handle says which delivery of which message an acknowledgement means:

    p or r    from the topic that was asked for, or from the group's retry topic
    queue - offset - serial    hexadecimal

The serial is the delivery's: 64 bits of chance, so that nobody names a delivery that was not its own, and no two of a
message have the same, over restarts too, whatever became of the journal. To a client a handle is a text that it hands
back; it is as good as the journal's memory of its serial, of whichever version of ours the journal is.

Leases: how long deliveries are their receiver's; and the entries that are leased: messages begun with, not finished.

All messages of one receive have one lease, and one timer; a message whose time is changed gets one of its own. A lease
that renews ends only when its owner has not been heard of for RENEWED_MS, or after RENEWED_MAX_MS. Nothing is done
while an owner lives but that the timer, when it fires, asks when it was last heard of.

Leases are in messages' time; whether clients live is told by the machine's. Not thread-safe: the event loop owns it.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from ...proto.clock import past_instant
from ...proto.errors import InvalidReceiptHandle, Overloaded, PocketMQError
from ...proto.topics import RETRY_PREFIX, retry_topic
from ..config import BrokerConfig
from ..messages.filters import FilterChoice
from ..timing.purgatory import Purgatory, WatchedOperation, end_of_wait
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from .journal_format import ClockMark, PopKey

logger = logging.getLogger(__name__)
_KINDS: Final = {"p": False, "r": True}
_SHOWN_MAX: Final = 80
#: Serials that are drawn at once: a draw costs more than a serial.
_DRAWN: Final = 512


# --- what is asked, and what comes of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One receive. CHOICE is a filter at work (filters.py), None for every message.

    BATCH messages at most; each is invisible to others for INVISIBLE_MS, or, with AUTO_RENEW, while the client lives.
    A receive that repeats an ATTEMPT_ID gets the same messages, while they are not finished.
    WAIT_MS: how long it waits where there is nothing.
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
    """What a group and a topic say of a receive."""

    attempts_max: int
    #: The topic's queues, in the order in which they are looked at.
    queues: Sequence[int]
    #: A group that is new begins with the oldest message of a queue, otherwise behind the newest.
    from_oldest: bool = True


class PoppedMessage(NamedTuple):
    """One delivery: RECORD is whole, as it is stored; ATTEMPT counts from 1."""

    record: bytes
    topic: str
    queue: int
    offset: int
    attempt: int
    handle: str
    invisible_ms: int


class Taken(NamedTuple):
    """What a look found: DELIVERIES; how many messages were BURIED; MORE: there is more to look at."""

    deliveries: list[PoppedMessage]
    buried: int
    more: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Popped:
    """The end of a receive. FILTERED_ONLY: nothing was delivered, for what was due went to the dead letters.

    ERROR: nothing was delivered, and why.
    """

    deliveries: Sequence[PoppedMessage] = ()
    filtered_only: bool = False
    error: PocketMQError | None = None


# --- receipt handles


class Handle(NamedTuple):
    """What a receipt handle says."""

    is_retry: bool
    queue: int
    offset: int
    serial: int


def encode_handle(is_retry: bool, queue: int, offset: int, serial: int) -> str:
    """Return the handle of delivery SERIAL of the message at OFFSET."""
    return f"{'r' if is_retry else 'p'}{queue:x}-{offset:x}-{serial:x}"


def decode_handle(text: str) -> Handle:
    """Return what TEXT says; raise InvalidReceiptHandle."""
    try:
        queue, offset, serial = text[1:].split("-")
        return Handle(_KINDS[text[0]], int(queue, 16), int(offset, 16), int(serial, 16))
    except (ValueError, LookupError):
        raise InvalidReceiptHandle(
            f"receipt handle {text[:_SHOWN_MAX]!r} is none of this broker's: give the one that came with the message",
            field="receipt_handle",
            value=text[:_SHOWN_MAX],
        ) from None


def finished(text: str) -> InvalidReceiptHandle:
    """Return the refusal of TEXT, the handle of a message that is finished."""
    return InvalidReceiptHandle(
        f"receipt handle {text[:_SHOWN_MAX]!r}: its message is finished", field="receipt_handle"
    )


def serials_from(random_bytes: Callable[[int], bytes]) -> Iterator[int]:
    """Yield serials, of what RANDOM_BYTES returns: so many bytes that nobody can foretell. None is 0."""
    form = struct.Struct(f"<{_DRAWN}Q")
    while True:
        yield from filter(None, form.unpack(random_bytes(form.size)))


# --- receives that wait


class ReceiveServer(Protocol):
    """Who serves receives."""

    def take(self, asked: Asked) -> Taken:
        """Deliver what there is for ASKED."""
        ...

    def look_on(self, receive: Receive) -> None:
        """Have RECEIVE look on in a later turn of the loop."""
        ...


class Receive:
    """What ASKED says, by SERVER, among WAITS; DONE is told the end, once."""

    __slots__ = ("_done", "_is_looking_on", "_server", "_waits", "asked", "waiting")

    def __init__(
        self, server: ReceiveServer, waits: PopWaits, asked: Asked, done: Callable[[Popped], None]
    ) -> None:
        self._server = server
        self._waits = waits
        self._done = done
        #: Does a later turn look on? Then nothing else does.
        self._is_looking_on = False
        self.asked = asked
        self.waiting: WatchedOperation | None = None

    def try_complete(self) -> bool:
        if self._is_looking_on:
            return False
        try:
            taken = self._server.take(self.asked)
        except PocketMQError as error:
            self._answer(Popped(error=error))
            return True
        except Exception:  # The edge: who sent what woke it must not pay for one receive's bug.
            logger.exception("receive failed group=%s topic=%s", self.asked.group, self.asked.topic)
            self._answer(
                Popped(error=PocketMQError("the receive failed: the broker's log has why"))
            )
            return True
        if taken.deliveries or taken.buried:
            self._answer(Popped(deliveries=taken.deliveries, filtered_only=not taken.deliveries))
            return True
        if taken.more:
            self._is_looking_on = True
            self._server.look_on(self)
        return False

    def on_deadline(self) -> None:
        self._answer(Popped())

    def look_on(self) -> bool:
        """Look on; return whether that was still asked for."""
        self._is_looking_on = False
        return self._waits.try_again(self)

    def end(self) -> None:
        """Answer with nothing, if it waits."""
        if self.waiting is not None and self.waiting.cancel():
            self.on_deadline()

    def cancel(self) -> None:
        """Let it go without an answer."""
        if self.waiting is not None and self.waiting.cancel():
            self._waits.over(self)

    def _answer(self, popped: Popped) -> None:
        self._waits.over(self)
        self._done(popped)


class PopWaits:
    """Receives that wait in PURGATORY, by the instants of NOW_MS: the machine's."""

    def __init__(
        self, config: BrokerConfig, purgatory: Purgatory, now_ms: Callable[[], int]
    ) -> None:
        self._config = config
        self._purgatory = purgatory
        self._now_ms = now_ms
        #: The groups whose receives of a topic wait.
        self._waiting: dict[str, set[tuple[str, str]]] = {}
        self._of_client: dict[str, dict[Receive, None]] = {}

    def watch(self, receive: Receive) -> None:
        """Have RECEIVE wait; raise Overloaded if too many do."""
        asked = receive.asked
        limit = self._config.fetches_waiting_max
        if len(self._purgatory) >= limit:
            raise Overloaded(
                f"{len(self._purgatory)} receives and fetches wait, the limit is {limit}: use fewer consumers, or raise"
                " broker.fetches_waiting_max",
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
        """Does a receive of KEY, (group, topic), wait?"""
        return self._purgatory.is_watched(key)

    def try_again(self, receive: Receive) -> bool:
        """Have RECEIVE try again; return whether it was still there."""
        if receive.waiting is None:
            return False
        was_there = self._purgatory.try_again(receive.waiting)
        # While it looked on, nobody behind it was asked.
        self.wake((receive.asked.group, receive.asked.topic))
        return was_there

    def over(self, receive: Receive) -> None:
        """Hear that RECEIVE, which may have waited, is over."""
        client_id = receive.asked.client_id
        owned = self._of_client.get(client_id)
        if owned is None or receive not in owned:
            return
        del owned[receive]
        if not owned:
            del self._of_client[client_id]

    def end_of(self, client_id: str) -> None:
        """End what CLIENT_ID waits for, with nothing."""
        for receive in list(self._of_client.get(client_id, ())):
            receive.end()

    def arrived(self, topic: str) -> None:
        """Hear that messages of TOPIC were stored: who waits for them tries again."""
        if topic.startswith(RETRY_PREFIX):
            self._wake_group(topic.removeprefix(RETRY_PREFIX))
        for key in list(self._waiting.get(topic, ())):
            self.wake(key)

    def _wake_group(self, group: str) -> None:
        for keys in list(self._waiting.values()):
            for key in [key for key in keys if key[0] == group]:
                self.wake(key)

    def wake(self, key: tuple[str, str]) -> None:
        """Let those who wait for something of KEY, (group, topic), try again."""
        if key[1] == retry_topic(key[0]) and key[1] not in self._waiting:
            self._wake_group(key[0])
            return
        self._purgatory.notify_in_turn(key)
        waiting = self._waiting.get(key[1])
        if waiting is not None and not self._purgatory.is_watched(key):
            waiting.discard(key)
            if not waiting:
                del self._waiting[key[1]]


# ---------------------------------------------------------------- leases


#: How long a lease that renews outlasts the last word of its owner.
RENEWED_MS: Final = 60_000
#: And how long it lasts at most.
RENEWED_MAX_MS: Final = 3 * 3_600_000
#: How long after its owner has gone.
_GONE_MS: Final = 1_000
#: So many steps are made one by one before the lowest entry is searched for.
_STEPS_MAX: Final = 256


class PopEntry:
    """One message: in flight while LEASE is not None, due or held back otherwise."""

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
        #: Where its record lies; -1: not known.
        self.log_offset = log_offset
        #: How often it was delivered.
        self.attempt = 0
        #: Of its latest delivery.
        self.serial = 0
        self.lease: PopLease | None = None
        #: What it has to keep its order with; None: nothing.
        self.lane: Lane | None = None
        #: It is finished, but comes again if one before it does.
        self.acknowledged = False


class PopQueue:
    """One queue as a group has it: everything below `low` is finished; from `next_offset` on nothing was looked at."""

    __slots__ = ("entries", "key", "low", "next_offset")

    def __init__(self, key: PopKey, next_offset: int) -> None:
        self.key = key
        self.low = self.next_offset = next_offset
        #: By offset, all in [low, next_offset).
        self.entries: dict[int, PopEntry] = {}

    def settle(self) -> bool:
        """Raise `low` to the lowest entry, or to `next_offset`; return whether it rose."""
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
        """Assert what always holds between calls."""
        assert self.low <= self.next_offset
        assert all(self.low <= offset < self.next_offset for offset in self.entries)
        assert self.low == min(self.entries, default=self.next_offset)


class PopLease:
    """The lease of ENTRIES; it is over once it has no live one."""

    __slots__ = ("attempt_id", "deadline_ms", "ends_ms", "entries", "live", "owner", "timer")

    def __init__(self, entries: Sequence[PopEntry], deadline_ms: int, owner: str) -> None:
        self.entries = entries
        self.live = len(entries)
        self.deadline_ms = deadline_ms
        self.owner = owner
        #: When it ends however long its owner lives; 0: it does not renew.
        self.ends_ms = 0
        self.attempt_id = ""
        self.timer: Timer | None = None


class Lane:
    """One message group of one queue."""

    __slots__ = ("batch", "held", "label", "turn")

    def __init__(self, label: bytes) -> None:
        self.label = label
        self.batch: list[PopEntry] = []
        self.held: deque[PopEntry] = deque()
        #: The receive that has taken from it last: it may take more.
        self.turn = 0

    @property
    def is_leased(self) -> bool:
        """Is anything of the batch still somebody's?"""
        return any(entry.lease is not None for entry in self.batch)

    def take_back(self) -> None:
        """Hold the batch again, in front: it comes again."""
        self.held.extendleft(reversed(self.batch))
        self.batch.clear()


class PopLeases:
    """All leases, on TIMERS; WALL_MS tells the machine's time."""

    def __init__(self, timers: Timers, wall_ms: Callable[[], int]) -> None:
        self._timers = timers
        self.wall_ms = wall_ms
        self.now_ms = timers.now_ms
        #: Those that renew, by owner; and when each of these owners was last heard of.
        self._by_owner: dict[str, dict[PopLease, None]] = {}
        self._heard_ms: dict[str, int] = {}

    def grant(
        self,
        entries: Sequence[PopEntry],
        deadline_ms: int,
        owner: str,
        lapsed: Callable[[PopLease], None],
        *,
        renews_until_ms: int = 0,
    ) -> PopLease:
        """Lend ENTRIES to OWNER until DEADLINE_MS; LAPSED is called at the end.

        With RENEWS_UNTIL_MS while it lives, until then at most; and it ends when its owner goes.
        """
        lease = PopLease(entries, deadline_ms, owner)
        for entry in entries:
            entry.lease = lease
        if renews_until_ms:
            lease.ends_ms = renews_until_ms
            self._by_owner.setdefault(owner, {})[lease] = None
            self._heard_ms[owner] = self.wall_ms()
        lease.timer = self._timers.at(deadline_ms, partial(self._fire, lease, lapsed))
        return lease

    def restored_ms(self, mark: ClockMark, kept_ms: int) -> int:
        """Return the instant of this process that was KEPT_MS in an earlier one, whose clocks showed MARK.

        What has passed between the two is told by the wall clock; where that was set back, nothing has.
        """
        return past_instant(self._timers, mark.unix_ms) + kept_ms - mark.now_ms

    def release(self, entry: PopEntry) -> None:
        """Take ENTRY out of its lease, which is over with the last one."""
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

    def _fire(self, lease: PopLease, lapsed: Callable[[PopLease], None]) -> None:
        if lease.ends_ms:
            now_ms = self.now_ms()
            left_ms = self._heard_ms[lease.owner] + RENEWED_MS - self.wall_ms()
            if left_ms > 0 and now_ms < lease.ends_ms:
                self._move(lease, min(now_ms + left_ms, lease.ends_ms))
                return
        self._forget(lease)
        lapsed(lease)

    def _move(self, lease: PopLease, deadline_ms: int) -> None:
        assert lease.timer is not None, "set when granted"
        lease.deadline_ms = deadline_ms
        self._timers.reschedule(lease.timer, deadline_ms)

    def owed(self) -> dict[str, int]:
        """Return how many messages each owner has on leases that renew."""
        return {
            owner: sum(lease.live for lease in leases) for owner, leases in self._by_owner.items()
        }

    def alive(self, owner: str) -> None:
        """Hear that OWNER lives: what it has on leases that renew stays its own."""
        if owner in self._heard_ms:
            self._heard_ms[owner] = self.wall_ms()

    def gone(self, owner: str) -> None:
        """Have what OWNER has on leases that renew come again in a second."""
        leases = self._by_owner.pop(owner, None)
        if leases is None:
            return
        del self._heard_ms[owner]
        for lease in leases:
            lease.ends_ms = 0
            self._move(lease, min(lease.deadline_ms, self.now_ms() + _GONE_MS))
