"""The records of transactions, as Apache RocketMQ writes them, and the commit record of atomic commits. Pure.

    half         RMQ_SYS_TRANS_HALF_TOPIC, queue 0   as sent (TRAN_MSG=true, PGROUP, UNIQ_KEY), plus REAL_TOPIC,
                                                     REAL_QID and __transactionId__ = UNIQ_KEY; no transaction bits in
                                                     sysFlag
    committed    the real topic and queue            sysFlag says committed, prepared offset = log offset of the half;
                                                     without REAL_TOPIC and REAL_QID
    checked      the half topic again, at its end    TRANSACTION_CHECK_TIMES = number of checks so far
    given up     TRANS_CHECK_MAX_TIME_TOPIC, queue 0 the last half message, all its properties
    op           RMQ_SYS_TRANS_OP_HALF_TOPIC         tag d, body "12,15,": these offsets of the half queue are resolved;
                                                     COPIED=true (PocketMQ only): each has a copy elsewhere by now

Body, flags, born time and host never change. Source: store-format.md §7.5, fixture `transactions`. The commit record
(queue 0 of rmq_sys_ATOMIC_COMMITS, integers big-endian) has the commit's id as UNIQ_KEY:

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

import re
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from ...proto import properties as names
from ...proto.errors import CorruptRecord, InvalidRecord, MessageTooLarge
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import UNIQ_KEY
from ...proto.record import (
    RECONSUME_TIMES_AT,
    SYS_COMMIT,
    SYS_FLAG_AT,
    SYS_TRANSACTION,
    Buffer,
    Host,
    Record,
    encode_record,
    encode_run,
    hosts_extra,
)
from ...proto.record_copy import RecordCopier
from ...proto.record_run import Longs, PropertyRanges, RunColumns, parse_run, starts_of
from ...proto.run import Run
from ...proto.topics import (
    CHECK_MAX_TIME_TOPIC,
    COMMIT_TOPIC,
    HALF_TOPIC,
    MESSAGE_SIZE_MAX,
    OP_HALF_TOPIC,
    PROPERTIES_SIZE_MAX,
)

#: Bytes of one op message's body, as RocketMQ's `transactionOpMsgMaxSize`.
OP_BODY_BYTES_MAX: Final = 4096
#: Space that a half message needs for checks: TRANSACTION_CHECK_TIMES and up to four digits.
_CHECK_ROOM: Final = len(names.TRANSACTION_CHECK_TIMES) + 6
#: Of the values by which a transaction is known: they are kept in memory while it is open.
_KEY_BYTES_MAX: Final = 255
#: Property of an op message: each half message that it names has a copy (committed, checked again or given up).
COPIED: Final = "COPIED"
_OP_PROPERTIES: Final = b"WAIT\x01true\x02TAGS\x01d\x02"
_COPIED_PROPERTIES: Final = _OP_PROPERTIES + b"COPIED\x01true\x02"
_OFFSET: Final = re.compile(rb"[0-9]{1,18}")
#: Properties that would not be true of a copy.
_UNTRUE: Final = (names.PROPERTY_CRC, names.PRODUCER_SEQUENCE)
_GONE_WHEN_COMMITTED: Final = (names.REAL_TOPIC, names.REAL_QUEUE_ID, *_UNTRUE)
_GONE_WHEN_PREPARED: Final = (
    names.TRANSACTION_ID,
    names.REAL_TOPIC,
    names.REAL_QUEUE_ID,
    names.TRANSACTION_CHECK_TIMES,
    names.TRANSACTION_PREPARED_QUEUE_OFFSET,
    names.PROPERTY_CRC,
)

# --- sent


def prepare(run: Run) -> Run:
    """Return RUN, whose messages are all transactional, as half messages.

    Raises InvalidRecord, which names record and field, for one without PGROUP or UNIQ_KEY, or with long ones,
    MessageTooLarge for one whose properties leave no space for the broker's own.
    """
    ranges = run.properties
    _required(
        run,
        ranges,
        names.PRODUCER_GROUP,
        "the group of producers that may be asked to commit or roll back",
    )
    ids = _required(run, ranges, names.UNIQ_KEY, "the id of the message, and so of its transaction")
    copier = RecordCopier(run.records, run.columns)
    real = names.encode_pair(names.REAL_TOPIC, run.topic) + names.encode_pair(
        names.REAL_QUEUE_ID, run.queue
    )
    halves = []
    for row, unique in enumerate(ids):
        string = names.without(copier.properties(row), _GONE_WHEN_PREPARED)
        string += names.encode_pair(names.TRANSACTION_ID, unique) + real
        _check_room(row, len(string))
        halves.append(
            copier.copy(
                row,
                topic=HALF_TOPIC,
                queue_id=0,
                properties=string,
                sys_flag=int(run.columns.sys_flag[row]) & ~SYS_TRANSACTION,
            )
        )
    return Run.of(HALF_TOPIC, 0, halves)


def _required(run: Run, ranges: PropertyRanges, name: str, what: str) -> list[str]:
    """Return the value of property NAME of each message; raise InvalidRecord if one has none."""
    starts, sizes = ranges.find(name)
    if (sizes <= 0).any():
        index = int((sizes <= 0).argmax())
        raise InvalidRecord(
            f"record {index} of the run: a message of a transaction without the property {name}: it is {what}",
            field=name,
            index=index,
        )
    if (sizes > _KEY_BYTES_MAX).any():
        index = int(sizes.argmax())
        raise InvalidRecord(
            f"record {index} of the run: the property {name} of a message of a transaction has {sizes[index]} bytes,"
            f" the limit is {_KEY_BYTES_MAX}: it is {what}",
            field=name,
            index=index,
            limit=_KEY_BYTES_MAX,
            value=int(sizes[index]),
        )
    return list(_texts(run.records, starts, sizes))


def _texts(records: Buffer, starts: Longs, sizes: Longs) -> Iterator[str]:
    view = memoryview(records)
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        yield str(view[start : start + size], "utf-8", "replace")


def _check_room(index: int, size: int) -> None:
    limit = PROPERTIES_SIZE_MAX - _CHECK_ROOM
    if size > limit:
        raise MessageTooLarge(
            f"record {index} of the run: properties have {size} bytes with those of the transaction, the limit is"
            f" {limit}: use shorter or fewer",
            field="properties",
            index=index,
            limit=limit,
            value=size,
        )


# --- half messages that are stored


class HalfCopies:
    """Copies of stored half messages, RECORDS."""

    def __init__(self, records: Sequence[bytes]) -> None:
        data = b"".join(records)
        self._columns = parse_run(data, starts_of([len(record) for record in records]))
        self._copier = RecordCopier(data, self._columns)

    def committed(self, index: int, topic: str, queue: int) -> bytes:
        """Return the message of half message INDEX, for QUEUE of TOPIC."""
        columns = self._columns
        return self._copier.copy(
            index,
            topic=topic,
            queue_id=queue,
            properties=names.without(self._copier.properties(index), _GONE_WHEN_COMMITTED),
            sys_flag=int(columns.sys_flag[index]) & ~SYS_TRANSACTION | SYS_COMMIT,
            prepared_offset=int(columns.log_offset[index]),
        )

    def checked(self, index: int, times: int) -> bytes:
        """Return half message INDEX with TIMES checks; unchanged if its properties have no space for that."""
        string = self._copier.properties(index)
        dropped = (names.TRANSACTION_CHECK_TIMES, *_UNTRUE)
        counted = names.without(string, dropped) + names.encode_pair(
            names.TRANSACTION_CHECK_TIMES, times
        )
        if len(counted) > PROPERTIES_SIZE_MAX:
            counted = names.without(string, (names.PRODUCER_SEQUENCE,))
        return self._to(index, HALF_TOPIC, counted)

    def again(self, index: int) -> bytes:
        """Return half message INDEX as it is."""
        string = names.without(self._copier.properties(index), (names.PRODUCER_SEQUENCE,))
        return self._to(index, HALF_TOPIC, string)

    def given_up(self, index: int) -> bytes:
        """Return half message INDEX as it is stored when no producer resolved it."""
        string = names.without(self._copier.properties(index), _UNTRUE)
        return self._to(index, CHECK_MAX_TIME_TOPIC, string)

    def _to(self, index: int, topic: str, properties: bytes) -> bytes:
        flags = int(self._columns.sys_flag[index]) & ~SYS_TRANSACTION
        return self._copier.copy(
            index, topic=topic, queue_id=0, properties=properties, sys_flag=flags
        )


# --- op messages


def op_parts(offsets: Iterable[int]) -> list[list[int]]:
    """Divide OFFSETS into what one op message holds each."""
    parts: list[list[int]] = []
    room = 0
    for offset in offsets:
        size = len(str(offset)) + 1
        if size > room:
            parts.append([])
            room = OP_BODY_BYTES_MAX
        parts[-1].append(offset)
        room -= size
    return parts


def op_run(parts: Iterable[Sequence[int]], now_ms: int, host: Host, *, copied: bool = False) -> Run:
    """Return an op message for each of PARTS, which says that the half messages at these offsets are resolved.

    HOST is the broker's own. COPIED: the log has a copy of each.
    """
    bodies = [b"".join(b"%d," % offset for offset in part) for part in parts]
    properties = _COPIED_PROPERTIES if copied else _OP_PROPERTIES
    data, sizes = encode_run(
        OP_HALF_TOPIC,
        0,
        [(body, properties) for body in bodies],
        born_timestamp_ms=now_ms,
        born_host=host,
    )
    columns = parse_run(data, starts_of(sizes))
    return Run(topic=OP_HALF_TOPIC, queue=0, records=data, columns=columns)


def resolved_offsets(body: bytes) -> list[int]:
    """Return the offsets of the half queue in the BODY of an op message; what is no number is passed over."""
    return [int(word) for word in body.split(b",") if _OFFSET.fullmatch(word)]


# ---------------------------------------------------------------- the commit record


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
    """Return the record of CONTENT, which follows that with the number PREVIOUS; raise MessageTooLarge."""
    covered = _LONG.pack(previous) + content.SerializeToString()
    body = _HEAD.pack(_MAGIC, _VERSION, zlib.crc32(covered)) + covered
    if len(body) > MESSAGE_SIZE_MAX:
        raise MessageTooLarge(
            f"the commit makes a record of {len(body)} bytes, the limit is {MESSAGE_SIZE_MAX}: commit more often",
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
    """Return what RECORD says; raise CorruptRecord for one that is damaged, or of a later version."""
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
        raise CorruptRecord(f"{where}: its CRC does not fit", field="body")
    (previous,) = _LONG.unpack_from(covered)
    try:
        content = pb.AtomicCommitRequest.FromString(covered[_LONG.size :])
    except DecodeError as error:
        raise CorruptRecord(f"{where}: {error}", field="body") from error
    return CommitRecord(record.queue_offset, record.log_offset, previous, content)


def check_ids(run: Run) -> None:
    """Raise InvalidRecord for a message of RUN without UNIQ_KEY, or with that of another."""
    seen: set[str] = set()
    for index, unique in enumerate(_ids(run.records, run.columns)):
        if not unique or unique in seen:
            what = (
                f"{UNIQ_KEY} {unique!r:.64} is that of another one"
                if unique
                else f"it has no {UNIQ_KEY}"
            )
            raise InvalidRecord(
                f"record {index} of the run for {run.topic}/{run.queue}: {what}, and could not be told from others",
                field=UNIQ_KEY,
                index=index,
            )
        seen.add(unique)


def _ids(records: Buffer, columns: RunColumns) -> list[str]:
    """Return the UNIQ_KEY of each of RECORDS; "": it has none."""
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
    """Yield of each of RECORDS that is a copy of a commit record at one of COMMITS_AT that, UNIQ_KEY, row, place."""
    columns = parse_run(records, starts_of(sizes))
    rows = np.flatnonzero(np.isin(columns.prepared_offset, list(commits_at)))
    if len(rows):
        ids = _ids(records, columns)
        for row in rows.tolist():
            yield int(columns.prepared_offset[row]), ids[row], row, int(columns.log_offset[row])
