"""One record read or written at a stroke: for those who handle messages one by one, and many of them.

What nearly every record is, V1 between IPv4 hosts, takes one look at its head here; all else is left to `record.py`,
which finds the same. Half the time of record.py to read, a third to write: some 2 µs a record, its properties not
counted. Pure.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from .errors import InvalidRecord
from .properties import decode_properties
from .record import (
    MAGIC_V1,
    NO_HOST,
    SYS_BORN_V6,
    SYS_STORE_V6,
    Buffer,
    Host,
    Record,
    body_crc,
    decode_record,
    encode_record,
)
from .topics import PROPERTIES_SIZE_MAX, TOPIC_LENGTH_MAX

#: Everything before the body of a record between IPv4 hosts.
_HEAD: Final = struct.Struct(">iiiiiqqiq4siq4siiqi")
_SHORT: Final = struct.Struct(">h")
_V6: Final = SYS_BORN_V6 | SYS_STORE_V6
#: What a record needs besides its body, its topic and its properties.
_FRAME_SIZE: Final = _HEAD.size + 1 + _SHORT.size


class PlainRecord(NamedTuple):
    """What one record says; the body is as stored."""

    topic: str
    body: bytes
    properties: dict[str, str]
    queue_id: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    born_ms: int
    born_host: Host
    store_ms: int
    store_host: Host
    reconsume_times: int


def read_record(data: Buffer) -> PlainRecord:
    """Return what the record that DATA is says; raise InvalidRecord when it is not one whole record."""
    size = len(data)
    if size > _FRAME_SIZE:
        head = _HEAD.unpack_from(data)
        total, magic, sys_flag, body_size = head[0], head[1], head[7], head[-1]
        usual = magic == MAGIC_V1 and not sys_flag & _V6 and total == size
        if usual and 0 <= body_size <= size - _FRAME_SIZE:
            body_end = _HEAD.size + body_size
            topic_end = body_end + 1 + data[body_end]
            at = topic_end + _SHORT.size
            if at <= size and at + _SHORT.unpack_from(data, topic_end)[0] == size:
                return PlainRecord(
                    str(data[body_end + 1 : topic_end], "utf-8", "replace"),
                    bytes(data[_HEAD.size : body_end]),
                    decode_properties(data[at:]),
                    head[3],
                    head[5],
                    head[6],
                    sys_flag,
                    head[8],
                    Host(head[9], head[10]),
                    head[11],
                    Host(head[12], head[13]),
                    head[14],
                )
    return _unusual(data)


def _unusual(data: Buffer) -> PlainRecord:
    record = decode_record(data)
    if record.total_size != len(data):
        raise InvalidRecord(
            f"{len(data)} bytes hold a record of {record.total_size}: give exactly one",
            field="totalSize",
            value=record.total_size,
        )
    return PlainRecord(
        record.topic,
        record.body,
        dict(record.properties),
        record.queue_id,
        record.queue_offset,
        record.log_offset,
        record.sys_flag,
        record.born_timestamp_ms,
        record.born_host,
        record.store_timestamp_ms,
        record.store_host,
        record.reconsume_times,
    )


def write_record(
    topic: str,
    queue_id: int,
    body: bytes,
    properties: bytes,
    *,
    sys_flag: int = 0,
    born_ms: int = 0,
    born_host: Host = NO_HOST,
) -> bytes:
    """Return a new record for QUEUE_ID of TOPIC with the property string PROPERTIES; the store fills in its fields.

    Raises MessageTooLarge for a topic or properties that do not fit their length field.
    """
    name = topic.encode()
    size = len(properties)
    if len(name) > TOPIC_LENGTH_MAX or born_host.is_v6 or size > PROPERTIES_SIZE_MAX:
        record = Record(
            topic=topic,
            body=body,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp_ms=born_ms,
            born_host=born_host,
        )
        return encode_record(record, property_string=properties)
    head = _HEAD.pack(
        _FRAME_SIZE + len(body) + len(name) + size,
        MAGIC_V1,
        body_crc(body) if body else 0,
        queue_id,
        0,
        0,
        0,
        sys_flag & ~_V6,
        born_ms,
        *born_host,
        0,
        *NO_HOST,
        0,
        0,
        len(body),
    )
    return b"".join((head, body, len(name).to_bytes(), name, _SHORT.pack(size), properties))
