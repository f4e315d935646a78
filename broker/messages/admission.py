"""Admission: validates a batch before it is stored.

A batch must be well formed, and this broker must be able to deliver it as requested. A batch in another form than this
broker writes is encoded again: store hosts have 4 bytes (an IPv4 address), and records are V1 unless the topic has more
than 127 bytes.

Then `split_by_destination` divides the batch: immediate delivery, a delay (delay/delays.py), or half messages of
transactions.

Pure. A large batch needs no Python per message except the map over the CRCs, if all messages are immediate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...proto import properties as names
from ...proto.errors import InvalidArgument, InvalidRecord, MessageTooLarge, PocketMQError
from ...proto.property_ranges import PropertyRanges
from ...proto.record import (
    MAGIC_V1,
    MAGIC_V2,
    NO_HOST,
    SYS_INNER_BATCH,
    SYS_NEEDS_UNWRAP,
    SYS_PREPARED,
    SYS_STORE_V6,
    SYS_TRANSACTION,
    decode_record,
    encode_record,
)
from ...proto.record_run import Longs, RunColumns
from ...proto.run import Run, check_run
from ...proto.topics import TOPIC_LENGTH_MAX
from ..delay_rules import DelayLimits, Part, Past, route, select

T = TypeVar("T")
Flags = NDArray[np.bool_]
#: Converts the transactional messages of a batch to half messages.
Prepare = Callable[[Run], Run]
#: Properties of messages that are not simply appended to their queue.
_SPECIAL: Final = (*names.ASKING_NAMES, names.TRANSACTION_PREPARED, names.TIMER_DELETE_KEY)
#: Properties that give a message another type than NORMAL, although it is simply appended.
_TYPING: Final = (names.LITE_TOPIC, names.PRIORITY, names.SHARDING_KEY)
#: A record with one of these properties, or with that of a type, contains one of these byte
#: strings.
_HINTS: Final = (
    b"DELAY",
    b"TIMER_DEL",
    b"TRAN_MSG",
    *(name.encode() for name in _TYPING),
)


@dataclass(frozen=True, slots=True)
class ValidatedBatch:
    """A batch that may be stored.

    Attributes:
        as_sent: Whether its bytes are unchanged; otherwise it was encoded again.
        plain: Whether all messages are simply appended to their queue.
        halves: Which messages are half messages; None: none.
        normal: Whether all messages have the type NORMAL.
    """

    run: Run
    as_sent: bool
    plain: bool
    halves: Flags | None
    normal: bool


def validate(records: bytes, sizes: Sequence[int], topic: str, queue: int) -> ValidatedBatch:
    """Validate RECORDS; return the batch that may be stored.

    Raises InvalidRecord, MessageTooLarge or InvalidArgument, which name record, field and value.
    """
    run = check_run(records, sizes, topic, queue)
    if run.is_standard:
        return _judged(run, as_sent=True, checked=True)
    _check_batches(run.columns)
    as_sent = _fits(run.columns)
    if not as_sent:
        run = _encoded_again(run)
    return _judged(run, as_sent=as_sent, checked=False)


def validate_encoded(run: Run, *, plain: bool, normal: bool) -> ValidatedBatch:
    """Validate RUN, which the broker itself encoded; return the batch that may be stored.

    PLAIN: no message is delayed or a half message. NORMAL: all have the type NORMAL. Raises InvalidArgument for a
    combination of properties that cannot be delivered.
    """
    if plain:
        return ValidatedBatch(run, True, True, None, normal)
    return _judged(run, as_sent=True, checked=True)


def _judged(run: Run, *, as_sent: bool, checked: bool) -> ValidatedBatch:
    """Return RUN, which is well-formed, with the properties that decide its destinations.

    CHECKED: no message has a transaction type.
    """
    may_be_special = run.may_have(_HINTS)
    plain = not (may_be_special and any(run.properties.has(name) for name in _SPECIAL))
    normal = plain and not (may_be_special and any(run.properties.has(name) for name in _TYPING))
    halves = None if plain else _halves(run)
    if not checked:
        _check_transactions(run.columns, halves)
    if not plain:
        _check_recalls(run.properties)
        if halves is not None:
            _check_delays(run.properties, halves)
    return ValidatedBatch(run, as_sent, plain, halves, normal)


def check_body_sizes(run: Run, limit: int) -> None:
    """Raise MessageTooLarge if a body in RUN exceeds LIMIT bytes (`store.message_size_max_bytes`)."""
    if run.size_range[1] <= limit:  # The sizes are of complete records; bodies are smaller.
        return
    sizes = run.columns.body_size
    row = int(sizes.argmax())
    if sizes[row] > limit:
        raise MessageTooLarge(
            f"the body of record {row} has {sizes[row]} bytes, the limit is {limit} (store.message_size_max_bytes):"
            " split it, or store it elsewhere and send its address",
            field="body",
            limit=limit,
            value=int(sizes[row]),
        )


def split_by_destination(
    admitted: ValidatedBatch,
    rules: DelayLimits,
    now_ms: int,
    prepare: Prepare,
    *,
    past: Past = "refuse",
) -> list[Part]:
    """Return the parts in which ADMITTED is stored: immediate messages, delayed ones, and half messages.

    PAST decides about delivery times in the past. Raises the errors of `route` and PREPARE.
    """
    run, halves = admitted.run, admitted.halves
    if admitted.plain:
        return [Part(run, np.arange(len(run)), None)]
    if halves is None:
        return route(run, rules, now_ms, past=past)
    if halves.all():
        return [Part(prepare(run), np.arange(len(run)), None)]
    rows, others = halves.nonzero()[0], (~halves).nonzero()[0]
    with_halves = [Part(_numbered(lambda: prepare(select(run, rows)), rows), rows, None)]
    parts = _numbered(lambda: route(select(run, others), rules, now_ms, past=past), others)
    return [replace(part, rows=others[part.rows]) for part in parts] + with_halves


def _numbered(work: Callable[[], T], rows: Longs) -> T:
    """Return the result of WORK on ROWS of a batch; its errors get the row numbers of the complete batch."""
    try:
        return work()
    except PocketMQError as error:
        index = error.details.get("index")
        if index is not None:
            number = str(rows[int(index)])
            error.message = error.message.replace(f"record {index} ", f"record {number} ", 1)
            error.details["index"] = number
        raise


def _check_batches(columns: RunColumns) -> None:
    """Raise an error if a record is an inner batch."""
    special = columns.sys_flag & (SYS_INNER_BATCH | SYS_NEEDS_UNWRAP)
    if special.any():
        index = int((special != 0).argmax())
        value = int(columns.sys_flag[index])
        raise InvalidRecord(
            f"record {index} of the batch: sysFlag {value:#x} marks an inner batch; send its messages one by one",
            field="sysFlag",
            index=index,
            value=value,
        )


def _halves(run: Run) -> Flags | None:
    """Return which messages are half messages (TRAN_MSG is "true", in any case), or None if there are none."""
    starts, sizes = run.properties.find(names.TRANSACTION_PREPARED)
    records = memoryview(run.records)
    halves: Flags = np.zeros(len(starts), np.bool_)
    for row in (sizes == len("true")).nonzero()[0].tolist():
        at = int(starts[row])
        halves[row] = bytes(records[at : at + 4]).lower() == b"true"
    return halves if halves.any() else None


def _check_transactions(columns: RunColumns, halves: Flags | None) -> None:
    """Raise an error for transaction types; only half messages may have the type prepared."""
    types = columns.sys_flag & SYS_TRANSACTION
    if not types.any():
        return
    bad = types != 0
    if halves is not None:
        bad &= ~(halves & (types == SYS_PREPARED))
    if bad.any():
        index = int(bad.argmax())
        value = int(columns.sys_flag[index])
        raise InvalidRecord(
            f"record {index} of the batch: sysFlag {value:#x} marks a part of a transaction: send a half message"
            " with the property TRAN_MSG=true, then EndTransaction",
            field="sysFlag",
            index=index,
            value=value,
        )


def _check_recalls(ranges: PropertyRanges) -> None:
    """Raise an error for recall markers: they could name a message that is missing, or one of another topic."""
    index = _first(ranges.find(names.TIMER_DELETE_KEY)[1] > 0)
    if index is not None:
        raise InvalidArgument(
            f"record {index} of the batch has the property {names.TIMER_DELETE_KEY}: use Recall to cancel a message",
            field=names.TIMER_DELETE_KEY,
            index=index,
        )


def _check_delays(ranges: PropertyRanges, halves: Flags) -> None:
    """Raise an error for half messages with a delay: its start would be undefined."""
    for name in names.ASKING_NAMES:
        index = _first(halves & (ranges.find(name)[1] > 0))
        if index is not None:
            raise InvalidArgument(
                f"record {index} of the batch has the properties {names.TRANSACTION_PREPARED} and {name}: a message"
                " of a transaction is delivered when it is committed, and cannot be delayed as well",
                field=name,
                index=index,
            )


def _first(flags: Flags) -> int | None:
    return int(flags.argmax()) if flags.any() else None


def _fits(columns: RunColumns) -> bool:
    """Return whether all records have an IPv4 store host, and the version for the length of their topic."""
    if (columns.sys_flag & SYS_STORE_V6).any():
        return False
    # All records have the same topic. A Java broker reads the topic length in a V1 record as a
    # signed byte.
    fitting = MAGIC_V2 if int(columns.topic_size[0]) > TOPIC_LENGTH_MAX else MAGIC_V1
    return bool((columns.magic == fitting).all())


def _encoded_again(run: Run) -> Run:
    """Encode RUN again, with an IPv4 store host and the version for its topic."""
    encoded = []
    for row, start in enumerate(run.columns.starts.tolist()):
        record = replace(decode_record(run.records, start), store_host=NO_HOST)
        encoded.append(encode_record(record, property_string=run.property_string(row)))
    return Run.of(run.topic, run.queue, encoded)
