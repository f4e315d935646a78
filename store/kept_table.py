"""A table of a state file, with a journal of the changes since the file was last written.

    config/topics.json                     the complete table, as Apache RocketMQ stores it: written in another
                                           thread, once per second or less
    pocketmq/changes/topics.json-N         the changes since then, in order; followed by -N+1
    pocketmq/changes/topics.json.bak-N     the same once the table has them: its backup lacks these changes. The
                                           next writing of the table, which makes another backup, deletes them

So a change of one entry costs one small record. The record is written before the change takes effect: it survives a
kill. `when_safe` reports when it is on disk. Without `start` (tools, tests) each change writes the complete table.

A record: u32 length, u32 CRC-32 of the rest, big-endian, then JSON without white space

    {"before":[counter,stateVersion,timestamp],"version":[…],"name":"orders","entry":{…}}

with RocketMQ's object as the entry, or null for a deleted one. Zeros end a file. A load applies the records that follow
the version of the file. If another broker wrote the file meanwhile, no record follows it: the load then uses only
entries that the file lacks.

The owner's thread calls everything; the threads of the two flushers only write and sync.
"""

from __future__ import annotations

import logging
import posixpath
import struct
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, Generic, Protocol, TypeVar, cast

from ..proto.errors import PocketMQError, StoreError
from .disk import Disk, Mapping as FileMapping
from .files import FolderSync, Syncable
from .flush import CallOwner, Flusher, FlushJob, GroupCommit, Waiter
from .format.beans import Object
from .format.java_json import Json, parse, pieces_with_members, render, render_member
from .format.state_tables import DataVersion, TableForm
from .state_files import StateFile

logger = logging.getLogger(__name__)

FOLDER: Final = "pocketmq/changes"
FILE_BYTES: Final = 1 << 20
CHANGES_MAX: Final = 64 << 20
_HEAD: Final = struct.Struct(">II")


class Bean(Protocol):
    """An entry of a table."""

    def to_json(self) -> Json: ...


E = TypeVar("E", bound=Bean)


@dataclass(frozen=True, slots=True)
class Change(Generic[E]):
    """ENTRY of NAME (None: it was deleted), a change of the table from version BEFORE to VERSION."""

    before: DataVersion
    version: DataVersion
    name: str
    entry: E | None

    def to_bytes(self) -> bytes:
        text = render(
            {
                "before": _numbers(self.before),
                "version": _numbers(self.version),
                "name": self.name,
                "entry": None if self.entry is None else self.entry.to_json(),
            },
            pretty=False,
        )
        data = text.encode()
        return _HEAD.pack(len(data), zlib.crc32(data)) + data


class KeptChanges(Generic[E]):
    """The stored changes of the table NAME, of FORM, in the store ROOT, in order. `number`: of the last file, or 0.

    A reader of the store of a running broker must read these first, then the table: then it misses no change.
    `paths`: the changes since the table was written. Older changes are those that its backup lacks.
    """

    def __init__(self, disk: Disk, root: str, name: str, form: TableForm[E]) -> None:
        self.paths = change_paths(disk, root, name)
        older = change_paths(disk, root, backup_name(name))
        self.number = max(chain(self.paths, older), default=0)
        self._rows = _rows(disk, self.paths, form)
        self._older = _rows(disk, older, form)

    def since(self, version: DataVersion) -> list[Change[E]] | None:
        """Return the changes since the table's VERSION; None: another broker wrote the table meanwhile."""
        if self._rows and self._rows[-1].version == version:
            return []
        for rows in (self._rows, [*self._older, *self._rows]):
            for index, change in enumerate(rows):
                if change.before == version:
                    return rows[index:]
        return None if self._rows else []

    def version_after(self, version: DataVersion) -> DataVersion | None:
        """Return the version after the changes since VERSION; None: another broker wrote the table meanwhile."""
        since = self.since(version)
        return since[-1].version if since else None if since is None else version

    def behind(self, version: DataVersion, known: Container[str]) -> dict[str, E | None]:
        """Return the changes that the table of VERSION lacks, by name; None for deleted entries.

        If another broker wrote the table, these are only the names that it does not have; KNOWN are those it has.
        """
        since = self.since(version)
        if since is None:
            latest = {change.name: change.entry for change in self._rows}
            return {name: entry for name, entry in latest.items() if name not in known and entry}
        return {change.name: change.entry for change in since}

    def applied(self, version: DataVersion, entries: Mapping[str, E]) -> dict[str, E]:
        """Return the ENTRIES of the table of VERSION with the changes applied."""
        lacking = self.behind(version, entries)
        there = {name: entry for name, entry in entries.items() if name not in lacking}
        return there | {name: entry for name, entry in lacking.items() if entry is not None}


