"""Offset metadata that consumers committed (as in Kafka), in the table `commit_texts` of the broker's journal.

RocketMQ's `consumerOffset.json` has no field for it. Metadata belongs to the offset that it was committed with: once
the offset of the group differs, it is removed, also at a start. Changes are written when the offsets are saved. After a
kill, the offset of a few seconds ago mostly has its metadata. The event loop owns them.

Limit: TEXTS_MAX. Beyond it, the metadata that was committed longest ago is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from ..store.flush import Waiter
from .group_queues import ONE_SCOPE, GroupQueue, GroupQueueTable, group_queue_table, number_of

TEXTS_MAX: Final = 10_000


class CommitText(NamedTuple):
    """Metadata TEXT, committed with OFFSET."""

    offset: int
    text: str


CommitTextTable: TypeAlias = GroupQueueTable[CommitText]


class CommitTexts:
    """Offset metadata by topic, group and queue, stored in TABLE (None: in memory only)."""

    def __init__(self, table: CommitTextTable | None = None, limit: int = TEXTS_MAX) -> None:
        self._table = commit_text_table() if table is None else table
        self._limit = limit
        #: The one that was committed longest ago is first.
        self._texts: dict[GroupQueue, CommitText] = {}
        for _, key, text in self._table.items():
            if text is not None:
                self._texts[key] = text
        self._table.keep_elsewhere(self._rows, lambda scope, key: self.get(key))
        #: Changes that are not in the table yet, in their order.
        self._changed: dict[GroupQueue, None] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def get(self, key: GroupQueue) -> CommitText | None:
        """Return the metadata of KEY with its offset."""
        return self._texts.get(key)

    def known(self) -> list[GroupQueue]:
        """Return the queues with metadata, the one that was committed longest ago first."""
        return list(self._texts)

    def replace(self, key: GroupQueue, text: CommitText | None) -> None:
        """Set the metadata of KEY to TEXT; None: remove it."""
        if self._texts.pop(key, None) is None and text is None:
            return
        if text is not None:
            self._texts[key] = text
            if len(self._texts) > self._limit:
                oldest = next(iter(self._texts))
                del self._texts[oldest]
                self._note(oldest)
        self._note(key)

    def offset_is(self, key: GroupQueue, offset: int | None) -> None:
        """Remove the metadata of KEY unless it was committed with OFFSET, the present one (None: there is none)."""
        found = self._texts.get(key)
        if found is not None and found.offset != offset:
            self.replace(key, None)

    def remove(self, matches: Callable[[GroupQueue], bool]) -> None:
        """Remove the metadata of all keys for which MATCHES returns true."""
        for key in list(filter(matches, self._texts)):
            self.replace(key, None)

    def _note(self, key: GroupQueue) -> None:
        self._changed.pop(key, None)
        self._changed[key] = None
        self._table.announce(ONE_SCOPE, key)

    def write(self) -> None:
        """Write the changes to the journal at the end of this turn of the event loop."""
        changed, self._changed = self._changed, {}
        for key in changed:
            text = self._texts.get(key)
            if text is None:
                self._table.drop(ONE_SCOPE, key)
            else:
                self._table.put(ONE_SCOPE, key, text, is_urgent=True)

    def when_durable(self, waiter: Waiter) -> None:
        """Write the changes; call WAITER once they are on disk, or with the error."""
        self.write()
        self._table.when_durable(waiter)

    def _rows(self) -> Iterator[tuple[str, GroupQueue, CommitText]]:
        """Yield all entries for a snapshot; they may change meanwhile."""
        for key in list(self._texts):
            if (text := self._texts.get(key)) is not None:
                yield ONE_SCOPE, key, text


def commit_text_table() -> CommitTextTable:
    """Return the table that stores offset metadata."""
    return group_queue_table(5, "commit_texts", list, text_from_json)


def text_from_json(document: Any) -> CommitText:
    """Return the metadata in DOCUMENT, [offset, text]; raise ValueError or TypeError if it is malformed."""
    offset, text = document
    return CommitText(number_of(offset), str(text))
