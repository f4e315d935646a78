"""How many timed messages of each topic are waiting: config/timermetrics, as Apache writes it.

    {"dataVersion":{"counter":39,"stateVersion":0,"timestamp":…},"timingCount":{"T":{"count":9,"timeStamp":…}}}

One line, everything but ASCII as \\uXXXX, a `.bak` beside it. Counts are for people: nothing is delivered by them, and
what changed in the last second before a kill may be missing. Apache keeps 0 for a topic that has none left, and so
does this. At most COUNTER_MAX is written, which RocketMQ 5.4.0 needs. Source: store-format.md §6.5.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...proto.errors import CorruptState
from ..disk import Disk
from ..format.java_json import Json, parse, render
from ..format.state_tables import COUNTER_MAX, DataVersion, Object
from ..state_files import StateFile

logger = logging.getLogger(__name__)

FILE_NAME: Final = "timermetrics"


@dataclass(slots=True)
class _Count:
    count: int
    changed_ms: int


class TimerMetrics:
    """The counts of the store at ROOT. NOW_MS stamps changes."""

    def __init__(self, disk: Disk, root: str, now_ms: Callable[[], int]) -> None:
        """Read the file; one that does not parse, with its backup, counts as empty."""
        self._now_ms = now_ms
        self._file = StateFile(disk, root, FILE_NAME)
        self._counts: dict[str, _Count] = {}
        self._version = DataVersion()
        self._changed = False
        try:
            loaded = self._file.load(parse_timer_metrics)
        except CorruptState as error:
            logger.warning("timer metrics begin anew", extra={"reason": error.message})
            return
        if loaded.problem:
            logger.warning("timer metrics", extra={"reason": loaded.problem})
        if loaded.value is not None:
            self._version, self._counts = loaded.value

    def add(self, topic: str, count: int) -> int:
        """Count COUNT (less than 0: delivered or recalled) messages of TOPIC; return how many wait now.

        Costs less than a microsecond; the file follows within about a second.
        """
        now_ms = self._now_ms()
        found = self._counts.setdefault(topic, _Count(0, now_ms))
        found.count += count
        found.changed_ms = now_ms
        self._version = self._version.next(now_ms)
        self._changed = True
        return found.count

    def count(self, topic: str) -> int:
        """Return how many messages of TOPIC wait."""
        found = self._counts.get(topic)
        return 0 if found is None else found.count

    def remove(self, topic: str) -> None:
        """Forget TOPIC, which was deleted."""
        self._changed |= self._counts.pop(topic, None) is not None

    @property
    def counts(self) -> dict[str, int]:
        """Return what waits, by topic."""
        return {topic: found.count for topic, found in self._counts.items()}

    def take_text(self) -> str | None:
        """Return what the file should hold, if that changed since the last call."""
        if not self._changed:
            return None
        self._changed = False
        counts: Object = {
            # Less than 0 is what a kill makes of it that lost the last second's counts.
            topic: {
                "count": min(max(found.count, 0), COUNTER_MAX),
                "timeStamp": found.changed_ms,
            }
            for topic, found in self._counts.items()
        }
        document: Json = {"dataVersion": self._version.to_json(), "timingCount": counts}
        return render(document, pretty=False, ascii_only=True)

    def save(self, text: str) -> None:
        """Bring TEXT to the device; StoreFull or DiskFailure. The flushing thread may call it."""
        self._file.save(text)


def parse_timer_metrics(text: str) -> tuple[DataVersion, dict[str, _Count]]:
    """Return version and counts in TEXT; ValueError for something else."""
    document = parse(text)
    if not isinstance(document, dict):
        raise ValueError("not an object")
    table = document.get("timingCount") or {}
    if not isinstance(table, dict):
        raise ValueError("timingCount is not an object")
    counts = {str(topic): _count(bean) for topic, bean in table.items()}
    return DataVersion.of(document), counts


def _count(bean: Json) -> _Count:
    if not isinstance(bean, dict):
        raise ValueError("a count is not an object")
    count, changed_ms = bean.get("count", 0), bean.get("timeStamp", 0)
    if not isinstance(count, int) or not isinstance(changed_ms, int):
        raise ValueError("a count is not a whole number")
    return _Count(count, changed_ms)
