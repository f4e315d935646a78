"""What a replica knows of the mark of its set, and when a master writes it.

A replica cannot see in its own folder that the folder is an old copy: it was restored from a backup, or the end of the
log was lost though it was synced. So ZooKeeper has how far acknowledged records reach: `EndMark` (registry.py).

    written by   the master, from what every member of the maximal set has on disk, at the end of a complete record: up
                 to once per `MARK_MS` while that moves, and at once before it transfers leadership or stops; with the
                 setting `mark: each` before each acknowledgement
    checked by   each replica when it starts, before it announces itself, and again when it becomes a candidate
    lowered by   an administrator who accepts a loss

It never falls otherwise. Pure; times are CLOCK_BOOTTIME, in ms.
"""

from __future__ import annotations

from typing import Final

from .log_epochs import Epochs
from .registry import EndMark, VersionedEndMark

MARK_MS: Final = 1_000


class SetMark:
    """The mark of the set as one replica last read it. Not thread-safe: the event loop owns it."""

    def __init__(self) -> None:
        #: Whether the mark was read.
        self.is_read = False
        self._seen: VersionedEndMark | None = None
        self._writing: EndMark | None = None
        self._written_ms: int | None = None

    @property
    def mark(self) -> EndMark:
        """The mark; it ends at 0 if there is none."""
        return self._seen.mark if self._seen else EndMark()

    @property
    def version(self) -> int | None:
        """The version that the next write replaces; None: there is no mark."""
        return self._seen.version if self._seen else None

    @property
    def is_missing(self) -> bool:
        """Return whether there was no mark when it was read."""
        return self.is_read and self._seen is None

    @property
    def is_writing(self) -> bool:
        return self._writing is not None

    def see(self, found: VersionedEndMark | None) -> None:
        """Record that the mark was read as FOUND, perhaps an old version; None: there is none."""
        self.is_read = True
        if found is not None and (self._seen is None or found.version > self._seen.version):
            self._seen = found

    def is_reached(self, epochs: Epochs, end: int) -> bool:
        """Return whether a log with EPOCHS that ends at END has the record before the mark."""
        return self.mark.end == 0 or (
            end >= self.mark.end and epochs.epoch_before(self.mark.end) == self.mark.epoch
        )

    def raised(
        self, end: int, epochs: Epochs, epoch: int, now_ms: int, *, at_once: bool
    ) -> EndMark | None:
        """Return the mark to write now that END is on the disks of all in EPOCH's set; None: nothing is due.

        A master of an epoch below the accepted one was given up: it writes none.
        """
        if not self.is_read or self._writing or end <= self.mark.end or epoch < self.mark.accepted:
            return None
        if not at_once and self._written_ms is not None and now_ms - self._written_ms < MARK_MS:
            return None
        self._written_ms = now_ms
        self._writing = EndMark(end, epochs.epoch_before(end), self.mark.accepted)
        return self._writing

    def lowered(self, epoch: int, epochs: Epochs, end: int) -> EndMark | None:
        """Return the mark to write before the replica with this log is elected in EPOCH despite losses; None: wait.

        After the election it writes the mark of its own log.
        """
        if not self.is_read or self._writing:
            return None
        kept = self.mark if self.is_reached(epochs, end) else EndMark()
        self._writing = EndMark(kept.end, kept.epoch, epoch)
        return self._writing

    def written(self, found: VersionedEndMark | None) -> bool:
        """Record the answer to a write (None: unknown); return whether the mark is as it was written."""
        self._writing = None
        if found is not None:
            self.see(found)
        return found is not None and self._seen == found
