"""Atomic commits whose records are found in the log at a start, and the places of their messages.

A commit record names its predecessor. A power cut can leave a later record without an earlier one: it is invalid.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...proto import errors
from ...proto.record import decode_record
from ...proto.record_run import starts_of
from ...proto.topics import COMMIT_TOPIC
from ...store.message_store import MessageStore
from .commit_record import CommitRecord, copies_in, decode_commit, run_ids
from .half_copies import slices_from

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """Where a copy is in the log."""

    queue_offset: int
    log_offset: int


@dataclass(frozen=True, slots=True)
class FoundCommit:
    """A valid commit, and the places of the messages of each batch; None: there is no copy."""

    record: CommitRecord
    places: list[list[CopyPlace | None]]

    @property
    def is_whole(self) -> bool:
        """Return whether each message has a copy."""
        return all(place is not None for places in self.places for place in places)


def found_commits(store: MessageStore, begin: int) -> list[FoundCommit]:
    """Return the valid commits whose records STORE has from number BEGIN on, in order."""
    records = list(_valid_commits(store, begin))
    copies = _copies(store, records)
    return [
        FoundCommit(
            record,
            [
                [
                    copies.get((record.log_offset, run.topic, run.queue, unique))
                    for unique in run_ids(run)
                ]
                for run in record.content.runs
            ],
        )
        for record in records
    ]


def _valid_commits(store: MessageStore, begin: int) -> Iterator[CommitRecord]:
    last = begin - 1
    for slices in slices_from(store, COMMIT_TOPIC, 0, begin, check_crcs=False):
        starts = starts_of(slices.sizes).tolist()
        for number, start in zip(slices.queue_offsets.tolist(), starts, strict=True):
            try:
                record = decode_commit(decode_record(slices.records, start))
            except errors.CorruptRecord as error:
                logger.error("atomic commit lost number=%d reason=%s", number, error.message)
                last = number
                continue
            if record.previous not in (-1, last):
                logger.warning(
                    "atomic commit ignored, the one before it is missing group=%s id=%s number=%d",
                    record.content.group,
                    record.content.commit_id,
                    number,
                )
                continue
            last = number
            yield record


def _copies(
    store: MessageStore, records: Sequence[CommitRecord]
) -> dict[tuple[int, str, int, str], CopyPlace]:
    """Return the places of all copies of RECORDS, by log offset of the record, topic, queue and UNIQ_KEY."""
    found: dict[tuple[int, str, int, str], CopyPlace] = {}
    commits_at: dict[tuple[str, int], list[int]] = {}
    for record in records:
        for run in record.content.runs:
            commits_at.setdefault((run.topic, run.queue), []).append(record.log_offset)
    for (topic, queue), wanted in commits_at.items():
        entries = store.queues.get(topic, queue)
        if entries is None:
            continue
        begin = entries.first_from(min(wanted))
        for slices in slices_from(store, topic, queue, begin):
            for at, unique, row, log_offset in copies_in(slices.records, slices.sizes, wanted):
                place = CopyPlace(int(slices.queue_offsets[row]), log_offset)
                found.setdefault((at, topic, queue, unique), place)
    return found
