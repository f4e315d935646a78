"""What a look-up was asked for, and what it found: records, and what the files cannot tell any more. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ...proto.instant import format_instant
from ...proto.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY
from ...proto.record import Record
from .index_files import Candidate
from .log_files import Absence, Stored

TIME_MAX_MS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Store times from BEGIN_MS up to and with END_MS, Unix milliseconds."""

    begin_ms: int = 0
    end_ms: int = TIME_MAX_MS

    def __contains__(self, time_ms: int) -> bool:
        return self.begin_ms <= time_ms <= self.end_ms


ALL_TIMES: Final = TimeRange()


@dataclass(slots=True)
class Found:
    """The answer of one store.

    hits: oldest first;  candidates: index entries with the hash that was looked for;  collisions: those that lead to
    a record with another key of the same hash;  strays: to a record that should not be there at all (damage);
    repeats: to a record that another entry led to;  expired: to what the retention has deleted;
    unreadable: places where a record should be;  scanned_bytes: of the log, read because no index covers them;
    may_have_existed: could the message have been there, and be gone, or be out of reach?;  notes: sentences.
    """

    hits: list[Stored] = field(default_factory=list)
    candidates: int = 0
    collisions: int = 0
    strays: int = 0
    repeats: int = 0
    expired: list[Candidate] = field(default_factory=list)
    unreadable: list[Absence] = field(default_factory=list)
    scanned_bytes: int = 0
    may_have_existed: bool = False
    more: bool = False
    notes: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return everything but the hits, as JSON shows it."""
        return {
            "hits": len(self.hits),
            "more": self.more,
            "candidates": self.candidates,
            "collisions": self.collisions,
            "strays": self.strays,
            "repeats": self.repeats,
            "expired": [
                {"physicalOffset": one.log_offset, "storedAbout": one.time_ms, "file": one.file}
                for one in self.expired
            ],
            "unreadable": [
                {"physicalOffset": one.log_offset, "why": one.why} for one in self.unreadable
            ],
            "scannedBytes": self.scanned_bytes,
            "mayHaveExisted": self.may_have_existed,
            "notes": self.notes,
        }

    def sentences(self) -> list[str]:
        """Return what people should know beside the hits."""
        told = []
        if self.collisions:
            told.append(
                f"{self.collisions} index entries have the same hash, but belong to other keys"
            )
        if self.strays:
            told.append(f"{self.strays} index entries lead to records that they do not belong to")
        if self.expired:
            told.append(_expired_sentence(self.expired))
        told += [f"log offset {one.log_offset:,}: {one.why}" for one in self.unreadable[:8]]
        if len(self.unreadable) > 8:
            told.append(f"and {len(self.unreadable) - 8} more that cannot be read")
        if self.scanned_bytes:
            told.append(f"{self.scanned_bytes:,} bytes of the log that no index covers were read")
        if self.more:
            told.append("there are more: --count shows them")
        return told + self.notes


def _expired_sentence(expired: list[Candidate]) -> str:
    times = [one.time_ms for one in expired]
    oldest, newest = format_instant(min(times)), format_instant(max(times))
    when = f"at about {oldest}" if min(times) == max(times) else f"from about {oldest} to {newest}"
    return (
        f"{len(expired)} index entries with its hash point to log files that have expired;"
        f" what they held was stored {when}"
    )


def keys_of(record: Record) -> list[str]:
    """Return the keys under which RECORD is indexed, but for its tag."""
    words = [word for word in record.properties.get(KEYS, "").split(KEY_SEPARATOR) if word]
    unique = record.properties.get(UNIQ_KEY)
    return [unique, *words] if unique else words
