"""Making a snapshot of the tables of deliveries in steps, while they change.

Each step takes some changes of the tables as they are at that moment; the journal that the snapshot precedes has
begun before the first one, and is replayed over it: every change says how something stands, so that what the snapshot
has already seen of it does no harm. The file is written under another name, synced, and renamed when it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from ...proto.errors import StoreError
from ...store.disk import Disk, Mapping
from ...store.flush import CallOwner, Flusher, FlushJob
from ...store.mapped_files import FolderSync, Syncable
from .changes import Change
from .journal_files import DRAFT_SUFFIX, SNAPSHOT_PREFIX
from .journal_format import SNAPSHOT, Encoder, end, frame, head

#: Changes that a step takes: about a millisecond.
_STEP_CHANGES: Final = 512
#: Bytes that a step writes.
_STEP_BYTES: Final = 1 << 20


class Snapshot:
    """Snapshot NUMBER in FOLDER, of EVERYTHING. DONE is told once it is on the device under its name, or the error."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        number: int,
        everything: Iterator[Change],
        done: Callable[[Exception | None], None],
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/{SNAPSHOT_PREFIX}{number:08d}"
        self._everything = everything
        self._done = done
        self._encoder = Encoder()
        self._pieces = [head(SNAPSHOT, number)]
        self._data: memoryview | None = None
        self._file: Mapping | None = None
        self._written = 0
        self._is_abandoned = False
        self.number = number
        self.size = 0

    def step(self) -> bool:
        """Go on; return whether there is more to do in further steps. Raises StoreError."""
        if self._data is None:
            self._take()
            return True
        if self._file is None:
            self._file = self._disk.open_map(self._draft, size=self.size, create=True)
        piece = self._data[self._written : self._written + _STEP_BYTES]
        self._file.write(self._written, piece)
        self._written += len(piece)
        return self._written < self.size

    @property
    def _draft(self) -> str:
        return self._path + DRAFT_SUFFIX

    def _take(self) -> None:
        changes = list(islice(self._everything, _STEP_CHANGES))
        if changes:
            said = self._encoder.encode(changes, absolute=True)
            self._pieces.append(frame(len(self._pieces), said))
            return
        self._pieces.append(frame(len(self._pieces), end()))
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._data, self.size = memoryview(data), len(data)

    def finish(self, flusher: Flusher, call_owner: CallOwner) -> None:
        """Bring it to the device, and give it its name: all steps are done."""
        assert self._file is not None, "written before it is finished"
        self._sync(flusher, call_owner, self._file, self._rename)

    def _rename(self, flusher: Flusher, call_owner: CallOwner) -> None:
        self._close()
        self._disk.rename(self._draft, self._path)
        folder = FolderSync(self._disk, self._folder)
        self._sync(flusher, call_owner, folder, lambda flusher, call_owner: self._done(None))

    def _sync(
        self,
        flusher: Flusher,
        call_owner: CallOwner,
        part: Syncable,
        then: Callable[[Flusher, CallOwner], None],
    ) -> None:
        def synced(error: StoreError | None) -> None:
            if self._is_abandoned:
                return
            if error is not None:
                self._done(error)
                return
            try:
                then(flusher, call_owner)
            except (StoreError, OSError) as failure:
                self._done(failure)

        def done(error: StoreError | None) -> None:
            call_owner(lambda: synced(error))

        flusher.submit(FlushJob([part], done))

    def abandon(self) -> None:
        """Go no further: it does not get its name, and DONE is not told."""
        self._is_abandoned = True
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
