"""The timed messages' files as they lie: checkpoint, wheel and log. Formats: store/format/."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

from numpy.typing import NDArray

from ...store.checkpoints import read_timer_checkpoint
from ...store.format.checkpoints import TimerCheckpoint
from ...store.format.timers import (
    DELETE,
    RECORD,
    RECORD_SIZE,
    ROLL,
    SLOTS,
    WHEEL_SIZE,
    TimerWheel,
    sound_rows,
)
from ...store.listing import FileRow, RowFile
from ...store.view import StoreView

_ROWS_AT_ONCE: Final = 1024
_BITS: Final = ((ROLL, "roll"), (DELETE, "delete"))


class TimerFiles:
    """The timer store in FILES; precision_ms is the length of a slot."""

    def __init__(self, files: StoreView) -> None:
        self._files = files
        self.precision_ms = max(1, files.settings.timer_precision_ms)
        known = files.has("config", "timercheck")
        path = files.path("config", "timercheck")
        self.checkpoint = read_timer_checkpoint(files.disk, path) if known else TimerCheckpoint()
        self.log: FileRow = files.row(files.path("timerlog"))

    @property
    def wheel_problem(self) -> str | None:
        """What is wrong with the file of the wheel; None for nothing."""
        if not self._files.has("timerwheel"):
            return "there is no timerwheel"
        size = self._files.disk.size(self._files.path("timerwheel"))
        return None if size == WHEEL_SIZE else f"timerwheel has {size:,} bytes, not {WHEEL_SIZE:,}"

    def slots(self) -> Iterator[dict[str, Any]]:
        """Yield the used slots, by their time."""
        if self.wheel_problem is not None:
            return
        view = self._files.view(RowFile(self._files.path("timerwheel"), 0, WHEEL_SIZE))
        wheel = TimerWheel.parse(view)
        for number, slot in sorted(wheel.slots.items(), key=lambda one: one[1].time):
            due_ms = slot.time * self.precision_ms
            yield {
                "slot": number,
                "dueTimestamp": due_ms,
                "num": slot.count,
                "firstPos": slot.first,
                "lastPos": slot.last,
                "pending": due_ms >= self.checkpoint.last_read_ms,
                "problem": self._slot_problem(number, slot.time, slot.first, slot.last),
            }

    def _slot_problem(self, number: int, time: int, first: int, last: int) -> str | None:
        if time < 0 or time % SLOTS != number:
            return "its time belongs to another slot"
        if last >= 0 and last < first:
            return "its last record stands before its first"
        if last >= self.log.end:
            return "points behind the timer log's end"
        return None

    # --- the log -------------------------------------------------------------------------------------------------

    def count(self, file: RowFile) -> int:
        """Return how many records FILE begins with; they are halved, not counted."""
        sizes = self._rows(file)["size"]
        return bisect_left(range(len(sizes)), 1, key=lambda at: int(sizes[at]) != RECORD_SIZE)

    def _rows(self, file: RowFile) -> NDArray[Any]:
        return RECORD.columns(self._files.view(file))

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records of the log, in order."""
        for file in self.log.files:
            rows = self._rows(file)[: self.count(file)]
            for at in range(0, len(rows), _ROWS_AT_ONCE):
                part = rows[at : at + _ROWS_AT_ONCE]
                for row, sound in zip(part, sound_rows(part).tolist(), strict=True):
                    yield _record(file.start + at * RECORD_SIZE, row, sound)
                    at += 1


def _record(position: int, row: Any, sound: bool) -> dict[str, Any]:
    magic, previous = int(row["magic"]), int(row["previous"])
    write_ms = int(row["write_ms"])
    return {
        "position": position,
        "previous": previous if previous >= 0 else None,
        "dueTimestamp": write_ms + int(row["delay_ms"]),
        "writeTimestamp": write_ms,
        "kind": " ".join(name for bit, name in _BITS if magic & bit) or "ordinary",
        "physicalOffset": int(row["log_offset"]),
        "size": int(row["message_size"]),
        "topicHash": int(row["topic_hash"]),
        "problem": None if sound else f"unknown bits {magic & 0xFFFFFFFF:#x}",
    }
