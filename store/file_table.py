"""A table in a file that Apache RocketMQ reads; the broker's journal has the changes since the file was written.

    config/topics.json    the complete table: written in another thread, once per second or less
    topic_changes         a table of the journal (tables.py): what the file, or its backup, does not have

So a change of one entry costs one small frame of the journal. It is written before the change takes effect: it survives
a kill. `when_safe` reports when it is on disk.

A scope of the journal's table is named after a version of the file: its changes, and those of later scopes, follow that
version. Each writing of the file begins a scope, and deletes the scopes that its backup does not need. The scope
WRITTEN has the version of the last complete writing.

A load applies the scopes from the version of the file on. If another broker wrote the file meanwhile, there is no such
scope: the load then uses only entries that the file lacks.

The owner's thread calls everything; the saver's thread only writes the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from itertools import chain, takewhile
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast

from ..proto.errors import StoreError
from .disk import Disk
from .flush import CallOwner, Flusher, FlushJob, Waiter
from .format.beans import Object
from .format.java_json import Json, parse, pieces_with_members, render, render_member
from .format.state_tables import DataVersion, TableForm
from .format.table_frames import CLEAR, DROP, PUT, TableVersion
from .state_files import StateFile
from .table_files import FOLDER, read_entries
from .tables import AnyChange, Durability, JournalTable, JsonCodec, TableChange

logger = logging.getLogger(__name__)

#: The scope whose only key is the version of the file that was written last.
WRITTEN: Final = "written"


class Bean(Protocol):
    """An entry of a table."""

    def to_json(self) -> Json: ...


E = TypeVar("E", bound=Bean)
#: Values are entries, None for deleted ones, or bytes as they were read.
ChangeTable: TypeAlias = JournalTable[str, str, Any]


class _ChangeCodec(JsonCodec):
    """RocketMQ's objects as values, or null. What is read stays bytes: a load parses only what the file lacks."""

    def value(self, value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        return render(None if value is None else value.to_json(), pretty=False).encode()

    def read_value(self, data: bytes) -> Any:
        return data


def change_table(form: TableForm[Any]) -> ChangeTable:
    """Return the table of the journal for changes of the file of FORM."""
    codec = _ChangeCodec()
    return JournalTable(form.number, form.changes, codec, Durability.BEFORE_REPLY, needs_log=False)


def stored_changes(disk: Disk, root: str, form: TableForm[Any]) -> ChangeTable:
    """Return the changes in the store ROOT. A broker may run on it: read them before the file, to miss none."""
    table = change_table(form)
    read_entries(disk, f"{root}/pocketmq/{FOLDER}", [table])
    return table


class NewerChanges(Generic[E]):
    """What the file of FORM lacks: `entries` of CHANGES by name, None for deleted ones.

    VERSION is that of the file, KNOWN are its names. If it `is_foreign`, another broker wrote it: then `entries` are
    only those that it does not have. SCOPES has their scopes.
    """

    def __init__(
        self,
        changes: ChangeTable,
        form: TableForm[E],
        version: DataVersion,
        known: Container[str],
    ) -> None:
        scopes = [scope for scope in changes.scopes() if scope != WRITTEN]
        present, written = _scope(version), next(reversed(changes.of_scope(WRITTEN)), "")
        is_known = present in scopes or changes.version == _table_version(version)
        # Without a scope of the last writing, that had everything: another broker's file has it, too.
        self.is_foreign = bool(scopes) and not is_known and (not written or written in scopes)
        begin = (written or scopes[0]) if self.is_foreign else present
        self.scopes = scopes[scopes.index(begin) :] if begin in scopes else []
        #: May the file lack something, or is it unknown that it was written?
        self.is_written = not scopes or (written == present and not self.scopes)
        self.entries: dict[str, E | None] = {}
        for scope in self.scopes:
            for name, value in changes.of_scope(scope).items():
                self._take(form, name, value)
        if self.is_foreign:
            self.entries = {n: e for n, e in self.entries.items() if n not in known and e}

    def _take(self, form: TableForm[E], name: str, value: Any) -> None:
        self.entries.pop(name, None)  # The latest change decides the order.
        if not isinstance(value, bytes):
            self.entries[name] = value
            return
        try:
            bean = parse(value.decode())
            self.entries[name] = None if bean is None else form.entry(name, cast(Object, bean))
        except (ValueError, LookupError, TypeError) as error:
            logger.warning("change not read name=%s reason=%s", name, error)

    def applied(self, entries: Mapping[str, E]) -> dict[str, E]:
        """Return the ENTRIES of the file with the changes applied."""
        there = {name: entry for name, entry in entries.items() if name not in self.entries}
        return there | {name: one for name, one in self.entries.items() if one is not None}


class FileTable(Generic[E]):
    """The table in FILE, of FORM. `entries` is its current content: read it; change it with `put` and `drop`."""

    def __init__(
        self,
        file: StateFile,
        form: TableForm[E],
        now_ms: Callable[[], int],
        changed: Callable[[str], None] | None = None,
        changes: ChangeTable | None = None,
    ) -> None:
        """Load; raises CorruptState. CHANGES is the journal's table (None: changes are in memory only).

        CHANGED is called after every change, with the name of the entry.
        """
        self._file = file
        self._form = form
        self._now_ms = now_ms
        self._changes = change_table(form) if changes is None else changes
        loaded = file.load(form.parse)
        if loaded.problem:
            logger.warning("state file was damaged file=%s problem=%s", file.name, loaded.problem)
        table = loaded.value or form.read({})
        self.version, self.entries, self._others = table.version, table.entries, table.others
        #: Entries of the file that cannot be read. They are not changed until they are replaced.
        self.unread = table.unread
        #: The text of the entries, in order. One thread at a time owns it: the one that writes the file.
        self._texts: dict[str, str] = {}
        self._is_rendered = False
        #: Names that were deleted since then: if they are there again, they are the last ones.
        self._gone: set[str] = set()
        #: Changes that only the next writing of the file makes durable.
        self._late: dict[str, E] = {}
        #: Called after every change, with the name of the entry.
        self.on_change: list[Callable[[str], None]] = [] if changed is None else [changed]
        #: The version of the file that was loaded or written last, and the scope of the next changes.
        self._written = self._scope = _scope(table.version)
        self._saving = False
        self._saver: Flusher | None = None
        self._call_owner: CallOwner = lambda function: function()
        #: Does the file differ from the table?
        self._is_changed = self._replay()

    def _replay(self) -> bool:
        """Apply the changes that the file does not have; return whether it must be written."""
        lacking = NewerChanges(self._changes, self._form, self.version, self.entries)
        for name, entry in lacking.entries.items():
            self._apply(name, entry)
        if lacking.is_foreign:
            logger.warning(
                "file written by another broker: only new entries are applied file=%s",
                self._file.name,
            )
            self.version = self.version.next(self._now_ms())
            self._note_again(lacking.entries)
        elif lacking.scopes:
            self._scope = lacking.scopes[-1]
            if (last := self._changes.version) is not None:
                self.version = DataVersion(*last)
        return not lacking.is_written

    def _note_again(self, entries: Mapping[str, E | None]) -> None:
        """Have ENTRIES follow the version of the file: a kill before it is written must not lose them."""
        version = _table_version(self.version)
        changes = [TableChange(PUT, self._scope, n, e, version) for n, e in entries.items()]
        try:
            self._changes.change_all(changes)
        except StoreError as error:
            logger.warning("changes not written file=%s reason=%s", self._file.name, error.message)

    def start(self, saver: Flusher, call_owner: CallOwner) -> None:
        """From now on, write the file with SAVER, in `tick`. CALL_OWNER runs its callback in the owner's thread."""
        self._saver = saver
        self._call_owner = call_owner

    def close(self) -> None:
        """Write the file now if it lacks changes; the saver has ended. Raises StoreError."""
        unsure, self._saving = self._saving, False
        self._saver = None
        if self._is_changed or unsure:
            render, written = self._begin_writing()
            self._file.save(render())
            self._is_changed = False
            self._retire_changes(written)

    def put(self, name: str, entry: E) -> None:
        """Set NAME to ENTRY; raises StoreError, and then nothing has changed."""
        self._change({name: entry})

    def drop(self, name: str) -> None:
        """Delete NAME; raises StoreError, and then nothing has changed."""
        self._change({name: None})

    def put_all(self, entries: Mapping[str, E | None]) -> None:
        """Set each name of ENTRIES to its entry (None: delete it), in one write; entries without a change are skipped.

        Raises StoreError, and then nothing has changed.
        """
        self._change({n: one for n, one in entries.items() if self.entries.get(n) != one})

    def _change(self, entries: Mapping[str, E | None]) -> None:
        version, changes = self.version, []
        for name, entry in entries.items():
            version = version.next(self._now_ms())
            changes.append(TableChange(PUT, self._scope, name, entry, _table_version(version)))
        self._changes.change_all(changes)
        self.version = version
        for name, entry in entries.items():
            self._apply(name, entry)
            self._late.pop(name, None)
        self._is_changed = self._is_changed or bool(entries)
        self.when_safe(lambda error: None)  # The sync begins now.
        for name in entries:
            self._tell(name)

    def put_late(self, name: str, entry: E) -> None:
        """Set NAME to ENTRY, which a kill may lose: the file has it once the complete table is written."""
        self._late[name] = entry
        self._apply(name, entry)
        self._is_changed = True
        self._tell(name)

    def _tell(self, name: str) -> None:
        for callback in self.on_change:
            callback(name)

    def _apply(self, name: str, entry: E | None) -> None:
        self.unread.pop(name, None)
        if entry is None:
            self.entries.pop(name, None)
            self._gone.add(name)
        else:
            self.entries[name] = entry

    def when_safe(self, done: Waiter) -> None:
        """Call DONE with None once all changes are on disk, or with the error."""
        self._changes.when_durable(done)

    def tick(self) -> None:
        """Start writing the file, if the table changed and it is not being written."""
        if self._saver is None or self._saving or not self._is_changed:
            return
        self._saving = True
        self._is_changed = False
        render, written = self._begin_writing()

        def saved(error: StoreError | None) -> None:
            if self._saver is None:
                return
            self._saving = False
            if error is not None:
                self._is_changed = True
                logger.error("table not saved file=%s reason=%s", self._file.name, error.message)
                return
            self._retire_changes(written)

        def done(error: StoreError | None) -> None:
            self._call_owner(lambda: saved(error))

        self._saver.submit(FlushJob([self._file.saving(render)], done))

    def _begin_writing(self) -> tuple[Callable[[], Iterator[str]], str]:
        """Return a function that makes the text of the present table, and the name of its version.

        The function may run in any thread, one at a time. Only the changes are copied here. Later ones follow this
        version.
        """
        head: Object = {"dataVersion": self.version.to_json(), **self._others}
        unread = [render_member(name, one.bean, 1) for name, one in self.unread.items()]
        if self._is_rendered:
            news = self._changes.of_scope(self._scope) | self._late
        else:
            news = cast(dict[str, Any], self.entries.copy())
        self._is_rendered = True
        gone, self._gone = self._gone, set()
        self._late.clear()
        self._scope = _scope(self.version)
        return partial(self._rendered, head, unread, gone, news), self._scope

    def _rendered(
        self, head: Object, unread: list[str], gone: set[str], news: Mapping[str, E | None]
    ) -> Iterator[str]:
        for name in gone:
            self._texts.pop(name, None)
        for name, entry in news.items():
            if entry is not None:
                self._texts[name] = render_member(name, entry.to_json(), 1)
        yield from pieces_with_members(
            head, {self._form.members: chain(unread, self._texts.values())}
        )

    def _retire_changes(self, written: str) -> None:
        """Note that the file was WRITTEN, and delete the changes that its backup has.

        A backup is the file that was loaded or written before. Without a new backup, all changes stay.
        """
        needed, self._written = {self._written, written}, written
        older = [one for one in self._changes.of_scope(WRITTEN) if one != written]
        changes: list[AnyChange] = [TableChange(PUT, WRITTEN, written)]
        changes += [TableChange(DROP, WRITTEN, version) for version in older]
        if self._file.has_new_backup:
            scopes = [scope for scope in self._changes.scopes() if scope != WRITTEN]
            unneeded = takewhile(lambda scope: scope not in needed, scopes)
            changes += [TableChange(CLEAR, scope) for scope in unneeded]
        try:
            self._changes.change_all(changes)
        except StoreError as error:
            logger.warning("changes not deleted file=%s reason=%s", self._file.name, error.message)


def _table_version(version: DataVersion) -> TableVersion:
    return TableVersion(version.counter, version.state_version, version.timestamp_ms)


def _scope(version: DataVersion) -> str:
    return f"{version.counter}.{version.state_version}.{version.timestamp_ms}"
