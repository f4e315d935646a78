"""A table of the master that is replicated: which entries changed, and since when. See state_source.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

#: Changes of a table that are known; a follower that lacks older ones gets the complete table.
RECENT_MAX: Final = 200_000


class EntryKey(NamedTuple):
    """An entry of a file: its map, and its name there."""

    map: str
    name: str


class StateTable(Protocol):
    """A table that is replicated to followers."""

    @property
    def file(self) -> str:
        """Its name in frames."""
        ...

    @property
    def on_change(self) -> list[Callable[[], None]]:
        """Called in the turn of each change, if the change must not wait."""
        ...

    def take_changed(self) -> Iterable[EntryKey]:
        """Return the entries that changed or were removed since the last call; the first call starts watching."""
        ...

    def keys(self) -> Iterable[EntryKey]:
        """Return the keys of all entries."""
        ...

    def entry(self, key: EntryKey) -> Any:
        """Return the entry KEY as JSON; None: it was removed."""
        ...


class TablePart:
    """A TABLE by entries, with the count of the last change of each."""

    def __init__(self, table: StateTable, *, is_kept: bool = False) -> None:
        self._table = table
        self.file = table.file
        self.is_kept = is_kept
        self.on_change = table.on_change
        self.count = 1
        #: Keys in the order of changes; those that changed at _FLOOR or before may be missing.
        self._recent: dict[EntryKey, int] = {}
        self._floor = 1
        for _ in table.take_changed():
            pass

    def look(self) -> None:
        changed = self._table.take_changed()
        if not changed:
            return
        self.count += 1
        for key in changed:
            self._recent.pop(key, None)
            self._recent[key] = self.count
        if (excess := len(self._recent) - RECENT_MAX) > 0:
            for key in list(islice(self._recent, excess)):
                self._floor = self._recent.pop(key)

    def behind(self, base: int) -> bytes | None:
        if base < self._floor:
            return None
        keys = []
        for key in reversed(self._recent):
            if self._recent[key] <= base:
                break
            keys.append(key)
        return self._content(reversed(keys))

    def whole(self) -> bytes:
        return self._content(list(self._table.keys()))

    def _content(self, keys: Iterable[EntryKey]) -> bytes:
        maps: dict[str, dict[str, Any]] = {}
        for key in keys:
            maps.setdefault(key.map, {})[key.name] = self._table.entry(key)
        return json.dumps(maps, ensure_ascii=False, separators=(",", ":")).encode()
