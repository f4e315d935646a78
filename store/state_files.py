"""A table of a state file, with its changes since the file was last written kept beside it.

    config/topics.json                     the whole table, Apache's file: written at most once a second, off the loop
    pocketmq/changes/topics.json-N         what changed since, in order; then -N+1
    pocketmq/changes/topics.json.bak-N     the same once the whole table has it: what its backup lacks. The next writing
                                           of the table, which makes another backup, deletes it

Making one entry of many thus costs one small record, not the whole table. A change is written before it counts, so that
it outlives a kill; `when_safe` tells when it is on the device. Without `start` (tools, tests) there is no thread to
write the whole table, and each change writes it at once.

A record: u32 length, u32 CRC-32 of the rest, big-endian, then JSON without white space

    {"before":[counter,stateVersion,timestamp],"version":[…],"name":"orders","entry":{…}}

whose entry is Apache's bean, or null for one that is gone. Zeros end a file. Versions join the records to the table:
what follows the version that the file states is applied. If another broker wrote the file meanwhile, none does: then
only entries are taken over that the file does not have. Losing the folder costs at most the last second's entries.

Bounds: a file has FILE_BYTES or one record; with more than CHANGES_MAX bytes that the whole table does not have
(its writing fails), a change writes the table itself, and fails if that does.

The owner's thread calls everything; the threads of the two flushers only write and sync.

The small files of a store, most of them in its config folder: text with a `.bak` beside it.

A `StateFile` is one such file. Replacing it writes a temporary file, makes the old file its `.bak` and
renames the new one into place, so that a crash at any moment leaves at least one readable copy.
Loading reads the file; where it is missing, empty or does not parse, the `.bak`. A file that
does not parse is never deleted (Apache deletes it): it is moved to `<root>/pocketmq/broken/`, and
`Loaded.problem` says so. Both unreadable is `CorruptState`: no guess is made about what stood there.

What stands in them are the tables of format/state_tables.py:

    topics = StateFile(disk, root, "topics.json")
    table = topics.load(parse_topics).value or TopicTable()
    topics.save(render_topics(table))

Any thread may save; savers of one file wait for each other, for they share its temporary file.

The checkpoints of a store and of its timers: how far each part is surely on the device; their bytes and their files.

Both files have 4096 bytes, big-endian 64-bit integers, the rest zero; a missing or short file is zeros. They are
written in place (48 or 56 bytes lie in one sector: a crash leaves the old or the new ones). Source: store-format.md
§5, §7.2.

checkpoint:

    0   physicMsgTimestamp     store time of the last record known flushed in the commit log
    8   logicsMsgTimestamp     store time of the last record whose queue entry was flushed thoroughly
    16  indexMsgTimestamp      end time of the last full index file that was flushed
    24  masterFlushedOffset    replication
    32  confirmPhyOffset       start of the last sound record at recovery
    40  logicsPhysicalOffset   log offset (start) of the last record whose queue entry was flushed thoroughly

Older stores hold zeros in the later fields.

config/timercheck:

    0   lastReadTimeMs           start of the oldest slot that was not handed on as a whole, ms
    8   lastTimerLogFlushPos     everything in the timer log before it is on the device
    16  lastTimerQueueOffset     next message of the timer topic to enter into the log
    24  masterTimerQueueOffset   the same for a slave; Java goes on at the lesser of the two
    32  stateVersion, 40 timestamp (ms), 48 counter: the data version, which changes with the first and the third
"""

from __future__ import annotations

import logging
import os
import posixpath
import struct
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from threading import Lock
from typing import Final, Generic, Literal, NamedTuple, Protocol, TypeVar, cast

