"""Tables of the broker's journal with names as keys and JSON as values: how a master sends them to its followers.

A frame has the entries by scope and key: {"scope": {"key": value, …}, …}. See state_source.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...store.format.table_frames import CLEAR_ALL, DROP, PUT
from ...store.tables import AnyChange, NamedTable
from .links import read_state
from .state_source import EntryKey


def stream_file(table: NamedTable) -> str:
    """Return the name of TABLE on the stream."""
    return f"tables/{table.name}"


class NamedTableState:
    """TABLE of a master."""

    def __init__(self, table: NamedTable) -> None:
        self.file = stream_file(table)
        self.on_change: list[Callable[[], None]] = []
        self._table = table
        self._changed: dict[EntryKey, None] = {}
        table.on_change.append(self._note)

    def _note(self, change: AnyChange) -> None:
        """Note which entries CHANGE is about; the table does not have it yet."""
        op, scope, key, _, _ = change
        if op in (PUT, DROP):
            self._changed[EntryKey(str(scope), str(key))] = None
            return
        for one in self.keys():
            if op == CLEAR_ALL or one.map == scope:
                self._changed[one] = None

    def take_changed(self) -> Iterable[EntryKey]:
        changed, self._changed = self._changed, {}
        return changed

    def keys(self) -> Iterable[EntryKey]:
        return [EntryKey(scope, key) for scope, key, _ in self._table.items()]

    def entry(self, key: EntryKey) -> Any:
        return self._table.get(key.map, key.name)


class NamedTableSink:
    """TABLE of a follower."""

    is_kept = False

    def __init__(self, table: NamedTable) -> None:
        self._table = table
        self.when_safe = table.when_durable

    def read(self, content: bytes) -> dict[EntryKey, Any]:
        maps = read_state(content).items()
        return {EntryKey(scope, key): row for scope, rows in maps for key, row in rows.items()}

    def apply(self, said: dict[EntryKey, Any], *, whole: bool, log_offset: int) -> None:
        if whole:
            known = [EntryKey(scope, key) for scope, key, _ in self._table.items()]
            said = dict.fromkeys(known) | said
        for (scope, key), row in said.items():
            if row is None:
                self._table.drop(scope, key)
            else:
                self._table.put(scope, key, row)

    def close(self) -> None:
        """The journal is closed after all parts."""
