"""The accounts of all groups' queues: in memory, and in the table `statistics` of the broker's journal.

An entry is the JSON of an account, by topic, group and queue. The table is lazy: a kill loses the last second. A move
is never lost: its reply waits until the device has it. If the table is lost, accounts start empty. The event loop owns
them.

Bounds: ACCOUNTS_MAX accounts; beyond it the one that was touched longest ago is forgotten.

The account of one queue of one group: what its filters stepped over, what was lost, how it was moved. Pure.

    skipped   by filter: how many messages it did not want, the first and the last of them, who asked
    looks     which filter looked at which offsets, for those who want to know what became of one message
    lost      messages that were damaged, or gone with a file
    moves     where administrators had the group go on

Messages may be looked at twice, after a rebalance for instance. Each is counted once: it is known up to where it was
counted, and only what lies behind that counts. What another filter looks at again (a consumer that begins where the
group had committed, or behind a move back) is noted as its look: the last one decides what became of a message.

Bounds: FILTERS_MAX filters (the one that skipped longest ago goes under OTHERS), LOOKS_MAX looks, MEMBERS_MAX names of
members a filter, MOVES_MAX moves; of an expression the first EXPRESSION_MAX characters are kept, ending in "…".
"""

from __future__ import annotations

import logging
import posixpath
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.record_run import Longs
from ..store.disk import Disk
from ..store.flush import Waiter
from ..store.table_files import FOLDER, read_entries
from .group_queues import ONE_SCOPE, GroupQueue, GroupQueueTable, group_queue_table

FILTERS_MAX: Final = 8
LOOKS_MAX: Final = 32
MEMBERS_MAX: Final = 3
MOVES_MAX: Final = 16
EXPRESSION_MAX: Final = 1_024
_NUMBER_MAX: Final = (1 << 63) - 1

#: Kind (ALL, TAG or SQL) and expression, in the form of all that mean the same.
Filtering: TypeAlias = tuple[str, str]
EVERY: Final[Filtering] = ("ALL", "")
#: Filters that are not told apart any more, and looks that nobody noted.
OTHERS: Final[Filtering] = ("", "")


@dataclass(slots=True)
class SkippedBy:
    """What one filter did not want: COUNT messages from FIRST to LAST, asked by MEMBERS, until AT_MS (Unix)."""

    count: int = 0
    first: int = -1
    last: int = -1
    members: tuple[str, ...] = ()
    at_ms: int = 0

    def add(self, other: SkippedBy) -> None:
        """Count what OTHER has, too."""
        self.first = other.first if self.first < 0 else min(self.first, other.first)
        self.last = max(self.last, other.last)
        self.count += other.count
        self.at_ms = max(self.at_ms, other.at_ms)
        for member in other.members:
            if member not in self.members and len(self.members) <= MEMBERS_MAX:
                # One more than are told says that there were others.
                self.members = (*self.members, member)


@dataclass(frozen=True, slots=True)
class MovedBy:
    """WHO (an administrator, and from where) had the group go on at AFTER, not at BEFORE (None: it had not begun)."""

    at_ms: int
    who: str
    before: int | None
    after: int

    def passes(self, offset: int) -> bool:
        """Was the message at OFFSET left out by this?"""
        return (self.before or 0) <= offset < self.after


@dataclass(slots=True)
class QueueLook:
    """What was looked at: the messages [BEGIN, END), of which WANTED (queue offsets) were delivered, LOST are lost."""

    begin: int
    end: int
    wanted: Longs
    stepped: int
    lost: int


