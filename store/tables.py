"""Tables of state next to the log: entries by scope and key, whose changes a journal keeps.

A table has two levels because all entries of a scope can go at once: the offsets of a group, the leases of a topic.
`Durability` says when a change is written. What the caller puts is in the table at once, except that a table with
`BEFORE_REPLY` changes only if the journal took the change.

A large table that keeps its entries elsewhere is a *view*: see `JournalTable.keep_elsewhere`.

Not thread-safe: the event loop owns tables and their journal.
"""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from ..proto.facts import Facts
from .flush import Waiter
from .format.table_frames import CLEAR, CLEAR_ALL, DROP, PUT, SCOPE, TableVersion, entries, entry

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Hashable)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LAZY_ENTRIES_MAX: Final = 2_000
"""Entries of a lazy table that are written in one turn."""
STEP_BYTES: Final = 64 << 10
"""Encoded bytes of one step of a snapshot."""


class Durability(enum.Enum):
    """When a change of a table is written, and synced."""

    BEFORE_REPLY = "before_reply"
    """Written by `put` itself, which raises StoreError if it cannot be."""
    WITH_LOG = "with_log"
    """Written at the end of the turn of the event loop, synced with the store's flush interval."""
    LAZY = "lazy"
    """Written within seconds, one entry for all changes of a key."""
    PROCESS = "process"
    """Written at the end of the turn, never synced: it counts only while the machine has not been restarted."""


class Codec(Protocol[S, K, V]):
    """Scopes, keys and values of a table as bytes. `read_*` raise ValueError for what they cannot read."""

    def scope(self, scope: S) -> bytes: ...
    def key(self, key: K) -> bytes: ...
    def value(self, value: V) -> bytes: ...
    def read_scope(self, data: bytes) -> S: ...
    def read_key(self, data: bytes) -> K: ...
    def read_value(self, data: bytes) -> V: ...


class TableChange(NamedTuple, Generic[S, K, V]):
    """One operation on a table, which is of VERSION then; what it does not need is None."""

    op: int
    scope: S | None = None
    key: K | None = None
    value: V | None = None
    version: TableVersion | None = None


AnyChange = TableChange[Any, Any, Any]


class JournalOfTables(Protocol):
    """What a table needs of its journal."""

    def changed(self, table: AnyTable, change: AnyChange, *, is_urgent: bool) -> None:
        """Keep CHANGE of TABLE and apply it. Raises StoreError if it had to be written and was not."""

    def all_changed(self, table: AnyTable, changes: list[AnyChange]) -> None:
        """Keep CHANGES of TABLE, which is WITH_LOG, in this order, and apply them."""

    def change_now(self, changes: list[tuple[AnyTable, AnyChange]]) -> None:
        """Write CHANGES as one frame, and apply them. Raises StoreError: then nothing has changed."""

    def when_durable(self, waiter: Waiter) -> None:
        """Call WAITER once all changes up to now are on disk, or with the error."""

    def when_put_durable(self, waiter: Waiter) -> None:
        """The same for changes that were written at once, without the log that others need."""


class _NoJournal:
    """The journal of a table that was added to none: changes stay in memory."""

    def changed(self, table: AnyTable, change: AnyChange, *, is_urgent: bool) -> None:
        table.apply(change)

    def all_changed(self, table: AnyTable, changes: list[AnyChange]) -> None:
        table.apply_all(changes)

    def change_now(self, changes: list[tuple[AnyTable, AnyChange]]) -> None:
        for table, change in changes:
            table.apply(change)

    def when_durable(self, waiter: Waiter) -> None:
        waiter(None)

    when_put_durable = when_durable


