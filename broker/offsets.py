"""What each group has finished: `config/consumerOffset.json` in memory, saved every few seconds and at a stop.

An offset is the next one to consume: everything below it is finished. A kill loses what was committed since the
last save (5 s by default), and then those messages are delivered again; nothing is skipped. A step back that was lost
would skip: whoever has a group go back by its administrator's will saves at once.

Not thread-safe: the event loop owns it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from ..proto.errors import PocketMQError
from ..store.state_files import StateFile
from ..store.state_tables import (
    ConsumerOffsets,
    DataVersion,
    parse_consumer_offsets,
    render_consumer_offsets,
)

logger = logging.getLogger(__name__)

#: Told of None, or of the error.
Safe: TypeAlias = Callable[[PocketMQError | None], None]

#: Apache's: commits between two steps of the file's version.
_COMMITS_PER_VERSION: Final = 500
#: What Apache's table has between topic and group.
_SEPARATOR: Final = "@"


class Offsets:
    """Offsets by topic, group and queue, over FILE."""

    def __init__(self, file: StateFile, now_ms: Callable[[], int]) -> None:
        self._file = file
        self._now_ms = now_ms
        loaded = file.load(parse_consumer_offsets)
        if loaded.problem:
            logger.warning("state file was broken file=%s problem=%s", file.name, loaded.problem)
        table = loaded.value or ConsumerOffsets()
        self._version: DataVersion = table.version
        self._offsets = table.offsets
        self._pull_offsets = table.pull_offsets
        self._commits = 0
        self._dirty = False
        #: How many saves were begun.
        self._saves = 0
        #: Is the latest of them still to be written?
        self._is_behind = False

    def commit(self, topic: str, group: str, queue: int, offset: int) -> None:
        """Note that GROUP has finished everything below OFFSET of QUEUE; going back is allowed."""
        self._offsets.setdefault(_key(topic, group), {})[queue] = offset
        self._dirty = True
        self._commits += 1
        if self._commits % _COMMITS_PER_VERSION == 0:
            self._version = self._version.next(self._now_ms())

    def committed(self, topic: str, group: str, queue: int) -> int | None:
        """Return the next offset of QUEUE for GROUP; None if it never committed."""
        return self._offsets.get(_key(topic, group), {}).get(queue)

    def of_group(self, group: str) -> list[tuple[str, int, int]]:
        """Return (topic, queue, offset) of everything that GROUP committed, sorted."""
        found = []
        for key, queues in self._offsets.items():
            topic, _, owner = key.partition(_SEPARATOR)
            if owner == group:
                found += [(topic, queue, offset) for queue, offset in queues.items()]
        return sorted(found)

    def pulled(self, topic: str, group: str, queue: int, offset: int) -> None:
        """Note where GROUP last fetched, if it is one that commits: anybody may give any name with a fetch."""
        key = _key(topic, group)
        if key in self._offsets:
            self._pull_offsets.setdefault(key, {})[queue] = offset

    def forget_topic(self, topic: str) -> None:
        """Forget every group's offsets of TOPIC."""
        self._forget(lambda key: key.partition(_SEPARATOR)[0] == topic)

    def forget_group(self, group: str) -> None:
        """Forget the offsets of GROUP."""
        self._forget(lambda key: key.partition(_SEPARATOR)[2] == group)

    def _forget(self, matches: Callable[[str], bool]) -> None:
        for table in (self._offsets, self._pull_offsets):
            for key in [key for key in table if matches(key)]:
                del table[key]
                self._dirty = True

    def save(self) -> None:
        """Write the file if anything was committed since the last time."""
        if not self._dirty and not self._is_behind:
            return
        self._saves += 1
        self._file.save(self._text())
        self._dirty = self._is_behind = False

    def save_behind(self, sync: Callable[[Safe], None]) -> None:
        """Write the file as it is now, if it changed, when what is in the log now is on the device: SYNC tells.

        What is finished may be so because of a copy: a retry, a dead letter. A power cut must not take that alone.
        """
        if not self._dirty:
            return
        self._dirty, self._is_behind = False, True
        self._saves += 1
        text, number = self._text(), self._saves

        def synced(error: PocketMQError | None) -> None:
            if number != self._saves:
                return  # A later save has, or will have, what this one has.
            try:
                if error is not None:
                    raise error
                self._file.save(text)
                self._is_behind = False
            except PocketMQError as failure:
                self._dirty = True
                logger.error("offsets not saved reason=%s", failure.message)

        sync(synced)

    def _text(self) -> str:
        table = ConsumerOffsets(self._version, self._offsets, self._pull_offsets)
        return render_consumer_offsets(table)


def _key(topic: str, group: str) -> str:
    return f"{topic}{_SEPARATOR}{group}"
