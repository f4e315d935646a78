"""Consume statistics of one queue of one group: filtered messages, lost messages, offset resets. Pure.

    skipped   by filter: how many messages it skipped, the first and the last of them, which members asked
    looks     which filter looked at which offsets, to explain what became of one message
    lost      messages that were damaged, or gone with a file
    moves     where administrators had the group continue

A message may be scanned twice, for example after a rebalance, and is counted once: only messages after the last counted
one count. If another filter scans messages again (a consumer that starts at the committed offset, or after a reset to
an earlier offset), a new look is recorded. The last look decides what happened to a message.

Limits: FILTERS_MAX filters (beyond, the one that skipped longest ago is added to OTHERS), LOOKS_MAX looks, MEMBERS_MAX
names of members per filter, MOVES_MAX moves. An stats stores the first EXPRESSION_MAX characters of an expression.
A longer expression ends in "…".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from ..proto.record_run import Longs
from .group_queues import number_of

FILTERS_MAX: Final = 8
LOOKS_MAX: Final = 32
MEMBERS_MAX: Final = 3
MOVES_MAX: Final = 16
EXPRESSION_MAX: Final = 1_024
#: JSON characters of the numbers that are stored with each text.
_ENTRY_SIZE: Final = 64

#: Kind (ALL, TAG or SQL) and expression, in its canonical form.
Filtering: TypeAlias = tuple[str, str]
EVERY: Final[Filtering] = ("ALL", "")
#: Key of filters that were dropped at the limit, and for of messages without a known look.
OTHERS: Final[Filtering] = ("", "")


@dataclass(slots=True)
class SkippedBy:
    """Messages that one filter skipped: COUNT from FIRST to LAST, for MEMBERS, the last one at AT_MS (Unix time)."""

    count: int = 0
    first: int = -1
    last: int = -1
    members: tuple[str, ...] = ()
    at_ms: int = 0

    def add(self, other: SkippedBy) -> None:
        """Add the counts and members of OTHER."""
        self.first = other.first if self.first < 0 else min(self.first, other.first)
        self.last = max(self.last, other.last)
        self.count += other.count
        self.at_ms = max(self.at_ms, other.at_ms)
        for member in other.members:
            if member not in self.members and len(self.members) <= MEMBERS_MAX:
                # Keep one more than MEMBERS_MAX: it shows that there were others.
                self.members = (*self.members, member)


@dataclass(frozen=True, slots=True)
class MovedBy:
    """A reset by WHO (an administrator and the address) from offset BEFORE (None: no offset) to AFTER."""

    at_ms: int
    who: str
    before: int | None
    after: int

    def passes(self, offset: int) -> bool:
        """Return whether this move skipped the message at OFFSET."""
        return (self.before or 0) <= offset < self.after


@dataclass(slots=True)
class ScanResult:
    """One scan of the messages [BEGIN, END): WANTED (queue offsets) were delivered, `filtered` were skipped, LOST are
    damaged.
    """

    begin: int
    end: int
    wanted: Longs
    stepped: int
    lost: int


@dataclass(slots=True)
class QueueStats:
    """Consume statistics of one queue of one group.

    Messages below `counted_to` are counted. Messages below `looked_to` were scanned.
    """

    counted_to: int = 0
    looked_to: int = 0
    lost: int = 0
    skipped: dict[Filtering, SkippedBy] = field(default_factory=dict)
    #: The offset at which each look begins, rising, and its filter.
    looks: list[tuple[int, Filtering]] = field(default_factory=list)
    moves: list[MovedBy] = field(default_factory=list)

    #: What `size` returns. None: texts have changed since.
    _size: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def size(self) -> int:
        """Return the approximate number of characters of the statistics as JSON."""
        if self._size is None:
            self._size = self._measured()
        return self._size

    def _measured(self) -> int:
        filters = [*self.skipped, *(name for _, name in self.looks)]
        members = [name for one in self.skipped.values() for name in one.members]
        texts = [*(expression for _, expression in filters), *members]
        texts += [one.who for one in self.moves]
        return _ENTRY_SIZE * (1 + len(texts)) + sum(map(len, texts))

    @property
    def skipped_count(self) -> int:
        """How many messages filters skipped."""
        return sum(one.count for one in self.skipped.values())

    def look(
        self, look: ScanResult, filtering: Filtering, member: str, now_ms: int
    ) -> tuple[int, int]:
        """Record LOOK through FILTERING for MEMBER.

        Returns:
            How many skipped messages, and how many lost ones, were not counted before.
        """
        self._note_filter(look.begin, look.end, filtering)
        begin, end = max(look.begin, self.counted_to), look.end
        if end <= begin:
            return 0, 0
        stepped, lost, wanted = look.stepped, look.lost, look.wanted
        if begin > look.begin:
            wanted = wanted[wanted >= begin]
            lost = min(lost, max(0, end - begin - len(wanted)))
            stepped = min(stepped, max(0, end - begin - len(wanted) - lost))
        self.counted_to = end
        self.lost += lost
        if stepped:
            self._skip(begin, end, wanted, stepped, filtering, member, now_ms)
        return stepped, lost

    def _skip(
        self,
        begin: int,
        end: int,
        wanted: Longs,
        stepped: int,
        filtering: Filtering,
        member: str,
        now_ms: int,
    ) -> None:
        skipped = self.skipped.get(filtering)
        if skipped is None:
            self._size = None
            skipped = self.skipped[filtering] = SkippedBy()
            if len(self.skipped) > FILTERS_MAX + (OTHERS in self.skipped):
                names = (name for name in self.skipped if name not in (filtering, OTHERS))
                oldest = min(names, key=lambda name: self.skipped[name].at_ms)
                self.skipped.setdefault(OTHERS, SkippedBy()).add(self.skipped.pop(oldest))
        first, last = _ends(begin, end, wanted)
        members = (member,) if member else ()
        known = skipped.members
        skipped.add(SkippedBy(stepped, first, last, members, now_ms))
        if skipped.members is not known:
            self._size = None

    def look_at_all(self, begin: int, end: int) -> None:
        """Record that all messages [BEGIN, END) were delivered."""
        self._note_filter(begin, end, EVERY)

    def _note_filter(self, begin: int, end: int, filtering: Filtering) -> None:
        if begin >= end:
            return
        if begin < self.looked_to:
            if self._looked_only(begin, filtering):
                begin = self.looked_to
            else:
                self._look_again(begin)
        if end <= begin:
            return
        looks = self.looks
        if begin > self.looked_to and looks and looks[-1][1] != OTHERS:
            looks.append((self.looked_to, OTHERS))
            self._size = None
        if not looks or looks[-1][1] != filtering:
            looks.append((begin, filtering))
            self._size = None
        del looks[: max(0, len(looks) - LOOKS_MAX)]
        self.looked_to = end

    def _looked_only(self, begin: int, filtering: Filtering) -> bool:
        """Return whether FILTERING is the only filter that scanned the messages from BEGIN on."""
        first = self._stretch(begin)
        return first >= 0 and all(name == filtering for _, name in self.looks[first:])

    def _look_again(self, offset: int) -> None:
        """Forget the looks at messages from OFFSET on: they are scanned again."""
        self.looked_to = min(self.looked_to, offset)
        self.looks = [look for look in self.looks if look[0] < offset]
        self._size = None

    def _stretch(self, offset: int) -> int:
        return bisect_right(self.looks, offset, key=lambda look: look[0]) - 1

    def looked_through(self, offset: int) -> Filtering | None:
        """Return the filter that scanned the message at OFFSET; None if it is not known."""
        if offset >= self.looked_to:
            return None
        at = self._stretch(offset)
        found = None if at < 0 else self.looks[at][1]
        return None if found == OTHERS else found

    def move(self, move: MovedBy) -> None:
        """Record MOVE: the messages from `move.after` on are scanned again."""
        self.moves.append(move)
        del self.moves[: max(0, len(self.moves) - MOVES_MAX)]
        self._look_again(move.after)

    def cut(self, end: int) -> bool:
        """Forget messages from END on: the log lost them, and new messages get their offsets. Return whether any was
        known.
        """
        if max(self.counted_to, self.looked_to, *(move.after for move in self.moves)) <= end:
            return False
        self.counted_to = min(self.counted_to, end)
        self._look_again(end)
        self.moves = [move for move in self.moves if move.after <= end]
        return True

    def passed_by(self, offset: int) -> MovedBy | None:
        """Return the move that skipped the message at OFFSET; None if none did, or a later move went back before it."""
        for move in reversed(self.moves):
            if move.after <= offset:
                return None
            if move.passes(offset):
                return move
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON."""
        return {
            "countedTo": self.counted_to,
            "lookedTo": self.looked_to,
            "lost": self.lost,
            "skipped": [
                [*name, one.count, one.first, one.last, list(one.members), one.at_ms]
                for name, one in self.skipped.items()
            ],
            "looks": [[begin, *name] for begin, name in self.looks],
            "moves": [[one.at_ms, one.who, one.before, one.after] for one in self.moves],
        }

    @classmethod
    def from_json(cls, document: Any) -> QueueStats:
        """Return the statistics in DOCUMENT; raise ValueError, LookupError or TypeError if it has another form."""
        return cls(
            counted_to=number_of(document["countedTo"]),
            looked_to=number_of(document["lookedTo"]),
            lost=number_of(document["lost"]),
            skipped={
                (str(kind), str(expression)): SkippedBy(
                    number_of(count),
                    number_of(first),
                    number_of(last),
                    tuple(map(str, members)),
                    number_of(at_ms),
                )
                for kind, expression, count, first, last, members, at_ms in document["skipped"]
            },
            looks=[
                (number_of(begin), (str(kind), str(expression)))
                for begin, kind, expression in document["looks"]
            ],
            moves=[
                MovedBy(
                    number_of(at_ms),
                    str(who),
                    None if before is None else number_of(before),
                    number_of(after),
                )
                for at_ms, who, before, after in document["moves"]
            ],
        )


def filtering_of(kind: str, expression: str) -> Filtering:
    """Return the filter of KIND and EXPRESSION as statistics store it: a long expression is cut."""
    if len(expression) > EXPRESSION_MAX:
        expression = expression[: EXPRESSION_MAX - 1] + "…"
    return kind, expression


def members_text(members: Iterable[str]) -> str:
    """Return the names of MEMBERS for a reader."""
    names = list(members)
    if not names:
        return "a consumer that is not a member"
    text = ", ".join(names[:MEMBERS_MAX])
    return f"{text} and others" if len(names) > MEMBERS_MAX else text


def _ends(begin: int, end: int, wanted: Longs) -> tuple[int, int]:
    """Return the first and the last of [BEGIN, END) that are not in WANTED; WANTED rises and does not contain all of
    them.
    """
    count = len(wanted)
    if not count:
        return begin, end - 1
    rising = np.arange(count)
    before = int((wanted == begin + rising).argmin()) if wanted[0] == begin else 0
    first = begin + before if wanted[before] != begin + before else begin + count
    behind = wanted[::-1] == end - 1 - rising
    after = int(behind.argmin()) if behind[0] else 0
    last = end - 1 - after if not behind[after] else end - 1 - count
    return first, last
