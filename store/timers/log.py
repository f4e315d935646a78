"""The timer log: one record for each scheduled, rolled or recalled message, chained by slot.

Mapped files `timerlog/<20 digits>` of 104,857,600 bytes, records of 52 bytes that never cross files, big-endian:

    0   i32  52
    4   i64  position of the previous record of the same slot, −1 for none
    12  i32  bits: 1 ordinary, 2 roll, 4 delete; valid if only the low four are used
    16  i64  write time, floored to the precision, ms
    24  i32  due time − write time, ms
    28  i64  log offset of the message
    36  i32  its size
    40  i32  Java hash of the real topic, 0 for none
    44  i64  0

A file without room for a record and 16 bytes more ends in a blank: i32 what is left, i64 0, i32 CBD43194.

`records` reads a file record by record; `TimerLog` is the row of files, read and written many records at a time.
Source: store-format.md §7.2. Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.record import MAGIC_BLANK
from ...proto.record_run import Longs
from ..disk import Buffer, Disk
from ..mapped_file import MappedFile
from ..mapped_files import MappedFiles, Syncable

RECORD_SIZE: Final = 52
#: Where the log offset of the message stands in a record.
MESSAGE_AT: Final = 28
BITS: Final = 0xF
ORDINARY: Final = 1
ROLL: Final = 2
DELETE: Final = 4
#: No record in front of it.
NONE: Final = -1
BLANK_SIZE: Final = 16
#: A record, as numpy reads it; the last eight bytes are zeros.
ROW: Final = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("write_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("log_offset", ">i8"),
        ("message_size", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
Rows = NDArray[np.void]
_RECORD = struct.Struct(">iqiqiqiiq")
HEAD = struct.Struct(">iqi")


@dataclass(frozen=True, slots=True)
class TimerRecord:
    """One record, at POSITION of the timer log."""

    position: int
    size: int
    previous: int
    magic: int
    write_time_ms: int
    delay_ms: int
    log_offset: int
    message_size: int
    topic_hash: int
    reserved: int

    @property
    def is_sound(self) -> bool:
        """Could a broker have written it?"""
        return self.size == RECORD_SIZE and self.magic | BITS == BITS


@dataclass(frozen=True, slots=True)
class TimerBlank:
    """The blank that closes a file, at POSITION."""

    position: int
    size: int


def records(data: memoryview, start: int) -> Iterator[TimerRecord | TimerBlank]:
    """Yield what stands in DATA, the used bytes of the file that begins at START; a blank is the last."""
    for at in range(0, len(data) - RECORD_SIZE + 1, RECORD_SIZE):
        size, _, magic = HEAD.unpack_from(data, at)
        if magic == MAGIC_BLANK:
            yield TimerBlank(start + at, size)
            return
        yield TimerRecord(start + at, *_RECORD.unpack_from(data, at))


def sound_rows(rows: Rows) -> NDArray[np.bool_]:
    """Return which of ROWS a broker could have written."""
    sound: NDArray[np.bool_] = (rows["size"] == RECORD_SIZE) & ((rows["magic"] | BITS) == BITS)
    return sound


class TimerLog:
    """The row of timer log files in FOLDER.

    min_offset: start of the first file;  max_offset: where the next record goes, unless a blank has to come first.
    """

    def __init__(self, disk: Disk, folder: str, file_size: int) -> None:
        self.files = MappedFiles.load(disk, folder, file_size, what="timer log")
        self.file_records = (file_size - BLANK_SIZE) // RECORD_SIZE

    @property
    def min_offset(self) -> int:
        return self.files.min_offset

    @property
    def max_offset(self) -> int:
        return self.files.max_offset

    # --- writing -------------------------------------------------------------------------------------------------

    def places(self, count: int) -> list[tuple[int, int]]:
        """Return where COUNT new records will stand: position of the first and number, for each file they take."""
        last = self.files.last
        at = end = fits = 0
        if last is not None:
            at, end, fits = self.max_offset, last.end, max(0, last.room - BLANK_SIZE) // RECORD_SIZE
        found: list[tuple[int, int]] = []
        while count:
            if fits:
                found.append((at, min(fits, count)))
                count -= found[-1][1]
            at, end, fits = end, end + self.files.file_size, self.file_records
        return found

    def append(self, data: Buffer, places: list[tuple[int, int]]) -> None:
        """Append DATA, whole records, at PLACES; all of it, or the log is as it was and StoreFull is raised."""
        end = self.max_offset
        rest = memoryview(data)
        try:
            for at, count in places:
                file = self._file_for(at)
                file.append(rest[: count * RECORD_SIZE])
                rest = rest[count * RECORD_SIZE :]
        except BaseException:
            self.files.truncate(end)
            raise

    def _file_for(self, at: int) -> MappedFile:
        """Return the last file with its position at AT; the one before it is closed with a blank if need be."""
        last = self.files.last
        if last is None or not last.room or last.start + last.position != at:
            if last is not None and last.room >= BLANK_SIZE:
                last.append(HEAD.pack(last.room, 0, MAGIC_BLANK))
            last = self.files.roll()
        return last

    # --- reading -------------------------------------------------------------------------------------------------

    def file_rows(self, file: MappedFile) -> Rows:
        """Return the records of FILE up to its position, without a copy; a blank may be the last."""
        count = min(file.position // RECORD_SIZE, self.file_records)
        return np.frombuffer(file.view, ROW, count)

    def rows_at(self, positions: Longs) -> Rows:
        """Return the records at POSITIONS, which lie in the log, in the same order."""
        rows = np.empty(len(positions), ROW)
        for file in self.files.files:
            inside = (positions >= file.start) & (positions < file.start + file.position)
            if inside.any():
                rows[inside] = self.file_rows(file)[(positions[inside] - file.start) // RECORD_SIZE]
        return rows

    def holds(self, position: int) -> bool:
        """Can a record stand at POSITION?"""
        file = self.files.file_at(position)
        if file is None or (position - file.start) % RECORD_SIZE:
            return False
        return position - file.start + RECORD_SIZE <= file.position

    # --- growing old ---------------------------------------------------------------------------------------------

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete leading files all of whose messages lie before MIN_LOG_OFFSET; return how many.

        Apache's rule looks at a file's last record only. That decides here too, but a file in which records stand
        that were written anew out of their order stays until the last of their messages is gone.
        """
        gone = 0
        for file in self.files.files[:-1]:
            rows = self.file_rows(file)
            last = rows[-1:]
            if not sound_rows(last).all() or int(last["log_offset"][0]) >= min_log_offset:
                break
            if int(rows["log_offset"].max()) >= min_log_offset:
                break
            gone += 1
        return self.files.delete_leading(gone)

    def take_dirty(self) -> list[Syncable]:
        """Return what must be synced to have everything up to `max_offset` on the device."""
        return self.files.take_dirty()

    def close(self) -> None:
        self.files.close()
