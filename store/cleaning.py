"""Carrying out what `retention.decide` says: files of the log go, queues, index and timer log follow."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from .disk import write_error
from .health import Health
from .parts import StoreParts
from .retention import decide, kept_back
from .timers.store import TimerStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """One round: how many files went, and where the log begins now."""

    log_files: int
    queue_files: int
    index_files: int
    min_log_offset: int
    timer_files: int = 0


class Cleaner:
    """Deletes what the settings no longer want. Not thread-safe: the store's owner calls it."""

    def __init__(self, parts: StoreParts, health: Health, timers: TimerStore) -> None:
        self._config = parts.config
        self._disk = parts.disk
        self._health = health
        self._timers = timers
        self._log, self._queues, self._index = parts.log, parts.queues, parts.index

    def clean(self, now_ms: int, needed_from: Callable[[], int | None]) -> Cleaned:
        """Do one round: decide by age and usage, delete, and refuse or take writes again.

        NEEDED_FROM tells the lowest log offset of a message that waits for something; None if none does. Raises
        StoreError: then what is not deleted yet is so in a later round.
        """
        used = self._used_percent()
        changed = self._changed_ms()
        decision = decide(self._config, now_ms, changed, used)
        self._health.set_full(self._full_reason(used) if decision.refuse_writes else None)
        if decision.delete_files:
            ends = [file.end for file in self._log.files.files]
            decision = kept_back(decision, ends, needed_from())
        gone = self._log.files.delete_leading(decision.delete_files)
        if gone:
            logger.info(
                "log files deleted",
                extra={
                    "count": gone,
                    "reason": decision.reason,
                    "min_offset": self._log.min_offset,
                },
            )
        return self._follow(gone)

    def _changed_ms(self) -> list[int]:
        """Return when each file of the log was written to last."""
        try:
            return [self._disk.modified_ms(file.path) for file in self._log.files.files]
        except OSError as error:
            raise write_error(error, "look at files of", self._config.log_folder) from error

    def _used_percent(self) -> int:
        """Return the usage of the log's or the queues' file system, whichever is fuller."""
        paths = {self._config.path, self._config.log_folder}
        return max(
            (self._disk.usage(path).used_percent for path in paths if self._disk.exists(path)),
            default=0,
        )

    def _full_reason(self, used: int) -> str:
        limit = self._config.disk_refuse_percent
        return (
            f"the disk of {self._config.path} is {used} % full, the limit for writing is {limit} %: free some"
            " space, shorten store.retention_ms, or raise store.disk_refuse_percent"
        )

    def _follow(self, log_files: int) -> Cleaned:
        least = self._log.min_offset
        queue_files = self._queues.delete_expired(least)
        index_files = 0 if self._index is None else self._index.delete_expired(least)
        timer_files = self._timers.delete_expired(least)
        return Cleaned(log_files, queue_files, index_files, least, timer_files)
