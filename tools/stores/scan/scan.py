"""Reading datasets of many stores: a plan of tasks that can run anywhere, and the batches of each task.

    scan = Scan(ScanOptions(dataset="messages"), Conditions(topics=frozenset({"Orders"})))
    for task in scan.plan(locate(["./store"])):
        for batch in scan.read(task, bad):
            ...

A plan fixes what is read: files, and where each ends. A task is plain data, so that it travels to other processes; it
is of one store, and of about `split_bytes`. What appears in a live store later is not in the plan; a file that a broker
deletes meanwhile is OffsetOutOfRange, or with fail_on_data_loss=False its rows are missing.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from ....proto.errors import ConfigError, OffsetOutOfRange
from ....store.disk import Disk
from ....store.file_sizes import settings_of
from ....store.listing import queue_folders, require_joined, row_files
from ..locations import StoreLocation
from ..schemas import arrow, projected, schema_of
from .bad_records import BadRecords, Policy
from .conditions import Conditions
from .entry_columns import QueueColumns, QueuePart, live_part
from .file_rows import FilePart, file_rows
from .index_rows import IndexColumns, IndexPart, index_parts
from .log_scan import LogPart, LogTailPart, MessageRows, dispatched_until, log_parts, log_tails
from .message_columns import MessageColumns
from .queue_scan import MessageQueuePart, MessageQueueReader, message_queue_parts

if TYPE_CHECKING:
    import pyarrow

Part: TypeAlias = LogPart | LogTailPart | MessageQueuePart | QueuePart | IndexPart | FilePart
#: How messages are found: by their queues where topics are named ("auto"), or always in one way.
Through = Literal["auto", "log", "queue"]

SPLIT_BYTES: Final = 64 << 20
#: Rows of a batch: messages are gathered from all over their bytes, which should stay in the processor's cache.
MESSAGE_ROWS: Final = 8_192
ENTRY_ROWS: Final = 65_536
#: A queue entry counts as a record of about so many bytes, when tasks of equal work are made.
_RECORD_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """What is read, and how.

    dataset: messages, consumequeue, index or files.  columns: None for all.  split_bytes: about what one task reads.
    batch_rows: most rows of a batch; None for what suits the dataset.  check_crc: is a body that does not fit its CRC
    bad?  decompress: are bodies shown as they were sent?  settings: the broker's, by RocketMQ's names (maxHashSlotNum,
    maxIndexNum), where files do not tell them.
    """

    dataset: str = "messages"
    columns: tuple[str, ...] | None = None
    split_bytes: int = SPLIT_BYTES
    batch_rows: int | None = None
    bad_records: Policy = "fail"
    check_crc: bool = False
    decompress: bool = True
    fail_on_data_loss: bool = True
    through: Through = "auto"
    settings: Mapping[str, str] = field(default_factory=dict)

    def schema(self) -> pyarrow.Schema:
        """Return the columns that batches have. Raises ConfigError for a column that is none."""
        if self.columns is not None:
            return projected(self.dataset, self.columns)
        shown = self.dataset == "messages" and self.bad_records == "rows"
        return schema_of(self.dataset, ("bad_record",) if shown else ())

    @property
    def rows_max(self) -> int:
        return self.batch_rows or (MESSAGE_ROWS if self.dataset == "messages" else ENTRY_ROWS)


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Parts of one store that are read one after the other."""

    location: StoreLocation
    parts: tuple[Part, ...]