@dataclass(slots=True)
class Account:
    """The account of one queue of one group; COUNTED_TO and LOOKED_TO: all below was, by looks."""

    counted_to: int = 0
    looked_to: int = 0
    lost: int = 0
    skipped: dict[Filtering, SkippedBy] = field(default_factory=dict)
    #: From which offset on which filter looked, rising.
    looks: list[tuple[int, Filtering]] = field(default_factory=list)
    moves: list[MovedBy] = field(default_factory=list)

    @property
    def skipped_count(self) -> int:
        """How many messages filters stepped over."""
        return sum(one.count for one in self.skipped.values())

    def look(self, look: QueueLook, filtering: Filtering, member: str, now_ms: int) -> int:
        """Note LOOK through FILTERING for MEMBER; return how many lost messages are new in it."""
        self._note_filter(look.begin, look.end, filtering)
        begin, end = max(look.begin, self.counted_to), look.end
        if end <= begin:
            return 0
        stepped, lost, wanted = look.stepped, look.lost, look.wanted
        if begin > look.begin:
            wanted = wanted[wanted >= begin]
            lost = min(lost, max(0, end - begin - len(wanted)))
            stepped = min(stepped, max(0, end - begin - len(wanted) - lost))
        self.counted_to = end
        self.lost += lost
        if stepped:
            self._skip(begin, end, wanted, stepped, filtering, member, now_ms)
        return lost

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
            skipped = self.skipped[filtering] = SkippedBy()
            if len(self.skipped) > FILTERS_MAX + (OTHERS in self.skipped):
                names = (name for name in self.skipped if name not in (filtering, OTHERS))
                oldest = min(names, key=lambda name: self.skipped[name].at_ms)
                self.skipped.setdefault(OTHERS, SkippedBy()).add(self.skipped.pop(oldest))
        first, last = _ends(begin, end, wanted)
        members = (member,) if member else ()
        skipped.add(SkippedBy(stepped, first, last, members, now_ms))

    def look_at_all(self, begin: int, end: int) -> None:
        """Note that all messages [BEGIN, END) were delivered."""
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
        if not looks or looks[-1][1] != filtering:
            looks.append((begin, filtering))
        del looks[: max(0, len(looks) - LOOKS_MAX)]
        self.looked_to = end

    def _looked_only(self, begin: int, filtering: Filtering) -> bool:
        """Has FILTERING alone looked at all from BEGIN on?"""
        first = self._stretch(begin)
        return first >= 0 and all(name == filtering for _, name in self.looks[first:])

    def _look_again(self, offset: int) -> None:
        """Forget who looked at what lies from OFFSET on."""
        self.looked_to = min(self.looked_to, offset)
        self.looks = [look for look in self.looks if look[0] < offset]

    def _stretch(self, offset: int) -> int:
        return bisect_right(self.looks, offset, key=lambda look: look[0]) - 1

    def looked_through(self, offset: int) -> Filtering | None:
        """Return the filter that looked at the message at OFFSET; None if that is not known."""
        if offset >= self.looked_to:
            return None
        at = self._stretch(offset)
        found = None if at < 0 else self.looks[at][1]
        return None if found == OTHERS else found

    def move(self, move: MovedBy) -> None:
        """Note MOVE: what lies behind it is looked at again."""
        self.moves.append(move)
        del self.moves[: max(0, len(self.moves) - MOVES_MAX)]
        self._look_again(move.after)

    def passed_by(self, offset: int) -> MovedBy | None:
        """Return the move that left out the message at OFFSET; None if the group came to it after all moves."""
        for move in reversed(self.moves):
            if move.after <= offset:
                return None
            if move.passes(offset):
                return move
        return None

    # --- on disk

    def to_json(self) -> dict[str, Any]:
        """Return the account as JSON."""
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
    def from_json(cls, document: Any) -> Account:
        """Return the account in DOCUMENT; ValueError, LookupError or TypeError for what is none."""
        return cls(
            counted_to=_number(document["countedTo"]),
            looked_to=_number(document["lookedTo"]),
            lost=_number(document["lost"]),
            skipped={
                (str(kind), str(expression)): SkippedBy(
                    _number(count),
                    _number(first),
                    _number(last),
                    tuple(map(str, members)),
                    _number(at_ms),
                )
                for kind, expression, count, first, last, members, at_ms in document["skipped"]
            },
            looks=[
                (_number(begin), (str(kind), str(expression)))
                for begin, kind, expression in document["looks"]
            ],
            moves=[
                MovedBy(
                    _number(at_ms),
                    str(who),
                    None if before is None else _number(before),
                    _number(after),
                )
                for at_ms, who, before, after in document["moves"]
            ],
        )


def _number(value: Any) -> int:
    """Return VALUE as a number that replies can carry; raise ValueError or TypeError for what is none."""
    number = int(value)
    if not -_NUMBER_MAX <= number <= _NUMBER_MAX:
        raise ValueError(f"{number} is no number of 64 bits")
    return number


def filtering_of(kind: str, expression: str) -> Filtering:
    """Return the filter of KIND and EXPRESSION as accounts keep it."""
    if len(expression) > EXPRESSION_MAX:
        expression = expression[: EXPRESSION_MAX - 1] + "…"
    return kind, expression


def told_members(members: Iterable[str]) -> str:
    """Return MEMBERS of a filter in words."""
    names = list(members)
    if not names:
        return "a consumer that is no member"
    told = ", ".join(names[:MEMBERS_MAX])
    return f"{told} and others" if len(names) > MEMBERS_MAX else told


def _ends(begin: int, end: int, wanted: Longs) -> tuple[int, int]:
    """Return the first and the last of [BEGIN, END) that are not WANTED, of which there are fewer; all rise."""
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


# ---------------------------------------------------------------- the accounts of all groups' queues


logger = logging.getLogger(__name__)

ACCOUNTS_MAX: Final = 10_000

AccountKey: TypeAlias = GroupQueue
StatisticsTable: TypeAlias = GroupQueueTable[Account]


