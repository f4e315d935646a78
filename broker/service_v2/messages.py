"""Converts messages of `apache.rocketmq.v2` to records and back, and determines their types.

    sent                                    stored as property            delivered
    message_id                              UNIQ_KEY                      as sent; the offset id of one without
    tag, keys                               TAGS, KEYS (one space between)  as sent; a key with a space is two
    message_group                           __SHARDINGKEY                 as sent
    delivery_timestamp                      TIMER_DELIVER_MS              as sent, to the millisecond
    message_type TRANSACTION                TRAN_MSG=true, PGROUP=topic   message_type is derived again
    orphaned_transaction_recovery_duration  CHECK_IMMUNITY_TIME_IN_SECONDS  not
    lite_topic, priority                    __LITE_TOPIC, _SYS_MSG_PRIORITY_  as sent
    trace_context                           TRACE_CONTEXT                 as sent
    born_host, born_timestamp               __BORNHOST, BORN_TIMESTAMP    as sent, else where and when it arrived
    body, body_encoding GZIP                the bytes; bit 0 of sysFlag   as sent, with its MD5
    user_properties                         each by its name              as sent; empty ones are dropped

The body is stored and delivered as it was sent: what the C++ client calls GZIP is a zlib stream, and it expects the
same. Bodies that clients of other protocols compressed (see sysFlag) are decompressed before delivery.

Source: v2-protocol.md §4.1, §4.3, fixture v2/send. Pure; about 6 µs per message in either direction.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from ...proto import properties as names
from ...proto.errors import PocketMQError
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.message_id import offset_message_id
from ...proto.properties import NAME_END, PAIR_END, whole_number
from ...proto.record import (
    NO_HOST,
    SYS_COMPRESSED,
    SYS_COMPRESSION,
    Buffer,
    Host,
    PlainRecord,
    decompress_body,
    read_record,
    write_record,
)
from ...proto.topics import MESSAGE_SIZE_MAX
from ...store.format.state_tables import TopicConfig
from ..topics import TYPE_ATTRIBUTE
from .request_checks import INTERNAL, milliseconds
from .statuses import Refused

_ENCODINGS: Final = {
    v2.ENCODING_UNSPECIFIED: 0,
    v2.IDENTITY: 0,
    v2.GZIP: SYS_COMPRESSED,
}
_INT_MAX: Final = 2**31 - 1
#: The latest time of a Timestamp, 9999-12-31T23:59:59.999Z.
_INSTANT_MAX_MS: Final = 253_402_300_799_999
#: Limit of cached texts of hosts: nearly all messages come from a few.
_HOSTS_KEPT: Final = 1024
#: Properties of every message; a message with no others is NORMAL, without user properties.
_SET_ALREADY: Final = frozenset({names.UNIQ_KEY, names.BORN_HOST, names.BORN_TIMESTAMP})


# --- sent
MIXED: Final = "MIXED"
#: Types that a topic of each type accepts, as in routes; old clients know no other types.
_TAKEN: Final[dict[str, tuple[v2.MessageType, ...]]] = {
    "UNSPECIFIED": (v2.NORMAL,),
    "NORMAL": (v2.NORMAL,),
    "FIFO": (v2.FIFO,),
    "DELAY": (v2.DELAY,),
    "TRANSACTION": (v2.TRANSACTION,),
    "LITE": (v2.LITE,),
    "PRIORITY": (v2.PRIORITY,),
    MIXED: (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION),
}
#: Properties that give a stored message the type DELAY.
_DELAYS: Final = frozenset(names.ASKING_NAMES)
#: How to send a message of each type, for errors.
_MADE_BY: Final = {
    v2.NORMAL: "without any of message_group, delivery_timestamp, priority and lite_topic",
    v2.FIFO: "with message_group",
    v2.DELAY: "with delivery_timestamp",
    v2.TRANSACTION: "as a half message, with message_type TRANSACTION",
    v2.LITE: "with lite_topic",
    v2.PRIORITY: "with priority",
}


def record_of(
    message: v2.Message,
    body: bytes,
    properties: bytes,
    *,
    topic: str,
    queue: int,
    born_ms: int,
    born_host: Host = NO_HOST,
) -> bytes:
    """Return MESSAGE, with BODY and its encoded PROPERTIES, as a record for QUEUE of TOPIC.

    BORN_MS is used if it has no born time. BORN_HOST is the address of its client.
    """
    system = message.system_properties
    encoding = system.body_encoding
    if encoding not in _ENCODINGS:
        raise Refused(
            v2.BAD_REQUEST,
            f"body_encoding is {encoding}: use IDENTITY (1) or GZIP (2)",
            field="body_encoding",
            limit=v2.GZIP,
            value=encoding,
        )
    if system.HasField("born_timestamp"):
        born_ms = milliseconds(system.born_timestamp)
    return write_record(
        topic,
        queue,
        body,
        properties,
        sys_flag=_ENCODINGS[encoding],
        born_ms=born_ms,
        born_host=born_host,
    )


def property_string(
    system: v2.SystemProperties,
    user: Mapping[str, str],
    keys: Sequence[str],
    *,
    topic: str,
    kind: v2.MessageType,
) -> bytes:
    """Return the property string of a message of KIND for TOPIC; the message is valid."""
    pairs: list[tuple[str, object]] = [(names.UNIQ_KEY, system.message_id)]
    if tag := system.tag:
        pairs.append((names.TAGS, tag))
    if any(keys):
        pairs.append((names.KEYS, names.KEY_SEPARATOR.join(filter(None, keys))))
    if born_host := system.born_host:
        pairs.append((names.BORN_HOST, born_host))
    if system.HasField("born_timestamp"):
        pairs.append((names.BORN_TIMESTAMP, milliseconds(system.born_timestamp)))
    if trace := system.trace_context:
        pairs.append((names.TRACE_CONTEXT, trace))
    if kind != v2.NORMAL:
        pairs += _of_kind(system, topic, kind)
    pairs += [(name, value) for name, value in user.items() if name and value]
    return "".join([f"{name}{NAME_END}{value}{PAIR_END}" for name, value in pairs]).encode()


def _of_kind(
    system: v2.SystemProperties, topic: str, kind: v2.MessageType
) -> Iterator[tuple[str, object]]:
    """Yield the additional properties of a message of KIND, which is not NORMAL."""
    if kind == v2.TRANSACTION:
        yield names.TRANSACTION_PREPARED, "true"
        yield names.PRODUCER_GROUP, topic
        if system.HasField("orphaned_transaction_recovery_duration"):
            recovery_ms = milliseconds(system.orphaned_transaction_recovery_duration)
            yield names.CHECK_IMMUNITY_SECONDS, -(-recovery_ms // 1000)
    if system.HasField("delivery_timestamp"):
        yield names.TIMER_DELIVER_MS, milliseconds(system.delivery_timestamp)
    if system.message_group:
        yield names.SHARDING_KEY, system.message_group
    if system.HasField("priority"):
        yield names.PRIORITY, system.priority
    if system.HasField("lite_topic"):
        yield names.LITE_TOPIC, system.lite_topic


# --- delivered


def delivered(
    data: Buffer,
    topic: v2.Resource,
    *,
    handle: str = "",
    attempt: int = 0,
    invisible_ms: int = 0,
) -> v2.Message:
    """Return the message in the record DATA, as `deliver` does."""
    message = v2.Message()
    deliver(message, data, topic, handle=handle, attempt=attempt, invisible_ms=invisible_ms)
    return message


def deliver(
    message: v2.Message,
    data: Buffer,
    topic: v2.Resource,
    *,
    handle: str = "",
    attempt: int = 0,
    invisible_ms: int = 0,
    queue_offset: int | None = None,
) -> None:
    """Fill MESSAGE, which is empty, from the record DATA, as one of TOPIC, whatever topic the record is in.

    HANDLE, ATTEMPT and INVISIBLE_MS are those of its delivery; empty and 0 are left out. QUEUE_OFFSET replaces the
    one in the record. Raises InvalidRecord if DATA is not a record.
    """
    record = read_record(data)
    properties = record.properties
    encoding, body = _body(record)
    message.topic.CopyFrom(topic)
    message.body = body
    system = message.system_properties
    system.message_id = properties.get(names.UNIQ_KEY) or _offset_id(record)
    system.body_encoding = encoding
    digest = system.body_digest
    digest.type = v2.MD5
    digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    _set_time(system.born_timestamp, record.born_ms)
    _set_time(system.store_timestamp, record.store_ms)
    system.born_host = properties.get(names.BORN_HOST) or _address(record.born_host)
    system.store_host = _text(record.store_host)
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset if queue_offset is None else queue_offset
    if handle:
        system.receipt_handle = handle
    if attempt:
        system.delivery_attempt = attempt
    if invisible_ms:
        _set_time(system.invisible_duration, invisible_ms)
    if properties.keys() <= _SET_ALREADY:
        system.message_type = v2.NORMAL
    else:
        set_properties(message, system, properties)


def set_properties(
    message: v2.Message, system: v2.SystemProperties, properties: Mapping[str, str]
) -> None:
    """Set optional fields from stored PROPERTIES: type, tag, keys, user properties."""
    system.message_type = type_of_stored(properties)
    user = message.user_properties
    for name, value in properties.items():
        if name not in INTERNAL:
            user[name] = value
        elif setter := _SETTERS.get(name):
            setter(system, value)
    origin = properties.get(names.DEAD_LETTER_ORIGIN_TOPIC)
    if origin:
        letter = system.dead_letter_queue
        letter.topic = origin
        letter.message_id = properties.get(names.DEAD_LETTER_ORIGIN_MESSAGE_ID, "")


def _set_tag(system: v2.SystemProperties, value: str) -> None:
    system.tag = value


def _set_keys(system: v2.SystemProperties, value: str) -> None:
    system.keys.extend(filter(None, value.split(names.KEY_SEPARATOR)))


def _set_group(system: v2.SystemProperties, value: str) -> None:
    system.message_group = value


def _set_trace(system: v2.SystemProperties, value: str) -> None:
    system.trace_context = value


def _set_lite_topic(system: v2.SystemProperties, value: str) -> None:
    system.lite_topic = value


def _set_priority(system: v2.SystemProperties, value: str) -> None:
    if (priority := whole_number(value)) is not None and priority <= _INT_MAX:
        system.priority = priority


def _set_delivery(system: v2.SystemProperties, value: str) -> None:
    if (due_ms := whole_number(value)) is not None and due_ms <= _INSTANT_MAX_MS:
        _set_time(system.delivery_timestamp, due_ms)


_SETTERS: Final[dict[str, Callable[[v2.SystemProperties, str], None]]] = {
    names.TAGS: _set_tag,
    names.KEYS: _set_keys,
    names.SHARDING_KEY: _set_group,
    names.TRACE_CONTEXT: _set_trace,
    names.LITE_TOPIC: _set_lite_topic,
    names.PRIORITY: _set_priority,
    names.TIMER_DELIVER_MS: _set_delivery,
}


def _body(record: PlainRecord) -> tuple[v2.Encoding, bytes]:
    """Return the body of RECORD for delivery, and its encoding."""
    if not record.sys_flag & SYS_COMPRESSED:
        return v2.IDENTITY, record.body
    if record.sys_flag & SYS_COMPRESSION:
        try:
            return v2.IDENTITY, decompress_body(record.body, record.sys_flag, MESSAGE_SIZE_MAX)
        except PocketMQError:  # A decompression bomb, or damaged: deliver it as it is.
            return v2.GZIP, record.body
    return v2.GZIP, record.body


def _offset_id(record: PlainRecord) -> str:
    host = record.store_host
    return offset_message_id(host.address, host.port, record.log_offset)


def _set_time(time: Timestamp | Duration, milliseconds: int) -> None:
    time.seconds, rest = divmod(milliseconds, 1000)
    time.nanos = rest * 1_000_000


@lru_cache(_HOSTS_KEPT)
def _text(host: Host) -> str:
    return str(host)


@lru_cache(_HOSTS_KEPT)
def _address(host: Host) -> str:
    return str(ipaddress.ip_address(host.address))


# --- the types of messages


def type_of_sent(system: v2.SystemProperties) -> v2.MessageType:
    """Return the type of a sent message, from its SYSTEM properties."""
    if system.message_type == v2.TRANSACTION:
        return v2.TRANSACTION
    if system.HasField("delivery_timestamp"):
        return v2.DELAY
    if system.message_group:
        return v2.FIFO
    if system.HasField("priority"):
        return v2.PRIORITY
    return v2.LITE if system.HasField("lite_topic") else v2.NORMAL


def type_of_stored(properties: Mapping[str, str]) -> v2.MessageType:
    """Return the type of a message with the stored PROPERTIES."""
    if properties.get(names.TRANSACTION_PREPARED, "").lower() == "true":
        return v2.TRANSACTION
    if not _DELAYS.isdisjoint(properties):
        return v2.DELAY
    if names.SHARDING_KEY in properties:
        return v2.FIFO
    if names.PRIORITY in properties:
        return v2.PRIORITY
    return v2.LITE if names.LITE_TOPIC in properties else v2.NORMAL


def accepted_types(topic: TopicConfig) -> tuple[v2.MessageType, ...]:
    """Return the types in a route of TOPIC, at least one."""
    return accepted_by(_type_name(topic))


def accepted_by(type_name: str) -> tuple[v2.MessageType, ...]:
    """Return the types in a route of a topic of type TYPE_NAME, at least one."""
    return _TAKEN.get(type_name, _TAKEN["NORMAL"])


def check_type(topic: TopicConfig, kind: v2.MessageType) -> None:
    """Raise Refused (MESSAGE_PROPERTY_CONFLICT_WITH_TYPE) unless TOPIC accepts messages of KIND."""
    if not topic.attributes and kind == v2.NORMAL:
        return
    accepted = accepted_types(topic)
    if kind in accepted or _type_name(topic) == MIXED:
        return
    wanted = accepted[0]
    raise Refused(
        v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"topic {topic.name!r} accepts {v2.MessageType.Name(wanted)} messages ({TYPE_ATTRIBUTE}), but this one is"
        f" {v2.MessageType.Name(kind)}: send it {_MADE_BY[wanted]}, or to a topic of its type, or of type {MIXED}",
        field="message_type",
        limit=v2.MessageType.Name(wanted),
        value=v2.MessageType.Name(kind),
    )


def _type_name(topic: TopicConfig) -> str:
    return topic.attributes.get(TYPE_ATTRIBUTE, "NORMAL")
