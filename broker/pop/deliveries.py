"""What groups have in flight, over a restart: the table `deliveries` of the broker's journal (store/tables.py).

    scope    group, topic and queue
    LOOKED   everything below this offset was looked at: what has no entry there is finished
    offset   the message there is not finished, and this is how it stands

The tables of pops (table.py) have the entries; this table is a view of them. A loss costs deliveries that come twice,
never a message: so a put of a delivery comes before the LOOKED behind it, and a group that begins anew somewhere clears
its queue first. A section counts only if the log has what it had then: a message that died is finished only if its dead
letter is there.

Bytes, big-endian: the scope is u32 queue, u16 length of the group, group, topic. The key is an i64 offset; no bytes are
LOOKED, whose value is an i64 offset. The value of a delivery is i32 attempt, i64 until, u64 serial and u8 flags: 1 it
renews; 2 its owner follows, otherwise it has that of the delivery before it in the section. An owner is u16 and u16
lengths, client id, attempt's id.
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

#: The key of the entry that says up to where a queue was looked at.
LOOKED: Final = -1
#: No client id, no attempt's id.
_NOBODY: Final = ("", "")
_RENEWS: Final = 1
_HAS_OWNER: Final = 2
_NAME_BYTES_MAX: Final = 0xFFFF
#: Encoded keys that are kept.
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
    """A queue of a topic, as a group has it."""

    group: str
    topic: str
    queue: int


class InFlight(NamedTuple):
    """A message was delivered ATTEMPT times, last as delivery SERIAL, and is OWNER's until UNTIL_MS.

    That is an instant of the process that says so. It comes again then, at once for an UNTIL_MS that has passed;
    RENEWS: not before its owner is gone. ATTEMPT 0: it was looked at, and not delivered yet. ATTEMPT_ID is that of the
    receive that got it.
    """

    attempt: int
    until_ms: int
    owner: str
    serial: int
    renews: bool
    attempt_id: str = ""


WAITS: Final = InFlight(0, 0, "", 0, False)
"""A message that was looked at, and not delivered."""

DeliveryChange: TypeAlias = TableChange[PopKey, int, InFlight | int]
#: Scope, key and value of an entry.
DeliveryRow: TypeAlias = tuple[PopKey, int, InFlight | int]


class FoundQueue(NamedTuple):
    """One queue: everything below LOOKED was looked at; what is not IN_FLIGHT, by offset, is finished there."""

    looked: int
    in_flight: dict[int, InFlight]

    @classmethod
    def of(cls, rows: Iterable[tuple[int, InFlight | int]]) -> FoundQueue:
        """Return what ROWS, of one scope, say."""
        looked, in_flight = 0, {}
        for key, value in rows:
            if isinstance(value, int):
                looked = value
            else:
                in_flight[key] = value
        return cls(looked, in_flight)


class DeliveryTable(JournalTable[PopKey, int, InFlight | int]):
    """The table `deliveries`."""

    def __init__(self) -> None:
        super().__init__(
            3,
            "deliveries",
            RawCodec(),  # type: ignore[arg-type]  # Not used: entries are encoded and decoded here.
            Durability.WITH_LOG,
            ordered=True,
            shifted=_shifted,
        )
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

    def take_watched(self) -> list[DeliveryChange]:
        """Return the changes since the last call; the first call begins to watch."""
        watched, self._watched = self._watched, []
        return watched or []

    def found(self) -> dict[PopKey, FoundQueue]:
        """Return the entries by queue."""
        return {key: FoundQueue.of(rows.items()) for key, rows in self._rows.items()}

    def encode(self, changes: Iterable[DeliveryChange]) -> bytes:
        parts: list[bytes] = []
        add = parts.append
        put, last = _PUT_ENTRY.pack, None
        last_client, last_attempt = _NOBODY
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


#: The message at an offset stands so.
in_flight: Final[Callable[[PopKey, int, InFlight], DeliveryChange]] = partial(TableChange, PUT)
#: The message at an offset is finished.
finished: Final[Callable[[PopKey, int], DeliveryChange]] = partial(TableChange, DROP)
#: Nothing is known of a queue any more.
forgotten: Final[Callable[[PopKey], DeliveryChange]] = partial(TableChange, CLEAR)


def looked(key: PopKey, offset: int) -> DeliveryChange:
    """Return the change that everything below OFFSET was looked at."""
    return TableChange(PUT, key, LOOKED, offset)


def shifted(change: DeliveryChange, ms: int) -> DeliveryChange:
    """Return CHANGE with an instant that is MS later."""
    return change if change.value is None else change._replace(value=_shifted(change.value, ms))


class KeptDeliveries:
    """What is in flight, kept in TABLE of JOURNAL. IS_SYNC: what is answered has to be on the device."""

    def __init__(self, table: DeliveryTable, journal: TableJournal, *, is_sync: bool) -> None:
        self._table = table
        self._journal = journal
        self._is_sync = is_sync
        #: Keeps changes: they are written at the end of the turn, in the order of the calls.
        self.note: Callable[[list[DeliveryChange]], None] = partial(journal.all_changed, table)
        #: Has what was noted outlive this process, now.
        self.write: Callable[[], None] = journal.write
        #: The same, and begins to bring it to the device.
        self.sync: Callable[[], None] = journal.sync

    def found(self) -> dict[PopKey, FoundQueue]:
        """Return what was kept before this start."""
        return self._table.found()

    def start(self, everything: Callable[[], Iterator[DeliveryRow]]) -> None:
        """Keep nothing twice: EVERYTHING returns all entries, whenever it is called."""
        self._table.keep_elsewhere(everything)
        self.write()

    def when_safe(self, done: Waiter) -> None:
        """Call DONE once what was noted is as safe as the store's setting promises, or with the error."""
        if self._is_sync:
            self._journal.when_synced(done)
        else:
            self._journal.when_written(self._table, done)