class JournalTable(Generic[S, K, V]):
    """Entries by scope and key.

    Args:
        number: What the journal calls it: 1 to 255, never used for another table.
        needs_log: The entries are true only if the log has all that it had when they were written.
        ordered: A change counts only if every change before it is known.
        shifted: Returns a value whose instants are so many milliseconds later; None: values have no instants. An
            instant is one of the process that wrote it: a start has all of them shifted.
    """

    def __init__(
        self,
        number: int,
        name: str,
        codec: Codec[S, K, V],
        durability: Durability,
        *,
        needs_log: bool = True,
        ordered: bool = False,
        shifted: Callable[[V, int], V] | None = None,
    ) -> None:
        self.number = number
        self.name = name
        self.codec = codec
        self.durability = durability
        self.needs_log = needs_log
        self.ordered = ordered
        self.version: TableVersion | None = None
        self._shifted = shifted
        self._journal: JournalOfTables = _NoJournal()
        self._rows: dict[S, dict[K, V]] = {}
        self._view: Callable[[], Iterable[tuple[S, K, V]]] | None = None
        self._get_elsewhere: Callable[[S, K], V | None] = lambda scope, key: None
        #: Called with scope and key of each entry that changed or was deleted.
        self.on_change: list[Callable[[S, K], None]] = []

    # --- asking

    def __len__(self) -> int:
        """Return how many entries the table keeps itself."""
        return sum(map(len, self._rows.values()))

    def get(self, scope: S, key: K) -> V | None:
        """Return the entry of KEY in SCOPE."""
        if self._view is not None:
            return self._get_elsewhere(scope, key)
        return self._rows.get(scope, {}).get(key)

    def scopes(self) -> list[S]:
        """Return the scopes that have entries, in the order in which they got their first."""
        return list(self._rows)

    def of_scope(self, scope: S) -> dict[K, V]:
        """Return a copy of the entries of SCOPE."""
        return dict(self._rows.get(scope, ()))

    def items(self) -> Iterator[tuple[S, K, V]]:
        """Yield (scope, key, value) of every entry; the table may change meanwhile."""
        if self._view is not None:
            yield from self._view()
            return
        for scope in list(self._rows):
            rows = self._rows.get(scope, {})
            for key in list(rows):
                if key in rows:
                    yield scope, key, rows[key]

    def keep_elsewhere(
        self,
        view: Callable[[], Iterable[tuple[S, K, V]]],
        get: Callable[[S, K], V | None] = lambda scope, key: None,
    ) -> None:
        """Keep no entries any more: VIEW yields them when a snapshot needs them, while they change; GET returns one.

        If others follow the changes, the caller reports each one to `announce`.
        """
        self._view, self._get_elsewhere = view, get
        self._rows.clear()

    def announce(self, scope: S, key: K) -> None:
        """Report to `on_change` that the entry of KEY in SCOPE changed or was deleted."""
        for callback in self.on_change:
            callback(scope, key)

    # --- changing

    def put(
        self,
        scope: S,
        key: K,
        value: V,
        *,
        version: TableVersion | None = None,
        is_urgent: bool = False,
    ) -> None:
        """Set the entry of KEY in SCOPE to VALUE, and the version of the table to VERSION.

        Args:
            is_urgent: A lazy table writes it at the end of the turn.
        """
        change = TableChange(PUT, scope, key, value, version)
        self._journal.changed(self, change, is_urgent=is_urgent)

    def drop(
        self, scope: S, key: K, *, version: TableVersion | None = None, is_urgent: bool = True
    ) -> None:
        """Delete the entry of KEY in SCOPE.

        Args:
            is_urgent: A lazy table writes it at the end of the turn.
        """
        change: TableChange[S, K, V] = TableChange(DROP, scope, key, None, version)
        self._journal.changed(self, change, is_urgent=is_urgent)

    def clear(self, scope: S, *, version: TableVersion | None = None) -> None:
        """Delete all entries of SCOPE, by one entry of the journal."""
        change: TableChange[S, K, V] = TableChange(CLEAR, scope, None, None, version)
        self._journal.changed(self, change, is_urgent=True)

    def clear_all(self) -> None:
        """Delete every entry, by one entry of the journal."""
        self._journal.changed(self, TableChange(CLEAR_ALL), is_urgent=True)

    def change_all(self, changes: list[TableChange[S, K, V]]) -> None:
        """Do CHANGES, in this order; for a table that is WITH_LOG, or BEFORE_REPLY. They stay the journal's.

        Raises StoreError for a table that is BEFORE_REPLY; then nothing has changed.
        """
        if self.durability is Durability.BEFORE_REPLY:
            self._journal.change_now([(self, change) for change in changes])
        else:
            self._journal.all_changed(self, changes)

    def when_durable(self, waiter: Waiter) -> None:
        """Write all changes; call WAITER once they are on disk, or with the error."""
        if self.durability is Durability.BEFORE_REPLY and not self.needs_log:
            self._journal.when_put_durable(waiter)
        else:
            self._journal.when_durable(waiter)

    # --- for the journal

    def join(self, journal: JournalOfTables) -> None:
        """Have JOURNAL keep the changes from now on."""
        self._journal = journal

    def found_at(self, version: TableVersion | None) -> None:
        """Take over VERSION, which was found with entries, if there is one."""
        self.version = version or self.version

    def apply(self, change: TableChange[S, K, V]) -> None:
        """Do what CHANGE says to the entries that the table keeps itself."""
        self.version = change.version or self.version
        if self._view is not None:
            return
        keys = self._keys_of(change) if self.on_change else ()
        self._apply_to_rows(change)
        for scope, key in keys:
            self.announce(scope, key)

    def apply_all(self, changes: list[TableChange[S, K, V]]) -> None:
        """Do what CHANGES say to the entries that the table keeps itself."""
        for change in changes:
            self.apply(change)

    @property
    def has_instants(self) -> bool:
        """Do values say instants of the process that wrote them?"""
        return self._shifted is not None

    def shift(self, ms: int) -> None:
        """Have all instants in the entries be MS later: they are of a process with another clock."""
        if self._shifted is None or not ms:
            return
        for rows in self._rows.values():
            for key, value in rows.items():
                rows[key] = self._shifted(value, ms)

    def _keys_of(self, change: AnyChange) -> list[tuple[S, K]]:
        """Return scope and key of what CHANGE changes."""
        op, scope, key, _, _ = change
        if op in (PUT, DROP):
            return [(scope, key)]  # type: ignore[list-item]
        return [(one, key) for one, key, _ in self.items() if op == CLEAR_ALL or one == scope]

    def _apply_to_rows(self, change: TableChange[S, K, V]) -> None:
        op, scope, key, value, _ = change
        if op == CLEAR_ALL:
            self._rows.clear()
        elif op == CLEAR:
            self._rows.pop(scope, None)  # type: ignore[arg-type]
        elif op == PUT:
            rows = self._rows.setdefault(scope, {})  # type: ignore[arg-type]
            rows.pop(key, None)  # type: ignore[arg-type]
            rows[key] = value  # type: ignore[assignment,index]  # After all others.
        elif (found := self._rows.get(scope)) is not None:  # type: ignore[arg-type]
            found.pop(key, None)  # type: ignore[arg-type]
            if not found:
                del self._rows[scope]  # type: ignore[arg-type]

    def encode(self, changes: Iterable[TableChange[S, K, V]]) -> bytes:
        """Return CHANGES as the entries of one section."""
        return b"".join(_encoded(self.codec, changes))

    def encode_valid(self, changes: list[TableChange[S, K, V]]) -> bytes:
        """Return CHANGES as entries, without those that cannot be encoded, which are logged."""
        try:
            return self.encode(changes)
        except (
            Exception
        ) as error:  # The edge: one entry's bug must not keep all others from the journal.
            if len(changes) > 1:
                return b"".join(self.encode_valid([change]) for change in changes)
            facts = Facts(table=self.name, key=f"{changes[0].key!r:.200}", reason=f"{error!r:.200}")
            logger.error("entry of a table not written %s", facts)
            return b""

    def decode(self, data: bytes) -> list[TableChange[S, K, V]]:
        """Return the changes that the entries of one section say. Raises ValueError."""
        changes: list[TableChange[S, K, V]] = []
        scope: S | None = None
        for op, key, value in entries(data):
            if op == SCOPE:
                scope = self.codec.read_scope(value)
            elif op == PUT:
                read = self.codec.read_value(value)
                changes.append(TableChange(PUT, scope, self.codec.read_key(key), read))
            elif op == DROP:
                changes.append(TableChange(DROP, scope, self.codec.read_key(key)))
            elif op == CLEAR:
                changes.append(TableChange(CLEAR, self.codec.read_scope(value)))
            elif op == CLEAR_ALL:
                changes.append(TableChange(CLEAR_ALL))
        return changes

    def pieces(self) -> Iterator[bytes]:
        """Yield all entries as sections of about STEP_BYTES, or empty bytes for a piece of the work."""
        held: list[TableChange[S, K, V]] = []
        parts: list[bytes] = []
        size, batch = 0, 1
        for scope, key, value in self.items():
            held.append(TableChange(PUT, scope, key, value))
            if len(held) >= batch:
                parts.append(self.encode_valid(held))
                # Entries may have tens of KB: no more at once than fit in a step.
                room = STEP_BYTES * len(held) // max(1, len(parts[-1]))
                batch = max(1, min(64, 2 * batch, room))
                held.clear()
                size += len(parts[-1])
            if size >= STEP_BYTES:
                yield b"".join(parts)
                parts.clear()
                size = 0
        yield b"".join((*parts, self.encode_valid(held)))


