"""Messages of `apache.rocketmq.v2` as records, records as messages, and the types of both.

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
    user_properties                         each by its name              as sent; of one that is empty nothing stays

The body is stored and delivered as it came: what the C++ client calls GZIP is a zlib stream, which it alone wants back.
Bodies that other protocols' clients compressed, and say how in sysFlag, are delivered as they were before.

The type that a request names is not looked at, but for TRANSACTION: like Apache's proxy, the broker goes by what the
message has. A delivery time makes DELAY, also beside a message group; a group makes FIFO; a priority PRIORITY; a lite
topic LITE; else it is NORMAL. A topic takes its own type, the attribute `message.type`; one without is NORMAL, and one
of type MIXED takes all.

Source: v2-protocol.md §4.1, §4.3, fixture v2/send. Pure; some 6 µs a message in either direction.

What requests of `apache.rocketmq.v2` have to be: names and limits, each breach with the code that tells of it.

The limits are Apache's (v2-protocol.md §2.2); a message that keeps them all costs some 2 µs here. Pure.

    what                       limit                                                  code
    topic                      name rules of proto/topics.py, none of the system's    ILLEGAL_TOPIC
    consumer group             the same, not CID_RMQ_SYS_…                            ILLEGAL_CONSUMER_GROUP
    body                       1 byte to 4 MiB                                        MESSAGE_BODY_EMPTY, …_TOO_LARGE
    tag                        not blank, no "|", no control character; "" is none    ILLEGAL_MESSAGE_TAG
    key                        not blank, no control character; "" is none            ILLEGAL_MESSAGE_KEY
    message group              not blank, below 64 bytes, no control character        ILLEGAL_MESSAGE_GROUP
    message id                 not blank, no control character                        ILLEGAL_MESSAGE_ID
    user property              name not the broker's own; no control character        ILLEGAL_MESSAGE_PROPERTY_KEY
    user properties            128, with tag and keys 16 KiB of UTF-8                 MESSAGE_PROPERTIES_TOO_LARGE
    delivery time              so far ahead as the caller allows                      ILLEGAL_DELIVERY_TIME
    recovery of a transaction  0 to 3600 s                                            BAD_REQUEST
    lite topic                 1 to 64 letters, digits, "_" and "-"                   ILLEGAL_LITE_TOPIC
    priority                   0 or more                                              BAD_REQUEST
    trace context, born host   no control character                                   BAD_REQUEST

A control character is U+0000 to U+001F or U+007F to U+009F.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NoReturn, Protocol

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from ...proto import properties as names
from ...proto.errors import InvalidName, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
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
from ...proto.time_text import format_duration, format_instant
from ...proto.topics import (
    MESSAGE_SIZE_MAX,
    check_group,
    check_new_group,
    check_topic,
    is_system_topic,
)
from ...store.format.state_tables import TopicConfig
from ..topics import TYPE_ATTRIBUTE
from .statuses import Refused

_ENCODINGS: Final = {
    v2.ENCODING_UNSPECIFIED: 0,
    v2.IDENTITY: 0,
    v2.GZIP: SYS_COMPRESSED,
}
_INT_MAX: Final = 2**31 - 1
#: The last instant that a Timestamp may be, 9999-12-31T23:59:59.999Z.
_INSTANT_MAX_MS: Final = 253_402_300_799_999
#: Hosts whose text is kept: nearly all messages come from a few.
_HOSTS_KEPT: Final = 1024
#: What every message has; one that has nothing else is NORMAL, without anything of a user's.
_SET_ALREADY: Final = frozenset({names.UNIQ_KEY, names.BORN_HOST, names.BORN_TIMESTAMP})


# --- sent
MIXED: Final = "MIXED"
#: What a topic of this type takes, as routes say it; old clients know of no other types.
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
#: Properties that make a stored message DELAY.
_DELAYS: Final = frozenset(names.ASKING_NAMES)
#: What makes a message of the type, for those whose message has another.
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
    """Return MESSAGE, with BODY and the string of its PROPERTIES, as a record for QUEUE of TOPIC.

    BORN_MS is its birth if it does not say; BORN_HOST is where it came from.
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
    """Return the property string of a message of KIND for TOPIC, which has passed the checks."""
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
    """Yield the properties of a message that is not NORMAL but KIND."""
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
    """Return the message that the record DATA holds: see `deliver`."""
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
) -> None:
    """Make MESSAGE, which is empty, what the record DATA holds, as one of TOPIC, whatever topic it was found in.

    HANDLE, ATTEMPT and INVISIBLE_MS are those of its delivery; what is empty or 0 is not told. Raises InvalidRecord for
    DATA that is no record.
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
    system.queue_offset = record.queue_offset
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
    """Set what only some messages have, as stored PROPERTIES say: type, tag, keys, a user's own."""
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
    """Return the body of RECORD as it is delivered, and its encoding."""
    if not record.sys_flag & SYS_COMPRESSED:
        return v2.IDENTITY, record.body
    if record.sys_flag & SYS_COMPRESSION:
        try:
            return v2.IDENTITY, decompress_body(record.body, record.sys_flag, MESSAGE_SIZE_MAX)
        except (
            PocketMQError
        ):  # A bomb, or broken: its reader can make no less of it than the broker.
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
    """Return the type of a message that is being sent, by its SYSTEM properties."""
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
    """Return the type of a message that was stored with PROPERTIES."""
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
    """Return the types that a route of TOPIC names; never none."""
    return accepted_by(_type_name(topic))


