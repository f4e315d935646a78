"""The timer log of a live store: its row of files, read and written many records at a time. Format: format/timers.py.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

from ...proto.record_run import Longs
from ..disk import Buffer, Disk
from ..files import MappedFile, MappedFiles, Syncable
from ..format.rows import Rows
from ..format.timers import BLANK_SIZE, RECORD, RECORD_SIZE, blank, sound_rows


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
                last.append(blank(last.room))
            last = self.files.roll()
        return last

    # --- reading -------------------------------------------------------------------------------------------------

    def file_rows(self, file: MappedFile) -> Rows:
        """Return the records of FILE up to its position, without a copy; a blank may be the last."""
        count = min(file.position // RECORD_SIZE, self.file_records)
        return RECORD.columns(file.view, count)

    def rows_at(self, positions: Longs) -> Rows:
        """Return the records at POSITIONS, which lie in the log, in the same order."""
        rows = RECORD.zeros(len(positions))
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
