"""The files of the journal of tables, and what a start reads from them.

    <store>/pocketmq/tables/journal-N        changes of all tables, in order; then journal-N+1, and so on
    <store>/pocketmq/tables/snapshot-T-N     table T as of the beginning of journal N, or later

Bytes: format/table_frames.py. A table is its newest whole snapshot, and every section of it in the journals from N on,
except those that must not count:

- Its `needs` is above the log's end, or was so at any start since it was written (`LogNote`), or is above damage that a
  start found (`LossNote`): the log lost what the section is about, and may have other bytes there by now.
- Frames are missing before it, and the table is ordered. But after a CLEAR, changes of that scope count again.
- The table counts only until the machine restarts, and the section was written before that.

A torn end is what a power cut leaves, and nothing is missing then. If the log has other bytes before its end than
when the journal noted them, the journal is foreign: nothing of it counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from ..proto.errors import StoreError
from ..proto.facts import Facts
from .disk import Disk
from .flush import Waiter
from .format import table_frames
from .format.table_frames import (
    CLEAR,
    CLEAR_ALL,
    JOURNAL,
    NO_BOOT_ID,
    OWN_TABLE,
    SNAPSHOT,
    ClockReading,
    EndNote,
    FrameGap,
    LogNote,
    LossNote,
    Note,
    Section,
    TableName,
)
from .tables import AnyChange, AnyTable, Durability, TableChange

logger = logging.getLogger(__name__)

FOLDER: Final = "tables"
DRAFT_SUFFIX: Final = ".tmp"
#: Digits of a number in the name of a file; files with longer numbers are ignored.
_DIGITS_MAX: Final = 18
_ATTEMPTS: Final = 3
_PROBLEMS_MAX: Final = 3


class TableLog(Protocol):
    """What tables ask of the log that they belong to."""

    @property
    def end(self) -> int:
        """The log offset of the next record."""
        ...

    def tail(self, end: int) -> int | None:
        """Return the CRC of the last bytes before END; None: the log does not hold them."""
        ...

    def when_flushed(self, end: int, waiter: Waiter) -> None:
        """Call WAITER once the log is on disk up to END, or with the error."""
        ...


def journal_path(folder: str, number: int) -> str:
    """Return the path of journal NUMBER in FOLDER."""
    return f"{folder}/journal-{number:08d}"


def snapshot_path(folder: str, table: int, number: int) -> str:
    """Return the path of the snapshot of TABLE that precedes journal NUMBER in FOLDER."""
    return f"{folder}/snapshot-{table}-{number:08d}"


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files in a folder: journals by number, snapshots by table and number."""

    journals: dict[int, str]
    snapshots: dict[int, dict[int, str]]
    drafts: list[str]

    @classmethod
    def of(cls, disk: Disk, folder: str) -> TableFiles:
        """Return what is in FOLDER; files with other names are left alone."""
        files = cls({}, {}, [])
        for entry in disk.list(folder):
            path = f"{folder}/{entry.name}"
            if entry.is_folder:
                continue
            if entry.name.endswith(DRAFT_SUFFIX):
                files.drafts.append(path)
                continue
            kind, *numbers = entry.name.split("-")
            if not all(map(_is_number, numbers)):
                continue
            if kind == "journal" and len(numbers) == 1:
                files.journals[int(numbers[0])] = path
            elif kind == "snapshot" and len(numbers) == 2:
                files.snapshots.setdefault(int(numbers[0]), {})[int(numbers[1])] = path
        return files

    def all(self) -> list[str]:
        """Return every path."""
        snapshots = [path for by_number in self.snapshots.values() for path in by_number.values()]
        return [*self.journals.values(), *snapshots, *self.drafts]

    @property
    def last(self) -> int:
        """The highest number of any file."""
        return max(
            (*self.journals, *(n for one in self.snapshots.values() for n in one)), default=0
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


class FoundGap(NamedTuple):
    """Bytes of the file PATH that are not used. IS_TORN: as a process that was killed leaves them."""

    path: str
    at: int
    bytes: int
    is_torn: bool
    problem: str = "damaged"


@dataclass(slots=True)
class FoundTables:
    """What `read_tables` found besides the entries, which are in the tables."""

    sequence: int = 0
    """Of the last frame."""
    number: int = 0
    """Of the last file."""
    bases: dict[int, int] = field(default_factory=dict)
    """By table: the number of the snapshot that it was read from."""
    kept: dict[int, int] = field(default_factory=dict)
    """By table: bytes of that snapshot."""
    since: dict[int, int] = field(default_factory=dict)
    """By table: bytes in the journals after it."""
    incomplete: set[int] = field(default_factory=set)
    """Tables that may lack something that was written: a new snapshot ends that."""
    gaps: list[FoundGap] = field(default_factory=list)
    skipped: int = 0
    """Sections that do not count because of the log."""
    clock: ClockReading | None = None
    names: dict[int, str] = field(default_factory=dict)
    is_foreign: bool = False
    ended: bool = False
    """The last process closed the journal."""

    def take(self, note: Note) -> None:
        """Take in NOTE, which is later than all before it."""
        if isinstance(note, ClockReading):
            self.clock = note
        elif isinstance(note, TableName):
            self.names[note.table] = note.name

    def shift(self, tables: Iterable[AnyTable], present: ClockReading) -> None:
        """Have instants in TABLES, of the last process, be instants of a process whose clocks show PRESENT."""
        if self.clock is not None:
            ms = clock_shift(self.clock, present)
            for table in tables:
                table.shift(ms)

    def take_last(self, sequence: int, notes: Iterable[Note]) -> None:
        """Note that the last frame has SEQUENCE and NOTES."""
        self.sequence = sequence
        self.ended = any(isinstance(one, EndNote) for one in notes)

    def refuse(self) -> None:
        """The journal belongs to another log."""
        self.is_foreign = True


class _Frame(NamedTuple):
    """A frame of the journals: in which file, and what it says."""

    number: int
    sequence: int
    sections: list[Section]
    notes: list[Note]


def read_tables(
    disk: Disk,
    folder: str,
    tables: Iterable[AnyTable],
    log: TableLog | None = None,
    boot_id: bytes = NO_BOOT_ID,
) -> FoundTables:
    """Fill TABLES, which are empty, with what the files in FOLDER say; return what else they say.

    Args:
        log: The log that the tables belong to; None: what the journal says of the log is not checked.
        boot_id: That of the machine since its last start.
    """
    return _Reading(disk, folder, tables, log, boot_id).read()


def _files_in(disk: Disk, folder: str, gaps: list[FoundGap]) -> TableFiles:
    """Return the files in FOLDER; if it cannot be read there are none, and GAPS says so."""
    try:
        return TableFiles.of(disk, folder)
    except (StoreError, OSError) as error:
        gaps.append(FoundGap(folder, 0, 0, False, f"cannot be read: {error}"))
        return TableFiles({}, {}, [])


def clock_shift(before: ClockReading, after: ClockReading) -> int:
    """Return how many milliseconds later an instant is for a process with AFTER than for the one with BEFORE.

    The wall clock shows how much time passed between the readings; where it was set back, none did.
    """
    passed_ms = max(0, after.unix_ms - before.unix_ms)
    return after.now_ms - passed_ms - before.now_ms


def read_entries(
    disk: Disk, folder: str, tables: Sequence[AnyTable], log: TableLog | None = None
) -> FoundTables:
    """Fill TABLES with what a broker, which may run, has written in FOLDER; return what else the files say.

    Files that cannot be read are logged: then the tables may lack entries.

    Args:
        log: A log with the same records, as far as it reaches; None: what the journal says of the log is not checked.
    """
    found = FoundTables()
    for attempt in range(1, _ATTEMPTS + 1):
        for table in tables:
            table.apply(TableChange(CLEAR_ALL))
        found = read_tables(disk, folder, tables, log)
        if not found.incomplete and not any(gap.path == folder for gap in found.gaps):
            break
        # A broker may have deleted old files meanwhile, because of newer ones that are there by now.
        if attempt == _ATTEMPTS:
            problems = [f"{gap.path}: {gap.problem}" for gap in found.gaps]
            reason = "; ".join(problems[:_PROBLEMS_MAX])
            logger.warning("tables may lack entries %s", Facts(path=folder, reason=reason))
    return found


class _Reading:
    """One pass over the files."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        tables: Iterable[AnyTable],
        log: TableLog | None,
        boot_id: bytes,
    ) -> None:
        self._disk = disk
        self._tables = {table.number: table for table in tables}
        self._log = log
        self._boot_id = boot_id
        gaps: list[FoundGap] = []
        self._files = _files_in(disk, folder, gaps)
        self._found = FoundTables(number=self._files.last, gaps=gaps)
        self._frames: list[_Frame] = []
        #: By frame: up to where the log reached at every start since.
        self._limits: list[int] = []
        #: Ordered tables and others that lack frames.
        self._stopped: set[int] = set()
        #: By table: scopes that were cleared since the last missing frames. All their later changes are known.
        self._cleared: dict[int, set[Any]] = {}

    def read(self) -> FoundTables:
        for number, path in sorted(self._files.journals.items()):
            self._read_journal(number, path)
        self._judge()
        if self._found.is_foreign:
            return self._found
        for number, table in self._tables.items():
            self._load_snapshot(number, table)
        self._replay()
        self._found.incomplete |= self._stopped
        return self._found

    # --- frames

    def _not_used(self, path: str, size: int, problem: str, *, is_torn: bool = False) -> None:
        self._found.gaps.append(FoundGap(path, 0, size, is_torn, problem))

    def _read_journal(self, number: int, path: str) -> None:
        for sequence, content in self._frames_in(path, JOURNAL, number):
            try:
                sections = list(table_frames.sections(content))
                own = [one for one in sections if one.table == OWN_TABLE]
                notes = [note for one in own for note in table_frames.notes_in(one.entries)]
            except ValueError as error:
                logger.error("frame of tables not read path=%s reason=%s", path, error)
                continue  # As if it were missing.
            self._frames.append(_Frame(number, sequence, sections, notes))

    def _frames_in(
        self, path: str, kind: int, expected: int | None = None
    ) -> list[tuple[int, bytes]]:
        """Return the frames of the file PATH of KIND, which is number EXPECTED."""
        try:
            data = self._disk.read(path)
        except (StoreError, OSError) as error:
            self._not_used(path, 0, f"cannot be read: {error}")
            return []
        number = table_frames.number_of(data, kind)
        if number is None:
            size = len(data.rstrip(b"\0"))
            self._not_used(path, size, "damaged" if size else "empty", is_torn=not size)
            return []
        if expected not in (None, number):
            self._not_used(path, len(data), f"copy of journal {number}")
            return []
        gaps: list[FrameGap] = []
        found = list(table_frames.frames(data, gaps))
        for gap in gaps:
            problem = "torn end" if gap.is_torn else "damaged"
            self._found.gaps.append(FoundGap(path, *gap, problem))
        return found

    # --- what counts

    def _judge(self) -> None:
        """Find how far the log reached since each frame, whose log it is, and what else the journal notes."""
        limit = 1 << 63 if self._log is None else self._log.end
        is_judged = self._log is None
        limits: list[int] = []
        for frame in reversed(self._frames):
            limits.append(limit)
            for mark in _marks(frame.notes):
                if not is_judged and mark.log_end <= limit and self._log is not None:
                    tail = self._log.tail(mark.log_end)
                    is_judged = tail is not None
                    if is_judged and tail != mark.tail:
                        self._found.refuse()
            if self._log is not None:
                limit = min([limit, *_limits_in(frame.notes)])
        self._limits = limits[::-1]
        for frame in self._frames:
            for note in frame.notes:
                self._found.take(note)
        if self._frames:
            self._found.take_last(self._frames[-1].sequence, self._frames[-1].notes)

    def _limit_before(self, number: int) -> int:
        """Return up to where the log reached at every start since journal NUMBER began."""
        for frame, limit in zip(self._frames, self._limits, strict=True):
            if frame.number >= number:  # Its first frame, and no process began with it.
                return limit
        return 1 << 63 if self._log is None else self._log.end

    def _load_snapshot(self, number: int, table: AnyTable) -> None:
        """Fill TABLE from its newest snapshot that is whole and counts."""
        is_lost = False
        for base, path in sorted(self._files.snapshots.get(number, {}).items(), reverse=True):
            contents = self._frames_in(path, SNAPSHOT)
            size = sum(len(content) for _, content in contents)
            try:
                problem = self._load(table, base, contents)
            except ValueError as error:
                problem = f"damaged: {error}"
            if not problem:
                self._found.bases[number] = base
                self._found.kept[number] = size
                break
            self._not_used(path, size, problem)
            is_lost = True
        if is_lost or self._is_cut(number):
            self._stopped.add(number)

    def _is_cut(self, number: int) -> bool:
        """Is the beginning of the journals after the snapshot of table NUMBER missing?"""
        if not self._files.last or (self._found.names and number not in self._found.names):
            return False  # No process has had the table yet.
        # The first frame of a journal names the tables; a journal begins before the snapshot that precedes it.
        begun = {
            one.number for one in self._frames for note in one.notes if isinstance(note, TableName)
        }
        return self._found.bases.get(number, 1) not in begun

    def _load(self, table: AnyTable, base: int, contents: list[tuple[int, bytes]]) -> str:
        """Fill TABLE with the frames CONTENTS of a snapshot; return why it does not count, "" if it does."""
        if [sequence for sequence, _ in contents] != list(range(1, len(contents) + 1)):
            return "not whole"
        sections = [one for _, content in contents for one in table_frames.sections(content)]
        own = [one.entries for one in sections if one.table == OWN_TABLE]
        notes = [note for data in own for note in table_frames.notes_in(data)]
        if not notes or not isinstance(notes[-1], EndNote):
            return "not whole"
        of_tables = [note.table for note in notes if isinstance(note, TableName)]
        if of_tables != [table.number]:
            return f"copy of a snapshot of table {of_tables}"
        if max(one.needs for one in sections) > self._limit_before(base):
            self._found.skipped += 1
            return "newer than the log"
        boots = {mark.boot_id for mark in _marks(notes)}
        if not self._is_of_this_boot(table, boots):
            return ""  # As a whole it counts for nothing, and so do the frames before it.
        own_sections = [one for one in sections if one.table == table.number]
        decoded = [table.decode(one.entries) for one in own_sections]
        for changes in decoded:
            for change in changes:
                table.apply(change)
        for one in own_sections:
            table.found_at(one.version)
        return ""

    def _is_of_this_boot(self, table: AnyTable, boots: set[bytes]) -> bool:
        if table.durability is not Durability.PROCESS or self._log is None:
            return True
        return self._boot_id != NO_BOOT_ID and boots == {self._boot_id}

    def _replay(self) -> None:
        boot: set[bytes] = set()
        clock: ClockReading | None = None
        expected: int | None = None
        for frame, limit in zip(self._frames, self._limits, strict=True):
            readings = [note for note in frame.notes if isinstance(note, ClockReading)]
            if clock and readings and any(mark.is_start for mark in _marks(frame.notes)):
                self._shift_instants(frame.number, clock_shift(clock, readings[0]))
            clock = readings[-1] if readings else clock
            if expected is not None and frame.sequence != expected:
                bases = self._found.bases
                self._stop(n for n in self._tables if frame.number >= bases.get(n, 0))
            expected = frame.sequence + 1
            boot = {mark.boot_id for mark in _marks(frame.notes)} or boot
            for section in frame.sections:
                table = self._tables.get(section.table)
                if table is not None and frame.number >= self._found.bases.get(table.number, 0):
                    self._apply(table, section, limit, boot)

    def _stop(self, numbers: Iterable[int]) -> None:
        """The tables NUMBERS lack changes."""
        for number in numbers:
            self._stopped.add(number)
            self._cleared.pop(number, None)

    def _shift_instants(self, number: int, ms: int) -> None:
        """A process began with journal NUMBER, for which earlier instants are MS later."""
        for table in self._tables.values():
            if number >= self._found.bases.get(table.number, 0):
                table.shift(ms)

    def _apply(self, table: AnyTable, section: Section, limit: int, boot: set[bytes]) -> None:
        number, since = table.number, self._found.since
        since[number] = since.get(number, 0) + len(section.entries)
        if section.needs > limit:
            self._found.skipped += 1
            return
        if not self._is_of_this_boot(table, boot):
            return
        try:
            changes = table.decode(section.entries)
        except ValueError as error:
            logger.error("changes not read table=%s reason=%s", table.name, error)
            self._stop([number])
            return
        if table.ordered and number in self._stopped:
            changes = list(self._of_cleared(number, changes))
        for change in changes:
            table.apply(change)
        if not (table.ordered and number in self._stopped):
            table.found_at(section.version)

    def _of_cleared(self, number: int, changes: Iterable[AnyChange]) -> Iterator[AnyChange]:
        """Yield those of CHANGES, of a table that lacks earlier ones, whose scope has been cleared since."""
        cleared = self._cleared.setdefault(number, set())
        for change in changes:
            if change.op == CLEAR_ALL:
                self._stopped.discard(number)
            elif change.op == CLEAR:
                cleared.add(change.scope)
            if number not in self._stopped or change.scope in cleared:
                yield change


def _limits_in(notes: Iterable[Note]) -> list[int]:
    """Return up to where the log was kept, as NOTES say."""
    starts = [mark.log_end for mark in _marks(notes) if mark.is_start]
    return starts + [note.log_end for note in notes if isinstance(note, LossNote)]


def _marks(notes: Iterable[Note]) -> list[LogNote]:
    return [note for note in notes if isinstance(note, LogNote)]
