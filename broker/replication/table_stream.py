"""Tables of the broker's journal on the stream of a master to its followers.

A frame has the entries by scope and key: {"scope": {"key": value, …}, …}. See state_source.py. A table that is sent has
text as scopes and keys, and JSON that is not null as values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from ...store.flush import Waiter
from ...store.format.table_frames import KEY_BYTES_MAX
from ...store.tables import AnyTable
from .frames import read_state
from .table_part import EntryKey

#: Scope and key of an entry.
TableKey: TypeAlias = tuple[Any, Any]


#: The table of statistics of groups.
STATISTICS_FILE: Final = "tables/statistics"


def stream_file(table: AnyTable) -> str:
    """Return the name of TABLE in frames."""
    return f"tables/{table.name}"


class TableState:
    """TABLE of a master."""

    def __init__(self, table: AnyTable) -> None:
        self.file = stream_file(table)
        self.on_change: list[Callable[[], None]] = []
        self._table = table
        self._codec = table.codec
        self._changed: dict[TableKey, None] = {}
        table.on_change.append(self._note)

    def _note(self, *key: Any) -> None:
        self._changed[key] = None

    def take_changed(self) -> Iterable[EntryKey]:
        changed, self._changed = self._changed, {}
        return [self._name(*key) for key in changed]

    def keys(self) -> Iterable[EntryKey]:
        return [self._name(scope, key) for scope, key, _ in self._table.items()]

    def entry(self, key: EntryKey) -> Any:
        scope, name = key.map.encode(), key.name.encode()
        value = self._table.get(self._codec.read_scope(scope), self._codec.read_key(name))
        return None if value is None else json.loads(self._codec.value(value))

    def _name(self, scope: Any, key: Any) -> EntryKey:
        return EntryKey(self._codec.scope(scope).decode(), self._codec.key(key).decode())


class TableSink:
    """TABLE of a follower."""

    is_kept = False

    def __init__(self, table: AnyTable) -> None:
        self._table = table

    def read(self, content: bytes) -> dict[TableKey, Any]:
        codec = self._table.codec
        said: dict[TableKey, Any] = {}
        for scope, rows in read_state(content).items():
            for key, row in rows.items():
                value = None if row is None else codec.read_value(json.dumps(row).encode())
                name = key.encode()
                if len(name) > KEY_BYTES_MAX or (value is None and row is not None):
                    raise ValueError(f"entry {key[:80]!r} is not one of {self._table.name}")
                said[codec.read_scope(scope.encode()), codec.read_key(name)] = value
        return said

    def apply(self, said: dict[TableKey, Any], *, whole: bool, log_offset: int) -> None:
        if whole:
            said = dict.fromkeys((scope, key) for scope, key, _ in self._table.items()) | said
        for (scope, key), value in said.items():
            if value is None:
                self._table.drop(scope, key, is_urgent=False)
            else:
                self._table.put(scope, key, value)

    def when_safe(self, done: Waiter) -> None:
        self._table.when_durable(done)

    def close(self) -> None:
        """Does nothing: the journal is closed after all parts."""
