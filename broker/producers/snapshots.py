"""The snapshot of the table of producers: `<root>/pocketmq/producers.json`, replaced atomically.

    {"version": 1, "logEnd": …, "tail": …, "crc": …}                       one line
    [[id, topic, queue, epoch, known from, next, [[gap begin, end], …], [run, …], end offset, used ms], …]
    where the least recently used is first, and a run (a batch) is
    [first, count, log offset, end offset, store ms, queue offset, [log offset, …] or null]

It covers all of the log before `logEnd`, and is written only once that is on disk. `tail` is the CRC-32 of the last
`TAIL_BYTES` before `logEnd`: it identifies the log. A log that was cut before `logEnd` and then continued differs
there. `crc` is that of the second line.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...store.commit_log import CommitLog
from .sequences import Key, Sequence, StoredRun

TAIL_BYTES: Final = 4096
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ProducerSnapshot:
    """A stored snapshot: the sequences, and the log offset up to which they are complete."""

    log_end: int
    tail: int
    sequences: list[tuple[Key, Sequence]]

    def is_of(self, log: CommitLog) -> bool:
        """Return whether LOG is the log of the snapshot."""
        return log_tail(log, self.log_end) == self.tail


def log_tail(log: CommitLog, end: int) -> int | None:
    """Return the CRC of the bytes of LOG before END; None if it does not have them (any more)."""
    if end == 0:
        return 0
    file = log.files.file_at(end - 1)
    if file is None or end > file.start + file.position:
        return None
    at = end - file.start
    return zlib.crc32(file.view[max(0, at - TAIL_BYTES) : at])


def rows_of(sequences: Iterable[tuple[Key, Sequence]], ahead_ms: int = 0) -> list[list[Any]]:
    """Return SEQUENCES as rows for `encoded`; this takes about 8 ms for 10,000."""
    return [
        [
            *key,
            sequence.epoch,
            sequence.known_from,
            sequence.next,
            sequence.missing,
            sequence.runs,
            sequence.end_offset,
            sequence.used_ms + ahead_ms,
        ]
        for key, sequence in sequences
    ]


def encoded(log_end: int, tail: int, rows: Iterable[list[Any]]) -> bytes:
    """Return the contents of the file. ROWS are from `rows_of`. Thread-safe."""
    body = ",".join([_text(row) for row in rows]).join("[]").encode()
    head = {"version": _VERSION, "logEnd": log_end, "tail": tail, "crc": zlib.crc32(body)}
    return json.dumps(head).encode() + b"\n" + body


def decoded(data: bytes) -> ProducerSnapshot | None:
    """Return the snapshot in DATA; None if it is damaged or another file."""
    head_line, _, body = data.partition(b"\n")
    try:
        head = json.loads(head_line)
        if head["version"] != _VERSION or head["crc"] != zlib.crc32(body):
            return None
        sequences = [_sequence(row) for row in json.loads(body)]
        return ProducerSnapshot(int(head["logEnd"]), int(head["tail"]), sequences)
    except (ValueError, TypeError, KeyError, IndexError):
        return None


def _text(row: list[Any]) -> str:
    *values, runs, end_offset, used_ms = row
    return json.dumps([*values, [*map(_run, runs)], end_offset, used_ms], separators=(",", ":"))


def _run(stored: StoredRun) -> list[Any]:
    offsets = None if stored.log_offsets is None else stored.log_offsets.tolist()
    return [
        stored.first,
        stored.count,
        stored.log_offset,
        stored.end_offset,
        stored.store_ms,
        stored.queue_offset,
        offsets,
    ]


def _sequence(row: list[Any]) -> tuple[Key, Sequence]:
    producer_id, topic, queue, epoch, known_from, after, missing, runs, end_offset, used_ms = row
    sequence = Sequence(epoch, used_ms)
    sequence.known_from, sequence.next, sequence.end_offset = known_from, after, end_offset
    sequence.missing = tuple((low, high) for low, high in missing)
    sequence.runs = tuple(_stored(*run) for run in runs)
    return (producer_id, topic, queue), sequence


def _stored(
    first: int,
    count: int,
    log_offset: int,
    end_offset: int,
    store_ms: int,
    queue_offset: int,
    log_offsets: list[int] | None,
) -> StoredRun:
    offsets = None if log_offsets is None else np.array(log_offsets, np.int64)
    return StoredRun(first, count, log_offset, end_offset, store_ms, queue_offset, offsets)
