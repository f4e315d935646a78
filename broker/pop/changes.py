"""What changes in the tables of deliveries, as the journal keeps it: each change is a record, all of them the tables.

    InFlight   the message at an offset is not finished, and this is how it stands: replaces what was said before
    Finished   the message at an offset is finished: acknowledged, dead, or gone
    Looked     everything below an offset was looked at: what is not in flight there is finished
    Moved      somebody put the group at an offset: nothing below it is looked at, nothing at all is in flight
    Forgotten  the group (topic ""), the topic (group ""), or the group's part of the topic is gone

A record that is lost, as the last ones are in a power cut, costs deliveries that come twice, and never a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

from ...proto.errors import PocketMQError


class PopKey(NamedTuple):
    """A queue of a topic, as a group has it."""

    group: str
    topic: str
    queue: int


class ClockMark(NamedTuple):
    """Once the process that keeps changes was at NOW_MS, the wall clock showed UNIX_MS."""

    now_ms: int
    unix_ms: int


class InFlight(NamedTuple):
    """The message at OFFSET was delivered ATTEMPT times, last as delivery SERIAL, and is OWNER's until UNTIL_MS.

    That is an instant of the process that says so. It comes again then, at once for an UNTIL_MS that has passed;
    RENEWS: not before its owner is gone. ATTEMPT 0: it was looked at, and not delivered yet. ATTEMPT_ID is that of the
    receive that got it.
    """

    key: PopKey
    offset: int
    attempt: int
    until_ms: int
    owner: str
    serial: int
    renews: bool
    attempt_id: str = ""


class Finished(NamedTuple):
    """The message at OFFSET is finished; with a COPY_AT if its dead letter lies there in the log."""

    key: PopKey
    offset: int
    copy_at: int = 0


class Looked(NamedTuple):
    """Everything below OFFSET was looked at."""

    key: PopKey
    offset: int


class Moved(NamedTuple):
    """The group begins anew, at OFFSET."""

    key: PopKey
    offset: int


class Forgotten(NamedTuple):
    """Nothing of GROUP and TOPIC is in flight, nor known, any more; "" is every one."""

    group: str
    topic: str


Change: TypeAlias = InFlight | Finished | Looked | Moved | Forgotten

#: Told of None, or of the error that keeps what was noted from being safe.
Safe: TypeAlias = Callable[[PocketMQError | None], None]


class FoundQueue:
    """What changes say of one queue."""

    __slots__ = ("in_flight", "looked")

    def __init__(self) -> None:
        self.looked = 0
        self.in_flight: dict[int, InFlight] = {}


class Found:
    """What a row of changes comes to. Pure."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self.queues: dict[PopKey, FoundQueue] = {}
        #: What the clocks showed when the last of it was kept; None: nobody noted that.
        self.mark: ClockMark | None = None
        for change in changes:
            self.apply(change)

    def apply(self, change: Change) -> None:
        """Take in CHANGE, which is later than all before it."""
        if isinstance(change, Forgotten):
            self._forget(change)
            return
        queue = self.queues.get(change.key)
        if queue is None:
            queue = self.queues[change.key] = FoundQueue()
        if isinstance(change, InFlight):
            queue.in_flight[change.offset] = change
        elif isinstance(change, Finished):
            queue.in_flight.pop(change.offset, None)
        else:
            queue.looked = change.offset
            if isinstance(change, Moved):
                queue.in_flight.clear()

    def rebase(self, instant: Callable[[int], int]) -> None:
        """Have untils be the instants of this process that INSTANT returns for them."""
        for queue in self.queues.values():
            for offset, one in queue.in_flight.items():
                queue.in_flight[offset] = one._replace(until_ms=instant(one.until_ms))

    def _forget(self, change: Forgotten) -> None:
        for key in list(self.queues):
            if change.group in ("", key.group) and change.topic in ("", key.topic):
                del self.queues[key]


class PopJournal(Protocol):
    """Keeps changes over a restart. The event loop owns it."""

    def note(self, change: Change) -> None:
        """Keep CHANGE, soon; in the order of the calls."""
        ...

    def write(self) -> None:
        """Have what was noted outlive this process, now."""
        ...

    def when_safe(self, done: Safe) -> None:
        """Call DONE once what was noted is as safe as the store's setting promises, or with the error."""
        ...

    def replay(self) -> Found:
        """Return what was kept before this start."""
        ...

    def start(self, everything: Callable[[], Iterator[Change]]) -> None:
        """Begin to keep; EVERYTHING returns the changes that make the tables as they are, whenever it is called."""
        ...

    def close(self) -> None:
        """Keep nothing any more; what was noted is kept."""
        ...
