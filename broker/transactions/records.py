"""The records of transactions, as Apache RocketMQ writes them. Pure.

    half         RMQ_SYS_TRANS_HALF_TOPIC, queue 0   as sent (TRAN_MSG=true, PGROUP, UNIQ_KEY), plus REAL_TOPIC,
                                                     REAL_QID and __transactionId__ = UNIQ_KEY; no transaction bits in
                                                     sysFlag
    committed    the real topic and queue            sysFlag says committed, prepared offset = log offset of the half;
                                                     without REAL_TOPIC and REAL_QID
    checked      the half topic again, at its end    TRANSACTION_CHECK_TIMES = number of checks so far
    given up     TRANS_CHECK_MAX_TIME_TOPIC, queue 0 the last half message, all its properties
    op           RMQ_SYS_TRANS_OP_HALF_TOPIC         tag d, body "12,15,": these offsets of the half queue are resolved;
                                                     COPIED=true (PocketMQ only): each has a copy elsewhere by now

Body, flags, born time and host never change. Source: store-format.md §7.5, fixture `transactions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ...proto import properties as names
from ...proto.errors import InvalidRecord, MessageTooLarge
from ...proto.property_ranges import PropertyRanges
from ...proto.record import SYS_COMMIT, SYS_TRANSACTION, Buffer, Host, encode_run
from ...proto.record_copy import RecordCopier
from ...proto.record_run import Longs, parse_run, starts_of
from ...proto.run import Run
from ...proto.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, PROPERTIES_SIZE_MAX

#: Bytes of one op message's body, as RocketMQ's `transactionOpMsgMaxSize`.
OP_BODY_BYTES_MAX: Final = 4096
#: Space that a half message needs for checks: TRANSACTION_CHECK_TIMES and up to four digits.
_CHECK_ROOM: Final = len(names.TRANSACTION_CHECK_TIMES) + 6
#: Limit of the values that identify a transaction: they are in memory while it is open.
_KEY_BYTES_MAX: Final = 255
#: Property of an op message: each half message that it names has a copy (committed, checked again or given up).
COPIED: Final = "COPIED"
_OP_PROPERTIES: Final = b"WAIT\x01true\x02TAGS\x01d\x02"
_COPIED_PROPERTIES: Final = _OP_PROPERTIES + b"COPIED\x01true\x02"
_OFFSET: Final = re.compile(rb"[0-9]{1,18}")
#: Properties that would be wrong on a copy.
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

    Raises InvalidRecord, which names record and field, if PGROUP or UNIQ_KEY is missing or too long; MessageTooLarge if
    the properties leave no space for those of the broker.
    """
    ranges = run.properties
    _required(
        run,
        ranges,
        names.PRODUCER_GROUP,
        "the producer group that is asked to commit or roll back",
    )
    ids = _required(run, ranges, names.UNIQ_KEY, "the id of the message, and of its transaction")
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
            f"record {index} of the batch: a message of a transaction needs the property {name}, {what}",
            field=name,
            index=index,
        )
    if (sizes > _KEY_BYTES_MAX).any():
        index = int(sizes.argmax())
        raise InvalidRecord(
            f"record {index} of the batch: the property {name} of a message of a transaction has {sizes[index]} bytes,"
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
            f"record {index} of the batch: properties have {size} bytes with those of the transaction, the limit is"
            f" {limit}: use shorter or fewer ones",
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
        """Return the committed message of half message INDEX, for QUEUE of TOPIC."""
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
        """Return half message INDEX unchanged."""
        string = names.without(self._copier.properties(index), (names.PRODUCER_SEQUENCE,))
        return self._to(index, HALF_TOPIC, string)

    def given_up(self, index: int) -> bytes:
        """Return half message INDEX as it is stored when it is given up."""
        string = names.without(self._copier.properties(index), _UNTRUE)
        return self._to(index, CHECK_MAX_TIME_TOPIC, string)

    def _to(self, index: int, topic: str, properties: bytes) -> bytes:
        flags = int(self._columns.sys_flag[index]) & ~SYS_TRANSACTION
        return self._copier.copy(
            index, topic=topic, queue_id=0, properties=properties, sys_flag=flags
        )


# --- op messages


def op_parts(offsets: Iterable[int]) -> list[list[int]]:
    """Divide OFFSETS into parts for one op message each."""
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
    """Return an op message for each of PARTS, which marks the half messages at these offsets as resolved.

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
    """Return the offsets of the half queue in the BODY of an op message; malformed ones are ignored."""
    return [int(word) for word in body.split(b",") if _OFFSET.fullmatch(word)]
