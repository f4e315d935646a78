"""The property string of a record: pairs `name 0x01 value 0x02`, end to end, in UTF-8.

The last 0x02 is optional: RocketMQ up to 4.9.0 and from 5.2.0 on writes it, as PocketMQ does; versions between drop it.
Readers accept both. They follow Apache RocketMQ's rules (store-format.md §2.5): a pair ends at 0x02 or at the end. A
pair of less than three characters, without 0x01, or with an empty name or value is ignored. The later duplicate wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from .errors import InvalidArgument

NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"
_NAME_END: Final = NAME_END.encode()
_PAIR_END: Final = PAIR_END.encode()

#: Names that the store, the broker or the client interprets.
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
DEAD_LETTER_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
DEAD_LETTER_REASON: Final = "DLQ_REASON"
#: Metadata of ForwardMessageToDeadLetterQueue: the reason, percent-encoded. The request has no field for it.
REASON_HEADER: Final = "x-pocketmq-dead-letter-reason"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
SHARDING_KEY: Final = "__SHARDINGKEY"
LITE_TOPIC: Final = "__LITE_TOPIC"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
#: Set by instrumented programs: the header of W3C's Trace Context.
TRACEPARENT: Final = "traceparent"
#: The host on which a message was created, according to its sender. The record has the address that sent it.
BORN_HOST: Final = "__BORNHOST"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
POP_CHECK_POINT: Final = "POP_CK"
PROPERTY_CRC: Final = "__CRC32#"
#: Set by PocketMQ: producer and position in its sequence: "producer id, hexadecimal:epoch:first:count".
PRODUCER_SEQUENCE: Final = "PRODUCER_SEQUENCE"
#: Properties that a message gets on its way through the delay.
DELAY_NAMES: Final = (
    DELAY,
    REAL_TOPIC,
    REAL_QUEUE_ID,
    TIMER_DELAY_SEC,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_ENQUEUE_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ROLL_TIMES,
    TIMER_DELETE_KEY,
)

#: Properties that request a delay: a level, a delay in s or ms, a time.
ASKING_NAMES: Final = (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)

#: Words of KEYS are separated by this.
KEY_SEPARATOR: Final = " "
#: Longer numbers are treated as invalid: they may not fit 64 bits.
_DIGITS_MAX: Final = 18


def encode_properties(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> bytes:
    """Return the property string of PAIRS, in their order.

    Raises InvalidArgument for a name or value that is empty or contains 0x01 or 0x02, which separate properties.
    """
    pairs = dict(pairs)
    for name, value in pairs.items():
        _check(name, "name", name)
        _check(value, "value", name)
    return encode_again(pairs)


def encode_again(pairs: Mapping[str, str]) -> bytes:
    """Return the property string of PAIRS, which were read from a record: they are not checked."""
    return b"".join(encode_pair(name, value) for name, value in pairs.items())


def encode_pair(name: str, value: object) -> bytes:
    """Return the part of a property string that sets NAME to VALUE, as text; neither is checked."""
    return f"{name}{NAME_END}{value}{PAIR_END}".encode()


def closed(string: bytes) -> bytes:
    """Return the property STRING with the last 0x02, so that more properties can be appended."""
    return string if not string or string.endswith(_PAIR_END) else string + _PAIR_END


def without(string: bytes, dropped: Collection[str]) -> bytes:
    """Return the property STRING without the properties DROPPED, closed. Malformed parts stay."""
    gone = {name.encode() for name in dropped}
    pairs = string.split(_PAIR_END)
    return closed(
        _PAIR_END.join(pair for pair in pairs if pair.partition(_NAME_END)[0] not in gone)
    )


def _check(text: str, what: str, name: str) -> None:
    if not text:
        raise InvalidArgument(
            f"the {what} of property {name!r} is empty: leave the property out", field=name
        )
    if NAME_END in text or PAIR_END in text:
        raise InvalidArgument(
            f"the {what} of property {name!r} holds U+0001 or U+0002, which separate properties",
            field=name,
        )


def decode_properties(data: bytes | bytearray | memoryview) -> dict[str, str]:
    """Return the properties in DATA by RocketMQ's rules; malformed pairs and malformed UTF-8 never raise."""
    found: dict[str, str] = {}
    for pair in str(data, "utf-8", "replace").split(PAIR_END):
        name, separator, value = pair.partition(NAME_END)
        if name and separator and value:
            found[name] = value
    return found


def whole_number(value: str) -> int | None:
    """Return VALUE as an integer of 0 or more; None: it is none. Properties may contain anything."""
    fits = value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX
    return int(value) if fits else None
