"""Apache RocketMQ's files over a link: topics, groups, offsets of groups, and the progress of delay levels.

state_source.py describes the frames. Of each table there is what the master sends, and what a follower does with it: it
stores it in the same file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from ...proto.errors import PocketMQError
from ...store.file_changes import ChangeTable
from ...store.file_table import FileTable
from ...store.format import state_tables
from ...store.message_store import MessageStore
from ...store.offsets_file import OFFSETS_FILE, OffsetsFile
from ...store.state_files import StateFile
from ..callbacks import Safe
from ..offsets import Offsets
from .frames import read_state
from .state_source import StatePart
from .table_part import EntryKey, TablePart

logger = logging.getLogger(__name__)

SET_ASIDE_FOLDER: Final = "set-aside"
TOPICS_FILE: Final = state_tables.TOPICS.file
#: An additional map of the file: the end of the log when a topic was deleted, by name.
DELETED: Final = "deleted"
GROUPS_FILE: Final = state_tables.GROUPS.file
DELAYS_FILE: Final = "delayOffset.json"
#: Deletions of topics that are kept.
DELETED_MAX: Final = 10_000

#: Entries by key; None: the entry was removed.
Entries = dict[EntryKey, Any]


def table_parts(
    topics: FileTable[Any],
    groups: FileTable[Any],
    offsets: Offsets,
    levels: Callable[[], Mapping[int, int]],
    log_end: Callable[[], int],
) -> list[StatePart]:
    """Return the parts of a broker's tables.

    LEVELS returns the next message of each delay level, LOG_END the end of the log.
    """
    return [
        TablePart(FileTableState(state_tables.TOPICS, topics, log_end), is_kept=True),
        TablePart(FileTableState(state_tables.GROUPS, groups), is_kept=True),
        TablePart(OffsetsState(offsets)),
        TablePart(LevelsState(levels)),
    ]


class FileTableState:
    """TABLE, the table of FORM: topics or groups.

    LOG_END returns the end of the log. It is recorded when an entry is deleted in this epoch: if a topic is created
    again, its queues start again, and older messages do not belong to it. The latest DELETED_MAX deletions are kept.
    """

    def __init__(
        self,
        form: state_tables.TableForm[Any],
        table: FileTable[Any],
        log_end: Callable[[], int] | None = None,
    ) -> None:
        self.file = form.file
        self._key = partial(EntryKey, form.members)
        self._table = table
        self._log_end = log_end
        self._deleted: dict[str, int] = {}
        self._changed: dict[EntryKey, None] = {}
        self.on_change: list[Callable[[], None]] = []
        table.on_change.append(self._note)

    def _note(self, name: str) -> None:
        self._changed[self._key(name)] = None
        if self._log_end is not None and name not in self._table.entries:
            self._deleted.pop(name, None)
            self._deleted[name] = self._log_end()
            self._changed[EntryKey(DELETED, name)] = None
            if len(self._deleted) > DELETED_MAX:
                del self._deleted[next(iter(self._deleted))]
        for callback in self.on_change:
            callback()

    def take_changed(self) -> Iterable[EntryKey]:
        changed, self._changed = self._changed, {}
        return changed

    def keys(self) -> Iterable[EntryKey]:
        yield from map(self._key, self._table.entries)
        for name in self._deleted:
            yield EntryKey(DELETED, name)

    def entry(self, key: EntryKey) -> Any:
        if key.map == DELETED:
            return self._deleted.get(key.name)
        entry = self._table.entries.get(key.name)
        return None if entry is None else entry.to_json()


class FileTableSink:
    """The table of FORM, of topics or of groups, and the queues of deleted topics."""

    is_kept = True

    def __init__(
        self,
        store: MessageStore,
        form: state_tables.TableForm[Any],
        changes: ChangeTable,
        unix_ms: Callable[[], int],
    ) -> None:
        self.file = form.file
        self._store = store
        self._form = form
        file = StateFile(store.disk, store.config.path, form.file)
        self.table: FileTable[Any] = FileTable(file, form, unix_ms, changes=changes)
        self.when_safe = self.table.when_safe
        #: Deleted topics, and the end of the log at that time.
        self._deleted: dict[str, int] = {}

    def read(self, content: bytes) -> tuple[Entries, dict[str, int]]:
        found, deleted = _entries(content, (self._form.members, DELETED)), {}
        for key in [key for key in found if key.map == DELETED]:
            if (end := found.pop(key)) is not None:
                deleted[key.name] = _whole(end)
        entries = {
            key: None if bean is None else self._form.entry(key.name, bean)
            for key, bean in found.items()
        }
        return entries, deleted

    def apply(self, said: tuple[Entries, dict[str, int]], *, whole: bool, log_offset: int) -> None:
        entries, deleted = said
        table = self.table
        known = {EntryKey(self._form.members, name): name for name in table.entries}
        if whole:
            gone = [key for key in known if entries.get(key) is None]
            _set_aside(
                self._store, self.file, {key: table.entries[key.name].to_json() for key in gone}
            )
            entries = entries | dict.fromkeys(gone)
            deleted = {key.name: log_offset for key in gone} | deleted
        table.put_all({key.name: entry for key, entry in entries.items()})
        self._deleted |= deleted

    def delete_queues(self, log_end: int | None) -> None:
        """Delete the queues of topics that were deleted before LOG_END (None: at any time), without newer messages.

        Raises DiskFailure, StoreClosed.
        """
        for topic, end in list(self._deleted.items()):
            if log_end is None or end <= log_end:
                self._store.delete_topic(topic, before=end)
                del self._deleted[topic]

    def close(self) -> None:
        self.table.close()


class OffsetsState:
    """The committed offsets of groups: OFFSETS."""

    file = OFFSETS_FILE

    def __init__(self, offsets: Offsets) -> None:
        self.on_change: list[Callable[[], None]] = []
        self._tables = offsets.tables

    def take_changed(self) -> Iterable[EntryKey]:
        return [
            EntryKey(name, key)
            for name, table in self._tables.items()
            for key in table.take_watched()
        ]

    def keys(self) -> Iterable[EntryKey]:
        return [
            EntryKey(name, key) for name, table in self._tables.items() for key in table.entries
        ]

    def entry(self, key: EntryKey) -> Any:
        return self._tables[key.map].entries.get(key.name)


class OffsetsSink:
    """The committed offsets of groups."""

    is_kept = False

    def __init__(self, store: MessageStore, unix_ms: Callable[[], int]) -> None:
        self._store = store
        file = OffsetsFile(store.disk, store.config.path)
        self.offsets = Offsets(file, unix_ms, log=store)
        self.when_safe = self.offsets.when_saved
        self.close = self.offsets.save

    def read(self, content: bytes) -> Entries:
        return {
            key: None
            if queues is None
            else {int(queue): _whole(at) for queue, at in queues.items()}
            for key, queues in _entries(content, tuple(self.offsets.tables)).items()
        }

    def apply(self, said: Entries, *, whole: bool, log_offset: int) -> None:
        if whole:
            gone = {
                EntryKey(name, key): queues
                for name, table in self.offsets.tables.items()
                for key, queues in table.entries.items()
                if said.get(EntryKey(name, key)) is None
            }
            _set_aside(self._store, OFFSETS_FILE, gone)
            said = said | dict.fromkeys(gone)
        self.offsets.follow_log(log_offset)
        for key, queues in said.items():
            self.offsets.replace(key.map, key.name, queues)


class LevelsState:
    """The progress of each delay level: what OFFSETS returns."""

    file = DELAYS_FILE

    def __init__(self, offsets: Callable[[], Mapping[int, int]]) -> None:
        self.on_change: list[Callable[[], None]] = []
        self._offsets = offsets
        self._told: dict[int, int] = {}

    def take_changed(self) -> Iterable[EntryKey]:
        now = self._offsets()
        changed = [level for level, offset in now.items() if self._told.get(level) != offset]
        self._told = dict(now)
        return [EntryKey("offsetTable", str(level)) for level in changed]

    def keys(self) -> Iterable[EntryKey]:
        return [EntryKey("offsetTable", str(level)) for level in self._offsets()]

    def entry(self, key: EntryKey) -> Any:
        return self._offsets().get(int(key.name))


class LevelsSink:
    """The progress of each delay level."""

    is_kept = False

    def __init__(self, store: MessageStore, unix_ms: Callable[[], int]) -> None:
        self._store = store
        self._unix_ms = unix_ms
        self._file = StateFile(store.disk, store.config.path, DELAYS_FILE)
        self.start = self._file.start
        loaded = self._file.load_value(state_tables.parse_delay_offsets)
        self._table = loaded or state_tables.DelayOffsets()
        self._saved = self._table
        self._log_end = 0

    @property
    def is_ahead_of_log(self) -> bool:
        """Return whether it depends on a part of the log that may not be on disk."""
        return self._store.flushed_offset < self._log_end

    def read(self, content: bytes) -> dict[int, int]:
        return {
            int(key.name): _whole(offset)
            for key, offset in _entries(content, ("offsetTable",)).items()
        }

    def apply(self, said: dict[int, int], *, whole: bool, log_offset: int) -> None:
        offsets = said if whole else self._table.offsets | said
        version = self._table.version.next(self._unix_ms())
        self._table = state_tables.DelayOffsets(version, dict(sorted(offsets.items())))
        self._log_end = max(self._log_end, log_offset)

    def when_safe(self, done: Safe) -> None:
        table = self._table

        def written(error: PocketMQError | None) -> None:
            if error is None:
                self._saved = table
            done(error)

        def synced(error: PocketMQError | None) -> None:
            if error is not None:
                written(error)
                return
            self._file.save_soon(lambda: [state_tables.render_delay_offsets(table)], written)

        self._store.request_sync(self._log_end, synced)

    def close(self) -> None:
        if self._saved is not self._table and not self.is_ahead_of_log:
            self._file.save(state_tables.render_delay_offsets(self._table))


def _entries(content: bytes, maps: tuple[str, ...]) -> Entries:
    """Return the entries of MAPS in CONTENT; raises ValueError."""
    found: Entries = {}
    for name, entries in read_state(content).items():
        if name not in maps:
            raise ValueError(f"map {name[:64]!r} is unknown, not one of {', '.join(maps)}")
        found |= {EntryKey(name, key): entry for key, entry in entries.items()}
    return found


def _set_aside(store: MessageStore, file: str, entries: Entries) -> None:
    """Write ENTRIES of FILE, which the master does not have, to a separate file."""
    if not entries:
        return
    folder = f"{store.config.own_folder}/{SET_ASIDE_FOLDER}"
    store.disk.make_folders(folder)
    taken = {entry.name for entry in store.disk.list(folder)}
    number = next(n for n in range(1, len(taken) + 2) if f"{file}.{n}" not in taken)
    maps: dict[str, dict[str, Any]] = {}
    for key, entry in entries.items():
        maps.setdefault(key.map, {})[key.name] = entry
    path = f"{folder}/{file}.{number}"
    store.disk.write_atomically(path, json.dumps(maps, ensure_ascii=False).encode())
    logger.warning(
        "entries that the master does not have were quarantined file=%s entries=%d path=%s",
        file,
        len(entries),
        path,
    )


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value
