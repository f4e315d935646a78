"""What to delete when, and when to refuse writes: a pure decision, told the time, the usage and the files.

Whole log files only, the oldest first, never the newest, at most so many a round, and none behind the first that
has not expired. A file expires RETENTION after its last change. Expired files go in the delete hour (local time), or
at any hour while the disk is fuller than `disk_expire_percent`. Above `disk_force_percent` the oldest go whatever
their age; above `disk_refuse_percent` writes are refused as well. What consumers have read is not considered, but a
message that waits for its time keeps its file (`kept_back`), unless the disk forces it out. Consume queues and index
files follow the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from .config import StoreConfig


@dataclass(frozen=True, slots=True)
class Decision:
    """How many of the oldest log files to delete now, why, and whether writes are to be refused.

    forced: the disk is so full that nothing keeps a file.
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
        return Decision(0, "not the hour", refuse)
    return Decision(_expired(config, now_ms, candidates), reason, refuse)


def kept_back(decision: Decision, ends: Sequence[int], needed_from: int | None) -> Decision:
    """Return DECISION without the files, of log offsets up to ENDS, that hold something from NEEDED_FROM on."""
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
