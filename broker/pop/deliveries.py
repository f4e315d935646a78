"""Messages in flight, kept over a restart: the table `deliveries` of the broker's journal (store/tables.py).

A scope is a queue of a topic, for a group. It has these entries:

    LOOKED   an offset: all messages below it were examined, and those without an entry are finished
    offset   the message at this offset is not finished; the value is its state

The tables of pops (table.py) hold the entries, and this table is a view of them. A lost change may cause a
redelivery, but never loses a message. So a message gets its entry before LOOKED moves past it, and a group that
restarts at another offset clears its queue first. The journal ignores changes that need records which the log has
lost: a message that was moved to the dead-letter queue is finished only if its copy exists there.

Bytes, big-endian:

    scope      u32 queue, u16 size of the group, group, topic
    key        i64 offset; empty for LOOKED
    LOOKED     i64 offset
    delivery   i32 attempt, i64 until, u64 serial, u8 flags (1: renews, 2: an owner follows), owner
    owner      u16 size of the client id, u16 size of the attempt id, client id, attempt id

A delivery without an owner has the owner of the delivery before it in the same section.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from ...store.flush import Waiter
from ...store.format.table_frames import CLEAR, CLEAR_ALL, DROP, PUT, SCOPE, entries, entry
from ...store.table_journal import TableJournal
from ...store.tables import Durability, JournalTable, RawCodec, TableChange

#: The key of the entry for the offset up to which a queue was examined.
LOOKED: Final = -1
#: No client id, no attempt id.
_NOBODY: Final = ("", "")
_RENEWS: Final = 1
_HAS_OWNER: Final = 2
_NAME_BYTES_MAX: Final = 0xFFFF
#: Encoded scopes in memory.
_SCOPES_MAX: Final = 10_000

_SCOPE_HEAD: Final = struct.Struct(">IH")
_OFFSET: Final = struct.Struct(">q")
_VALUE: Final = struct.Struct(">iqQB")
_VALUE_BYTES: Final = _VALUE.size
_OWNER_HEAD: Final = struct.Struct(">HH")
# Whole entries: operation, size of the key, size of the value, key, value.
_PUT_ENTRY: Final = struct.Struct(">BHIqiqQB")
_DROP_ENTRY: Final = struct.Struct(">BHIq")
_LOOKED_ENTRY: Final = struct.Struct(">BHIq")


class PopKey(NamedTuple):
    """A queue of a topic, for a group."""

    group: str
    topic: str
    queue: int


class InFlight(NamedTuple):
    """The state of a message that is not finished.

    It was delivered `attempt` times, last as delivery `serial` to the client `owner`, by the receive `attempt_id`. It
    is redelivered at `until_ms`, an instant of the process that wrote it. If it `renews`, it is redelivered only after
    its owner has gone. Attempt 0: it was examined, and not delivered yet.
    """

    attempt: int
    until_ms: int
    owner: str
    serial: int
    renews: bool
    attempt_id: str = ""


WAITS: Final = InFlight(0, 0, "", 0, False)
"""A message that was examined, and not delivered."""

DeliveryChange: TypeAlias = TableChange[PopKey, int, InFlight | int]
#: Scope, key and value of an entry.
DeliveryRow: TypeAlias = tuple[PopKey, int, InFlight | int]


class FoundQueue(NamedTuple):
    """One queue: messages below `looked` were examined; those that are not `in_flight`, by offset, are finished."""

    looked: int
    in_flight: dict[int, InFlight]

    @classmethod
    def of(cls, rows: Iterable[tuple[int, InFlight | int]]) -> FoundQueue:
        """Return the queue of these rows, which are of one scope."""
        looked, in_flight = 0, {}
        for key, value in rows:
            if isinstance(value, int):
                looked = value
            else:
                in_flight[key] = value
        return cls(looked, in_flight)


class DeliveryTable(JournalTable[PopKey, int, InFlight | int]):
    """The table `deliveries`. Replicas watch its changes."""

    def __init__(self) -> None:
        super().__init__(
            3,
            "deliveries",
            RawCodec(),  # type: ignore[arg-type]  # Not used: entries are encoded and decoded here.
            Durability.WITH_LOG,
            ordered=True,
            shifted=_shifted,
        )
        #: Whether changes from before this start are missing: a queue may have been reset by one of them.
        self.lacks_changes = False
        self._scopes: dict[PopKey, bytes] = {}
        self._watched: list[DeliveryChange] | None = None

    def apply(self, change: DeliveryChange) -> None:
        if self._watched is not None:
            self._watched.append(change)
        super().apply(change)

    def apply_all(self, changes: list[DeliveryChange]) -> None:
        if self._view is None:
            super().apply_all(changes)
        elif self._watched is not None:
            self._watched += changes

    def note_loss(self) -> None:
        """Note that changes from before this start are missing."""
        self.lacks_changes = True

    def take_watched(self) -> list[DeliveryChange]:
        """Return the changes since the last call; the first call starts to collect them."""
        watched, self._watched = self._watched, []
        return watched or []

    def found(self) -> dict[PopKey, FoundQueue]:
        """Return the entries by queue."""
        return {key: FoundQueue.of(rows.items()) for key, rows in self._rows.items()}

    def encode(self, changes: Iterable[DeliveryChange]) -> bytes:
        parts: list[bytes] = []
        add = parts.append
        put, last = _PUT_ENTRY.pack, None
        # No owner: a section may have entries of several calls, so the first delivery always has its owner.
        last_client: str | None = None
        last_attempt: str | None = None
        for op, scope, key, value, _ in changes:
            if scope is None:
                add(entry(CLEAR_ALL))
                last = None
                continue
            if op == CLEAR:
                add(entry(CLEAR, value=_encoded_scope(scope)))
                last = None
                continue
            if scope is not last:
                last = scope
                add(self._scopes.get(scope) or self._scope_entry(scope))
            if op == DROP:
                add(_DROP_ENTRY.pack(DROP, 8, 0, key))
            elif isinstance(value, int):
                add(_LOOKED_ENTRY.pack(PUT, 0, 8, value))
            else:
                attempt, until_ms, client_id, serial, renews, attempt_id = value  # type: ignore[misc]
                if client_id is last_client and attempt_id is last_attempt:
                    add(put(PUT, 8, _VALUE_BYTES, key, attempt, until_ms, serial, renews))
                    continue
                last_client, last_attempt = client_id, attempt_id
                told, flags = _encoded_owner(client_id, attempt_id), renews | _HAS_OWNER
                size = _VALUE_BYTES + len(told)
                add(put(PUT, 8, size, key, attempt, until_ms, serial, flags) + told)
        return b"".join(parts)

    def _scope_entry(self, scope: PopKey) -> bytes:
        if len(self._scopes) >= _SCOPES_MAX:
            self._scopes.clear()
        data = self._scopes[scope] = entry(SCOPE, value=_encoded_scope(scope))
        return data

    def decode(self, data: bytes) -> list[DeliveryChange]:
        try:
            return list(_decoded(data))
        except struct.error as error:
            raise ValueError(str(error)) from error


def _decoded(data: bytes) -> Iterator[DeliveryChange]:
    scope: PopKey | None = None
    owner = _NOBODY
    for op, key, value in entries(data):
        if op in (PUT, DROP) and scope is None:
            raise ValueError("an entry of no queue")
        if op == PUT and key:
            attempt, until_ms, serial, flags = _VALUE.unpack_from(value)
            if flags & _HAS_OWNER:
                owner = _read_owner(value)
            renews = bool(flags & _RENEWS)
            delivery = InFlight(attempt, until_ms, owner[0], serial, renews, owner[1])
            yield TableChange(PUT, scope, _OFFSET.unpack(key)[0], delivery)
        elif op == PUT:
            yield TableChange(PUT, scope, LOOKED, _OFFSET.unpack(value)[0])
        elif op == DROP:
            yield TableChange(DROP, scope, _OFFSET.unpack(key)[0])
        elif op == SCOPE:
            scope = _read_scope(value)
        elif op == CLEAR:
            yield TableChange(CLEAR, _read_scope(value))
        elif op == CLEAR_ALL:
            yield TableChange(CLEAR_ALL)


def _encoded_scope(key: PopKey) -> bytes:
    group = key.group.encode()
    return _SCOPE_HEAD.pack(key.queue, len(group)) + group + key.topic.encode()


def _read_scope(data: bytes) -> PopKey:
    queue, size = _SCOPE_HEAD.unpack_from(data)
    names = data[_SCOPE_HEAD.size :]
    return PopKey(names[:size].decode(), names[size:].decode(), queue)


def _encoded_owner(client_id: str, attempt_id: str) -> bytes:
    client, attempt = client_id.encode(), attempt_id.encode()
    client, attempt = client[:_NAME_BYTES_MAX], attempt[:_NAME_BYTES_MAX]
    return _OWNER_HEAD.pack(len(client), len(attempt)) + client + attempt


def _read_owner(value: bytes) -> tuple[str, str]:
    size, _ = _OWNER_HEAD.unpack_from(value, _VALUE.size)
    names = value[_VALUE.size + _OWNER_HEAD.size :]
    return names[:size].decode("utf-8", "replace"), names[size:].decode("utf-8", "replace")


def _shifted(value: InFlight | int, ms: int) -> InFlight | int:
    return value if isinstance(value, int) else value._replace(until_ms=value.until_ms + ms)


# --- changes


#: Returns the change that the message at an offset has this state.
in_flight: Final[Callable[[PopKey, int, InFlight], DeliveryChange]] = partial(TableChange, PUT)
#: Returns the change that the message at an offset is finished.
finished: Final[Callable[[PopKey, int], DeliveryChange]] = partial(TableChange, DROP)
#: Returns the change that a queue has no entries.
forgotten: Final[Callable[[PopKey], DeliveryChange]] = partial(TableChange, CLEAR)


def looked(key: PopKey, offset: int) -> DeliveryChange:
    """Return the change that all messages below an offset were examined."""
    return TableChange(PUT, key, LOOKED, offset)


def shifted(change: DeliveryChange, ms: int) -> DeliveryChange:
    """Return a change whose instant is `ms` milliseconds later."""
    return change if change.value is None else change._replace(value=_shifted(change.value, ms))


class KeptDeliveries:
    """Keeps deliveries in a table of the journal.

    Args:
        is_sync: Changes must be on disk before they are answered.
    """

    def __init__(self, table: DeliveryTable, journal: TableJournal, *, is_sync: bool) -> None:
        self._table = table
        self._journal = journal
        self._is_sync = is_sync
        #: Keeps changes. They are written at the end of the turn, in the order of the calls.
        self.note: Callable[[list[DeliveryChange]], None] = partial(journal.all_changed, table)
        #: Whether changes from before this start are missing.
        self.lacks_changes = table.lacks_changes
        #: Writes all changes now, so that they survive a kill.
        self.write: Callable[[], None] = journal.write
        #: The same, and calls back once they are on disk, or with the error.
        self.when_durable: Callable[[Waiter], None] = journal.when_durable
        #: Writes all changes now. Raises StoreFull if the journal cannot be written: a kill brings back what it had.
        self.write_all: Callable[[], None] = journal.write_all
        #: Writes all changes, and starts to sync them.
        self.sync: Callable[[], None] = journal.sync

    def found(self) -> dict[PopKey, FoundQueue]:
        """Return the entries from before this start."""
        return self._table.found()

    def start(self, everything: Callable[[], Iterator[DeliveryRow]]) -> None:
        """Keep no second copy of the entries: `everything` returns them whenever it is called."""
        self._table.keep_elsewhere(everything)
        self.write()

    def when_safe(self, done: Waiter) -> None:
        """Call `done` once all changes are as safe as `store.flush` promises, or with the error."""
        if self._is_sync:
            self._journal.when_synced(done)
        else:
            self._journal.when_written(self._table, done)