def change_paths(disk: Disk, root: str, name: str) -> dict[int, str]:
    """Return the files of changes of the table NAME, by number."""
    folder, prefix = f"{root}/{FOLDER}", f"{name}-"
    return {
        int(entry.name.removeprefix(prefix)): f"{folder}/{entry.name}"
        for entry in disk.list(folder)
        if entry.name.startswith(prefix) and entry.name.removeprefix(prefix).isdecimal()
    }


def backup_name(name: str) -> str:
    """Return the name of the changes that the table NAME has but its backup lacks."""
    return f"{name}.bak"


def _rows(disk: Disk, paths: Mapping[int, str], form: TableForm[E]) -> list[Change[E]]:
    return [change for _, path in sorted(paths.items()) for change in _read(disk, path, form)]


def _read(disk: Disk, path: str, form: TableForm[E]) -> Iterator[Change[E]]:
    data, at = disk.read(path), 0
    while at + _HEAD.size <= len(data):
        size, crc = _HEAD.unpack_from(data, at)
        content = data[at + _HEAD.size : at + _HEAD.size + size]
        if not size:
            return
        try:
            if len(content) < size or zlib.crc32(content) != crc:
                raise ValueError("it is truncated")
            change = _read_change(content.decode(), form)
        except (ValueError, LookupError, TypeError) as error:
            logger.warning("change not read path=%s at=%d reason=%s", path, at, error)
            return
        yield change
        at += _HEAD.size + size


def _read_change(text: str, form: TableForm[E]) -> Change[E]:
    document = cast(Object, parse(text))
    name, bean = str(document["name"]), document["entry"]
    return Change(
        _version(document["before"]),
        _version(document["version"]),
        name,
        None if bean is None else form.entry(name, cast(Object, bean)),
    )


