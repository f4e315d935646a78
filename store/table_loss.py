"""The note in the journal of tables that the log lost records: changes that need them must never count again.

A start that finds damage in the log writes this note before the repair. After the repair, nothing shows the damage any
more, and the process may be killed at any moment.
"""

from __future__ import annotations

from .disk import Disk
from .format.table_frames import JOURNAL, EndNote, LossNote, Note, frame, head, notes
from .table_files import journal_path, read_tables


def note_loss(disk: Disk, folder: str, log_end: int) -> None:
    """Note that the log lost records from `log_end` on. The note is on disk when this returns.

    Args:
        folder: That of the journal; without files in it there is nothing to note.

    Raises:
        StoreFull, DiskFailure: The log must not be repaired.
    """
    found = read_tables(disk, folder, [])
    if not found.number:
        return
    entries: list[Note] = [LossNote(log_end)]
    if found.ended:
        entries.append(EndNote())
    number = found.number + 1
    data = head(JOURNAL, number) + frame(found.sequence + 1, notes(entries))
    disk.write_atomically(journal_path(folder, number), data)
