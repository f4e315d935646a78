"""Replicated progress of scheduled messages.

Each replica derives the timer wheel and its log from the message log. The master sends its delivery progress, and how
many messages wait:

    {"progress": {"last": [read time in ms, next offset of the timer topic]}, "timingCount": {"topic": 7, …},
     "begun": {"slot's time in ms": [log offset, due time], …}}         as TimerStore.begun; null: the slot has ended
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from ...proto.errors import PocketMQError
from ...proto.topics import TIMER_TOPIC
from ...store.message_store import MessageStore
from ...store.timers.store import TimerStore
from ..callbacks import Safe
from ..delay.timed_pages import enter_page
from .frames import read_state
from .table_part import EntryKey

logger = logging.getLogger(__name__)

TIMERS_FILE: Final = "timercheck"
_COUNTS: Final = "timingCount"
_BEGUN: Final = "begun"
_LAST: Final = EntryKey("progress", "last")


class TimersState:
    """The delivery progress of TIMERS, for followers."""

    file = TIMERS_FILE

    def __init__(self, timers: TimerStore) -> None:
        self._timers = timers
        self.on_change: list[Callable[[], None]] = []
        self._told: tuple[int, int] | None = None
        self._version = timers.metrics.version
        self._counts = timers.metrics.counts
        self._begun = dict(timers.begun)

    def take_changed(self) -> Iterable[EntryKey]:
        changed = []
        if self._timers.ring.is_open and self._timers.reached != self._told:
            self._told = self._timers.reached
            changed.append(_LAST)
        if self._timers.begun != self._begun:
            earlier, self._begun = self._begun, dict(self._timers.begun)
            changed += [
                EntryKey(_BEGUN, str(slot_ms))
                for slot_ms in earlier.keys() | self._begun.keys()
                if earlier.get(slot_ms) != self._begun.get(slot_ms)
            ]
        if self._timers.metrics.version is not self._version:
            self._version = self._timers.metrics.version
            before, self._counts = self._counts, self._timers.metrics.counts
            changed += [
                EntryKey(_COUNTS, topic)
                for topic in before.keys() | self._counts.keys()
                if before.get(topic) != self._counts.get(topic)
            ]
        return changed

    def keys(self) -> Iterable[EntryKey]:
        last = [] if self._told is None else [_LAST]
        begun = [EntryKey(_BEGUN, str(slot_ms)) for slot_ms in self._timers.begun]
        counts = [EntryKey(_COUNTS, topic) for topic in self._timers.metrics.counts]
        return last + begun + counts

    def entry(self, key: EntryKey) -> Any:
        if key.map == _BEGUN:
            return self._timers.begun.get(int(key.name))
        return self._told if key == _LAST else self._timers.metrics.counts.get(key.name, 0)


class _TimersSaid(NamedTuple):
    """The content of a frame: the progress to reach, started slots, and how many messages wait."""

    goal: tuple[int, int] | None
    begun: dict[int, tuple[int, int] | None]
    counts: dict[str, int]


class TimersSink:
    """The timers of STORE, which follow a master's. UNIX_MS returns the wall-clock time."""

    file = TIMERS_FILE
    is_kept = False

    def __init__(self, store: MessageStore, unix_ms: Callable[[], int]) -> None:
        self._store = store
        self._unix_ms = unix_ms
        #: The read time to reach, and the offset up to which messages must be entered before.
        self._goal: tuple[int, int] | None = None
        self._counts: dict[str, int] = {}
        self._waiting: list[Safe] = []
        self._is_behind = False

    def read(self, content: bytes) -> _TimersSaid:
        document = read_state(content)
        if document.keys() - {"progress", _COUNTS, _BEGUN}:
            raise ValueError("it is not progress of timers")
        goal = None
        if "progress" in document:
            read_ms, queue_offset = document["progress"]["last"]
            goal = int(read_ms), int(queue_offset)
        begun: dict[int, tuple[int, int] | None] = {}
        for slot_ms, found in document.get(_BEGUN, {}).items():
            log_offset, due_ms = found or (0, 0)
            begun[int(slot_ms)] = (int(log_offset), int(due_ms)) if found else None
        counts = document.get(_COUNTS, {}).items()
        return _TimersSaid(goal, begun, {str(topic): int(count) for topic, count in counts})

    def apply(self, said: _TimersSaid, *, whole: bool, log_offset: int) -> None:
        self._goal = said.goal or self._goal
        self._counts |= said.counts
        begun = self._store.timers.begun
        if whole:
            begun.clear()
        for slot_ms, found in said.begun.items():
            if found is None:
                begun.pop(slot_ms, None)
            else:
                begun[slot_ms] = found

    def go_on(self, pages: int | None) -> None:
        """Enter up to PAGES pages (None: all) that the master had entered, then take over its progress.

        If the store cannot do it now, the next call retries.
        """
        if self._goal is None and not self._waiting:
            return
        try:
            if not self._reach(pages):
                return
        except PocketMQError as error:
            if not self._is_behind:
                logger.warning("scheduled messages not entered yet reason=%s", error.message)
            self._is_behind = True
            return
        self._is_behind = False
        self._store.timers.metrics.replace(self._counts)
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(None)

    def _reach(self, pages: int | None) -> bool:
        if self._goal is None:
            return True
        timers, (read_ms, queue_offset) = self._store.timers, self._goal
        while timers.queue_offset < queue_offset and pages != 0:
            if enter_page(self._store, self._unix_ms(), queue_offset) is None:
                break
            pages = None if pages is None else pages - 1
        # Do not wait for messages that retention deleted here.
        low, _ = self._store.queue_bounds(TIMER_TOPIC, 0)
        if max(timers.queue_offset, low) < queue_offset:
            return False
        timers.delivered_up_to(read_ms)
        self._goal = None
        return True

    def when_safe(self, done: Safe) -> None:
        # What a power cut loses is delivered again, as on a broker without replicas.
        self._waiting.append(done)

    def close(self) -> None:
        self.go_on(None)
