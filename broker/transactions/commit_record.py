"""The commit record of an atomic commit, and the messages that follow it. Pure.

The record (queue 0 of rmq_sys_ATOMIC_COMMITS, integers big-endian) has the commit's id as UNIQ_KEY:

    offset  size  field
    0       4     "PMAC"
    4       1     version, 1
    5       4     CRC-32 of all that follows
    9       8     number in this queue of the previous commit record, −1: the first since the broker started
    17            the AtomicCommitRequest, with its messages as they are appended later, without leases

The messages follow as *copies* in their queues. A copy's prepared transaction offset is the log offset of the commit
record; with its UNIQ_KEY this identifies it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from ...proto.errors import CorruptRecord, InvalidRecord, MessageTooLarge
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import UNIQ_KEY
from ...proto.property_ranges import PropertyRanges
from ...proto.record import (
    RECONSUME_TIMES_AT,
    SYS_FLAG_AT,
    Buffer,
    Host,
    Record,
    encode_record,
    hosts_extra,
)
from ...proto.record_run import Longs, RunColumns, parse_run, starts_of
from ...proto.run import Run
from ...proto.topics import COMMIT_TOPIC, MESSAGE_SIZE_MAX

_MAGIC: Final = b"PMAC"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">4sBI")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_PREPARED_AT: Final = RECONSUME_TIMES_AT + _INT.size


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A commit record that was read: its NUMBER in the queue, its log offset, and its content."""

    number: int
    log_offset: int
    previous: int
    content: pb.AtomicCommitRequest


def encode_commit(content: pb.AtomicCommitRequest, previous: int, now_ms: int, host: Host) -> bytes:
    """Return the record of CONTENT, whose predecessor has the number PREVIOUS; raise MessageTooLarge."""
    covered = _LONG.pack(previous) + content.SerializeToString()
    body = _HEAD.pack(_MAGIC, _VERSION, zlib.crc32(covered)) + covered
    if len(body) > MESSAGE_SIZE_MAX:
        raise MessageTooLarge(
            f"the record of the commit has {len(body)} bytes, the limit is {MESSAGE_SIZE_MAX}: commit more often",
            field="runs",
            limit=MESSAGE_SIZE_MAX,
            value=len(body),
        )
    return encode_record(
        Record(
            topic=COMMIT_TOPIC,
            body=body,
            born_timestamp_ms=now_ms,
            born_host=host,
            properties={UNIQ_KEY: content.commit_id},
        )
    )


def decode_commit(record: Record) -> CommitRecord:
    """Return the commit in RECORD; raise CorruptRecord if it is damaged, or of a later version."""
    where = f"commit record {record.queue_offset} at {record.log_offset} of the log"
    covered = record.body[_HEAD.size :]
    if len(covered) < _LONG.size:
        raise CorruptRecord(f"{where} has {len(record.body)} bytes, which is too few", field="body")
    magic, version, crc = _HEAD.unpack_from(record.body)
    if magic != _MAGIC or version != _VERSION:
        raise CorruptRecord(
            f"{where} begins with {magic!r}, version {version}; this broker reads {_MAGIC!r}, version {_VERSION}",
            field="body",
        )
    if zlib.crc32(covered) != crc:
        raise CorruptRecord(f"{where}: its CRC is wrong", field="body")
    (previous,) = _LONG.unpack_from(covered)
    try:
        content = pb.AtomicCommitRequest.FromString(covered[_LONG.size :])
    except DecodeError as error:
        raise CorruptRecord(f"{where}: {error}", field="body") from error
    return CommitRecord(record.queue_offset, record.log_offset, previous, content)


def check_ids(run: Run) -> None:
    """Raise InvalidRecord for a message of RUN with a missing or repeated UNIQ_KEY."""
    seen: set[str] = set()
    for index, unique in enumerate(_ids(run.records, run.columns)):
        if not unique or unique in seen:
            what = (
                f"{UNIQ_KEY} {unique!r:.64} is also that of another message"
                if unique
                else f"it has no {UNIQ_KEY}"
            )
            raise InvalidRecord(
                f"record {index} of the batch for {run.topic}/{run.queue}: {what}, so it could not be identified",
                field=UNIQ_KEY,
                index=index,
            )
        seen.add(unique)


def _ids(records: Buffer, columns: RunColumns) -> list[str]:
    """Return the UNIQ_KEY of each of RECORDS; "" if it has none."""
    texts = PropertyRanges(records, columns).texts(UNIQ_KEY)
    return ["" if text is None else text for text in texts]


def run_ids(run: pb.AtomicRun) -> list[str]:
    """Return the UNIQ_KEY of each message of RUN."""
    return _ids(run.records, parse_run(run.records, starts_of(run.sizes)))


def copies_of(run: pb.AtomicRun, commit_at: int, rows: Collection[int]) -> Run:
    """Return ROWS of the messages of RUN as copies of the commit record at COMMIT_AT of the log."""
    data = memoryview(run.records)
    copies = []
    for row, start in enumerate(starts_of(run.sizes).tolist()):
        if row in rows:
            copy = bytearray(data[start : start + run.sizes[row]])
            (sys_flag,) = _INT.unpack_from(copy, SYS_FLAG_AT)
            _LONG.pack_into(copy, _PREPARED_AT + hosts_extra(sys_flag), commit_at)
            copies.append(copy)
    return Run.of(run.topic, run.queue, copies)


def copies_in(
    records: Buffer, sizes: Longs, commits_at: Collection[int]
) -> Iterator[tuple[int, str, int, int]]:
    """Yield (commit offset, UNIQ_KEY, row, place) of each of RECORDS that is a copy of a record at COMMITS_AT."""
    columns = parse_run(records, starts_of(sizes))
    rows = np.flatnonzero(np.isin(columns.prepared_offset, list(commits_at)))
    if len(rows):
        ids = _ids(records, columns)
        for row in rows.tolist():
            yield int(columns.prepared_offset[row]), ids[row], row, int(columns.log_offset[row])
