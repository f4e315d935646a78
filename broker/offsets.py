"""The committed offsets of all groups: `config/consumerOffset.json` in memory, saved periodically and at a stop.

An offset is the next message to consume. A kill loses what was committed since the last save (5 s by default), and
those messages are redelivered. Losing a step back would skip messages, so an administrator who resets offsets gets the
reply after they are saved.

A commit may have a text (Kafka's commit metadata), for which Apache's file has no place. commit_texts.py stores it with
its offset when this file is saved. A kill between the two may lose a text, or bring back an earlier text of the same
offset; a text never belongs to another offset.

Some offsets are in the log as well (transactions/atomic_commits.py). The file is saved only after that part of the log
is on disk, or a power cut could keep the offsets and lose their messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias, cast

from ..proto.errors import MasterFenced, PocketMQError, StoreError
from ..store.flush import CallOwner, Flusher, FlushJob
from ..store.format.java_json import Json, pieces_with_members, render_member, render_numbers
from ..store.format.state_tables import (
    ConsumerOffsets,
    DataVersion,
    parse_consumer_offsets,
    topics_of_groups,
)
from ..store.offsets_file import OffsetsFile
from ..store.state_files import StateFile
from .commit_texts import CommitText, CommitTexts

logger = logging.getLogger(__name__)

#: Told of None, or of the error.
Safe: TypeAlias = Callable[[PocketMQError | None], None]

#: Apache's: commits between two steps of the file's version.
_COMMITS_PER_VERSION: Final = 500
#: What Apache's table has between topic and group.
_SEPARATOR: Final = "@"


class Log(Protocol):
    """A log: how much of it the device has."""

    @property
    def flushed_offset(self) -> int: ...

    def request_sync(self, end_offset: int, waiter: Safe) -> None: ...


class Offsets:
    """Offsets by topic, group and queue, over FILE; TEXTS came with them. Some of them are in LOG."""

    def __init__(
        self,
        file: StateFile,
        now_ms: Callable[[], int],
        texts: CommitTexts | None = None,
        log: Log | None = None,
    ) -> None:
        self._file = file
        self._now_ms = now_ms
        loaded = file.load(parse_consumer_offsets)
        if loaded.problem:
            logger.warning("state file was broken file=%s problem=%s", file.name, loaded.problem)
        table = loaded.value or ConsumerOffsets()
        for key, unread in table.unread.items():
            logger.warning(
                "offsets not read, the group starts anew there file=%s key=%r reason=%s",
                file.name,
                key[:200],
                unread.reason,
            )
        self._version: DataVersion = table.version
        self._offsets = OffsetTable(table.offsets)
        self._pull_offsets = OffsetTable(table.pull_offsets)
        #: By their names in the file.
        self.tables = {"offsetTable": self._offsets, "pullOffsetTable": self._pull_offsets}
        self.texts = CommitTexts() if texts is None else texts
        for group, topic, queue in self.texts.known():
            self.texts.offset_is((group, topic, queue), self.committed(topic, group, queue))
        self._commits = 0
        self._dirty = isinstance(file, OffsetsFile) and file.are_two
        #: What is to be saved once the log is on the device.
        self._behind: _Changes | None = None
        self._text = _Text()
        self._saver = Flusher("not started: works at once")
        self._call_owner: CallOwner = lambda function: function()
        self._saving = 0
        #: How much of the log the device must have before the file says what was committed.
        self._log_end = 0
        self._log = log

    def follow_log(self, log_end: int) -> None:
        """Note that some of what is committed stands in the log before LOG_END."""
        self._log_end = max(self._log_end, log_end)

    @property
    def is_ahead_of_log(self) -> bool:
        """Does some of what is committed stand in a part of the log that the device may not have?"""
        return self._log is not None and self._log.flushed_offset < self._log_end

    def start(self, saver: Flusher, call_owner: CallOwner) -> None:
        """From now on save by SAVER, until it has stopped; CALL_OWNER brings back what became of it."""
        self._saver = saver
        self._call_owner = call_owner

    def commit(
        self, topic: str, group: str, queue: int, offset: int, metadata: str | None = None
    ) -> None:
        """Note that GROUP has finished everything below OFFSET of QUEUE; going back is allowed.

        METADATA goes with OFFSET ("": nothing does); None leaves to it what it has.
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
        """Return the text that goes with what GROUP has committed of QUEUE; "": none does."""
        found = self.texts.get((group, topic, queue))
        return "" if found is None else found.text

    def of_group(self, group: str) -> list[tuple[str, int, int]]:
        """Return (topic, queue, offset) of everything that GROUP committed, sorted."""
        found = []
        for key, queues in self._offsets.entries.items():
            topic, _, owner = key.partition(_SEPARATOR)
            if owner == group:
                found += [(topic, queue, offset) for queue, offset in queues.items()]
        return sorted(found)

    def pulled(self, topic: str, group: str, queue: int, offset: int) -> None:
        """Note where GROUP last fetched, if it is one that commits: anybody may give any name with a fetch."""
        key = _key(topic, group)
        if key in self._offsets.entries:
            self._pull_offsets.put(key, queue, offset)

    def forget_topic(self, topic: str) -> None:
        """Forget every group's offsets of TOPIC."""
        self._forget(lambda key: key.partition(_SEPARATOR)[0] == topic)
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

    # --- following

    def replace(self, table: str, key: str, queues: dict[int, int] | None) -> None:
        """Let the entry KEY of TABLE be QUEUES, as another broker has it (None: gone)."""
        self.tables[table].replace(key, queues)
        self._dirty = True

    # --- saving

    def save(self) -> None:
        """Write the file here and now, if it lacks anything. Raises StoreError.

        Only where no saver works: it was not started, or has stopped.
        """
        if not self._lacks():
            return
        if self._log is not None and self.is_ahead_of_log:
            raise StoreError(
                f"offsets are not saved: the device has the log up to {self._log.flushed_offset} only, and they stand"
                f" in it before {self._log_end}",
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
        """Call DONE with None once the file has all that was committed up to now, or with the error."""
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

    def save_behind(self, sync: Callable[[Safe], None]) -> None:
        """Write the file as it is now, if it changed, when what is in the log now is on the device: SYNC tells.

        What is finished may be so because of a copy: a retry, a dead letter. A power cut must not take that alone.
        One such save at a time: what changes meanwhile is for the next.
        """
        if not self._dirty or self._behind is not None or self._saving:
            return
        self._dirty = False
        changes = self._behind = self._take()

        def synced(error: PocketMQError | None) -> None:
            if self._behind is not changes:
                return  # A later save has taken it along.
            if error is None:
                self._submit(lambda error: None, [changes])
            else:
                self._give_back(changes)
                # A master that is one no more leaves nothing undone: its followers have the offsets.
                level = logging.INFO if isinstance(error, MasterFenced) else logging.ERROR
                logger.log(level, "offsets not saved reason=%s", error.message)
            self._behind = None

        sync(synced)

    def _lacks(self) -> bool:
        """May the file lack something?"""
        return self._dirty or self._behind is not None or self._saving > 0

    def _submit(self, done: Safe, changes: list[_Changes]) -> None:
        """Have the saver write the file with CHANGES; tell DONE in the owner's thread."""
        text = partial(self._text.after, changes)
        self._saving += 1

        def saved(error: PocketMQError | None) -> None:
            self._saving -= 1
            if error is not None:
                self._dirty = True
                logger.error("offsets not saved reason=%s", error.message)
            done(error)

        def written(error: PocketMQError | None) -> None:
            self._call_owner(partial(saved, error))

        self._saver.submit(FlushJob([self._file.saving(text)], written))

    def _take_all(self) -> list[_Changes]:
        """Return what no save has yet, that which waits for the log first."""
        behind, self._behind = self._behind, None
        self._dirty = False
        return [self._take()] if behind is None else [behind, self._take()]

    def _take(self) -> _Changes:
        self.texts.write()
        return _Changes(self._version, self._offsets.take(), self._pull_offsets.take())

    def _give_back(self, changes: _Changes) -> None:
        self._offsets.give_back(changes.offsets)
        self._pull_offsets.give_back(changes.pull_offsets)
        self._dirty = True


@dataclass(frozen=True, slots=True)
class _Delta:
    """What changed in a table: first names that went, then entries as they are now, in the table's order if new."""

    gone: set[str]
    entries: dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class _Changes:
    version: DataVersion
    offsets: _Delta
    pull_offsets: _Delta


class OffsetTable:
    """Offsets of queues by `topic@group`, and which of ENTRIES changed since the last `take`: at first all."""

    def __init__(self, entries: dict[str, dict[int, int]]) -> None:
        self.entries = entries
        self._changed = dict.fromkeys(entries)
        self._gone: set[str] = set()
        #: What changed since the last `take_watched`; None: nobody asks.
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
        """Return the keys of entries that changed or went since the last call; the first one begins to watch."""
        watched, self._watched = self._watched, {}
        return watched or ()

    def take(self) -> _Delta:
        delta = _Delta(self._gone, {key: self.entries[key].copy() for key in self._changed})
        self._changed, self._gone = {}, set()
        return delta

    def give_back(self, delta: _Delta) -> None:
        """Let what DELTA has be changed still."""
        older = dict.fromkeys(key for key in delta.entries if key not in self._gone)
        self._changed = older | self._changed
        self._gone |= delta.gone


class _Text:
    """The text of the file, made from that of its entries. Whoever saves has it, one thread at a time."""

    def __init__(self) -> None:
        self._offsets: dict[str, str] = {}
        self._pull_offsets: dict[str, str] = {}
        self._topics: list[str] = []

    def after(self, changes: list[_Changes]) -> Iterator[str]:
        """Return the text with CHANGES, one or more, which are taken out of the list; with none as it was."""
        while changes:
            first = changes.pop(0)
            self._head: dict[str | int, Json] = {"dataVersion": first.version.to_json()}
            if _apply(first.offsets, self._offsets):
                topics = topics_of_groups(self._offsets)
                self._topics = [
                    render_member(group, cast(Json, names), 1) for group, names in topics.items()
                ]
            _apply(first.pull_offsets, self._pull_offsets)
        maps = {
            "groupTopicMap": self._topics,
            "offsetTable": self._offsets.values(),
            "pullOffsetTable": self._pull_offsets.values(),
        }
        return pieces_with_members(self._head, maps)


def _apply(delta: _Delta, texts: dict[str, str]) -> bool:
    """Bring TEXTS up to DELTA; return whether it has other names then."""
    before = len(texts)
    for key in delta.gone:
        texts.pop(key, None)
    left = len(texts)
    for key, queues in delta.entries.items():
        texts[key] = render_numbers(key, queues, 1)
    return not before == left == len(texts)


def _key(topic: str, group: str) -> str:
    return f"{topic}{_SEPARATOR}{group}"