def accepted_by(type_name: str) -> tuple[v2.MessageType, ...]:
    """Return the types that a route of a topic of type TYPE_NAME names; never none."""
    return _TAKEN.get(type_name, _TAKEN["NORMAL"])


def check_type(topic: TopicConfig, kind: v2.MessageType) -> None:
    """Raise Refused (MESSAGE_PROPERTY_CONFLICT_WITH_TYPE) unless TOPIC takes messages of KIND."""
    if not topic.attributes and kind == v2.NORMAL:
        return
    accepted = accepted_types(topic)
    if kind in accepted or _type_name(topic) == MIXED:
        return
    wanted = accepted[0]
    raise Refused(
        v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"topic {topic.name!r} takes {v2.MessageType.Name(wanted)} messages ({TYPE_ATTRIBUTE}), and this one is"
        f" {v2.MessageType.Name(kind)}: send it {_MADE_BY[wanted]}, or to a topic of its type, or of type {MIXED}",
        field="message_type",
        limit=v2.MessageType.Name(wanted),
        value=v2.MessageType.Name(kind),
    )


def _type_name(topic: TopicConfig) -> str:
    return topic.attributes.get(TYPE_ATTRIBUTE, "NORMAL")


# ---------------------------------------------------------------- what requests of `apache.rocketmq.v2` have to be


BODY_BYTES_MAX: Final = MESSAGE_SIZE_MAX
USER_PROPERTIES_MAX: Final = 128
PROPERTIES_BYTES_MAX: Final = 16 * 1024
#: Bytes of a message group.
MESSAGE_GROUP_BYTES_MAX: Final = 63
LITE_TOPIC_LENGTH_MAX: Final = 64
INVISIBLE_MAX_MS: Final = 12 * 3_600_000
RECOVERY_MAX_MS: Final = 3_600_000
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LITE_TOPIC: Final = re.compile(r"[a-zA-Z0-9_-]+")
#: Names that are known to be good; asking again costs nothing.
_NAMES_KEPT: Final = 4096
_SHOWN_MAX: Final = 64  # characters of a bad value
_NO_CONTROL: Final = "holds a control character"


# --- names
_RESERVED: Final = """
    KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
    ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY
    EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME TRAN_PREPARED_QUEUE_OFFSET INSTANCE_ID CORRELATION_ID
    REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK POP_CK_OFFSET 1ST_POP_TIME DUP_INFO
    INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
    DLQ_ORIGIN_MESSAGE_ID __CRC32#
"""

