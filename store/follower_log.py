"""The log of a follower: it appends the bytes of the master's log unchanged, and derives queues and index from them.

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
from .damage import DamageRepairer
from .disk import Buffer
from .events import RecordsListener
from .format.log import BLANK_SIZE, is_blank, no_record, size_and_magic
from .health import StoreHealth
from .log_writer import LogWriter
from .parts import StoreParts

_HEAD: Final = 8  # size and magic


class _Records(NamedTuple):
    """Complete records up to END of the bytes that they were read from: a few as runs, many by columns."""

    end: int
    what: Sequence[Run] | RunColumns


class FollowerLog:
    """Appends the bytes of a master's log to the log of PARTS; WRITER derives queues and index from them.

    ON_RECORDS are called with the complete records among them, as soon as these are in the log.

    A record whose body does not match its CRC is appended as the master has it, and noted as damaged. The CRC of the
    frame proves that the master has the same bytes, and refusing the record would block all later ones.
    """

    def __init__(
        self,
        parts: StoreParts,
        health: StoreHealth,
        writer: LogWriter,
        damages: DamageRepairer,
        on_records: Sequence[RecordsListener],
    ) -> None:
        self._log: CommitLog = parts.log
        self._damages = damages
        self._dispatcher = parts.dispatcher
        self._health = health
        self._writer = writer
        #: The start of a record, or of the blank: received, but not in the log.
        self._waiting = b""
        #: Bytes received after the start of the blank, which waits.
        self._behind_blank = 0
        self._on_records = on_records

    @property
    def end(self) -> int:
        """The offset of the next byte to receive. The bytes between the log's end and this offset wait in memory."""
        return self._log.max_offset + len(self._waiting) + self._behind_blank

    def start(self) -> None:
        """Accept the bytes of a master from now on, and no other records."""
        self._health.check_changeable()
        self._health.follow()

    def stop(self) -> None:
        """Drop the waiting bytes; from now on the store accepts records again."""
        self._waiting = b""
        self._behind_blank = 0
        self._health.lead()

    def append(self, data: Buffer, offset: int, crc32: int | None) -> None:
        """Append DATA, the bytes at OFFSET of the master's log. CRC32 is their CRC; None: it was compared already."""
        self._health.check_followable()
        if not self._health.following:
            raise errors.StoreMismatch(
                "the store does not follow a master, so it does not accept bytes of a master's log"
            )
        self._check_frame(data, offset, crc32)
        try:
            self._take_in()  # Bytes that wait because of a full disk.
            if offset != self.end:  # The first bytes of an empty log.
                self._writer.begin_at(offset)
            view = self._waiting + data
            records = None if self._behind_blank else self._checked(view)
            self._waiting = view
            self._take_in(records)
        except errors.DiskFailure as error:
            self._health.fail(error)
            raise

    def _check_frame(self, data: Buffer, offset: int, crc32: int | None) -> None:
        size, end = len(data), self.end
        file_size = self._log.files.file_size
        begins_log = not self._log.files.files and not end and offset % file_size == 0
        if offset != end and not begins_log:
            raise errors.InvalidArgument(
                f"offset {offset:,} is not the end of the log, {end:,}: send the bytes that follow it",
                field="offset",
                limit=end,
                value=offset,
            )
        if offset % file_size + size > file_size:
            raise errors.InvalidArgument(
                f"{size:,} bytes at {offset:,} cross the end of a log file of {file_size:,}: send them in two frames",
                field="data",
                limit=file_size - offset % file_size,
                value=size,
            )
        if crc32 is not None and (found := zlib.crc32(data)) != crc32:
            raise errors.CorruptRecord(
                f"the CRC of {size:,} bytes at {offset:,} is {found:08x}, not {crc32:08x}: they were damaged in"
                " transfer, send them again",
                offset=offset,
            )

    def _checked(self, data: bytes) -> _Records:
        """Return the complete records at the start of DATA, waiting and new bytes together.

        Raises CorruptRecord unless it consists of records, and perhaps a blank, with their own log offsets.
        """
        begin = self._log.max_offset
        if (runs := stored_runs(data, begin)) is not None:
            return _Records(len(data), runs)
        starts, end = walk(data)
        columns = parse_run(data, starts)
        placed = columns.well_formed & (columns.log_offset == starts + begin)
        if not placed.all():
            end = int(starts[int(placed.argmin())])
            raise self._corrupt(begin + end, "the record is malformed, or has another log offset")
        room = self._room - end
        if len(data) - end < _HEAD or is_blank(data, end, room):
            return _Records(end, columns)
        size, magic = size_and_magic(data, end)
        if magic not in (MAGIC_V1, MAGIC_V2) or not LEAST_SIZE <= size <= room - BLANK_SIZE:
            raise self._corrupt(begin + end, no_record(size, magic))
        return _Records(end, columns)

    @property
    def _room(self) -> int:
        """Return the bytes from the log's end to the end of its file; at the end of a file, those of the next one."""
        last = self._log.files.last
        return last.room if last is not None and last.room else self._log.files.file_size

    @staticmethod
    def _corrupt(offset: int, why: str) -> errors.CorruptRecord:
        return errors.CorruptRecord(
            f"cannot follow the master's log at {offset:,}: {why}. Run `pocketmq inspect STORE verify` on the master",
            offset=offset,
        )

    def _take_in(self, records: _Records | None = None) -> None:
        """Append the waiting bytes as far as they are complete, and dispatch them; RECORDS, if they were read."""
        if len(self._waiting) >= _HEAD and not self._behind_blank:
            records = records or self._checked(self._waiting)
            if records.end:
                self._append(records)
        if len(self._waiting) >= BLANK_SIZE and is_blank(self._waiting, 0, self._room):
            self._close_file()
        self._writer.catch_up()

    def _append(self, records: _Records) -> None:
        """Append RECORDS, the start of the waiting bytes."""
        begin, waiting, what = self._log.max_offset, self._waiting, records.what
        data = memoryview(waiting)[: records.end]
        self._log.append(data)
        self._waiting = waiting[records.end :]
        for hear in self._on_records:
            hear(waiting, begin, what if isinstance(what, RunColumns) else None)
        # No later record gets an earlier store time than these.
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
        """Skip received bytes that follow the blank; after all of them the file is full."""
        self._log.place(0)  # The current file has space.
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
    """Yield log offset and size of the records WHAT of DATA, at BEGIN, whose bodies do not match their CRCs."""
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
