"""Admission: validates a batch before it is stored.

A batch must be well formed, and this broker must be able to deliver it as requested. A batch in another form than this
broker writes is encoded again: store hosts have 4 bytes (an IPv4 address), and records are V1 unless the topic has more
than 127 bytes.

Then `ways` divides the batch by destination: immediate delivery, a delay (delay/delays.py), or half messages of
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
from ..delay_rules import DelayRules, Part, Past, divide, taken

T = TypeVar("T")
Flags = NDArray[np.bool_]
#: Makes half messages of a run of transactional ones.
Prepare = Callable[[Run], Run]
#: Properties of what is not simply stored in its queue.
_SPECIAL: Final = (*names.ASKING_NAMES, names.TRANSACTION_PREPARED, names.TIMER_DELETE_KEY)
#: What makes a message that is simply stored none of the type NORMAL.
_TYPING: Final = (names.LITE_TOPIC, names.PRIORITY, names.SHARDING_KEY)
#: One of these bytes is in every record with such a property, or that of a type.
_HINTS: Final = (
    b"DELAY",
    b"TIMER_DEL",
    b"TRAN_MSG",
    *(name.encode() for name in _TYPING),
)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A run that may be stored.

    as_sent: was it not encoded again?  plain: all of it is simply stored in its queue;
    halves: which are half messages, None: none is;  normal: is all of it of the type NORMAL?
    """

    run: Run
    as_sent: bool
    plain: bool
    halves: Flags | None
    normal: bool


def admit(records: bytes, sizes: Sequence[int], topic: str, queue: int) -> Admitted:
    """Return the run of RECORDS as it may be stored.

    Raises InvalidRecord, MessageTooLarge or InvalidArgument, which name record, field and value.
    """
    run = check_run(records, sizes, topic, queue)
    if run.is_usual:
        return _judged(run, as_sent=True, checked=True)
    _check_batches(run.columns)
    as_sent = _fits(run.columns)
    if not as_sent:
        run = _encoded_again(run)
    return _judged(run, as_sent=as_sent, checked=False)


def admit_own(run: Run, *, plain: bool, normal: bool) -> Admitted:
    """Return RUN, which the broker itself encoded from what was sent, as it may be stored.

    PLAIN: none of its messages is delayed or a half message. NORMAL: nor is any of another type. Raises InvalidArgument
    for what cannot be delivered as asked.
    """
    if plain:
        return Admitted(run, True, True, None, normal)
    return _judged(run, as_sent=True, checked=True)


def _judged(run: Run, *, as_sent: bool, checked: bool) -> Admitted:
    """Return RUN, well formed, with what says which ways its messages take.

    CHECKED: none of it says that it is part of a transaction.
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
    return Admitted(run, as_sent, plain, halves, normal)


def check_body_sizes(run: Run, limit: int) -> None:
    """Raise MessageTooLarge if a body of RUN has more than LIMIT bytes, which `store.message_size_max_bytes` allows."""
    if run.size_range[1] <= limit:  # Whole records: bodies are smaller.
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


def ways(
    admitted: Admitted,
    rules: DelayRules,
    now_ms: int,
    prepare: Prepare,
    *,
    past: Past = "refuse",
) -> list[Part]:
    """Return the parts in which ADMITTED is stored: what is prompt, delayed, and the half messages.

    PAST is what is done with an instant that has passed. Raises what `divide` and PREPARE raise.
    """
    run, halves = admitted.run, admitted.halves
    if admitted.plain:
        return [Part(run, np.arange(len(run)), None)]
    if halves is None:
        return divide(run, rules, now_ms, past=past)
    if halves.all():
        return [Part(prepare(run), np.arange(len(run)), None)]
    rows, others = halves.nonzero()[0], (~halves).nonzero()[0]
    with_halves = [Part(_numbered(lambda: prepare(taken(run, rows)), rows), rows, None)]
    parts = _numbered(lambda: divide(taken(run, others), rules, now_ms, past=past), others)
    return [replace(part, rows=others[part.rows]) for part in parts] + with_halves


def _numbered(work: Callable[[], T], rows: Longs) -> T:
    """Return what WORK does with some records of a run, ROWS; errors count by the whole run."""
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
    """Refuse inner batches."""
    special = columns.sys_flag & (SYS_INNER_BATCH | SYS_NEEDS_UNWRAP)
    if special.any():
        index = int((special != 0).argmax())
        value = int(columns.sys_flag[index])
        raise InvalidRecord(
            f"record {index} of the run: sysFlag {value:#x} is an inner batch's; send its messages one by one",
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
    """Refuse transaction types; a half message may say prepared."""
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
            f"record {index} of the run: sysFlag {value:#x} says that it is part of a transaction: send a half message"
            " with the property TRAN_MSG=true, and its outcome with EndTransaction",
            field="sysFlag",
            index=index,
            value=value,
        )


def _check_recalls(ranges: PropertyRanges) -> None:
    """Refuse the markers that recall messages: they must not name a missing message, or one of another topic."""
    index = _first(ranges.find(names.TIMER_DELETE_KEY)[1] > 0)
    if index is not None:
        raise InvalidArgument(
            f"record {index} of the run has the property {names.TIMER_DELETE_KEY}: use Recall to have a message back",
            field=names.TIMER_DELETE_KEY,
            index=index,
        )


def _check_delays(ranges: PropertyRanges, halves: Flags) -> None:
    """Refuse half messages with a delay: there is no instant that it could count from."""
    for name in names.ASKING_NAMES:
        index = _first(halves & (ranges.find(name)[1] > 0))
        if index is not None:
            raise InvalidArgument(
                f"record {index} of the run has the properties {names.TRANSACTION_PREPARED} and {name}: a message of a"
                " transaction is delivered when it is committed, and cannot be delayed as well",
                field=name,
                index=index,
            )


def _first(flags: Flags) -> int | None:
    return int(flags.argmax()) if flags.any() else None


def _fits(columns: RunColumns) -> bool:
    """Do all records leave room for an IPv4 store host, and have the version that their topic's length asks for?"""
    if (columns.sys_flag & SYS_STORE_V6).any():
        return False
    # All are of one topic. A Java broker reads the length in a V1 record as a signed byte.
    fitting = MAGIC_V2 if int(columns.topic_size[0]) > TOPIC_LENGTH_MAX else MAGIC_V1
    return bool((columns.magic == fitting).all())


def _encoded_again(run: Run) -> Run:
    """Encode RUN again, with room for an IPv4 store host and in the fitting version."""
    encoded = []
    for row, start in enumerate(run.columns.starts.tolist()):
        record = replace(decode_record(run.records, start), store_host=NO_HOST)
        encoded.append(encode_record(record, property_string=run.property_string(row)))
    return Run.of(run.topic, run.queue, encoded)