#: Apache's reserved names (v2-protocol.md §2.2, MessageConst). Apache refuses these alone, and so leaks some of the
#: others to consumers, or lets senders overwrite them.
RESERVED: Final = frozenset(_RESERVED.split())

#: All that brokers and proxies keep in properties: refused when it is sent, left out when messages are delivered.
INTERNAL: Final = RESERVED | {
    names.SHARDING_KEY,
    names.LITE_TOPIC,
    names.PRIORITY,
    names.TRACE_CONTEXT,
    names.TRANSACTION_ID,
    names.TRANSACTION_CHECK_TIMES,
    names.CHECK_IMMUNITY_SECONDS,
    names.MULTI_DISPATCH,
    names.INNER_NUM,
    names.INNER_BASE,
    names.PRODUCER_SEQUENCE,
    names.DEAD_LETTER_REASON,
}


class KnownGroups(Protocol):
    """The groups of a broker."""

    def find(self, name: str) -> object | None: ...


def topic_name(resource: v2.Resource) -> str:
    """Return the topic that RESOURCE names; raise Refused (ILLEGAL_TOPIC) if there can be none of this name.

    The namespace is no part of it: Apache's proxy does not look at it either. Whether a name may be that of a new topic
    counts where the topic does not exist (`service.code_of`).
    """
    return checked_topic(resource.name)


@lru_cache(_NAMES_KEPT)
def checked_topic(name: str) -> str:
    """Return the topic NAME; raise Refused (ILLEGAL_TOPIC) if there can be none, or only one of the broker's own."""
    try:
        check_topic(name)
    except InvalidName as error:
        raise Refused(v2.ILLEGAL_TOPIC, error.message, **error.details) from error
    if is_system_topic(name):
        raise Refused(
            v2.ILLEGAL_TOPIC,
            f"topic {name!r} is the broker's own: choose another",
            field="topic",
            value=name,
        )
    return name


def group_name(resource: v2.Resource, known: KnownGroups) -> str:
    """Return the consumer group that RESOURCE names: one of those KNOWN, or one that may be created.

    Raises Refused (ILLEGAL_CONSUMER_GROUP).
    """
    name = checked_group(resource.name)
    if known.find(name) is None:
        _check_new_group(name)
    return name


@lru_cache(_NAMES_KEPT)
def checked_group(name: str) -> str:
    """Return the consumer group NAME; raise Refused (ILLEGAL_CONSUMER_GROUP) if there can be none of this name."""
    try:
        check_group(name)
    except InvalidName as error:
        raise Refused(v2.ILLEGAL_CONSUMER_GROUP, error.message, **error.details) from error
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise Refused(
            v2.ILLEGAL_CONSUMER_GROUP,
            f"group {name!r}: names that begin with {SYSTEM_GROUP_PREFIX} are the broker's own, choose another",
            field="group",
            value=name,
        )
    return name


@lru_cache(_NAMES_KEPT)
def _check_new_group(name: str) -> None:
    try:
        check_new_group(name)
    except InvalidName as error:
        raise Refused(v2.ILLEGAL_CONSUMER_GROUP, error.message, **error.details) from error


def check_lite_topic(name: str) -> None:
    """Raise Refused (ILLEGAL_LITE_TOPIC) unless NAME is fit for a lite topic."""
    if not _LITE_TOPIC.fullmatch(name) or len(name) > LITE_TOPIC_LENGTH_MAX:
        raise Refused(
            v2.ILLEGAL_LITE_TOPIC,
            f"lite_topic is {_shown(name)}, {len(name)} characters: give 1 to {LITE_TOPIC_LENGTH_MAX} letters, digits,"
            " _ and -",
            field="lite_topic",
            limit=LITE_TOPIC_LENGTH_MAX,
            value=name[:_SHOWN_MAX],
        )


