"""Retention: which log files to delete, and when to refuse writes.

`decide` is pure. It deletes whole log files only: the oldest first, never the newest, at most `clean_files_max` per
round, and none after the first that has not expired. A file expires `retention_ms` after its last change, whether or
not consumers have read it. A file with a scheduled message stays (`kept_back`), unless the disk is too full.

| disk usage | effect |
|---|---|
| any | expired files are deleted in the delete hour (local time) |
| above `disk_expire_percent` | expired files are deleted at any hour |
| above `disk_force_percent` | the oldest files are deleted, whatever their age |
| above `disk_refuse_percent` | writes are refused as well |

Queue, index and timer files are deleted after the log files that they point to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ..proto.facts import Facts
from .config import StoreConfig
from .disk import write_error
from .health import StoreHealth
from .parts import StoreParts
from .timers.store import TimerStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """How many of the oldest log files to delete now, why, and whether to refuse writes.

    forced: the disk is so full that files are deleted even if a message in them still waits.
    """

    delete_files: int
    reason: str
    refuse_writes: bool
    forced: bool = False


def decide(
    config: StoreConfig, now_ms: int, modified_ms: Sequence[int], used_percent: int
) -> Decision:
    """Decide for log files last changed at MODIFIED_MS, oldest file first, on a disk that is USED_PERCENT full."""
    refuse = used_percent > config.disk_refuse_percent
    candidates = modified_ms[:-1]
    if used_percent > config.disk_force_percent:
        count = min(len(candidates), config.clean_files_max)
        return Decision(count, f"the disk is {used_percent} % full", refuse, forced=True)
    reason = _reason_to_delete_expired(config, now_ms, used_percent)
    if reason is None:
        return Decision(0, "not the delete hour", refuse)
    return Decision(_expired(config, now_ms, candidates), reason, refuse)


def kept_back(decision: Decision, ends: Sequence[int], needed_from: int | None) -> Decision:
    """Return DECISION without the files, which end at log offsets ENDS, that have something from NEEDED_FROM on."""
    if decision.forced or needed_from is None:
        return decision
    free = sum(end <= needed_from for end in ends[: decision.delete_files])
    return replace(decision, delete_files=free)


def _reason_to_delete_expired(config: StoreConfig, now_ms: int, used_percent: int) -> str | None:
    if local_hour(now_ms) == config.delete_hour:
        return "expired"
    if used_percent > config.disk_expire_percent:
        return f"expired, and the disk is {used_percent} % full"
    return None


def _expired(config: StoreConfig, now_ms: int, modified_ms: Sequence[int]) -> int:
    count = 0
    for changed_ms in modified_ms[: config.clean_files_max]:
        if changed_ms + config.retention_ms > now_ms:
            break
        count += 1
    return count


def local_hour(now_ms: int) -> int:
    """Return the hour of the day, 0 to 23, in the machine's time zone."""
    return datetime.fromtimestamp(now_ms / 1000).hour


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of one round: how many files were deleted, and the new first log offset."""

    log_files: int
    queue_files: int
    index_files: int
    min_log_offset: int
    timer_files: int = 0


class Cleaner:
    """Deletes expired files. Not thread-safe: the store's owner calls it."""

    def __init__(self, parts: StoreParts, health: StoreHealth, timers: TimerStore) -> None:
        self._config = parts.config
        self._disk = parts.disk
        self._health = health
        self._timers = timers
        self._log, self._queues, self._index = parts.log, parts.queues, parts.index

    def clean(self, now_ms: int, needed_from: Callable[[], int | None]) -> Cleaned:
        """Do one round: decide by age and usage, delete, and refuse or accept writes.

        NEEDED_FROM returns the lowest log offset of a scheduled message or pending transaction, None without one.
        Raises StoreError: a later round deletes the rest.
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
                "log files deleted %s",
                Facts(count=gone, reason=decision.reason, min_offset=self._log.min_offset),
            )
        return self._follow(gone)

    def delete_before(self, offset: int) -> int:
        """Delete the files that end before OFFSET, never the newest; return how many. Raises StoreError."""
        gone = self._log.files.delete_leading(
            sum(file.end <= offset for file in self._log.files.files[:-1])
        )
        if gone:
            self._follow(gone)
        return gone

    def _changed_ms(self) -> list[int]:
        """Return the time of the last change of each log file."""
        try:
            return [self._disk.modified_ms(file.path) for file in self._log.files.files]
        except OSError as error:
            raise write_error(
                error, "read the times of files of", self._config.log_folder
            ) from error

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
