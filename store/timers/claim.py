"""How far the timer service has come, and bringing that to the device as its checkpoint."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from ...proto.errors import StoreFull
from ..checkpoints import TimerCheckpointFile
from ..disk import Disk
from ..format.checkpoints import TimerCheckpoint
from .metrics import TimerMetrics

logger = logging.getLogger(__name__)

#: Time that passed without anything to hand on is written down that often.
_IDLE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Claim:
    """A state of the timers. It may be written down once the commit log is on the device up to `log_end`, which
    holds the messages of all records before `timer_end` and everything that was handed on before `read_ms`.

    worth_ms: from which read time on it is worth writing, if nothing else changed: what was handed on before it;
    always: it is worth it anyway.
    """

    log_end: int
    timer_end: int
    queue_offset: int
    read_ms: int
    worth_ms: int
    always: bool = False

    def is_news(self, known: TimerCheckpoint) -> bool:
        """Does it say more than KNOWN?"""
        if self.always:
            return True
        if (self.timer_end, self.queue_offset) != (known.log_flushed, known.queue_offset):
            return True
        return known.last_read_ms < self.worth_ms or self.read_ms - known.last_read_ms >= _IDLE_MS

    def values(self, known: TimerCheckpoint, now_ms: int) -> TimerCheckpoint:
        """Return the checkpoint that says so."""
        return known.advanced(self.read_ms, self.timer_end, self.queue_offset, now_ms)


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """Writing VALUES, as something that a flusher does behind what they tell of."""

    file: TimerCheckpointFile
    values: TimerCheckpoint

    def sync(self) -> None:
        try:
            self.file.write(self.values)
        except StoreFull as error:  # An older checkpoint is as true: recovery begins earlier.
            logger.warning("timer checkpoint not written", extra={"reason": error.message})


@dataclass(frozen=True, slots=True)
class MetricsPart:
    """Writing TEXT to the metrics file, as something that a flusher does."""

    metrics: TimerMetrics
    text: str

    def sync(self) -> None:
        try:
            self.metrics.save(self.text)
        except StoreFull as error:  # Then the counts are those of the last time.
            logger.warning("timer metrics not written", extra={"reason": error.message})


class RebuildMark:
    """The file PATH that stands while wheel or log are made again: what an interruption leaves is not to be used."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/timers-rebuilding"

    @property
    def stands(self) -> bool:
        return self._disk.exists(self._path)

    def set(self) -> None:
        self._disk.make_folders(self._folder)
        self._disk.write_atomically(self._path, b"timer log and wheel are being made again\n")

    def remove(self) -> None:
        if self.stands:
            self._disk.delete(self._path)
            self._disk.sync_folder(self._folder)
