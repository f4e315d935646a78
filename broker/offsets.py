"""The committed offsets of all groups: `config/consumerOffset.json` in memory, saved periodically and at a stop.

An offset is the next message to consume. A kill loses what was committed since the last save (5 s by default), and
those messages are redelivered. Losing a step back would skip messages, so an administrator who resets offsets gets the
reply after they are saved.

A commit may have metadata (as in Kafka), for which RocketMQ's file has no field. commit_texts.py stores it with its
offset when this file is saved. A kill between the two may lose metadata, or restore earlier metadata of the same
offset. Metadata never belongs to another offset.

Some offsets are in the log as well (transactions/atomic_commits.py). The file is saved only after that part of the log
is on disk, or a power cut could keep the offsets and lose their messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple, Protocol, cast

from ..proto.errors import MasterFenced, PocketMQError, StoreError
from ..proto.lite_topics import lite_queue_name
from ..store.flush import CallOwner, Flusher
from ..store.format.java_json import Json, pieces_with_members, render_member, render_numbers
from ..store.format.state_tables import (
    ConsumerOffsets,
    DataVersion,
    parse_consumer_offsets,
    topics_of_groups,
)
from ..store.offsets_file import OffsetsFile
from ..store.rendered_map import RenderedMap
from ..store.state_files import StateFile
from .callbacks import Safe
from .commit_texts import CommitText, CommitTexts
from .offset_table import OffsetDelta, OffsetTable

logger = logging.getLogger(__name__)

#: Commits between two increments of the file's version, as in RocketMQ.
_COMMITS_PER_VERSION: Final = 500
#: Separator between topic and group in keys of RocketMQ's table.
_SEPARATOR: Final = "@"


class Log(Protocol):
    """A log, and how much of it is on disk."""

    @property
    def flushed_offset(self) -> int: ...

    def request_sync(self, end_offset: int, waiter: Safe) -> None: ...


class Offsets:
    """Offsets by topic, group and queue, stored in FILE. TEXTS is their metadata. Some of them depend on LOG."""

    def __init__(
        self,
        file: StateFile,
        now_ms: Callable[[], int],
        texts: CommitTexts | None = None,
        log: Log | None = None,
    ) -> None:
        self._file = file
        self._now_ms = now_ms
        table = file.load_value(parse_consumer_offsets) or ConsumerOffsets()
        for key, unread in table.unread.items():
            logger.warning(
                "offsets not read, the group starts without them file=%s key=%r reason=%s",
                file.name,
                key[:200],
                unread.reason,
            )
        self._version: DataVersion = table.version
        self._offsets = OffsetTable(table.offsets)
        self._pull_offsets = OffsetTable(table.pull_offsets)
        #: The tables by their names in the file.
        self.tables = {"offsetTable": self._offsets, "pullOffsetTable": self._pull_offsets}
        self.texts = CommitTexts() if texts is None else texts
        for group, topic, queue in self.texts.known():
            self.texts.offset_is((group, topic, queue), self.committed(topic, group, queue))
        self._commits = 0
        self._dirty = isinstance(file, OffsetsFile) and file.are_two
        #: Changes that are saved once the log is on disk.
        self._waiting_for_log: _Changes | None = None
        self._text = _Text()
        self._saving = 0
        #: The log must be on disk up to this offset before the file may contain what was committed.
        self._log_end = 0
        self._log = log

    def follow_log(self, log_end: int) -> None:
        """Note that committed offsets depend on the log before LOG_END."""
        self._log_end = max(self._log_end, log_end)

    @property
    def is_ahead_of_log(self) -> bool:
        """Return whether committed offsets depend on a part of the log that may not be on disk."""
        return self._log is not None and self._log.flushed_offset < self._log_end

    def start(self, saver: Flusher, call_owner: CallOwner) -> None:
        """From now on let SAVER save, until it has stopped. CALL_OWNER runs its callbacks in the owner's thread."""
        self._file.start(saver, call_owner)

    def commit(
        self, topic: str, group: str, queue: int, offset: int, metadata: str | None = None
    ) -> None:
        """Commit OFFSET: GROUP has processed all messages of QUEUE before it. It may be lower than the last one.

        METADATA is stored with OFFSET ("": none); None keeps the present metadata.
        """
        self._offsets.put(_key(topic, group), queue, offset)
        if metadata is not None:
            text = CommitText(offset, metadata) if metadata else None
            self.texts.replace((group, topic, queue), text)
        elif len(self.texts):
            self.texts.offset_is((group, topic, queue), offset)
        self._dirty = True
        self._commits += 1
        if self._commits % _COMMITS_PER_VERSION == 0:
            self._version = self._version.next(self._now_ms())

    def committed(self, topic: str, group: str, queue: int) -> int | None:
        """Return the next offset of QUEUE for GROUP; None if it never committed."""
        return self._offsets.entries.get(_key(topic, group), {}).get(queue)

    def metadata(self, topic: str, group: str, queue: int) -> str:
        """Return the metadata of the committed offset of GROUP in QUEUE; "" if there is none."""
        found = self.texts.get((group, topic, queue))
        return "" if found is None else found.text

    def of_group(self, group: str) -> list[tuple[str, int, int]]:
        """Return (topic, queue, offset) of each offset that GROUP committed, sorted."""
        found = []
        for key, queues in self._offsets.entries.items():
            topic, _, owner = key.partition(_SEPARATOR)
            if owner == group:
                found += [(topic, queue, offset) for queue, offset in queues.items()]
        return sorted(found)

    def pulled(self, topic: str, group: str, queue: int, offset: int) -> None:
        """Note where GROUP last fetched, if it commits: a fetch may carry any name."""
        key = _key(topic, group)
        if key in self._offsets.entries:
            self._pull_offsets.put(key, queue, offset)

    def forget_topic(self, topic: str) -> None:
        """Forget every group's offsets of TOPIC and of its lite topics."""
        lite = lite_queue_name(topic, "")  # The beginning of their names.
        self._forget(lambda key: key.partition(_SEPARATOR)[0] == topic or key.startswith(lite))
        self.texts.remove(lambda key: key[1] == topic)

    def forget_group(self, group: str) -> None:
        """Forget the offsets of GROUP."""
        self._forget(lambda key: key.partition(_SEPARATOR)[2] == group)
        self.texts.remove(lambda key: key[0] == group)

    def _forget(self, matches: Callable[[str], bool]) -> None:
        for table in (self._offsets, self._pull_offsets):
            for key in [key for key in table.entries if matches(key)]:
                table.drop(key)
                self._dirty = True

    def replace(self, table: str, key: str, queues: dict[int, int] | None) -> None:
        """Set the entry KEY of TABLE to QUEUES, as another broker has it (None: remove it)."""
        self.tables[table].replace(key, queues)
        self._dirty = True

    def save(self) -> None:
        """Write the file now, if anything has changed. Raises StoreError.

        Only without a saver: before `start`, or after the saver has stopped.
        """
        if not self._lacks():
            return
        if self._log is not None and self.is_ahead_of_log:
            raise StoreError(
                f"offsets are not saved: they depend on the log before {self._log_end}, of which only"
                f" {self._log.flushed_offset} is on disk",
                limit=self._log.flushed_offset,
                value=self._log_end,
            )
        changes = self._take_all()
        try:
            self._file.save(self._text.after(changes))
        except PocketMQError:
            self._dirty = True
            raise

    def when_saved(self, done: Safe) -> None:
        """Call DONE with None once the file has everything that is committed now, or with the error."""
        if not self._lacks():
            done(None)
            return
        changes = self._take_all()
        if self._log is None or not self.is_ahead_of_log:
            self._submit(done, changes)
            return
        self._saving += 1

        def synced(error: PocketMQError | None) -> None:
            self._saving -= 1
            if error is None:
                self._submit(done, changes)
                return
            for each in reversed(changes):
                self._give_back(each)
            done(error)

        self._log.request_sync(self._log_end, synced)

    def save_after_sync(self, sync: Callable[[Safe], None]) -> None:
        """Write the present state of the file, if it changed, once the present log is on disk. SYNC calls back then.

        A message may be committed because of its copy, a retry or a dead letter, so the copy must be on disk first. One
        such save at a time: what changes meanwhile is for the next one.
        """
        if not self._dirty or self._waiting_for_log is not None or self._saving:
            return
        self._dirty = False
        changes = self._waiting_for_log = self._take()

        def synced(error: PocketMQError | None) -> None:
            if self._waiting_for_log is not changes:
                return  # A later save has included it.
            if error is None:
                self._submit(lambda error: None, [changes])
            else:
                self._give_back(changes)
                # A fenced master loses nothing: its followers have the offsets.
                level = logging.INFO if isinstance(error, MasterFenced) else logging.ERROR
                logger.log(level, "offsets not saved reason=%s", error.message)
            self._waiting_for_log = None

        sync(synced)

    def _lacks(self) -> bool:
        """Return whether the file may lack a change."""
        return self._dirty or self._waiting_for_log is not None or self._saving > 0

    def _submit(self, done: Safe, changes: list[_Changes]) -> None:
        """Let the saver write the file with CHANGES; call DONE in the owner's thread."""
        self._saving += 1

        def saved(error: PocketMQError | None) -> None:
            self._saving -= 1
            if error is not None:
                self._dirty = True
                logger.error("offsets not saved reason=%s", error.message)
            done(error)

        self._file.save_soon(partial(self._text.after, changes), saved)

    def _take_all(self) -> list[_Changes]:
        """Return all unsaved changes, those that wait for the log first."""
        behind, self._waiting_for_log = self._waiting_for_log, None
        self._dirty = False
        return [self._take()] if behind is None else [behind, self._take()]

    def _take(self) -> _Changes:
        self.texts.write()
        return _Changes(self._version, self._offsets.take(), self._pull_offsets.take())

    def _give_back(self, changes: _Changes) -> None:
        self._offsets.give_back(changes.offsets)
        self._pull_offsets.give_back(changes.pull_offsets)
        self._dirty = True