AnyTable = JournalTable[Any, Any, Any]
NamedTable = JournalTable[str, str, Any]


def _encoded(codec: Codec[S, K, V], changes: Iterable[TableChange[S, K, V]]) -> Iterator[bytes]:
    is_said, last = False, None
    for op, scope, key, value, _ in changes:
        if op in (CLEAR, CLEAR_ALL):
            # A reader forgets the scope here, and so does this.
            is_said = False
            yield entry(op, value=codec.scope(scope) if op == CLEAR else b"")  # type: ignore[arg-type]
            continue
        if not is_said or scope != last:
            yield entry(SCOPE, value=codec.scope(scope))  # type: ignore[arg-type]
            is_said, last = True, scope
        yield entry(
            op,
            codec.key(key),  # type: ignore[arg-type]
            codec.value(value) if op == PUT else b"",  # type: ignore[arg-type]
        )


class Noted:
    """The changes of a table that are not written yet, in order; of a lazy table only the last of each key."""

    def __init__(self, table: AnyTable) -> None:
        self.table = table
        self.is_urgent = False
        #: In order.
        self.changes: list[AnyChange] = []
        #: Of a lazy table, later than all in `changes`: the last of each key.
        self.latest: dict[Hashable, AnyChange] = {}

    def __bool__(self) -> bool:
        return bool(self.changes or self.latest)

    def add(self, change: AnyChange, *, is_urgent: bool) -> None:
        """Take CHANGE, which is later than all before it."""
        self.is_urgent = self.is_urgent or is_urgent
        if self.table.durability is not Durability.LAZY:
            self.changes.append(change)
        elif change.op in (PUT, DROP):
            where = change.scope, change.key
            # Removed first: the entries keep the order in which keys changed last.
            self.latest.pop(where, None)
            self.latest[where] = change
        else:
            self.changes += self.latest.values()
            self.changes.append(change)
            self.latest.clear()

    def take(self, entries_max: int | None = None) -> list[AnyChange]:
        """Return the changes and forget them; a lazy table that has nothing urgent gives up to ENTRIES_MAX."""
        taken, self.changes = self.changes, []
        if entries_max is None or self.is_urgent or len(self.latest) <= entries_max:
            taken += self.latest.values()
            self.latest.clear()
            self.is_urgent = False
            return taken
        for where in list(self.latest)[:entries_max]:
            taken.append(self.latest.pop(where))
        return taken


