"""Checks of requests of `apache.rocketmq.v2`: names and limits, each with its code.

The limits are RocketMQ's (v2-protocol.md §2.2). A message within all limits costs about 2 µs here. Pure.

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
    delivery time              how far ahead the caller allows                        ILLEGAL_DELIVERY_TIME
    recovery of a transaction  0 to 3600 s                                            BAD_REQUEST
    lite topic                 1 to 64 letters, digits, "_" and "-"                   ILLEGAL_LITE_TOPIC
    priority                   0 or more                                              BAD_REQUEST
    trace context, born host   no control character                                   BAD_REQUEST

A control character is U+0000 to U+001F or U+007F to U+009F.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NoReturn, Protocol

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from ...proto import properties as names
from ...proto.errors import InvalidName
from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ...proto.time_text import format_duration, format_instant
from ...proto.topics import (
    MESSAGE_SIZE_MAX,
    check_group,
    check_new_group,
    check_topic,
    is_system_topic,
)
from .statuses import Refused

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
#: Limit of cached valid names.
_NAMES_KEPT: Final = 4096
_SHOWN_MAX: Final = 64  # characters of a bad value
_NO_CONTROL: Final = "holds a control character"


_RESERVED: Final = """
    KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
    ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY
    EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME TRAN_PREPARED_QUEUE_OFFSET INSTANCE_ID CORRELATION_ID
    REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK POP_CK_OFFSET 1ST_POP_TIME DUP_INFO
    INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
    DLQ_ORIGIN_MESSAGE_ID __CRC32#
"""

#: RocketMQ's reserved names (v2-protocol.md §2.2, MessageConst). RocketMQ refuses only these, so
#: consumers see some of the others, or producers can overwrite them.
RESERVED: Final = frozenset(_RESERVED.split())

#: All properties that brokers and proxies use: refused in sent messages, left out of deliveries.
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
    """Return the topic in RESOURCE; raise Refused (ILLEGAL_TOPIC) for an impossible name.

    The namespace is ignored, as in RocketMQ's proxy. The rules for names of new topics apply only if the topic does not
    exist (`service.code_of`).
    """
    return checked_topic(resource.name)


@lru_cache(_NAMES_KEPT)
def checked_topic(name: str) -> str:
    """Return the topic NAME; raise Refused (ILLEGAL_TOPIC) for an impossible name, or one of the broker's own."""
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
    """Return the consumer group in RESOURCE: one of those KNOWN, or one that may be created.

    Raises Refused (ILLEGAL_CONSUMER_GROUP).
    """
    name = checked_group(resource.name)
    if known.find(name) is None:
        _check_new_group(name)
    return name


@lru_cache(_NAMES_KEPT)
def checked_group(name: str) -> str:
    """Return the consumer group NAME; raise Refused (ILLEGAL_CONSUMER_GROUP) for an impossible name."""
    try:
        check_group(name)
    except InvalidName as error:
        raise Refused(v2.ILLEGAL_CONSUMER_GROUP, error.message, **error.details) from error
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise Refused(
            v2.ILLEGAL_CONSUMER_GROUP,
            f"group {name!r}: names that begin with {SYSTEM_GROUP_PREFIX} are the broker's own, use another",
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
    """Raise Refused (ILLEGAL_LITE_TOPIC) unless NAME is a valid lite topic."""
    if not _LITE_TOPIC.fullmatch(name) or len(name) > LITE_TOPIC_LENGTH_MAX:
        raise Refused(
            v2.ILLEGAL_LITE_TOPIC,
            f"lite_topic is {_shown(name)}, {len(name)} characters: use 1 to {LITE_TOPIC_LENGTH_MAX} letters, digits,"
            " _ and -",
            field="lite_topic",
            limit=LITE_TOPIC_LENGTH_MAX,
            value=name[:_SHOWN_MAX],
        )


def check_invisible(invisible_ms: int, least_ms: int, remedy: str = "") -> None:
    """Raise Refused (ILLEGAL_INVISIBLE_TIME) unless INVISIBLE_MS is between LEAST_MS and the maximum.

    The text begins as RocketMQ's. REMEDY is added for a time that is too short.
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
    """Return the filter in EXPRESSION; raise Refused for empty SQL."""
    text = expression.expression
    if expression.type != v2.SQL:
        return pb.Filter(kind=pb.Filter.TAG, expression=text) if text else pb.Filter()
    if not text.strip():
        raise Refused(
            v2.ILLEGAL_FILTER_EXPRESSION,
            "the SQL expression is empty: set it, or use the tag '*' for every message",
            field="expression",
        )
    return pb.Filter(kind=pb.Filter.SQL, expression=text)


def check_message(
    message: v2.Message,
    body: bytes,
    user: Mapping[str, str],
    keys: Sequence[str],
    *,
    now_ms: int,
    delay_max_ms: int,
) -> None:
    """Raise Refused unless MESSAGE is within all limits. Name and type of its topic are not checked.

    BODY, USER properties and KEYS are its own; they are passed because each access makes a copy. DELAY_MAX_MS: how far
    after NOW_MS it may be delivered.
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
    """Return TIME, a time or a duration, in whole milliseconds."""
    return time.seconds * 1000 + time.nanos // 1_000_000


def _check_place(system: v2.SystemProperties) -> None:
    """Check the destination, and the born host."""
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
            " in the body",
            field="user_properties",
            limit=PROPERTIES_BYTES_MAX,
            value=size,
        )


def _refuse_property(user: Mapping[str, str]) -> None:
    """Raise Refused for the first invalid name or value of USER properties."""
    for name, value in user.items():
        what = f"user property {_shown(name)}"
        if name in INTERNAL:
            problem = "the broker uses this name: choose another"
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
        f"the body has {size} bytes as sent, the limit is {BODY_BYTES_MAX} (4 MiB): compress or divide it",
        field="body",
        limit=BODY_BYTES_MAX,
        value=size,
    )


def _check_text(code: v2.Code, field: str, text: str) -> None:
    """Raise Refused with CODE if TEXT, which is not empty, is blank or contains a control character."""
    if _CONTROL.search(text):
        _refuse(code, field, text, _NO_CONTROL)
    if text.isspace():
        _refuse(code, field, text, "is blank: use at least one visible character")


def _refuse(code: v2.Code, field: str, text: str, rule: str) -> NoReturn:
    raise Refused(code, f"{field} {_shown(text)} {rule}", field=field, value=text[:_SHOWN_MAX])


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]!r}…"
