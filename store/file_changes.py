"""The changes of a file of Apache RocketMQ since it was written: a table of the broker's journal (tables.py).

A scope of the table is named after a version of the file: its changes, and those of later scopes, follow that version.
Each writing of the file begins a scope, and deletes the scopes that its backup does not need. The scope WRITTEN has the
version of the last complete writing.

A load applies the scopes from the version of the file on. If another broker wrote the file meanwhile, there is no such
scope: the load then uses only entries that the file lacks.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast

from .disk import Disk
from .format.beans import Object
from .format.java_json import Json, parse, render
from .format.state_tables import DataVersion, TableForm
from .format.table_frames import TableVersion
from .table_files import FOLDER, read_entries
from .tables import Durability, JournalTable, JsonCodec

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
        present, written = scope_of(version), next(reversed(changes.of_scope(WRITTEN)), "")
        is_known = present in scopes or changes.version == table_version(version)
        # If no change follows the last writing, what another broker wrote after it lacks nothing.
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


def with_changes(
    changes: ChangeTable, form: TableForm[E], version: DataVersion, entries: Mapping[str, E]
) -> dict[str, E]:
    """Return the ENTRIES of the file of FORM, which is of VERSION, with CHANGES applied."""
    newer = NewerChanges(changes, form, version, entries).entries
    there = {name: entry for name, entry in entries.items() if name not in newer}
    return there | {name: entry for name, entry in newer.items() if entry is not None}


def table_version(version: DataVersion) -> TableVersion:
    """Return VERSION of a file as a version of a table of the journal."""
    return TableVersion(version.counter, version.state_version, version.timestamp_ms)


def scope_of(version: DataVersion) -> str:
    """Return the scope of the changes that follow VERSION of the file."""
    return f"{version.counter}.{version.state_version}.{version.timestamp_ms}"
