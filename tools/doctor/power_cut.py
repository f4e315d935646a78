"""What a power cut would take, as far as the store tells what is on the device."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any

from ...store.checkpoints import read_checkpoint
from ...store.disk import Disk
from ...store.recovery import Verified
from .evidence import Evidence, State


@dataclass(frozen=True, slots=True)
class PowerCut:
    """At most MESSAGES of BYTES, from FROM_LOG_OFFSET on, may not be on the device; None: the store does not tell."""

    why: str
    messages: int | None
    size_bytes: int | None = None
    from_log_offset: int | None = None
    flushed_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "messages": self.messages,
            "bytes": self.size_bytes,
            "fromLogOffset": self.from_log_offset,
            "flushedUntil": self.flushed_ms,
            "why": self.why,
        }


def power_cut(disk: Disk, root: str, evidence: Evidence) -> PowerCut:
    """Return what the marks of the store ROOT, as it is, leave open.

    The checkpoint's log time is written a second or less behind the flush that it tells of, so it is an upper bound.
    """
    if not disk.exists(posixpath.join(root, "abort")):
        return PowerCut("the store was stopped cleanly: everything is on the device", 0, 0)
    checkpoint = read_checkpoint(disk, posixpath.join(root, "checkpoint"))
    verified = Verified.load(disk, posixpath.join(root, "pocketmq"))
    if not checkpoint.log_time_ms and verified is None:
        return PowerCut("the checkpoint does not tell what was flushed", None)
    safe_end = 0 if verified is None else verified.log_end
    messages = evidence.messages
    open_rows = (
        (messages.state == State.SOUND)
        & (messages.store_ms > checkpoint.log_time_ms)
        & (messages.log_offset >= safe_end)
    )
    chosen = messages.take(open_rows)
    return PowerCut(
        "at most: what was stored behind the last flush that the checkpoint tells of",
        len(chosen),
        int(chosen.size.sum()),
        int(chosen.log_offset[0]) if len(chosen) else None,
        checkpoint.log_time_ms or None,
    )
