"""What is wrong with a store, as far as heads, tails, names and lengths of its files tell.

Severities: `refused` (a broker does not start), `wrong` (something is lost or contradicts), `note` (worth knowing).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from ...proto.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from ...store.damage import SetAside, set_aside
from ...store.format.log_file import HEAD_BYTES, record_head
from ...store.format.timers import WHEEL_SIZE
from ...store.listing import FileRow, RowFile
from ...store.state_files import BROKEN_FOLDER
from ...store.view import StoreView
from .log_walk import LogWalk
from .queue_entries import Bounds
from .tables import Tables

Severity = Literal["refused", "wrong", "note"]
HEADS_MAX: Final = 1024
_FINDINGS_MAX: Final = 1000
_SET_ASIDE_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, in one sentence."""

    severity: Severity
    text: str


def row_findings(row: FileRow, what: str, size: str | None = None) -> Iterator[Finding]:
    """Yield what is wrong with names and lengths of ROW, the files of WHAT; SIZE is what they should have."""
    wanted = int(size) if size is not None and size.isdecimal() else row.usual_size
    for name in row.strange:
        yield Finding("refused", f"{what}: {name} is no file of it: its name is no offset")
    for file in row.files:
        if file.size == 0 and file is row.files[-1]:
            yield Finding("note", f"{what}: {file.name} is empty: a broker deletes it at its start")
        elif file.size != wanted:
            yield Finding("refused", f"{what}: {file.name} has {file.size:,} bytes, not {wanted:,}")
    for begin, end in row.holes():
        yield Finding("wrong", f"{what}: files are missing from byte {begin:,} to {end:,}")


@dataclass(frozen=True, slots=True)
class Health:
    """Looks at the store FILES, whose log, tables and BOUNDS of queues are known."""

    files: StoreView
    walk: LogWalk
    tables: Tables
    bounds: Mapping[tuple[str, int], Bounds]

    def findings(self) -> list[Finding]:
        """Return everything found, the worst first."""
        parts = (self._log(), self._queues(), self._index(), self._others())
        found = [one for part in parts for one in part]
        order = ("refused", "wrong", "note")
        return sorted(found, key=lambda one: order.index(one.severity))[:_FINDINGS_MAX]

    def _log(self) -> Iterator[Finding]:
        size = self.files.given.get("mappedFileSizeCommitLog")
        yield from row_findings(self.walk.row, "log", size)
        used = self.walk.used
        for file in used[:HEADS_MAX]:
            yield from self._head(file)
        if self.walk.has_stale_tail:
            text = "old bytes behind the end look like a record: Apache's broker would take it back"
            yield Finding("wrong", f"log: {text}")
        unused = len(self.walk.row.files) - len(used)
        if unused > 1:
            yield Finding("note", f"log: {unused} files behind the log's end hold no record")

    def _head(self, file: RowFile) -> Iterator[Finding]:
        """Look at the first bytes of FILE: by descriptor, for a page fault costs more."""
        try:
            head = self.files.disk.read_at(file.path, 0, HEAD_BYTES)
        except FileNotFoundError:
            return  # A live broker's retention deleted it.
        size, magic, own = record_head(head.ljust(HEAD_BYTES, b"\0"))
        if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) or not 0 < size <= file.size:
            what = "no record" if any(head) else "zeros"
            yield Finding("wrong", f"log: {file.name} begins with {what}")
        elif magic != MAGIC_BLANK and own != file.start:
            yield Finding(
                "wrong", f"log: the first record of {file.name} says that it stands at {own:,}"
            )

    def _queues(self) -> Iterator[Finding]:
        end = self.walk.records_end
        for (topic, queue), bounds in self.bounds.items():
            if bounds.log_end is not None and bounds.log_end > end:
                text = f"its last entry points to {bounds.log_end:,}, the log ends at {end:,}"
                yield Finding("wrong", f"queue {topic}/{queue}: {text}")
        newest = max((one.log_end or 0 for one in self.bounds.values()), default=0)
        if self.walk.used and newest < end:
            begin = max(newest, self.walk.begin)
            text = f"the log's last {end - begin:,} bytes are in no queue: not dispatched, or no messages"
            yield Finding("note", text)

    def _index(self) -> Iterator[Finding]:
        entries = [
            one for one in self.files.disk.list(self.files.path("index")) if not one.is_folder
        ]
        sizes = [one.size for one in entries]
        for entry in entries:
            if not entry.name.isdecimal():
                yield Finding("note", f"index: {entry.name} is no index file: its name is no time")
            elif entry.size != max(sizes, key=sizes.count):
                yield Finding(
                    "wrong", f"index: {entry.name} has {entry.size:,} bytes, unlike the others"
                )

    def _others(self) -> Iterator[Finding]:
        disk, path = self.files.disk, self.files.path
        if disk.exists(path("abort")):
            text = "a broker has the store open, or was killed: what views show may lack a recovery"
            yield Finding("note", f"abort is there: {text}")
        self.tables.groups()
        for problem in dict.fromkeys(self.tables.problems):
            refused = problem in self.tables.refused
            yield Finding("refused" if refused else "wrong", problem)
        if self.walk.row.files and not self.files.has("checkpoint"):
            yield Finding("note", "checkpoint is missing: a broker begins with zeros")
        else:
            yield from self._checkpoint()
        wheel = path("timerwheel")
        if disk.exists(wheel) and disk.size(wheel) != WHEEL_SIZE:
            text = f"timerwheel has {disk.size(wheel):,} bytes, not {WHEEL_SIZE:,}"
            yield Finding("refused", text)
        broken = disk.list(path(BROKEN_FOLDER))
        if broken:
            yield Finding(
                "note", f"{BROKEN_FOLDER} holds {len(broken)} files that were set aside as damaged"
            )
        for one in islice(set_aside(disk, self.files.root), _SET_ASIDE_SHOWN):
            yield Finding("wrong", f"commitlog: damaged at {one.log_offset:,}: {_what(one)}")

    def _checkpoint(self) -> Iterator[Finding]:
        values = self.files.checkpoint()
        if values.confirm_offset > self.walk.end:
            text = f"{values.confirm_offset:,}, but the log ends at {self.walk.end:,}"
            yield Finding("wrong", f"checkpoint: confirmPhyOffset is {text}")


def _what(one: SetAside) -> str:
    """Return which message ONE was, if it says so."""
    if one.record is None:
        return f"{one.size:,} bytes, kept in {one.path}"
    record = one.record
    place = f"{record.topic}/{record.queue_id} at offset {record.queue_offset:,}"
    return f"the message in {place} is lost, kept in {one.path}"