from ..proto.errors import CorruptState, PocketMQError, StoreError
from .disk import Disk, Mapping as FileMapping
from .files import FolderSync, Syncable
from .flush import CallOwner, Flusher, FlushJob, GroupCommit, Waiter
from .format.java_json import Json, parse, pieces_with_members, render, render_member
from .format.log_and_queues import RowFormat
from .format.state_tables import DataVersion, Object, TableForm, parse_consumer_offsets

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
    """ENTRY of NAME (None: there is none any more), which made VERSION of the table out of BEFORE."""

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
    """What stands beside the table NAME, of FORM, of the store ROOT, in order. `number`: of the last file, 0 for none.

    Who reads a store that a broker writes to reads these first, then the table: what a table has lacks nothing.
    `paths`: of what changed since the table was written; the older changes are those that its backup lacks.
    """

    def __init__(self, disk: Disk, root: str, name: str, form: TableForm[E]) -> None:
        self.paths = change_paths(disk, root, name)
        older = change_paths(disk, root, backup_name(name))
        self.number = max(chain(self.paths, older), default=0)
        self._rows = _rows(disk, self.paths, form)
        self._older = _rows(disk, older, form)

    def since(self, version: DataVersion) -> list[Change[E]] | None:
        """Return what changed since the table's VERSION; None: another broker wrote the table meanwhile."""
        if self._rows and self._rows[-1].version == version:
            return []
        for rows in (self._rows, [*self._older, *self._rows]):
            for index, change in enumerate(rows):
                if change.before == version:
                    return rows[index:]
        return None if self._rows else []

    def version_after(self, version: DataVersion) -> DataVersion | None:
        """Return which version they make of the table's VERSION; None: another broker wrote the table meanwhile."""
        since = self.since(version)
        return since[-1].version if since else None if since is None else version

    def behind(self, version: DataVersion, known: Container[str]) -> dict[str, E | None]:
        """Return what the table of VERSION lacks, by name; None for what is gone.

        Of a table that another broker wrote these are the names that it does not have; it has those KNOWN.
        """
        since = self.since(version)
        if since is None:
            latest = {change.name: change.entry for change in self._rows}
            return {name: entry for name, entry in latest.items() if name not in known and entry}
        return {change.name: change.entry for change in since}

    def applied(self, version: DataVersion, entries: Mapping[str, E]) -> dict[str, E]:
        """Return the ENTRIES of the table of VERSION as they are with the changes."""
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
    """Return the name under which the changes stay that the table NAME has, and its backup lacks."""
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
                raise ValueError("it is not whole")
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
    """The table in FILE, of FORM. `entries` is what stands in it now: read it, and change it by `put` and `drop`."""

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
            logger.warning("state file was broken file=%s problem=%s", file.name, loaded.problem)
        table = loaded.value or form.read({})
        self.version, self.entries, self._others = table.version, table.entries, table.others
        #: Entries of the file that cannot be read. They stay in it as they are until they are replaced.
        self.unread = table.unread
        #: The text of the entries, in their order: whoever writes the table has it, one thread at a time.
        self._texts: dict[str, str] = {}
        #: What changed since the texts were brought up to date: names that went, then entries; None: everything.
        self._gone: set[str] = set()
        self._news: dict[str, E] | None = None
        #: Called after every change, with the name of the entry.
        self.on_change: list[Callable[[str], None]] = [] if changed is None else [changed]
        self._number = 0
        #: Does the file say something else than the table?
        self._is_changed = self._replay()
        #: May the file that the next writing makes the backup lack older changes?
        self._needs_older = self._is_changed
        self._saving = False
        self._saver: Flusher | None = None
        self._changes: FileMapping | None = None
        self._at = 0
        #: Bytes of changes that were ever written, and how many of them the file has.
        self._written = self._saved = 0
        self._dirty: list[Syncable] = []
        self._flusher = Flusher("not started: works at once")
        self._group = GroupCommit(self._collect, self._flusher)

    # --- beginning and ending

    def _replay(self) -> bool:
        """Apply the changes that the file does not have; return whether there are any, or may be."""
        changes = KeptChanges(self._disk, self._file.root, self._file.name, self._form)
        self._number = changes.number
        version = changes.version_after(self.version)
        if version is None:
            logger.warning(
                "another broker wrote the file: only new entries are kept file=%s", self._file.name
            )
        lacking = changes.behind(self.version, self.entries)
        for name, entry in lacking.items():
            self._apply(name, entry)
        self.version = self.version.next(self._now_ms()) if version is None else version
        return bool(changes.paths or lacking)

    def start(self, saver: Flusher, flusher: Flusher, call_owner: CallOwner) -> None:
        """From now on write the whole table by SAVER, when `tick` is called; sync changes by FLUSHER."""
        self._saver = saver
        self._flusher = flusher
        if self._is_changed:
            # What was replayed may be in the page cache only, whoever was killed behind it.
            paths = self._paths(self._file.name) | self._paths(backup_name(self._file.name))
            self._dirty = [*self._names(), *map(self._disk.open_map, paths.values())]
            self._written += 1
        self._begin_group(call_owner)

    def _begin_group(self, call_owner: CallOwner) -> None:
        """Sync from now on what the file does not have, whatever became of earlier syncs."""
        self._group = GroupCommit(
            self._collect, self._flusher, flushed_offset=self._saved, call_owner=call_owner
        )
        self._group.flush_up_to(self._written)

    def close(self) -> None:
        """Write the whole table if it has changes, here and now; the saver has ended. Raises StoreError."""
        unsure, self._saving = self._saving, False
        self._saver = None
        if self._is_changed or unsure:
            self._save_now()

    # --- changing

    def put(self, name: str, entry: E) -> None:
        """Let NAME be ENTRY; raises StoreError, and then nothing has changed."""
        self._change(name, entry)

    def put_late(self, name: str, entry: E) -> None:
        """Let NAME be ENTRY, which a kill may lose: the file has it once the whole table is written."""
        self._apply(name, entry)
        self._is_changed = True
        self._tell(name)

    def drop(self, name: str) -> None:
        """Let there be no NAME; raises StoreError, and then nothing has changed."""
        self._change(name, None)

    def put_all(self, entries: Mapping[str, E | None]) -> None:
        """Let each name of ENTRIES be its entry (None: there is none), written at once; what is so already is left.

        Raises StoreError: then nothing has changed, but of a table that no thread writes the first ones may have.
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
        """Call DONE with None once all that was changed is on the device, or with the error of the device.

        After a sync that failed it is an error until the whole table was written.
        """
        self._group.wait_for(self._written, done)

    # --- changes

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
        """Return what must be synced so that a new file of changes is found: its name, and those of its folders."""
        folder = self._folder
        above = [folder, posixpath.dirname(folder), self._file.root]
        return [FolderSync(self._disk, one) for one in above]

    def _collect(self) -> tuple[int, list[Syncable]]:
        dirty, self._dirty = self._dirty, []
        return self._written, dirty

    # --- the whole table

    def tick(self) -> None:
        """Begin to write the whole table, if it changed and is not being written."""
        if self._saver is None or self._saving or not self._is_changed:
            return
        self._saving = True
        self._is_changed = False
        self._changes = (
            None  # Whoever syncs it holds it; what changes from now on goes to the next file.
        )
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
            else:  # What that sync did not bring to the device, the file has now.
                self._begin_group(group.call_owner)
            self._retire_changes(number)

        def done(error: StoreError | None) -> None:
            group.call_owner(lambda: saved(error))

        self._saver.submit(FlushJob([save], done))

    def _rendering(self) -> Callable[[], Iterator[str]]:
        """Return what makes the text of the table as it is now, in any thread, as long as no other one does.

        What is copied here is what changed.
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
        """Write the whole table in this thread."""
        self._file.save(self._rendering()())
        self._is_changed = False
        self._saved = self._written
        self._changes = None
        self._retire_changes(self._number)

    def _retire_changes(self, last: int) -> None:
        """Keep the changes up to file LAST, which the whole table has, for its backup; delete what that has.

        The oldest go first, and all that follows one that cannot be renamed stays: the last record, with the version of
        the file, must not go before others, for it is how the next start knows that it has nothing to apply.
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


# ---------------------------------------------------------------- the small files of a store


T = TypeVar("T")

#: Where files go that do not parse; the folder is ours and Apache leaves it alone.
BROKEN_FOLDER: Final = "pocketmq/broken"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """What loading a state file found: VALUE is None where neither file is there."""

    value: T | None
    origin: Literal["file", "backup", "nothing"]
    #: One sentence about a file that was set aside; None when all was well.
    problem: str | None = None


class StateFile:
    """One file of `<root>/config`, or of another FOLDER of the store ("": its root), with its `.bak`."""

    def __init__(self, disk: Disk, root: str, name: str, folder: str = "config") -> None:
        self.disk = disk
        self.root = root
        self.name = name
        self.path = posixpath.join(root, folder, name)
        self.backup_path = self.path + ".bak"
        self._main_is_sound = True
        #: Did the last save make the file that it replaced the backup?
        self.has_new_backup = False
        self._saving = Lock()

    def load(self, parse_text: Callable[[str], T]) -> Loaded[T]:
        """Return what PARSE_TEXT makes of the file, or of its backup.

        Raises CorruptState where a backup does not parse and the file is missing or does not parse either.
        """
        value, fault = self._read(self.path, parse_text)
        if value is not None:
            return Loaded(value, "file")
        backup, backup_fault = self._read(self.backup_path, parse_text)
        if backup_fault is not None or (fault is not None and backup is None):
            raise self._corrupt(fault, backup_fault)
        problem = None
        if fault is not None:
            problem = f"{self.path} {fault}: moved to {self._set_aside()}, {self.backup_path} used"
        self._main_is_sound = not self.disk.exists(self.path)
        return Loaded(backup, "nothing" if backup is None else "backup", problem)

    def save(self, text: str | Iterable[str]) -> None:
        """Replace the file by TEXT, whole or in pieces, on the device when this returns; the old one is the backup."""
        data = bytearray()
        for piece in [text] if isinstance(text, str) else text:
            data += piece.encode()
        with self._saving:
            self.disk.make_folders(posixpath.dirname(self.path))
            # An empty file must not replace a backup that may be the only copy.
            sound = self._main_is_sound and self.disk.exists(self.path)
            backup = self.backup_path if sound else None
            self.disk.write_atomically(self.path, data, backup=backup)
            self._main_is_sound, self.has_new_backup = True, sound

    def saving(self, render: Callable[[], Iterable[str]]) -> Syncable:
        """Return the saving of what RENDER returns then, as something that a flusher does."""
        return _Saving(self, render)

    def _read(self, path: str, parse_text: Callable[[str], T]) -> tuple[T | None, str | None]:
        """Return the value in the file PATH, or None and what is wrong with it (None: it is missing or empty)."""
        if not self.disk.exists(path):
            return None, None
        data = self.disk.read(path)
        if not data:
            return None, None
        try:
            return parse_text(data.decode("utf-8-sig")), None
        except ValueError as error:
            return None, f"does not parse ({error})"

    def _set_aside(self) -> str:
        folder = posixpath.join(self.root, BROKEN_FOLDER)
        self.disk.make_folders(folder)
        taken = {entry.name for entry in self.disk.list(folder)}
        number = next(n for n in range(1, len(taken) + 2) if f"{self.name}.{n}" not in taken)
        target = posixpath.join(folder, f"{self.name}.{number}")
        self.disk.rename(self.path, target)
        return target

    def _corrupt(self, fault: str | None, backup_fault: str | None) -> CorruptState:
        missing = "is missing or empty"
        return CorruptState(
            f"{self.path} {fault or missing}, {self.backup_path} {backup_fault or missing}: "
            f"repair one of the two, or move both away to start with an empty {self.name}",
            path=self.path,
            backup=self.backup_path,
        )


OFFSETS_FILE: Final = "consumerOffset.json"
#: What a Java broker with enableLmq=true writes instead.
LMQ_OFFSETS_FILE: Final = "lmqConsumerOffset.json"
_LMQ_TABLE: Final = "lmqOffsetTable"
#: A Java broker writes its file every 5 s, so one that is so much older is out of use. Copies may be made in any order.
_OUT_OF_USE_MS: Final = 60_000


def offsets_file(disk: Disk, root: str) -> str:
    """Return the name of the file of the store ROOT that has the newest offsets of groups.

    A broker whose setting enableLmq was changed goes on with the other file, and leaves the one before as it was.
    """
    plain, lmq = (_written(disk, root, name) for name in (OFFSETS_FILE, LMQ_OFFSETS_FILE))
    if lmq is None or plain is None:
        return OFFSETS_FILE if lmq is None else LMQ_OFFSETS_FILE
    is_out_of_use = abs(lmq.modified_ms - plain.modified_ms) > _OUT_OF_USE_MS
    if is_out_of_use or lmq.version == plain.version:
        return LMQ_OFFSETS_FILE if lmq.modified_ms > plain.modified_ms else OFFSETS_FILE
    return LMQ_OFFSETS_FILE if lmq.version > plain.version else OFFSETS_FILE


class _Written(NamedTuple):
    """When a file was written, and which version of its table it has: time, then counter."""

    modified_ms: int
    version: tuple[int, int]


def _written(disk: Disk, root: str, name: str) -> _Written | None:
    """Return this of the file NAME of the store ROOT, or of its backup; None if there is neither."""
    path = posixpath.join(root, "config", name)
    for one in (path, f"{path}.bak"):
        if disk.exists(one) and (data := disk.read(one)):
            try:
                version = parse_consumer_offsets(data.decode("utf-8-sig")).version
            except ValueError:
                version = DataVersion()
            return _Written(disk.modified_ms(one), (version.timestamp_ms, version.counter))
    return None


class OffsetsFile(StateFile):
    """The offsets of groups: consumerOffset.json, and lmqConsumerOffset.json where there is one.

    The newer of the two is read, and both are written, so that a Java broker finds them with enableLmq and without.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        super().__init__(disk, root, OFFSETS_FILE)
        self._lmq = StateFile(disk, root, LMQ_OFFSETS_FILE)
        #: What only the second file has: groups of light queues.
        self._lmq_groups: Json = {}

    def load(self, parse_text: Callable[[str], T]) -> Loaded[T]:
        if not self.are_two:
            return super().load(parse_text)
        with suppress(CorruptState):
            self._lmq_groups = self._lmq.load(_lmq_groups).value or {}
        if offsets_file(self.disk, self.root) == LMQ_OFFSETS_FILE:
            return self._lmq.load(parse_text)
        return super().load(parse_text)

    def save(self, text: str | Iterable[str]) -> None:
        if not self.are_two:
            super().save(text)
            return
        whole = text if isinstance(text, str) else "".join(text)
        super().save(whole)
        groups = render(self._lmq_groups, pretty=False)
        self._lmq.save(f'{whole.rstrip().removesuffix("}")},"{_LMQ_TABLE}":{groups}}}')

    @property
    def are_two(self) -> bool:
        """Is there a second file, so that one of them may lack what the other has?"""
        return self.disk.exists(self._lmq.path) or self.disk.exists(self._lmq.backup_path)


