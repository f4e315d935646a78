"""What a run has to be before it may be stored: well formed, and such that this broker can deliver it as asked.

Delayed and transactional messages are refused, never stored as if they were ordinary ones. A run whose records do not
have the shape that this broker writes is encoded again: store hosts take 4 bytes (it fills in an IPv4 address), and
records are V1 unless their topic has more than 127 bytes.

All pure; large runs cost nothing per message in Python but the map over the CRCs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ..proto.errors import InvalidRecord, NotServed
from ..proto.properties import (
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
)
from ..proto.property_ranges import PropertyRanges
from ..proto.record import (
    MAGIC_V1,
    MAGIC_V2,
    NO_HOST,
    SYS_INNER_BATCH,
    SYS_NEEDS_UNWRAP,
    SYS_STORE_V6,
    SYS_TRANSACTION,
    decode_record,
    encode_record,
)
from ..proto.record_run import RunColumns, parse_run, starts_of
from ..proto.run_check import check_run
from ..proto.topics import TOPIC_LENGTH_MAX

#: Properties that ask for what this broker does not do yet.
_NOT_PROMPT: Final = {
    DELAY: "delayed messages",
    TIMER_DELAY_MS: "delayed messages",
    TIMER_DELAY_SEC: "delayed messages",
    TIMER_DELIVER_MS: "delayed messages",
    TRANSACTION_PREPARED: "transactions",
}
#: One of these bytes is in every record with such a property.
_HINTS: Final = (b"DELAY", b"TIMER_DELIVER", b"TRAN_MSG")
#: In runs up to so many bytes, looking for the hints is quicker than finding the properties.
_HINTS_BYTES_MAX: Final = 16 * 1024


def admit(
    records: bytes, sizes: Sequence[int], topic: str, queue: int
) -> tuple[bytes, RunColumns, bool]:
    """Return RECORDS as they are to be stored, their columns, and whether they had to be encoded again.

    Raises InvalidRecord, MessageTooLarge or NotServed, which name record, field and value.
    """
    columns = check_run(records, sizes, topic, queue)
    _check_kinds(columns)
    _check_prompt(records, columns)
    if _fits(columns):
        return records, columns, False
    return *_encoded_again(records, columns), True


def _check_kinds(columns: RunColumns) -> None:
    """Refuse transactional records and inner batches: they need a road of their own."""
    special = columns.sys_flag & (SYS_TRANSACTION | SYS_INNER_BATCH | SYS_NEEDS_UNWRAP)
    if not special.any():
        return
    index = int((special != 0).argmax())
    value = int(columns.sys_flag[index])
    if value & SYS_TRANSACTION:
        raise NotServed(
            f"record {index} of the run: sysFlag {value:#x} is a transaction's; transactions are not served yet",
            field="sysFlag",
            index=index,
            value=value,
        )
    raise InvalidRecord(
        f"record {index} of the run: sysFlag {value:#x} is an inner batch's; send its messages one by one",
        field="sysFlag",
        index=index,
        value=value,
    )


def _check_prompt(records: bytes, columns: RunColumns) -> None:
    """Refuse records with properties that ask for a delay or a transaction."""
    if len(records) <= _HINTS_BYTES_MAX and not any(hint in records for hint in _HINTS):
        return
    ranges = PropertyRanges(records, columns)
    for name, what in _NOT_PROMPT.items():
        _, sizes = ranges.find(name)
        if (sizes > 0).any():
            index = int((sizes > 0).argmax())
            raise NotServed(
                f"record {index} of the run has the property {name}: {what} are not served yet",
                field=name,
                index=index,
            )


def _fits(columns: RunColumns) -> bool:
    """Do all records leave room for an IPv4 store host, and have the version that their topic's length asks for?"""
    if (columns.sys_flag & SYS_STORE_V6).any():
        return False
    # All are of one topic. A Java broker reads the length in a V1 record as a signed byte.
    fitting = MAGIC_V2 if int(columns.topic_size[0]) > TOPIC_LENGTH_MAX else MAGIC_V1
    return bool((columns.magic == fitting).all())


def _encoded_again(records: bytes, columns: RunColumns) -> tuple[bytes, RunColumns]:
    """Encode the run again, with room for an IPv4 store host and in the fitting version."""
    encoded = []
    for index, start in enumerate(columns.starts.tolist()):
        record = replace(decode_record(records, start), store_host=NO_HOST)
        at, size = int(columns.properties_start[index]), int(columns.properties_size[index])
        encoded.append(encode_record(record, property_string=records[at : at + size]))
    data = b"".join(encoded)
    return data, parse_run(data, starts_of([len(part) for part in encoded]))
