"""What a store holds, and what is wrong with it, in a second whatever its size.

The overview reads every file's name and length; of the log the first bytes of each file (HEADS_MAX of them) and the
last records; of each queue (QUEUES_MAX of them) its first and last entry; the tables. It does not read the records
between, bodies and CRCs, other queue entries, and index entries; `not_examined` says so.

Findings have a severity: `refused` (a broker does not start), `wrong` (something is lost or contradicts), `note` (worth
knowing).
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Final, Literal

import numpy as np

from ...broker.pop.deliveries import DeliveryTable
from ...proto.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from ...proto.topics import SCHEDULE_TOPIC
from ...store.damage import SetAside, set_aside
from ...store.format.log import HEAD_BYTES, record_head
from ...store.format.replica_files import EPOCHS_FILE
from ...store.format.timer_wheel import WHEEL_SIZE
from ...store.known_damage import load_places
from ...store.listing import FileRow, RowFile
from ...store.log_view import Gap, LogWalk
from ...store.queue_view import QueueExtent, QueueView
from ...store.state_files import BROKEN_FOLDER
from ...store.system import lock_is_held
from ...store.table_files import FOLDER, read_entries
from ...store.view import QUEUE_FOLDERS, QueueFolder, StoreView
from ..counted import counted
from .document import checkpoint
from .output import Row
from .record_rows import record_rows
from .stored_tables import Tables

Severity = Literal["refused", "wrong", "note"]
HEADS_MAX: Final = 1024
_FINDINGS_MAX: Final = 1000
_SET_ASIDE_SHOWN: Final = 100
QUEUES_MAX: Final = 1000
_FILES_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One thing that is wrong, in one sentence."""

    severity: Severity
    text: str


def row_findings(row: FileRow, what: str, size: str | None = None) -> Iterator[HealthFinding]:
    """Yield what is wrong with names and lengths of ROW, the files of WHAT; SIZE is what they should have."""
    wanted = int(size) if size is not None and size.isdecimal() else row.usual_size
    for name in row.strange:
        yield HealthFinding(
            "refused", f"{what}: {name} does not belong to it: its name is not an offset"
        )
    for file in row.files:
        if file.size == 0 and file is row.files[-1]:
            yield HealthFinding(
                "note", f"{what}: {file.name} is empty: a broker deletes it at its start"
            )
        elif file.size != wanted:
            yield HealthFinding(
                "refused", f"{what}: {file.name} has {file.size:,} bytes, not {wanted:,}"
            )
    for begin, end in row.holes():
        yield HealthFinding("wrong", f"{what}: files are missing from byte {begin:,} to {end:,}")


