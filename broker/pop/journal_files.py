"""Reading the journal of deliveries, and what a reader may believe of it.

    <root>/pocketmq/pop/snapshot-N    all tables, as of the beginning of journal N or later (journal_format.py)
    <root>/pocketmq/pop/journal-N     what changed since, in order; then journal-N+1, and so on

What counts is the newest complete snapshot, and the journals from its number on. Losing all of it, or any part, is
no loss of messages: what is not known to be finished comes again.

- A torn end is what a power cut leaves; it says nothing. Damage in the middle costs the changes in it. A queue of which
  a look was lost in it counts as looked at only up to there; what comes behind that is delivered again.
- A snapshot that is damaged or not complete is as none. Then no queue is known from its beginning on.
- A journal that did not end is believed after an unclean stop only, one of another log never: another broker ran on
  the store in between.

Pure but for reading through the disk that it is handed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from ...store.disk import Disk
from .journal_format import (
    Change,
    ClockMark,
    Decoder,
    Finished,
    Forgotten,
    FoundDeliveries,
    JournalDamage,
    JournalEnd,
    LogMark,
    Looked,
    LookedSpan,
    Moved,
    PopKey,
    Said,
    end,
    frames,
    is_meant,
    is_readable,
)

logger = logging.getLogger(__name__)

FOLDER: Final = "pop"
JOURNAL_PREFIX: Final = "journal-"
SNAPSHOT_PREFIX: Final = "snapshot-"
DRAFT_SUFFIX: Final = ".tmp"

#: Is the log, up to an offset, the one that had this CRC there? Told of offsets that it reaches.
KnowsLog: TypeAlias = Callable[[int, int], bool]
#: Does a dead letter lie at this offset of the log?
HasLetter: TypeAlias = Callable[[int], bool]


def folder_in(own_folder: str) -> str:
    """Return where the journal is in OWN_FOLDER, the broker's own."""
    return f"{own_folder}/{FOLDER}"


@dataclass(frozen=True, slots=True)
class Listing:
    """The files that are there, by number."""

    journals: dict[int, str]
    snapshots: dict[int, str]
    drafts: list[str]

    @classmethod
    def of(cls, disk: Disk, folder: str) -> Listing:
        """Return what is in FOLDER; a name that is none of ours is left alone."""
        listing = cls({}, {}, [])
        for entry in disk.list(folder):
            path = f"{folder}/{entry.name}"
            prefix, _, number = entry.name.rpartition("-")
            if entry.name.endswith(DRAFT_SUFFIX):
                listing.drafts.append(path)
            elif number.isascii() and number.isdigit():
                if f"{prefix}-" == JOURNAL_PREFIX:
                    listing.journals[int(number)] = path
                elif f"{prefix}-" == SNAPSHOT_PREFIX:
                    listing.snapshots[int(number)] = path
        return listing

    @property
    def last(self) -> int:
        """The highest number; 0 for none."""
        return max((*self.journals, *self.snapshots), default=0)

    def all(self) -> list[str]:
        """Return the paths of all of them."""
        return [*self.snapshots.values(), *self.journals.values(), *self.drafts]


@dataclass(slots=True)
class Kept:
    """What was read. ENDED: the broker stopped cleanly. MARK: where the log stood last, as far as it reaches now."""

    found: FoundDeliveries = field(default_factory=FoundDeliveries)
    ended: bool = False
    mark: LogMark | None = None
    damages: list[tuple[str, JournalDamage]] = field(default_factory=list)


class Replay:
    """What frames, in their order, come to. LOG_END: how far the log reaches; HAS: does it have that dead letter?"""

    def __init__(self, log_end: int, has: HasLetter) -> None:
        self._has = has
        self.kept = Kept()
        self._log_end = log_end
        self._looked: dict[PopKey, int] = {}
        #: Of which a look was lost: what is said to have been looked at later is not believed.
        self._stuck: set[PopKey] = set()

    def take(self, said: Said) -> None:
        """Take in SAID, which is later than all before it."""
        self.kept.ended = False
        if isinstance(said, LogMark):
            if said.end <= self._log_end:
                self.kept.mark = said
        elif isinstance(said, ClockMark):
            self.kept.found.mark = said
        elif isinstance(said, JournalEnd):
            self.kept.ended = True
        elif isinstance(said, LookedSpan):
            self._look(said)
        elif not isinstance(said, Finished) or not said.copy_at or self._has(said.copy_at):
            self._begin_anew(said)
            self.kept.found.apply(said)

    def _look(self, span: LookedSpan) -> None:
        key, start, offset = span
        if start >= 0 and (key in self._stuck or start > self._looked.get(key, -1)):
            self._stuck.add(key)
            return
        self._stuck.discard(key)
        self._looked[key] = offset
        self.kept.found.apply(Looked(key, offset))

    def _begin_anew(self, change: Change) -> None:
        if isinstance(change, Moved):
            self._stuck.discard(change.key)
            self._looked[change.key] = change.offset
        elif isinstance(change, Forgotten):
            for key in [key for key in self._looked if is_meant(change, key)]:
                del self._looked[key]
            self._stuck -= {key for key in self._stuck if is_meant(change, key)}