class Scan:
    """Reads what meets CONDITIONS as OPTIONS say."""

    def __init__(self, options: ScanOptions, conditions: Conditions | None = None) -> None:
        self.options = options
        self.conditions = conditions or Conditions()

    def plan(self, locations: Sequence[StoreLocation]) -> list[ScanTask]:
        """Return the tasks; none where nothing can meet the conditions.

        Raises OffsetOutOfRange where a file between others is missing, unless data may be lost, and CorruptRecord for
        an index file that cannot be one, unless bad records are skipped.
        """
        tasks: list[ScanTask] = []
        if self.conditions.are_impossible:
            return tasks
        for location in locations:
            parts = self._parts(location.open_disk(), location)
            tasks += [ScanTask(location, group) for group in self._grouped(parts)]
        return tasks

    def _parts(self, disk: Disk, location: StoreLocation) -> Iterator[Part]:
        root = location.root
        if self.options.dataset == "messages":
            yield from self._message_parts(disk, root)
        elif self.options.dataset == "consumequeue":
            for part in self._queues(disk, root):
                part = part.within(self.conditions.queue_offsets)
                if part.begin < part.end:
                    yield from part.split(self.options.split_bytes)
        elif self.options.dataset == "index":
            settings = settings_of(disk, root, self.options.settings)
            bad = BadRecords(self.options.bad_records)
            slots, entries = settings.index_slots, settings.index_entries
            for index in index_parts(disk, posixpath.join(root, "index"), slots, entries, bad):
                yield from index.split(self.options.split_bytes)
        else:
            yield FilePart(root)

    def _message_parts(self, disk: Disk, root: str) -> Iterator[Part]:
        log = posixpath.join(root, "commitlog")
        strict = self.options.fail_on_data_loss
        if not self._goes_through_queues(disk, root):
            for part in log_parts(disk, log, self.conditions, fail_on_data_loss=strict):
                yield from part.split(self.options.split_bytes)
            return
        step = self.options.split_bytes * QueuePart.entry_bytes // _RECORD_BYTES
        dispatched = dispatched_until(disk, root)
        queues = list(self._queues(disk, root))
        for named in message_queue_parts(
            disk, log, queues, self.conditions, fail_on_data_loss=strict
        ):
            yield from named.split(step)
        yield from log_tails(disk, root, dispatched, queues, self.conditions)

    def _goes_through_queues(self, disk: Disk, root: str) -> bool:
        if self.options.through != "auto":
            return self.options.through == "queue"
        folders = (posixpath.join(root, name) for name in ("consumequeue", "batchconsumequeue"))
        return self.conditions.topics is not None and any(map(disk.exists, folders))

    def _queues(self, disk: Disk, root: str) -> Iterator[QueuePart]:
        """Yield the files of all queues that are wanted, cut to what readers of the queue would get."""
        log = row_files(disk, posixpath.join(root, "commitlog"))
        log_begin = log[0].start if log else 0
        for kind, is_batch in (("consumequeue", False), ("batchconsumequeue", True)):
            for topic, queue_id, folder in queue_folders(
                disk, posixpath.join(root, kind), self.conditions.topics
            ):
                if self.conditions.wants_queue(topic, queue_id):
                    whole = QueuePart.of_files(topic, queue_id, is_batch, row_files(disk, folder))
                    if self.options.fail_on_data_loss:
                        require_joined([part.file for part in whole], f"{topic}/{queue_id}")
                    yield from _live(disk, whole, log_begin)

    def _grouped(self, parts: Iterable[Part]) -> Iterator[tuple[Part, ...]]:
        """Yield PARTS in groups of about the size of a split."""
        group: list[Part] = []
        size = 0
        for part in parts:
            weight = part.size
            if isinstance(part, MessageQueuePart):
                weight = weight * _RECORD_BYTES // QueuePart.entry_bytes
            if group and size + weight > self.options.split_bytes:
                yield tuple(group)
                group, size = [], 0
            group.append(part)
            size += weight
        if group:
            yield tuple(group)

    def read(self, task: ScanTask, bad: BadRecords) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of TASK, with the columns of `options.schema()`; BAD counts what is bad, or raises.

        Raises CorruptRecord, and OffsetOutOfRange where a file is gone that was there when the plan was made.
        """
        disk = task.location.open_disk()
        for part in task.parts:
            try:
                yield from self._read_part(disk, task.location, part, bad)
            except FileNotFoundError as error:
                if self.options.fail_on_data_loss:
                    raise OffsetOutOfRange(
                        f"{error.filename or error} was deleted before it was read, perhaps by retention. "
                        "Read again, or set failOnDataLoss=false",
                        field="failOnDataLoss",
                    ) from error

    def _read_part(
        self, disk: Disk, location: StoreLocation, part: Part, bad: BadRecords
    ) -> Iterator[pyarrow.RecordBatch]:
        options, broker, schema = self.options, location.broker_name, self.options.schema()
        if isinstance(part, QueuePart):
            queues = QueueColumns(schema, broker, self.conditions)
            yield from queues.batches(disk, part, options.rows_max)
        elif isinstance(part, IndexPart):
            index = IndexColumns(schema, broker, self.conditions)
            yield from index.batches(disk, part, options.rows_max)
        elif isinstance(part, FilePart):
            yield _rows_batch(schema, broker, file_rows(disk, part.root))
        else:
            columns = MessageColumns(schema, broker, decompress=options.decompress)
            rows = MessageRows(
                columns,
                self.conditions,
                bad,
                rows_max=options.rows_max,
                check_crc=options.check_crc,
            )
            if isinstance(part, LogPart):
                yield from rows.of_log(disk, part)
            elif isinstance(part, LogTailPart):
                yield from part.rows(disk, rows)
            else:
                reader = MessageQueueReader(
                    disk,
                    rows,
                    self.conditions,
                    is_local=location.is_local,
                    strict=options.fail_on_data_loss,
                )
                yield from reader.read(part)


def _live(disk: Disk, parts: Sequence[QueuePart], log_begin: int) -> Iterator[QueuePart]:
    """Yield of the files PARTS of one queue what is in use: whole ones, but for the first and the last."""
    for number, part in enumerate(parts):
        is_first = number == 0
        if is_first or number == len(parts) - 1:
            part = live_part(disk, part, log_begin, is_first=is_first)
        yield part


def _rows_batch(
    schema: pyarrow.Schema, broker: str, rows: Iterable[Mapping[str, Any]]
) -> pyarrow.RecordBatch:
    documents = [
        {name: row.get(name) for name in schema.names}
        for row in ({"broker": broker, **one} for one in rows)
    ]
    return arrow().RecordBatch.from_pylist(documents, schema=schema)


def dataset_of(text: str, known: Sequence[str]) -> str:
    """Return the dataset TEXT; ConfigError for one that is not KNOWN."""
    if text not in known:
        raise ConfigError(
            f"dataset={text!r}: there are {', '.join(known)}", field="dataset", value=text
        )
    return text
