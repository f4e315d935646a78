"""One of two stores that are compared, as a PocketMQ broker would serve it. It is only read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...proto.record import SYS_ROLLBACK, SYS_TRANSACTION
from ...proto.record_run import Longs, RunColumns, parse_run
from ...store.apache.config import JavaConfig
from ...store.consume_queues import Queue
from ...store.file_sizes import settings_of
from ...store.files import MappedFile
from ...store.message_store import MessageStore
from ...store.opened_store import open_ours
from ...store.os_disk import OsDisk
from ...store.overlay_disk import OverlayDisk
from ...store.queue_entries import reached_entries

Name = tuple[str, int]
Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True)
class QueueSide:
    """The entries of one queue: queue offset and log offset of each, in order; BOUNDS are min and max offset.

    None: the queue is not there.
    """

    bounds: Bounds | None
    numbers: Longs
    log_offsets: Longs
    is_batch: bool = False


NOTHING = QueueSide(None, np.zeros(0, np.int64), np.zeros(0, np.int64))


class Side:
    """An opened store."""

    def __init__(self, root: str, store: MessageStore, config: JavaConfig) -> None:
        """Put the parts together; `open` is the way in."""
        self.root = root
        self.store = store
        self.config = config
        self._queues: dict[Name, Queue] = {(one.topic, one.queue): one for one in store.queues}
        self._starts = np.array([file.start for file in store.log.files.files], np.int64)

    @classmethod
    def open(cls, root: str, given: Mapping[str, str], now_ms: Callable[[], int]) -> Side:
        """Open the store ROOT; GIVEN are settings by RocketMQ's names.

        Raises StoreError where our broker would not start on it.
        """
        disk = OverlayDisk()
        settings = settings_of(OsDisk(), root, given)
        store, config = open_ours(disk, root, settings, now_ms)
        return cls(root, store, config)

    def names(self) -> set[Name]:
        """Return topic and number of every queue that ever held a message."""
        return {name for name, queue in self._queues.items() if queue.max_offset}

    def entries(self, name: Name) -> QueueSide:
        """Return the entries of the queue NAME; `NOTHING` for a queue that is not there."""
        queue = self._queues.get(name)
        if queue is None:
            return NOTHING
        bounds = (queue.min_offset, queue.max_offset)
        return QueueSide(bounds, *reached_entries(queue), queue.is_batch)

    def file_numbers(self, log_offsets: Longs) -> NDArray[np.intp]:
        """Return the number of the log file that each of LOG_OFFSETS would be in; −1 before the first."""
        found: NDArray[np.intp] = np.searchsorted(self._starts, log_offsets, "right") - 1
        return found

    def file(self, number: int) -> MappedFile | None:
        """Return the log file NUMBER; None for −1."""
        return self.store.log.files.files[number] if number >= 0 else None

    def readable(self, entries: QueueSide, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of ROWS of ENTRIES whose record has that queue offset."""
        offsets = entries.log_offsets[rows]
        good = np.zeros(len(rows), np.bool_)
        for begin, end, file in self._runs(offsets):
            if file is not None:
                columns = parse_run(file.view, offsets[begin:end] - file.start)
                good[begin:end] = is_message(columns, offsets[begin:end], entries, rows[begin:end])
        return rows[good]

    def _runs(self, offsets: Longs) -> Iterator[tuple[int, int, MappedFile | None]]:
        numbers = self.file_numbers(offsets)
        for begin, end in runs_of(numbers):
            yield begin, end, self.file(int(numbers[begin]))


def runs_of(*columns: NDArray[np.intp] | Longs) -> Iterator[tuple[int, int]]:
    """Yield [begin, end) of each longest run in which none of COLUMNS changes."""
    count = len(columns[0])
    cuts = [np.flatnonzero(column[1:] != column[:-1]) + 1 for column in columns]
    edges = np.unique(np.concatenate([*cuts, np.array([0, count], np.int64)]))
    yield from zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)


def is_message(
    columns: RunColumns, log_offsets: Longs, entries: QueueSide, rows: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Return for each of COLUMNS, read for the ROWS of ENTRIES, whether it is the message of the entry.

    An entry that duplicates another one, and one whose record is damaged or gone, has none.
    """
    good: NDArray[np.bool_] = columns.well_formed & (columns.log_offset == log_offsets)
    good &= (columns.sys_flag & SYS_TRANSACTION) != SYS_ROLLBACK
    if not entries.is_batch:
        good &= columns.queue_offset == entries.numbers[rows]
    return good