def read(disk: Disk, folder: str, log_end: int, has: HasLetter = lambda log_offset: True) -> Kept:
    """Return what the files in FOLDER say, of a log that reaches to LOG_END; HAS: is a dead letter there in it?

    Says in the log what it cannot read.
    """
    listing = Listing.of(disk, folder)
    decoder = Decoder()
    number, replay = _newest_snapshot(disk, listing, decoder, partial(Replay, log_end, has))
    for at in sorted(listing.journals):
        if at >= number:
            for said in _said(disk, listing.journals[at], decoder, replay.kept.damages):
                replay.take(said)
    return replay.kept


def changes_in(disk: Disk, folder: str) -> bytes:
    """Return the changes in the files of FOLDER that count, encoded: those of the newest complete snapshot first."""
    listing = Listing.of(disk, folder)
    contents: list[bytes] = []
    begin = 0
    for number in sorted(listing.snapshots, reverse=True):
        damages: list[JournalDamage] = []
        data = disk.read(listing.snapshots[number])
        contents = list(frames(data, damages)) if is_readable(data) else []
        if contents and contents[-1] == end() and not damages:
            begin = number
            break
        contents = []
    for number, path in sorted(listing.journals.items()):
        if number >= begin and is_readable(data := disk.read(path)):
            contents += frames(data, [])
    return b"".join(contents)


def _newest_snapshot(
    disk: Disk, listing: Listing, decoder: Decoder, begin: Callable[[], Replay]
) -> tuple[int, Replay]:
    for number in sorted(listing.snapshots, reverse=True):
        replay = begin()
        path = listing.snapshots[number]
        for said in _said(disk, path, decoder, replay.kept.damages):
            replay.take(said)
        if replay.kept.ended and not replay.kept.damages:
            replay.kept.ended = False
            return number, replay
        logger.warning("snapshot of deliveries is damaged: more comes again path=%s", path)
    return 0, begin()


def _said(
    disk: Disk, path: str, decoder: Decoder, damages: list[tuple[str, JournalDamage]]
) -> Iterator[Said]:
    try:
        data = disk.read(path)
    except OSError as error:
        logger.warning("file of deliveries not read path=%s reason=%s", path, error)
        damages.append((path, JournalDamage(0, 0, False, 1)))
        return
    if not is_readable(data):
        if data.strip(b"\0"):
            damages.append((path, JournalDamage(0, len(data), False, 1)))
        return
    found: list[JournalDamage] = []
    for content in frames(data, found):
        try:
            yield from decoder.decode(content)
        except ValueError:
            found.append(JournalDamage(0, len(content), False, 1))
    damages += ((path, one) for one in found)


def believed(kept: Kept, *, clean: bool, knows_log: KnowsLog) -> FoundDeliveries:
    """Return what of KEPT counts for a store whose last stop was CLEAN or not; nothing where it cannot."""
    reason = None
    if clean and not kept.ended and kept.found.queues:
        reason = "another broker ran on the store since"
    elif kept.mark is not None and not knows_log(*kept.mark):
        reason = "it is of another log"
    for path, damage in kept.damages:
        event = (
            "journal of deliveries ends torn" if damage.torn else "journal of deliveries damaged"
        )
        logger.warning(
            "%s: more comes again path=%s at=%s bytes=%s records=%s",
            event,
            path,
            damage.at,
            damage.bytes,
            damage.lost,
        )
    if reason is None:
        return kept.found
    logger.warning(
        "journal of deliveries is not used: what is in flight comes again reason=%s", reason
    )
    return FoundDeliveries()