class Accounts:
    """Accounts by group, topic and queue. NOW_MS: Unix time.

    lost: lost messages that groups stepped over since the start, each once a group.  skipped: messages that filters
    stepped over since the start.
    """

    def __init__(
        self,
        now_ms: Callable[[], int] = lambda: 0,
        table: StatisticsTable | None = None,
        limit: int = ACCOUNTS_MAX,
        holder: Callable[[str, str, int], str] = lambda group, topic, queue: "",
    ) -> None:
        """Take over what TABLE has (None: nothing is kept). HOLDER tells who holds a queue of ours for a group."""
        self._holder = holder
        self._now_ms = now_ms
        self._table = statistics_table() if table is None else table
        self._limit = limit
        self.lost = 0
        self.skipped = 0

    # --- noting

    def look(
        self,
        key: AccountKey,
        look: QueueLook,
        *,
        queue_end: int,
        filtering: Filtering = EVERY,
        member: str | None = None,
    ) -> None:
        """Note LOOK at KEY through FILTERING for MEMBER (None: who holds the queue); the queue ends at QUEUE_END."""
        account = self._of(key, queue_end)
        before = account.skipped_count
        who = self._holder(*key) if member is None and look.stepped else member or ""
        self.lost += account.look(look, filtering, who, self._now_ms())
        self.skipped += max(0, account.skipped_count - before)

    def look_at_all(self, key: AccountKey, begin: int, end: int) -> None:
        """Note that KEY's messages [BEGIN, END) were delivered; of use only where others were not."""
        account = self.get(key)
        if account is not None and account.looks:
            account.look_at_all(begin, end)
            self._table.put(ONE_SCOPE, key, account)

    def lose(self, key: AccountKey) -> None:
        """Note that a message of KEY that was delivered before is lost, and does not come again."""
        self._of(key).lost += 1
        self.lost += 1

    def move(self, key: AccountKey, who: str, before: int | None, after: int) -> None:
        """Note that WHO had the group of KEY go on at AFTER, not at BEFORE."""
        if before != after:
            self._of(key).move(MovedBy(self._now_ms(), who, before, after))

    def _of(self, key: AccountKey, queue_end: int | None = None) -> Account:
        account = self.get(key)
        if account is None or (queue_end is not None and account.counted_to > queue_end):
            # A topic that was deleted and made again begins anew; what was counted stays so.
            account = (
                Account()
                if account is None
                else Account(lost=account.lost, skipped=account.skipped)
            )
        self._table.put(ONE_SCOPE, key, account)
        if len(self._table) > self._limit:
            _, oldest, _ = next(self._table.items())
            self._table.drop(ONE_SCOPE, oldest, is_urgent=False)
        return account

    def forget_group(self, group: str) -> None:
        """Forget the accounts of GROUP."""
        self._forget(lambda key: key[0] == group)

    def forget_topic(self, topic: str) -> None:
        """Forget the accounts of TOPIC's queues."""
        self._forget(lambda key: key[1] == topic)

    def _forget(self, matches: Callable[[AccountKey], bool]) -> None:
        for _, key, _ in list(self._table.items()):
            if matches(key):
                self._table.drop(ONE_SCOPE, key)

    # --- telling

    def get(self, key: AccountKey) -> Account | None:
        """Return the account of KEY, if there is one."""
        return self._table.get(ONE_SCOPE, key)

    def items(self) -> Iterator[tuple[AccountKey, Account]]:
        """Yield all accounts, which was touched longest ago first."""
        for _, key, account in self._table.items():
            if account is not None:
                yield key, account

    def of_group(self, group: str) -> list[pb.FilteredCount]:
        """Return what GROUP did not read, by topic and queue; queues of which it got all are left out."""
        return [
            pb.FilteredCount(
                topic=topic,
                queue=queue,
                group=name,
                count=account.skipped_count,
                lost_count=account.lost,
                skipped=[_skipped(*item) for item in account.skipped.items()],
                moves=[_moved(one) for one in account.moves],
            )
            for (name, topic, queue), account in sorted(self.items(), key=lambda item: item[0])
            if name == group and (account.skipped or account.lost or account.moves)
        ]

    def skipped_by_topic(self) -> dict[tuple[str, str], int]:
        """Return how many messages filters stepped over, by group and topic."""
        found: dict[tuple[str, str], int] = {}
        for (group, topic, _), account in self.items():
            if count := account.skipped_count:
                found[group, topic] = found.get((group, topic), 0) + count
        return found

    # --- on disk

    def when_durable(self, waiter: Waiter) -> None:
        """Call WAITER once all that was noted up to now is on the device, or with the error."""
        self._table.when_durable(waiter)


def statistics_table() -> StatisticsTable:
    """Return the table that keeps accounts."""
    return group_queue_table(4, "statistics", Account.to_json, Account.from_json)


def accounts_in(disk: Disk, root: str) -> dict[AccountKey, Account] | None:
    """Return the accounts of the store at ROOT on DISK, as they were last written; None: it has none."""
    table = statistics_table()
    read_entries(disk, posixpath.join(root, "pocketmq", FOLDER), [table])
    found = {key: account for _, key, account in table.items() if account is not None}
    return found or None


def _skipped(name: Filtering, one: Any) -> pb.SkippedBy:
    return pb.SkippedBy(
        kind=name[0],
        expression=name[1],
        count=one.count,
        first=one.first,
        last=one.last,
        members=one.members,
        at_ms=one.at_ms,
    )


def _moved(one: MovedBy) -> pb.MovedBy:
    before = -1 if one.before is None else one.before
    return pb.MovedBy(at_ms=one.at_ms, who=one.who, before=before, after=one.after)
