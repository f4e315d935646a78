"""Offsets of queues by topic and group, as in a map of `consumerOffset.json`, and which of them changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class OffsetDelta(NamedTuple):
    """Changes of a table: removed names, then changed entries. New entries are in the order of the table."""

    gone: set[str]
    entries: dict[str, dict[int, int]]


class OffsetTable:
    """Offsets of queues by `topic@group`, and which of ENTRIES changed since the last `take`: at first all of them."""

    def __init__(self, entries: dict[str, dict[int, int]]) -> None:
        self.entries = entries
        self._changed = dict.fromkeys(entries)
        self._gone: set[str] = set()
        #: Changes since the last `take_watched`; None: not watched.
        self._watched: dict[str, None] | None = None

    def put(self, key: str, queue: int, offset: int) -> None:
        self.entries.setdefault(key, {})[queue] = offset
        self._changed[key] = None
        if self._watched is not None:
            self._watched[key] = None

    def drop(self, key: str) -> None:
        del self.entries[key]
        self._changed.pop(key, None)
        self._gone.add(key)
        if self._watched is not None:
            self._watched[key] = None

    def replace(self, key: str, queues: dict[int, int] | None) -> None:
        if queues is None:
            if key in self.entries:
                self.drop(key)
            return
        self.entries[key] = queues
        self._changed[key] = None
        if self._watched is not None:
            self._watched[key] = None

    def take_watched(self) -> Iterable[str]:
        """Return the keys of entries that changed or went since the last call; the first call starts watching."""
        watched, self._watched = self._watched, {}
        return watched or ()

    def take(self) -> OffsetDelta:
        delta = OffsetDelta(self._gone, {key: self.entries[key].copy() for key in self._changed})
        self._changed, self._gone = {}, set()
        return delta

    def give_back(self, delta: OffsetDelta) -> None:
        """Mark the changes in DELTA as unsaved again."""
        older = dict.fromkeys(key for key in delta.entries if key not in self._gone)
        self._changed = older | self._changed
        self._gone |= delta.gone