@dataclass(frozen=True, slots=True)
class HealthFindings:
    """Checks the store FILES, whose log, tables and BOUNDS of queues are known."""

    files: StoreView
    walk: LogWalk
    tables: Tables
    bounds: Mapping[tuple[str, int], QueueExtent]

    def findings(self) -> list[HealthFinding]:
        """Return everything found, the worst first."""
        parts = (self._log(), self._queues(), self._index(), self._others())
        found = [one for part in parts for one in part]
        order = ("refused", "wrong", "note")
        return sorted(found, key=lambda one: order.index(one.severity))[:_FINDINGS_MAX]

    def _log(self) -> Iterator[HealthFinding]:
        size = self.files.given.get("mappedFileSizeCommitLog")
        yield from row_findings(self.walk.row, "log", size)
        used = self.walk.used
        for file in used[:HEADS_MAX]:
            yield from self._head(file)
        if self.walk.has_stale_tail:
            text = "old bytes after the end look like a record: a broker of Apache RocketMQ would restore it"
            yield HealthFinding("wrong", f"log: {text}")
        unused = len(self.walk.row.files) - len(used)
        if unused > 1:
            yield HealthFinding(
                "note", f"log: {counted(unused, 'file')} without a record after the log's end"
            )

    def _head(self, file: RowFile) -> Iterator[HealthFinding]:
        """Look at the first bytes of FILE: by descriptor, for a page fault costs more."""
        try:
            head = self.files.disk.read_at(file.path, 0, HEAD_BYTES)
        except FileNotFoundError:
            return  # A live broker's retention deleted it.
        size, magic, own = record_head(head.ljust(HEAD_BYTES, b"\0"))
        if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) or not 0 < size <= file.size:
            what = "no record" if any(head) else "zeros"
            yield HealthFinding("wrong", f"log: {file.name} begins with {what}")
        elif magic != MAGIC_BLANK and own != file.start:
            yield HealthFinding(
                "wrong", f"log: the first record of {file.name} has the log offset {own:,}"
            )

    def _queues(self) -> Iterator[HealthFinding]:
        end = self.walk.records_end
        for (topic, queue), bounds in self.bounds.items():
            if bounds.log_end is not None and bounds.log_end > end:
                text = f"its last entry points to {bounds.log_end:,}, the log ends at {end:,}"
                yield HealthFinding("wrong", f"queue {topic}/{queue}: {text}")
        newest = max((one.log_end or 0 for one in self.bounds.values()), default=0)
        if self.walk.used and newest < end:
            begin = max(newest, self.walk.begin)
            text = f"the log's last {end - begin:,} bytes are in no queue: not dispatched, or no messages"
            yield HealthFinding("note", text)

    def _index(self) -> Iterator[HealthFinding]:
        entries = [
            one for one in self.files.disk.list(self.files.path("index")) if not one.is_folder
        ]
        sizes = [one.size for one in entries]
        for entry in entries:
            if not entry.name.isdecimal():
                yield HealthFinding(
                    "note", f"index: {entry.name} is not an index file: its name is not a time"
                )
            elif entry.size != max(sizes, key=sizes.count):
                yield HealthFinding(
                    "wrong", f"index: {entry.name} has {entry.size:,} bytes, unlike the others"
                )

    def _others(self) -> Iterator[HealthFinding]:
        disk, path = self.files.disk, self.files.path
        if disk.exists(path("abort")):
            text = "a broker has the store open, or was killed: what views show may lack a recovery"
            yield HealthFinding("note", f"abort is there: {text}")
        self.tables.groups()
        for problem in dict.fromkeys(self.tables.problems):
            refused = problem in self.tables.refused
            yield HealthFinding("refused" if refused else "wrong", problem)
        if self.walk.row.files and not self.files.has("checkpoint"):
            yield HealthFinding("note", "checkpoint is missing: a broker begins with zeros")
        else:
            yield from self._checkpoint()
        wheel = path("timerwheel")
        if disk.exists(wheel) and disk.size(wheel) != WHEEL_SIZE:
            text = f"timerwheel has {disk.size(wheel):,} bytes, not {WHEEL_SIZE:,}"
            yield HealthFinding("refused", text)
        broken = disk.list(path(BROKEN_FOLDER))
        if broken:
            yield HealthFinding(
                "note", f"{counted(len(broken), 'damaged file')} quarantined in {BROKEN_FOLDER}"
            )
        for one in islice(set_aside(disk, self.files.root), _SET_ASIDE_SHOWN):
            yield HealthFinding("wrong", f"commitlog: damaged at {one.log_offset:,}: {_what(one)}")

    def _checkpoint(self) -> Iterator[HealthFinding]:
        values = self.files.checkpoint()
        if values.confirm_offset > self.walk.end:
            text = f"{values.confirm_offset:,}, but the log ends at {self.walk.end:,}"
            yield HealthFinding("wrong", f"checkpoint: confirmPhyOffset is {text}")


def _what(one: SetAside) -> str:
    """Return which message ONE was, if it says so."""
    if one.record is None:
        return f"{one.size:,} bytes, kept in {one.path}"
    record = one.record
    place = f"{record.topic}/{record.queue_id} at offset {record.queue_offset:,}"
    return f"the message in {place} is lost, kept in {one.path}"


