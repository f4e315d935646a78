"""What a group has handled, by queue and offset: nothing may be missing, and every repeat needs an excuse.

An offset that is handled twice is excused where the one who had it first

  killed    died, and had not committed it when it died
  stalled   stood still for so long that it lost its leases, and had not committed it when that began; or who handles it
            again is one that stood still, and goes on with what it held
  broker    had committed it to a broker that was killed since, or could not: what was not saved is forgotten, and what
            was committed when it came back is not

  not committed  left while a broker could not be reached, which was said to it

Order, where it is promised: a queue is handled without gaps. Whoever goes on begins at an offset that was handled, or
at the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pocketmq.client import Queue

_NOBODY: Final = -1
_EXAMPLES_MAX: Final = 20


@dataclass
class _Row:
    """One queue."""

    last: NDArray[np.int32] = field(default_factory=lambda: np.full(1024, _NOBODY, np.int32))
    #: Behind the last offset that was handled.
    end: int = 0
    #: Excused by the loss of the broker: what is between, for each loss.
    forgotten: list[tuple[int, int]] = field(default_factory=list)

    def room_for(self, end: int) -> None:
        if end > len(self.last):
            more = np.full(max(end, 2 * len(self.last)) - len(self.last), _NOBODY, np.int32)
            self.last = np.concatenate([self.last, more])


@dataclass
class _Excuse:
    """Why MEMBER may have handled what is handled again: from COMMITTED on, of these queues, or of those of BROKER."""

    why: str
    committed: Mapping[Queue, int]


class Ledger:
    """Notes what members, known by numbers, handle."""

    def __init__(self, *, ordered: bool = True) -> None:
        self._ordered = ordered
        self._rows: dict[Queue, _Row] = {}
        self._excuses: dict[int, list[_Excuse]] = {}
        self.handled = 0
        self.repeats: Counter[str] = Counter()
        #: What must not be, a few of them.
        self.faults: list[str] = []
        #: Numbers of messages that were handled at least once.
        self.seen = np.zeros(1024, np.uint8)

    # --- what happens

    def handle(self, member: int, queue: Queue, first: int, count: int) -> None:
        """Note that MEMBER has handled COUNT messages of QUEUE from offset FIRST on."""
        row = self._rows.setdefault(queue, _Row())
        row.room_for(first + count)
        if first > row.end and self._ordered:
            self._fault(
                f"{queue}: member {member} goes on at {first}, but only {row.end} are handled"
            )
        before = row.last[first : first + count]
        if before.max() != _NOBODY:
            for other in np.unique(before[before != _NOBODY]).tolist():
                offsets = first + np.flatnonzero(before == other)
                self._repeated(member, other, queue, offsets)
        row.last[first : first + count] = member
        row.end = max(row.end, first + count)
        self.handled += count

    def note_numbers(self, numbers: list[int]) -> None:
        """Note that messages with NUMBERS were handled."""
        most = max(numbers, default=0)
        if most >= len(self.seen):
            grown = np.zeros(2 * most + 1, np.uint8)
            grown[: len(self.seen)] = self.seen
            self.seen = grown
        self.seen[numbers] = 1

    def _repeated(self, member: int, other: int, queue: Queue, offsets: NDArray[np.int64]) -> None:
        if any(low <= offsets[0] and offsets[-1] < end for low, end in self._rows[queue].forgotten):
            self.repeats["broker"] += len(offsets)
            return
        excuses = [*self._excuses.get(other, ()), *self._excuses.get(member, ())]
        for excuse in excuses:
            if offsets[0] >= excuse.committed.get(queue, 0):
                self.repeats[excuse.why] += len(offsets)
                return
        self.repeats["unexplained"] += len(offsets)
        self._fault(
            f"{queue}: member {member} handles {offsets[0]} to {offsets[-1]} again, which {other} has handled"
            f" (excuses: {[(excuse.why, excuse.committed.get(queue)) for excuse in excuses]})"
        )

    def _fault(self, sentence: str) -> None:
        if len(self.faults) < _EXAMPLES_MAX:
            self.faults.append(sentence)

    # --- excuses

    def excuse(self, member: int, why: str, committed: Mapping[Queue, int]) -> None:
        """Have MEMBER excused, WHY: what it has handled from the COMMITTED offsets on may come again."""
        self._excuses.setdefault(member, []).append(_Excuse(why, dict(committed)))

    def broker_back(self, broker: str, committed: Mapping[Queue, int]) -> None:
        """BROKER has come back after a kill, and knows COMMITTED: what was handled beyond may come again."""
        for queue, row in self._rows.items():
            if queue.broker == broker:
                row.forgotten.append((committed.get(queue, 0), row.end))

    def lost_broker(self, queue: Queue) -> bool:
        """Was the broker of QUEUE killed at some time?"""
        return queue in self._rows and bool(self._rows[queue].forgotten)

    # --- the end

    def missing(self, ends: Mapping[Queue, int]) -> dict[Queue, int]:
        """Return how many messages of each queue, with END messages, were never handled."""
        found = {}
        for queue, end in ends.items():
            row = self._rows.get(queue) or _Row()
            row.room_for(end)
            count = int(np.count_nonzero(row.last[:end] == _NOBODY))
            if count:
                found[queue] = count
        return found