def check_invisible(invisible_ms: int, least_ms: int, remedy: str = "") -> None:
    """Raise Refused (ILLEGAL_INVISIBLE_TIME) unless a message may stay away for INVISIBLE_MS, LEAST_MS at least.

    The sentence begins as Apache's does; REMEDY ends the one for too short a time.
    """
    if invisible_ms < least_ms:
        size, bound = "small. min", least_ms
    elif invisible_ms > INVISIBLE_MAX_MS:
        size, bound, remedy = "large. max", INVISIBLE_MAX_MS, " (12 h)"
    else:
        return
    raise Refused(
        v2.ILLEGAL_INVISIBLE_TIME,
        f"the invisibleTime is too {size} is {bound} ms{remedy}: invisible_duration is {invisible_ms} ms",
        field="invisible_duration",
        limit=bound,
        value=invisible_ms,
    )


def filter_of(expression: v2.FilterExpression) -> pb.Filter:
    """Return the filter that EXPRESSION asks for; raise Refused for SQL without any."""
    text = expression.expression
    if expression.type != v2.SQL:
        return pb.Filter(kind=pb.Filter.TAG, expression=text) if text else pb.Filter()
    if not text.strip():
        raise Refused(
            v2.ILLEGAL_FILTER_EXPRESSION,
            "the SQL expression is empty: write one, or '*' as a TAG for every message",
            field="expression",
        )
    return pb.Filter(kind=pb.Filter.SQL, expression=text)


# --- messages


def check_message(
    message: v2.Message,
    body: bytes,
    user: Mapping[str, str],
    keys: Sequence[str],
    *,
    now_ms: int,
    delay_max_ms: int,
) -> None:
    """Raise Refused unless MESSAGE keeps all limits, but for its topic's name and type.

    BODY, USER properties and KEYS are its own, handed in because every look at them makes a copy. DELAY_MAX_MS says how
    far ahead of NOW_MS it may be delivered.
    """
    if not 0 < len(body) <= BODY_BYTES_MAX:
        _refuse_body(len(body))
    system = message.system_properties
    tag = system.tag
    _check_text(v2.ILLEGAL_MESSAGE_ID, "message_id", system.message_id or " ")
    if tag:
        _check_text(v2.ILLEGAL_MESSAGE_TAG, "tag", tag)
        if "|" in tag:
            _refuse(v2.ILLEGAL_MESSAGE_TAG, "tag", tag, "holds '|', which separates tags")
    for key in keys:
        if key:
            _check_text(v2.ILLEGAL_MESSAGE_KEY, "keys", key)
    if user or tag or keys:
        _check_properties(user, tag, keys)
    _check_place(system)
    _check_times(system, now_ms, delay_max_ms)


def milliseconds(time: Timestamp | Duration) -> int:
    """Return TIME, an instant or a length of time, in whole milliseconds."""
    return time.seconds * 1000 + time.nanos // 1_000_000


def _check_place(system: v2.SystemProperties) -> None:
    """Check what says where a message goes and where it comes from."""
    if group := system.message_group:
        _check_text(v2.ILLEGAL_MESSAGE_GROUP, "message_group", group)
        size = len(group.encode())
        if size > MESSAGE_GROUP_BYTES_MAX:
            rule = f"has {size} bytes, the limit is {MESSAGE_GROUP_BYTES_MAX}"
            _refuse(v2.ILLEGAL_MESSAGE_GROUP, "message_group", group, rule)
    for field, text in (
        ("trace_context", system.trace_context),
        ("born_host", system.born_host),
    ):
        if text and _CONTROL.search(text):
            _refuse(v2.BAD_REQUEST, field, text, _NO_CONTROL)
    if system.HasField("lite_topic"):
        check_lite_topic(system.lite_topic)
    if system.priority < 0:
        raise Refused(
            v2.BAD_REQUEST,
            f"priority is {system.priority}: must be 0 or more; the highest is delivered first",
            field="priority",
            limit=0,
            value=system.priority,
        )