def _lmq_groups(text: str) -> Json:
    document = parse(text)
    return document.get(_LMQ_TABLE, {}) if isinstance(document, dict) else {}


@dataclass(frozen=True, slots=True)
class _Saving:
    file: StateFile
    render: Callable[[], Iterable[str]]

    def sync(self) -> None:
        self.file.save(self.render())


# ---------------------------------------------------------------- the checkpoints of a store and of its timers


CHECKPOINT_SIZE: Final = 4096
_STORE: Final = RowFormat(
    log_time_ms="q",
    queues_time_ms="q",
    index_time_ms="q",
    master_flushed_offset="q",
    confirm_offset="q",
    queues_log_offset="q",
)
_TIMERS: Final = RowFormat(
    last_read_ms="q",
    log_flushed="q",
    queue_offset="q",
    master_queue_offset="q",
    state_version="q",
    timestamp_ms="q",
    counter="q",
)


@dataclass(slots=True)
class Checkpoint:
    """The six fields."""

    log_time_ms: int = 0
    queues_time_ms: int = 0
    index_time_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    queues_log_offset: int = 0

    @classmethod
    def parse(cls, data: bytes) -> Checkpoint:
        """Return what DATA says; what is missing at its end is zeros."""
        return cls(*_STORE.read(data.ljust(_STORE.size, b"\0")))

    def note_log(self, time_ms: int) -> None:
        """The log is on the device up to a record that was stored at TIME_MS."""
        self.log_time_ms = time_ms

    def note_queues(self, log_offset: int, time_ms: int) -> None:
        """The queues are on the device up to the record at LOG_OFFSET, which was stored at TIME_MS."""
        self.queues_log_offset, self.queues_time_ms = log_offset, time_ms

    def note_index(self, time_ms: int) -> None:
        """A full index file is on the device that ends at TIME_MS."""
        self.index_time_ms = time_ms

    def confirm(self, log_offset: int) -> None:
        """The last sound record begins at LOG_OFFSET."""
        self.confirm_offset = log_offset

    def pack(self) -> bytes:
        """Return the first bytes of the file."""
        return _STORE.pack(
            self.log_time_ms,
            self.queues_time_ms,
            self.index_time_ms,
            self.master_flushed_offset,
            self.confirm_offset,
            self.queues_log_offset,
        )


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """The fields of the timers' checkpoint."""

    last_read_ms: int = 0
    log_flushed: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    version: DataVersion = field(default_factory=DataVersion)

    @classmethod
    def parse(cls, data: bytes) -> TimerCheckpoint:
        """Return what DATA says; what is missing at its end is zeros."""
        read_ms, flushed, offset, master, state, stamp, counter = _TIMERS.read(
            data.ljust(_TIMERS.size, b"\0")
        )
        return cls(read_ms, flushed, offset, master, DataVersion(counter, state, stamp))

    def pack(self) -> bytes:
        """Return the first bytes of the file."""
        version = self.version
        return _TIMERS.pack(
            self.last_read_ms,
            self.log_flushed,
            self.queue_offset,
            self.master_queue_offset,
            version.state_version,
            version.timestamp_ms,
            version.counter,
        )

    @property
    def is_empty(self) -> bool:
        """Does it say nothing at all?"""
        return not (self.last_read_ms or self.log_flushed or self.queue_offset)

    def advanced(
        self, last_read_ms: int, log_flushed: int, queue_offset: int, now_ms: int
    ) -> TimerCheckpoint:
        """Return the checkpoint after the service came so far, as Java's master writes it."""
        moved = (last_read_ms, queue_offset) != (self.last_read_ms, self.master_queue_offset)
        version = self.version.next(now_ms) if moved else self.version
        return replace(
            self,
            last_read_ms=last_read_ms,
            log_flushed=log_flushed,
            queue_offset=queue_offset,
            master_queue_offset=queue_offset,
            version=version,
        )