class JsonValues:
    """Names as scopes, values that are JSON: a codec without keys."""

    _dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

    def scope(self, scope: str) -> bytes:
        return scope.encode()

    def value(self, value: Any) -> bytes:
        return self._dumps(value).encode()

    def read_scope(self, data: bytes) -> str:
        return data.decode()

    def read_value(self, data: bytes) -> Any:
        return json.loads(data)


class JsonCodec(JsonValues):
    """Names as scopes and keys, values that are JSON."""

    def key(self, key: str) -> bytes:
        return key.encode()

    def read_key(self, data: bytes) -> str:
        return data.decode()


class RawCodec:
    """Scopes, keys and values as the bytes they are: for tools, which know no tables."""

    def scope(self, scope: bytes) -> bytes:
        return scope

    def key(self, key: bytes) -> bytes:
        return key

    def value(self, value: bytes) -> bytes:
        return value

    def read_scope(self, data: bytes) -> bytes:
        return data

    def read_key(self, data: bytes) -> bytes:
        return data

    def read_value(self, data: bytes) -> bytes:
        return data


def raw_table(number: int, name: str) -> JournalTable[bytes, bytes, bytes]:
    """Return a table that reads what any table wrote."""
    return JournalTable(number, name, RawCodec(), Durability.LAZY)
