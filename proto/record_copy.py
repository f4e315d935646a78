"""Copies records to another topic or queue: address and properties change, the body does not.

Messages that are delayed, retried, or part of a transaction wait in internal topics of the broker. A copy is assembled
from slices of the original's bytes in about 2 µs. The fields that a store sets keep their old values.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

from .errors import MessageTooLarge
from .record import (
    CRC_AT,
    HOST_V6_EXTRA,
    MAGIC_V1,
    MAGIC_V2,
    NO_HOST,
    QUEUE_ID_AT,
    SYS_BORN_V6,
    SYS_FLAG_AT,
    SYS_STORE_V6,
    Buffer,
    decode_record,
    encode_record,
)
from .record_run import RunColumns
from .topics import PROPERTIES_SIZE_MAX, TOPIC_LENGTH_MAX

_SIZE_AND_MAGIC: Final = struct.Struct(">ii")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
#: Reconsume times and prepared transaction offset of a record between IPv4 hosts; body length follows.
_RECONSUME_AT: Final = 72
_COUNTERS: Final = struct.Struct(">iq")


class RecordCopier:
    """Copies records from one buffer. COLUMNS describe RECORDS (`parse_run`, `check_run`)."""

    def __init__(self, records: Buffer, columns: RunColumns) -> None:
        self._records = memoryview(records)
        self._starts = columns.starts.tolist()
        self._body_ends = (columns.body_start + columns.body_size).tolist()
        self._sys_flags = columns.sys_flag.tolist()
        self._reconsume_times = columns.reconsume_times.tolist()
        self._prepared_offsets = columns.prepared_offset.tolist()
        self._properties_starts = columns.properties_start.tolist()
        self._properties_sizes = columns.properties_size.tolist()

    def __len__(self) -> int:
        return len(self._starts)

    def properties(self, index: int) -> bytes:
        """Return the property string of record INDEX."""
        start = self._properties_starts[index]
        return bytes(self._records[start : start + self._properties_sizes[index]])

    def copy(
        self,
        index: int,
        *,
        topic: str,
        queue_id: int,
        properties: bytes,
        sys_flag: int | None = None,
        reconsume_times: int | None = None,
        prepared_offset: int | None = None,
    ) -> bytes:
        """Return record INDEX for QUEUE_ID of TOPIC with the property string PROPERTIES; None keeps the old value.

        The copy has space for an IPv4 store host, whatever the original had. SYS_FLAG need not have the bits of the
        hosts. Raises MessageTooLarge for properties that do not fit their length field.
        """
        if len(properties) > PROPERTIES_SIZE_MAX:
            _refuse_properties(len(properties))
        flags = self._sys_flags[index]
        if flags & SYS_STORE_V6:
            return self._encoded_again(
                index, topic, queue_id, properties, sys_flag, reconsume_times, prepared_offset
            )
        records, start, body_end = self._records, self._starts[index], self._body_ends[index]
        counters_at = start + _RECONSUME_AT + (HOST_V6_EXTRA if flags & SYS_BORN_V6 else 0)
        if reconsume_times is None and prepared_offset is None:
            middle: Buffer = records[start + SYS_FLAG_AT + 4 : body_end]
        else:
            times = self._reconsume_times[index] if reconsume_times is None else reconsume_times
            offset = self._prepared_offsets[index] if prepared_offset is None else prepared_offset
            middle = b"".join(
                (
                    records[start + SYS_FLAG_AT + 4 : counters_at],
                    _COUNTERS.pack(times, offset),
                    records[counters_at + _COUNTERS.size : body_end],
                )
            )
        name = topic.encode()
        is_long = len(name) > TOPIC_LENGTH_MAX
        size_of_name = 2 if is_long else 1
        # 40 bytes up to the flags, the rest of head and body, the topic, the properties.
        total = SYS_FLAG_AT + 4 + len(middle) + size_of_name + len(name) + 2 + len(properties)
        return b"".join(
            (
                _SIZE_AND_MAGIC.pack(total, MAGIC_V2 if is_long else MAGIC_V1),
                records[start + CRC_AT : start + QUEUE_ID_AT],
                _INT.pack(queue_id),
                records[start + QUEUE_ID_AT + 4 : start + SYS_FLAG_AT],
                _INT.pack(flags if sys_flag is None else sys_flag | flags & SYS_BORN_V6),
                middle,
                len(name).to_bytes(size_of_name, "big"),
                name,
                _SHORT.pack(len(properties)),
                properties,
            )
        )

    def _encoded_again(
        self,
        index: int,
        topic: str,
        queue_id: int,
        properties: bytes,
        sys_flag: int | None,
        reconsume_times: int | None,
        prepared_offset: int | None,
    ) -> bytes:
        """Copy a record whose store host has 16 bytes."""
        record = decode_record(self._records, self._starts[index])
        times = record.reconsume_times if reconsume_times is None else reconsume_times
        offset = record.prepared_transaction_offset if prepared_offset is None else prepared_offset
        changed = replace(
            record,
            topic=topic,
            queue_id=queue_id,
            store_host=NO_HOST,
            sys_flag=record.sys_flag if sys_flag is None else sys_flag,
            reconsume_times=times,
            prepared_transaction_offset=offset,
        )
        encoded = encode_record(changed, property_string=properties)
        # The CRC of the original, right or wrong: a copy of a damaged body must not look valid.
        crc = self._records[self._starts[index] + CRC_AT : self._starts[index] + QUEUE_ID_AT]
        return encoded[:CRC_AT] + bytes(crc) + encoded[QUEUE_ID_AT:]


def _refuse_properties(size: int) -> None:
    raise MessageTooLarge(
        f"properties: {size} bytes with those that the broker adds, the limit is {PROPERTIES_SIZE_MAX}: use shorter or"
        " fewer",
        field="properties",
        limit=PROPERTIES_SIZE_MAX,
        value=size,
    )