def _check_times(system: v2.SystemProperties, now_ms: int, delay_max_ms: int) -> None:
    if system.HasField("delivery_timestamp"):
        due_ms = milliseconds(system.delivery_timestamp)
        if due_ms > now_ms + delay_max_ms:
            raise Refused(
                v2.ILLEGAL_DELIVERY_TIME,
                f"delivery_timestamp is {format_instant(due_ms)}, the limit is {format_duration(delay_max_ms)} from"
                f" now, and it is {format_instant(now_ms)} at the broker",
                field="delivery_timestamp",
                limit=now_ms + delay_max_ms,
                value=due_ms,
            )
    if system.HasField("orphaned_transaction_recovery_duration"):
        recovery_ms = milliseconds(system.orphaned_transaction_recovery_duration)
        if not 0 <= recovery_ms <= RECOVERY_MAX_MS:
            raise Refused(
                v2.BAD_REQUEST,
                f"orphaned_transaction_recovery_duration is {recovery_ms} ms: must be 0 to {RECOVERY_MAX_MS} ms, 1 h",
                field="orphaned_transaction_recovery_duration",
                limit=RECOVERY_MAX_MS,
                value=recovery_ms,
            )


def _check_properties(user: Mapping[str, str], tag: str, keys: Sequence[str]) -> None:
    texts = [*user, *user.values()]
    if not INTERNAL.isdisjoint(user) or _CONTROL.search("".join(texts)):
        _refuse_property(user)
    if len(user) > USER_PROPERTIES_MAX:
        raise Refused(
            v2.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(user)} user properties, the limit is {USER_PROPERTIES_MAX}",
            field="user_properties",
            limit=USER_PROPERTIES_MAX,
            value=len(user),
        )
    size = len("".join((tag, *keys, *texts)).encode())
    if size > PROPERTIES_BYTES_MAX:
        raise Refused(
            v2.MESSAGE_PROPERTIES_TOO_LARGE,
            f"user properties, tag and keys have {size} bytes, the limit is {PROPERTIES_BYTES_MAX}: put what is large"
            " into the body",
            field="user_properties",
            limit=PROPERTIES_BYTES_MAX,
            value=size,
        )


def _refuse_property(user: Mapping[str, str]) -> None:
    """Refuse what is wrong with the names and values of USER properties."""
    for name, value in user.items():
        what = f"user property {_shown(name)}"
        if name in INTERNAL:
            problem = "the broker keeps something of its own under this name: choose another"
        elif _CONTROL.search(name):
            problem = f"its name {_NO_CONTROL}"
        elif _CONTROL.search(value):
            problem = f"its value, {_shown(value)}, {_NO_CONTROL}"
        else:
            continue
        raise Refused(
            v2.ILLEGAL_MESSAGE_PROPERTY_KEY,
            f"{what}: {problem}",
            field="user_properties",
            value=name[:_SHOWN_MAX],
        )


def _refuse_body(size: int) -> NoReturn:
    if not size:
        raise Refused(
            v2.MESSAGE_BODY_EMPTY, "the body is empty: send at least one byte", field="body"
        )
    raise Refused(
        v2.MESSAGE_BODY_TOO_LARGE,
        f"the body has {size} bytes, the limit is {BODY_BYTES_MAX} (4 MiB), as it is sent: compress or divide it",
        field="body",
        limit=BODY_BYTES_MAX,
        value=size,
    )


def _check_text(code: v2.Code, field: str, text: str) -> None:
    """Raise Refused with CODE if TEXT, which is not empty, is blank or holds a control character."""
    if _CONTROL.search(text):
        _refuse(code, field, text, _NO_CONTROL)
    if text.isspace():
        _refuse(code, field, text, "is blank: give at least one visible character")


def _refuse(code: v2.Code, field: str, text: str, rule: str) -> NoReturn:
    raise Refused(code, f"{field} {_shown(text)} {rule}", field=field, value=text[:_SHOWN_MAX])


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]!r}…"