class _Changes(NamedTuple):
    version: DataVersion
    offsets: OffsetDelta
    pull_offsets: OffsetDelta


class _Text:
    """The text of the file, built from the texts of its entries. Used by one thread at a time."""

    def __init__(self) -> None:
        self._offsets, self._pull_offsets = RenderedMap(_member), RenderedMap(_member)
        self._topics: list[str] = []

    def after(self, changes: list[_Changes]) -> Iterator[str]:
        """Yield the text after CHANGES, which are removed from the list; with none, yield the text as it was."""
        while changes:
            first = changes.pop(0)
            self._head: dict[str | int, Json] = {"dataVersion": first.version.to_json()}
            if self._offsets.change(first.offsets.gone, first.offsets.entries):
                topics = topics_of_groups(self._offsets.texts)
                self._topics = [
                    render_member(group, cast(Json, names), 1) for group, names in topics.items()
                ]
            self._pull_offsets.change(first.pull_offsets.gone, first.pull_offsets.entries)
        maps = {
            "groupTopicMap": self._topics,
            "offsetTable": self._offsets.texts.values(),
            "pullOffsetTable": self._pull_offsets.texts.values(),
        }
        return pieces_with_members(self._head, maps)


def _member(key: str, queues: dict[int, int]) -> str:
    return render_numbers(key, queues, 1)


def _key(topic: str, group: str) -> str:
    return f"{topic}{_SEPARATOR}{group}"
