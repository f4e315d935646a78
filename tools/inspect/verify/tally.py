"""What a verification found: how much of each kind, and where the first of them are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

PLACES_MAX: Final = 20

#: Kind, (what it is, is the store wrong for it?).
KINDS: Final[dict[str, tuple[str, bool]]] = {
    "logFileMissing": ("ranges of the log whose file is missing", True),
    "logDamaged": ("places in the log where no record can be read", True),
    "crcWrong": ("records whose body does not fit its CRC", True),
    "displaced": ("records that say that they stand elsewhere", True),
    "recordWithoutEntry": ("records without an entry in their queue", True),
    "queueFileMissing": ("ranges of a queue whose file is missing", True),
    "entryFileMissing": ("queue entries whose record's file is missing", True),
    "entryBehindEnd": ("queue entries that point behind the log's end", True),
    "entryWithoutRecord": ("queue entries that point to no record", True),
    "entryOfAnother": ("queue entries that point to another message's record", True),
    "entrySizeWrong": ("queue entries with another size than their record", True),
    "tagsCodeWrong": ("queue entries with a wrong tags code", True),
    "indexDamaged": ("index files that contradict themselves", True),
    "indexWithoutRecord": ("index entries that point to no record", True),
    "indexWithoutKey": ("index entries whose record has no such key", True),
    "notDispatched": ("records at the log's end that are in no queue yet", False),
    "staleTail": ("places behind the log's end where old bytes look like a record", False),
    "topicGone": ("records of topics that were deleted, or deleted and made again", False),
    "voided": ("records that recovery put in place of damage", False),
    "entryRepeated": ("queue entries that recovery repeated in place of lost ones", False),
    "keyNotIndexed": ("keys of records that the index has not", False),
}


@dataclass(slots=True)
class Kind:
    """How much there is of one kind; `places` are the first."""

    count: int = 0
    places: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """Counts what is found, by kind."""

    records: int = 0
    entries: int = 0
    index_entries: int = 0
    log_bytes: int = 0
    kinds: dict[str, Kind] = field(default_factory=dict)

    def add(self, kind: str, places: Iterable[str], count: int) -> None:
        """Count COUNT findings of KIND; PLACES are only asked for while they are remembered."""
        assert kind in KINDS, kind
        if not count:
            return
        found = self.kinds.setdefault(kind, Kind())
        found.count += count
        if len(found.places) < PLACES_MAX:
            for place in places:
                found.places.append(place)
                if len(found.places) == PLACES_MAX:
                    break

    @property
    def is_wrong(self) -> bool:
        """Was anything found for which the store is wrong?"""
        return any(KINDS[name][1] for name in self.kinds)

    def document(self) -> dict[str, Any]:
        """Return everything, by name."""
        return {
            "records": self.records,
            "logBytes": self.log_bytes,
            "entries": self.entries,
            "indexEntries": self.index_entries,
            "wrong": self.is_wrong,
            "findings": [
                {
                    "kind": name,
                    "what": what,
                    "wrong": wrong,
                    "count": self.kinds[name].count,
                    "places": self.kinds[name].places,
                }
                for name, (what, wrong) in KINDS.items()
                if name in self.kinds
            ],
        }
