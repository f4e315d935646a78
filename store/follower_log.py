"""The log of a follower: takes the bytes of the master's log as they are, and derives queues and index from them.

A frame of bytes may end in the middle of a record, but never crosses the end of a file. An incomplete record waits in
memory for the next frame, and so does the blank that closes a file. So the log always ends with a complete record or
file, and can be recovered or opened like any other.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from ..proto import errors
from ..proto.record import MAGIC_V1, MAGIC_V2
from ..proto.record_run import (
    LEAST_SIZE,
    RunColumns,
    as_bytes,
    crc_mismatches,
    is_sound,
    parse_run,
    walk,
)
from ..proto.run import Run, stored_runs
from .commit_log import CommitLog
from .damage import Damages
from .disk import Buffer
from .events import HearRecords
from .format.log import BLANK_SIZE, is_blank, no_record, size_and_magic
from .health import StoreHealth
from .log_writer import LogWriter
from .parts import StoreParts

_HEAD: Final = 8  # size and magic


class _Records(NamedTuple):
    """Whole records, which end at END of the bytes that they were read from: a few as runs, many by columns."""

    end: int
    what: Sequence[Run] | RunColumns


class FollowerLog:
    """Takes the bytes of a master's log into the log of PARTS; WRITER derives queues and index from them.

    ON_RECORDS are told of the whole records among them, as soon as the log has taken them.

    A record whose body does not fit its CRC is taken as the master has it, and noted as damaged: the frame's CRC says
    that it was so at the master, and to refuse it would keep the follower from all that follows.
    """

    def __init__(
        self,
        parts: StoreParts,
        health: StoreHealth,
        writer: LogWriter,
        damages: Damages,
        on_records: Sequence[HearRecords],
    ) -> None:
        self._log: CommitLog = parts.log
        self._damages = damages
        self._dispatcher = parts.dispatcher
        self._health = health
        self._writer = writer
        #: The beginning of a record, or of the blank: what came and is not in the log.
        self._waiting = b""
        #: How much has come of what lies behind the blank, which waits.
        self._behind_blank = 0
        self._on_records = on_records

    @property
    def end(self) -> int:
        """The offset of the next byte that is taken; what lies between the log's end and it waits in memory."""
        return self._log.max_offset + len(self._waiting) + self._behind_blank

    def start(self) -> None:
        """Take the bytes of a master from now on, and no other records."""
        self._health.check_changeable()
        self._health.follow()

    def stop(self) -> None:
        """Let go of what waits; from now on the store takes records again."""
        self._waiting = b""
        self._behind_blank = 0
        self._health.lead()

    def append(self, data: Buffer, offset: int, crc32: int | None) -> None:
        """Take DATA, which stands at OFFSET of the master's log and has CRC32; None: that was compared already."""
        self._health.check_followable()
        if not self._health.following:
            raise errors.StoreMismatch(
                "the store does not follow a master: its own records are appended to it"
            )
        self._check_frame(data, offset, crc32)
        try:
            self._take_in()  # What a full disk kept from it.
            if offset != self.end:  # The first of an empty log.
                self._writer.begin_at(offset)
            view = self._waiting + data
            records = None if self._behind_blank else self._checked(view)
            self._waiting = view
            self._take_in(records)
        except errors.DiskFailure as error:
            self._health.fail(error)
            raise

    # --- what is taken

    def _check_frame(self, data: Buffer, offset: int, crc32: int | None) -> None:
        size, end = len(data), self.end
        file_size = self._log.files.file_size
        begins_log = not self._log.files.files and not end and offset % file_size == 0
        if offset != end and not begins_log:
            raise errors.InvalidArgument(
                f"offset {offset:,} is not the end of the log, {end:,}: send what follows it",
                field="offset",
                limit=end,
                value=offset,
            )
        if offset % file_size + size > file_size:
            raise errors.InvalidArgument(
                f"{size:,} bytes at {offset:,} go across the end of a log file of {file_size:,}: send them in two",
                field="data",
                limit=file_size - offset % file_size,
                value=size,
            )
        if crc32 is not None and (found := zlib.crc32(data)) != crc32:
            raise errors.CorruptRecord(
                f"the CRC of {size:,} bytes at {offset:,} is {found:08x}, not {crc32:08x}: they were damaged on the"
                " way, send them again",
                offset=offset,
            )

    def _checked(self, data: bytes) -> _Records:
        """Return the whole records at the beginning of DATA: what waited, and what came.

        Raises CorruptRecord unless that is records, and perhaps a blank, which stand where they say.
        """
        begin = self._log.max_offset
        if (runs := stored_runs(data, begin)) is not None:
            return _Records(len(data), runs)
        starts, end = walk(data)
        columns = parse_run(data, starts)
        placed = columns.well_formed & (columns.log_offset == starts + begin)
        if not placed.all():
            end = int(starts[int(placed.argmin())])
            raise self._corrupt(
                begin + end, "the record there is not well formed, or says another place"
            )
        room = self._room - end
        if len(data) - end < _HEAD or is_blank(data, end, room):
            return _Records(end, columns)
        size, magic = size_and_magic(data, end)
        if magic not in (MAGIC_V1, MAGIC_V2) or not LEAST_SIZE <= size <= room - BLANK_SIZE:
            raise self._corrupt(begin + end, no_record(size, magic))
        return _Records(end, columns)

    @property
    def _room(self) -> int:
        """Return how many bytes the file has behind the log's end; there, the next one begins."""
        last = self._log.files.last
        return last.room if last is not None and last.room else self._log.files.file_size

    @staticmethod
    def _corrupt(offset: int, why: str) -> errors.CorruptRecord:
        return errors.CorruptRecord(
            f"the master's log cannot be followed at {offset:,}: {why}: see `pocketmq inspect STORE verify` there",
            offset=offset,
        )

    # --- into the log

    def _take_in(self, records: _Records | None = None) -> None:
        """Append what waits as far as it is whole, and derive what follows from it; RECORDS, if they were read."""
        if len(self._waiting) >= _HEAD and not self._behind_blank:
            records = records or self._checked(self._waiting)
            if records.end:
                self._append(records)
        if len(self._waiting) >= BLANK_SIZE and is_blank(self._waiting, 0, self._room):
            self._close_file()
        self._writer.catch_up()

    def _append(self, records: _Records) -> None:
        """Append RECORDS, with which begins what waits."""
        begin, waiting, what = self._log.max_offset, self._waiting, records.what
        data = memoryview(waiting)[: records.end]
        self._log.append(data)
        self._waiting = waiting[records.end :]
        for hear in self._on_records:
            hear(waiting, begin, what if isinstance(what, RunColumns) else None)
        # Nothing is ever stamped as older than these.
        writer, dispatcher = self._writer, self._dispatcher
        enter: Callable[[], object]
        if isinstance(what, RunColumns):
            newest_ms, writer.last_log_offset = int(what.store_ms.max()), int(what.log_offset[-1])
            enter = partial(dispatcher.dispatch, data, what)
        else:
            newest_ms = max(run.store_ms for run in what)
            writer.last_log_offset = int(what[-1].log_offsets[-1])
            enter = partial(dispatcher.enter_stored, what)
        writer.last_store_ms = max(writer.last_store_ms, newest_ms)
        writer.enter_stored(begin, enter)
        for log_offset, size in _damaged(data, begin, what):
            self._damages.found(log_offset, size)

    def _close_file(self) -> None:
        """Take what came of what lies behind the blank; with all of it the file is full."""
        self._log.place(0)  # There is a file with room.
        file = self._log.files.files[-1]
        behind = self._waiting[BLANK_SIZE:]
        if np.any(as_bytes(behind)):
            file.put(file.position + BLANK_SIZE + self._behind_blank, behind)
        self._behind_blank += len(behind)
        self._waiting = self._waiting[:BLANK_SIZE]
        if BLANK_SIZE + self._behind_blank == file.room:
            file.append(self._waiting)
            file.position = file.size
            self._waiting = b""
            self._behind_blank = 0


def _damaged(
    data: memoryview, begin: int, what: Sequence[Run] | RunColumns
) -> Iterator[tuple[int, int]]:
    """Yield log offset and size of those records WHAT of DATA, at BEGIN, whose bodies do not fit their CRCs."""
    if isinstance(what, RunColumns):
        for row in np.flatnonzero(crc_mismatches(data, what)).tolist():
            yield int(what.log_offset[row]), int(what.sizes[row])
        return
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        if not is_sound(data[at : at + size]):
            yield begin + at, size
        at += size