@dataclass(slots=True)
class Overview:
    """Collects what is known of the store FILES."""

    files: StoreView
    walk: LogWalk = field(init=False)
    tables: Tables = field(init=False)
    bounds: dict[tuple[str, int], QueueExtent] = field(init=False, default_factory=dict)
    queues_unseen: int = field(init=False, default=0)
    _queue_files: dict[str, list[int]] = field(init=False, default_factory=dict)
    _findings: list[HealthFinding] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.walk = LogWalk(self.files)
        self.tables = Tables(self.files)

    def document(self) -> dict[str, Any]:
        """Return everything, by name."""
        self.look_at_queues()
        parts = {
            "store": self.files.root,
            "abort_present": self.files.disk.exists(self.files.path("abort")),
            "lock_held": lock_is_held(self.files.path("lock")),
            "log": self._log(),
            "topics": list(self.topics()),
            "groups": list(self.groups()),
            "waiting": self._waiting(),
            "files": list(self._file_rows()),
            "checkpoint": self._checkpoint(),
            "replica": self._replica(),
        }
        health = HealthFindings(self.files, self.walk, self.tables, self.bounds)
        found = [*self._findings, *health.findings()]
        return parts | {
            "health": [asdict(one) for one in found],
            "refused": any(one.severity == "refused" for one in found),
            "not_examined": self._not_looked_at(),
        }

    def look_at_queues(self, queues_max: int | None = QUEUES_MAX) -> None:
        """Find the limits of the first QUEUES_MAX queues (None: of all), and count the others."""
        for number, folder in enumerate(self.files.queues()):
            if queues_max is not None and number >= queues_max:
                self.queues_unseen += 1
            else:
                self._look_at(folder)

    def _look_at(self, folder: QueueFolder) -> None:
        entries = QueueView(self.files, folder, self.walk.begin)
        self.bounds[folder.topic, folder.queue_id] = entries.bounds()
        top = posixpath.relpath(folder.path, self.files.root).split("/")[0]
        self._queue_files.setdefault(top, []).extend(file.size for file in entries.row.files)
        what = f"queue {folder.topic}/{folder.queue_id}"
        name = (
            "mapperFileSizeBatchConsumeQueue" if folder.is_batch else "mappedFileSizeConsumeQueue"
        )
        self._findings += row_findings(entries.row, what, self.files.given.get(name))

    def _log(self) -> dict[str, Any]:
        row = self.walk.row
        first = self.walk.first()
        return {
            "min_log_offset": row.begin,
            "max_log_offset": self.walk.end,
            "files": len(row.files),
            "file_size": row.usual_size,
            "first": None if first is None else next(record_rows(first, np.arange(1))),
            "last": self._last(),
        }

    def _last(self) -> Row | None:
        found = None
        for part in self.walk.walk(self.walk.last(1)):
            if not isinstance(part, Gap):
                found = next(record_rows(part, np.array([len(part.columns) - 1])))
        return found

    def topics(self) -> Iterator[dict[str, Any]]:
        """Yield each topic that has queues, or is in the table."""
        queues: dict[str, list[QueueExtent]] = defaultdict(list)
        for (topic, _), bounds in self.bounds.items():
            queues[topic].append(bounds)
        known = self.tables.topics().topics
        for topic in sorted({*queues, *known}):
            found = queues.get(topic, [])
            config = known.get(topic)
            yield {
                "topic": topic,
                "queues": len(found),
                "min_offset": min((one.min_offset for one in found), default=None),
                "max_offset": max((one.max_offset for one in found), default=None),
                "messages": sum(one.max_offset - one.min_offset for one in found),
                "read_queues": None if config is None else config.read_queues,
                "write_queues": None if config is None else config.write_queues,
                "permission": None if config is None else config.permission,
                "attributes": {} if config is None else config.attributes,
            }

    def groups(self) -> Iterator[dict[str, Any]]:
        """Yield each group's progress in each of its topics."""
        for key, offsets in sorted(self.tables.offsets().offsets.items()):
            topic, _, group = key.partition("@")
            seen = {
                queue: self.bounds[topic, queue]
                for queue in offsets
                if (topic, queue) in self.bounds
            }
            yield {
                "group": group,
                "topic": topic,
                "queues": len(offsets),
                "lag": sum(
                    max(0, one.max_offset - max(offsets[queue], one.min_offset))
                    for queue, one in seen.items()
                ),
            }

    def _waiting(self) -> dict[str, Any]:
        done = self.tables.delays().offsets
        levels = sum(
            max(0, one.max_offset - max(done.get(queue + 1, 0), one.min_offset))
            for (topic, queue), one in self.bounds.items()
            if topic == SCHEDULE_TOPIC
        )
        return {
            "by_delay_level": levels,
            "timed": sum(self.tables.timers_pending().values()),
            "open_transactions": sum(self.tables.transactions_open().values()),
            "delivered": self._delivered(),
        }

    def _delivered(self) -> int:
        """Return how many messages our broker's journal says were popped and not acknowledged."""
        table = DeliveryTable()
        read_entries(self.files.disk, self.files.path(f"pocketmq/{FOLDER}"), [table])
        return sum(len(queue.in_flight) for queue in table.found().values())

    def _file_rows(self) -> Iterator[dict[str, Any]]:
        """Yield number and length of the files of each folder below the root."""
        found: dict[str, list[int]] = defaultdict(list, self._queue_files)
        folders, seen = [""], 0
        while folders and seen < _FILES_MAX:
            folder = folders.pop()
            for entry in self.files.disk.list(self.files.path(folder)):
                path = posixpath.join(folder, entry.name)
                if not entry.is_folder:
                    found[path.split("/")[0] if "/" in path else "."].append(entry.size)
                    seen += 1
                elif path not in QUEUE_FOLDERS:
                    folders.append(path)
        for kind, sizes in sorted(found.items()):
            yield {"folder": kind, "files": len(sizes), "size_bytes": sum(sizes)}

    def _checkpoint(self) -> dict[str, int] | None:
        return checkpoint(self.files.checkpoint()) if self.files.has("checkpoint") else None

    def _replica(self) -> dict[str, Any] | None:
        """Return which replica the store is of, and the epochs of its log; None where no file says either."""
        identity, epochs = self.tables.identity(), self.tables.epochs()
        if identity is None and not epochs:
            return None
        for epoch, start in epochs:
            if start > self.walk.end:
                text = f"epoch {epoch} begins at {start:,}, past the end of the log at {self.walk.end:,}"
                self._findings.append(HealthFinding("wrong", f"{EPOCHS_FILE}: {text}"))
        damaged = load_places(self.files.disk, self.files.path("pocketmq"))
        if damaged:
            text = (
                f"the log is damaged in {len(damaged):,} places, first at {min(damaged):,}:"
                " a running replica gets these records from the others"
            )
            self._findings.append(HealthFinding("wrong", text))
        return {
            "cluster": None if identity is None else identity.cluster,
            "broker": None if identity is None else identity.name,
            "broker_id": None if identity is None else identity.id,
            "epochs": [{"epoch": epoch, "start_offset": start} for epoch, start in epochs],
            "damaged": len(damaged),
        }

    def _not_looked_at(self) -> list[str]:
        told = []
        if self.walk.used:
            told.append("records between the first and the last, bodies and CRCs")
        if self.bounds:
            told.append("entries between the first and the last of each queue")
        if self.queues_unseen:
            told.append(
                f"{self.queues_unseen:,} of {self.queues_unseen + len(self.bounds):,} queues"
            )
        if self.files.disk.list(self.files.path("index")):
            told.append("entries of the index")
        return told
