"""A snapshot of one table, made in steps while the table changes.

Each step copies some entries as they are at that moment. The journal that follows the snapshot was started before the
first step, and is replayed over it. A change has the whole entry, so it may be in the snapshot as well.
The snapshot gets its name only when its bytes are on disk, and what the entries depend on: the journal as far as it was
written at the last step, and the log up to its end then. Without the journal, a start would replay older changes over
the snapshot, and lack the newer ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from ..proto.errors import StoreError
from .disk import Disk, Mapping
from .files import FolderSync, Syncable
from .flush import CallOwner, Flusher, FlushJob, Waiter
from .format.table_frames import SNAPSHOT, EndNote, LogNote, TableName, frame, head, notes, section
from .table_files import DRAFT_SUFFIX, TableLog, snapshot_path
from .tables import AnyTable

#: Bytes written per step.
_WRITE_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """The folder of snapshots, and the flusher that syncs them."""

    disk: Disk
    folder: str
    log: TableLog
    flusher: Flusher
    call_owner: CallOwner
    #: Calls back once the journal is on disk as far as it is written now.
    when_journaled: Callable[[Waiter], None]


class TableSnapshot:
    """The snapshot of TABLE that precedes journal NUMBER. DONE is called with None or the error, once, by the owner."""

    def __init__(
        self,
        place: SnapshotPlace,
        table: AnyTable,
        number: int,
        mark: LogNote,
        done: Callable[[Exception | None], None],
    ) -> None:
        self._place = place
        self._done = done
        self._path = snapshot_path(place.folder, table.number, number)
        self._pieces = table.pieces()
        named = notes([mark, TableName(table.number, table.name)])
        self._parts = [head(SNAPSHOT, number), frame(1, named)]
        self._data: memoryview | None = None
        self._file: Mapping | None = None
        self._written = 0
        self._is_abandoned = False
        self.table = table
        self.number = number
        self.needs = 0
        self.size = 0
        self.is_finishing = False

    def step(self) -> bool:
        """Do the next step; return whether another one is needed. Raises StoreError and OSError."""
        if self._data is None:
            self._take()
            return True
        if self._file is None:
            self._file = self._place.disk.open_map(self._draft, size=self.size, create=True)
        piece = self._data[self._written : self._written + _WRITE_BYTES]
        self._file.write(self._written, piece)
        self._written += len(piece)
        return self._written < self.size

    def _take(self) -> None:
        table, parts = self.table, self._parts
        self.needs = self._place.log.end if table.needs_log else 0
        piece = next(self._pieces, None)
        if piece is not None:
            if piece or table.version:
                content = section(table.number, piece, self.needs, table.version)
                parts.append(frame(len(parts), content))
            return
        parts.append(frame(len(parts), notes([EndNote()])))
        data = b"".join(parts)
        parts.clear()
        self._data, self.size = memoryview(data), len(data)

    def finish(self) -> None:
        """Sync the snapshot and give it its name, after all steps."""
        self.is_finishing = True
        self._place.when_journaled(partial(self._next, self._sync_log))

    def _sync_log(self) -> None:
        self._place.log.when_flushed(self.needs, partial(self._next, self._sync_data))

    def _sync_data(self) -> None:
        assert self._file is not None, "written before it is finished"
        self._sync(self._file, self._rename)

    def _rename(self) -> None:
        self._close()
        self._place.disk.rename(self._draft, self._path)
        self._sync(FolderSync(self._place.disk, self._place.folder), partial(self._done, None))

    def _sync(self, part: Syncable, then: Callable[[], None]) -> None:
        def done(error: StoreError | None) -> None:
            self._place.call_owner(partial(self._next, then, error))

        self._place.flusher.submit(FlushJob([part], done))

    def _next(self, then: Callable[[], None], error: StoreError | None) -> None:
        if self._is_abandoned:
            return
        if error is not None:
            self._done(error)
            return
        try:
            then()
        except (StoreError, OSError) as failure:
            self._done(failure)

    def abandon(self) -> None:
        """Stop: the snapshot does not get its name, and DONE is not called."""
        self._is_abandoned = True
        self._close()

    @property
    def _draft(self) -> str:
        return self._path + DRAFT_SUFFIX

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