# ---------------------------------------------------------------- the files


def read_checkpoint(disk: Disk, path: str) -> Checkpoint:
    """Return what the file PATH says; all zeros if it is missing."""
    return Checkpoint.parse(_begin(disk, path))


def read_timer_checkpoint(disk: Disk, path: str) -> TimerCheckpoint:
    """Return what the file PATH says; all zeros if it is missing."""
    return TimerCheckpoint.parse(_begin(disk, path))


def _begin(disk: Disk, path: str) -> bytes:
    return disk.read_at(path, 0, CHECKPOINT_SIZE) if disk.exists(path) else b""


class CheckpointFile:
    """The checkpoint in memory (`values`) and its file, created at full length if missing."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.values = read_checkpoint(disk, path)
        self.mapping: FileMapping = disk.open_map(path, size=CHECKPOINT_SIZE, create=True)
        self._written = self.values.pack()

    def write(self) -> bool:
        """Write the values to the file, without a sync; return False if they already stand there."""
        packed = self.values.pack()
        if packed == self._written:
            return False
        self.mapping.write(0, packed)
        self._written = packed
        return True

    def sync(self) -> None:
        """Bring the file to the device; any thread may call it."""
        self.mapping.sync()

    def close(self) -> None:
        self.mapping.close()


class TimerCheckpointFile:
    """The timers' file PATH, made at its first write. `write` may be called in the flushing thread: one at a time."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._mapping: FileMapping | None = None
        self.written = read_timer_checkpoint(disk, path)

    def open(self) -> None:
        """Make the file with its folder, on the device, if it is missing."""
        if self._mapping is None:
            folder = os.path.dirname(self._path)
            self._disk.make_folders(folder)
            self._mapping = self._disk.open_map(self._path, size=CHECKPOINT_SIZE, create=True)
            self._disk.sync_folder(os.path.dirname(folder))
            self._disk.sync_folder(folder)

    def write(self, values: TimerCheckpoint) -> None:
        """Bring VALUES to the device; StoreFull or DiskFailure if that failed."""
        assert self._mapping is not None, "opened before"
        self._mapping.write(0, values.pack())
        self._mapping.sync()
        self.written = values

    def close(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
