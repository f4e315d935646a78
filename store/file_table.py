"""A table in a file that Apache RocketMQ reads; the broker's journal has the changes since the file was written.

    config/topics.json    the complete table: written in another thread, once per second or less
    topic_changes         a table of the journal: what the file, or its backup, does not have (file_changes.py)

So a change of one entry costs one small frame of the journal. It is written before the change takes effect: it survives
a kill. `when_safe` reports when it is on disk.

The owner's thread calls everything; the saver's thread only writes the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, takewhile
from typing import Any, Generic, cast

from ..proto.errors import StoreError
from .file_changes import (
    WRITTEN,
    ChangeTable,
    E,
    NewerChanges,
    change_table,
    scope_of,
    table_version,
)
from .flush import CallOwner, Flusher, Waiter
from .format.beans import Object
from .format.java_json import pieces_with_members, render_member
from .format.state_tables import DataVersion, TableForm
from .format.table_frames import CLEAR, DROP, PUT
from .rendered_map import RenderedMap
from .state_files import StateFile
from .tables import AnyChange, TableChange

logger = logging.getLogger(__name__)


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
        table = file.load_value(form.parse) or form.read({})
        self.version, self.entries, self._others = table.version, table.entries, table.others
        #: Entries of the file that cannot be read. They are not changed until they are replaced.
        self.unread = table.unread
        self._text: RenderedMap[E] = RenderedMap(lambda n, one: render_member(n, one.to_json(), 1))
        self._is_rendered = False
        #: Names that were deleted since then: if they are there again, they are the last ones.
        self._gone: set[str] = set()
        #: Changes that only the next writing of the file makes durable.
        self._late: dict[str, E] = {}
        #: Called after every change, with the name of the entry.
        self.on_change: list[Callable[[str], None]] = [] if changed is None else [changed]
        #: The version of the file that was loaded or written last, and the scope of the next changes.
        self._written = self._scope = scope_of(table.version)
        self._saving = self._is_started = False
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
        version = table_version(self.version)
        changes = [TableChange(PUT, self._scope, n, e, version) for n, e in entries.items()]
        try:
            self._changes.change_all(changes)
        except StoreError as error:
            logger.warning("changes not written file=%s reason=%s", self._file.name, error.message)

    def start(self, saver: Flusher, call_owner: CallOwner) -> None:
        """From now on, write the file with SAVER, in `tick`. CALL_OWNER runs its callback in the owner's thread."""
        self._file.start(saver, call_owner)
        self._is_started = True

    def close(self) -> None:
        """Write the file now if it lacks changes; the saver has ended. Raises StoreError."""
        unsure = self._saving
        self._saving = self._is_started = False
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
            changes.append(TableChange(PUT, self._scope, name, entry, table_version(version)))
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
        if not self._is_started or self._saving or not self._is_changed:
            return
        self._saving = True
        self._is_changed = False
        render, written = self._begin_writing()

        def saved(error: StoreError | None) -> None:
            if not self._is_started:
                return
            self._saving = False
            if error is not None:
                self._is_changed = True
                logger.error("table not saved file=%s reason=%s", self._file.name, error.message)
                return
            self._retire_changes(written)

        self._file.save_soon(render, saved)

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
        self._scope = scope_of(self.version)
        return partial(self._rendered, head, unread, gone, news), self._scope

    def _rendered(
        self, head: Object, unread: list[str], gone: set[str], news: Mapping[str, E | None]
    ) -> Iterator[str]:
        self._text.change(gone, news)
        yield from pieces_with_members(
            head, {self._form.members: chain(unread, self._text.texts.values())}
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