class KeptTable(Generic[E]):
    """The table in FILE, of FORM. `entries` is its current content: read it; change it with `put` and `drop`."""

    def __init__(
        self,
        file: StateFile,
        form: TableForm[E],
        now_ms: Callable[[], int],
        changed: Callable[[str], None] | None = None,
    ) -> None:
        """Load; raises CorruptState. The table calls CHANGED after every change, with the name of the entry."""
        self._file = file
        self._form = form
        self._now_ms = now_ms
        self._disk = file.disk
        self._folder = f"{file.root}/{FOLDER}"
        loaded = file.load(form.parse)
        if loaded.problem:
            logger.warning("state file was damaged file=%s problem=%s", file.name, loaded.problem)
        table = loaded.value or form.read({})
        self.version, self.entries, self._others = table.version, table.entries, table.others
        #: Entries of the file that cannot be read. They are not changed until they are replaced.
        self.unread = table.unread
        #: The text of the entries, in order. One thread at a time owns it: the one that writes the table.
        self._texts: dict[str, str] = {}
        #: Changes since the texts were updated: deleted names, then entries; None: everything.
        self._gone: set[str] = set()
        self._news: dict[str, E] | None = None
        #: Called after every change, with the name of the entry.
        self.on_change: list[Callable[[str], None]] = [] if changed is None else [changed]
        self._number = 0
        #: Does the file differ from the table?
        self._is_changed = self._replay()
        #: Does the next backup need older changes as well?
        self._needs_older = self._is_changed
        self._saving = False
        self._saver: Flusher | None = None
        self._changes: FileMapping | None = None
        self._at = 0
        #: Bytes of all changes ever written, and of those that the file has.
        self._written = self._saved = 0
        self._dirty: list[Syncable] = []
        self._flusher = Flusher("not started: flushes at once")
        self._group = GroupCommit(self._collect, self._flusher)

    def _replay(self) -> bool:
        """Apply the changes that the file does not have; return whether there are, or may be, any."""
        changes = KeptChanges(self._disk, self._file.root, self._file.name, self._form)
        self._number = changes.number
        version = changes.version_after(self.version)
        if version is None:
            logger.warning(
                "file written by another broker: only new entries are applied file=%s",
                self._file.name,
            )
        lacking = changes.behind(self.version, self.entries)
        for name, entry in lacking.items():
            self._apply(name, entry)
        self.version = self.version.next(self._now_ms()) if version is None else version
        return bool(changes.paths or lacking)

    def start(self, saver: Flusher, flusher: Flusher, call_owner: CallOwner) -> None:
        """From now on, write the complete table with SAVER, in `tick`; sync changes with FLUSHER."""
        self._saver = saver
        self._flusher = flusher
        if self._is_changed:
            # The replayed changes may be only in the page cache, if the last process was killed.
            paths = self._paths(self._file.name) | self._paths(backup_name(self._file.name))
            self._dirty = [*self._names(), *map(self._disk.open_map, paths.values())]
            self._written += 1
        self._begin_group(call_owner)

    def _begin_group(self, call_owner: CallOwner) -> None:
        """Sync from now on what the file does not have, whatever the result of earlier syncs was."""
        self._group = GroupCommit(
            self._collect, self._flusher, flushed_offset=self._saved, call_owner=call_owner
        )
        self._group.flush_up_to(self._written)

    def close(self) -> None:
        """Write the complete table now if it has changes; the saver has ended. Raises StoreError."""
        unsure, self._saving = self._saving, False
        self._saver = None
        if self._is_changed or unsure:
            self._save_now()

    def put(self, name: str, entry: E) -> None:
        """Set NAME to ENTRY; raises StoreError, and then nothing has changed."""
        self._change(name, entry)

    def put_late(self, name: str, entry: E) -> None:
        """Set NAME to ENTRY, which a kill may lose: the file has it once the complete table is written."""
        self._apply(name, entry)
        self._is_changed = True
        self._tell(name)

    def drop(self, name: str) -> None:
        """Delete NAME; raises StoreError, and then nothing has changed."""
        self._change(name, None)

    def put_all(self, entries: Mapping[str, E | None]) -> None:
        """Set each name of ENTRIES to its entry (None: delete it), in one write; entries without a change are skipped.

        Raises StoreError: then nothing has changed; without a saver thread, the first ones may have.
        """
        changes = {name: one for name, one in entries.items() if self.entries.get(name) != one}
        if self._saver is None or self._written - self._saved > CHANGES_MAX:
            for name, entry in changes.items():
                self._change(name, entry)
            return
        version, records = self.version, bytearray()
        for name, entry in changes.items():
            before, version = version, version.next(self._now_ms())
            records += Change(before, version, name, entry).to_bytes()
        if not records:
            return
        self._write(bytes(records))
        self.version = version
        for name, entry in changes.items():
            self._apply(name, entry)
        self._is_changed = True
        self._group.flush_up_to(self._written)
        for name in changes:
            self._tell(name)

    def _change(self, name: str, entry: E | None) -> None:
        version = self.version.next(self._now_ms())
        is_long = self._written - self._saved > CHANGES_MAX and not self._saving
        if self._saver is None or is_long:
            before, had = self.version, self.entries.get(name)
            self.version = version
            self._apply(name, entry)
            try:
                self._save_now()
            except StoreError:
                self.version = before
                self._apply(name, had)
                raise
            self._tell(name)
            return
        self._write(Change(self.version, version, name, entry).to_bytes())
        self.version = version
        self._apply(name, entry)
        self._is_changed = True
        self._group.flush_up_to(self._written)
        self._tell(name)

    def _tell(self, name: str) -> None:
        for callback in self.on_change:
            callback(name)

    def _apply(self, name: str, entry: E | None) -> None:
        self.unread.pop(name, None)
        if entry is None:
            self.entries.pop(name, None)
            self._gone.add(name)
            if self._news is not None:
                self._news.pop(name, None)
        else:
            self.entries[name] = entry
            if self._news is not None:
                self._news[name] = entry

    def when_safe(self, done: Waiter) -> None:
        """Call DONE with None once all changes are on disk, or with the error.

        After a failed sync this is an error until the complete table was written.
        """
        self._group.wait_for(self._written, done)

    def _write(self, record: bytes) -> None:
        if self._changes is None or self._at + len(record) > self._changes.size:
            self._disk.make_folders(self._folder, durable=False)
            path = f"{self._folder}/{self._file.name}-{self._number + 1}"
            size = max(FILE_BYTES, len(record))
            self._changes = self._disk.open_map(path, size=size, create=True)
            self._number += 1
            self._at = 0
            self._dirty += self._names()
        self._changes.write(self._at, record)
        self._at += len(record)
        self._written += len(record)
        if self._changes not in self._dirty:
            self._dirty.append(self._changes)

    def _names(self) -> list[Syncable]:
        """Return the names to sync so that a new file of changes is found: its own, and those of its folders."""
        folder = self._folder
        above = [folder, posixpath.dirname(folder), self._file.root]
        return [FolderSync(self._disk, one) for one in above]

    def _collect(self) -> tuple[int, list[Syncable]]:
        dirty, self._dirty = self._dirty, []
        return self._written, dirty

    def tick(self) -> None:
        """Start writing the complete table, if it changed and is not being written."""
        if self._saver is None or self._saving or not self._is_changed:
            return
        self._saving = True
        self._is_changed = False
        self._changes = None  # The sync job keeps it open; later changes go to the next file.
        number, written = self._number, self._written
        group, save = self._group, self._file.saving(self._rendering())

        def saved(error: StoreError | None) -> None:
            if self._saver is None:
                return
            self._saving = False
            if error is not None:
                self._is_changed = True
                logger.error("table not saved file=%s reason=%s", self._file.name, error.message)
                return
            self._saved = written
            if group.failure is None:
                group.reached(written)
            else:  # The file now has the changes that were not synced.
                self._begin_group(group.call_owner)
            self._retire_changes(number)

        def done(error: StoreError | None) -> None:
            group.call_owner(lambda: saved(error))

        self._saver.submit(FlushJob([save], done))

    def _rendering(self) -> Callable[[], Iterator[str]]:
        """Return a function that makes the text of the present table. It may run in any thread, one at a time.

        Only the changes are copied here.
        """
        head: Object = {"dataVersion": self.version.to_json(), **self._others}
        unread = [render_member(name, one.bean, 1) for name, one in self.unread.items()]
        gone, self._gone = self._gone, set()
        news = self.entries.copy() if self._news is None else self._news
        self._news = {}
        return partial(self._rendered, head, unread, gone, news)

    def _rendered(
        self, head: Object, unread: list[str], gone: set[str], news: dict[str, E]
    ) -> Iterator[str]:
        for name in gone:
            self._texts.pop(name, None)
        for name, entry in news.items():
            self._texts[name] = render_member(name, entry.to_json(), 1)
        yield from pieces_with_members(
            head, {self._form.members: chain(unread, self._texts.values())}
        )

    def _save_now(self) -> None:
        """Write the complete table in this thread."""
        self._file.save(self._rendering()())
        self._is_changed = False
        self._saved = self._written
        self._changes = None
        self._retire_changes(self._number)

    def _retire_changes(self, last: int) -> None:
        """Keep the changes up to file LAST, which the complete table has, for its backup; delete older ones.

        The oldest file is renamed first, and after one that cannot be renamed all stay. The last record, with the
        version of the file, must stay longest: it shows the next start that nothing is to be applied.
        """
        if not last:
            return
        name = backup_name(self._file.name)
        needs_older, self._needs_older = self._needs_older, False
        try:
            older = {} if needs_older or not self._file.has_new_backup else self._paths(name)
            for number, path in sorted(self._paths(self._file.name).items()):
                if number <= last:
                    self._disk.rename(path, f"{self._folder}/{name}-{number}")
            for path in older.values():
                self._disk.delete(path)
        except (PocketMQError, OSError) as error:
            logger.warning("changes not deleted file=%s reason=%s", self._file.name, error)

    def _paths(self, name: str) -> dict[int, str]:
        return change_paths(self._disk, self._file.root, name)


def _numbers(version: DataVersion) -> Json:
    return [version.counter, version.state_version, version.timestamp_ms]


def _version(numbers: Json) -> DataVersion:
    counter, state, timestamp = cast(list[int], numbers)
    return DataVersion(counter, state, timestamp)
