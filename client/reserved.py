"""Property names that are not the application's: the broker acts upon them, so a stray one would do the unexpected.

Most have an argument or a call of their own, which the refusal names. Source: store-format.md §2.5, §7; Apache's list
of names that an application may not set (MessageConst) is longer: names that nothing acts upon are let through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..proto import properties as names
from ..proto.errors import InvalidArgument

_BY_BROKER = "the broker sets it"
_TIMED = "write delay=… or deliver_at=…"
_IN_TRANSACTION = "send it with producer.transaction(…)"
_RESERVED: Final = {
    names.KEYS: "write key=… or keys=…",
    names.TAGS: "write tag=…",
    names.DELAY: "write delay_level=…",
    names.UNIQ_KEY: "it is the message id, which the producer makes; use a key for an id of your own",
    names.SHARDING_KEY: "write sharding_key=…",
    names.TRANSACTION_PREPARED: _IN_TRANSACTION,
    names.PRODUCER_GROUP: _IN_TRANSACTION,
    names.TRANSACTION_ID: _IN_TRANSACTION,
    names.TRANSACTION_CHECK_TIMES: _BY_BROKER,
    names.TRANSACTION_PREPARED_QUEUE_OFFSET: _BY_BROKER,
    names.REAL_TOPIC: f"{_BY_BROKER} for a message that waits",
    names.REAL_QUEUE_ID: f"{_BY_BROKER} for a message that waits",
    names.RETRY_TOPIC: f"{_BY_BROKER} for a message that comes again",
    names.ORIGIN_MESSAGE_ID: f"{_BY_BROKER} for a message that comes again",
    names.DEAD_LETTER_ORIGIN_TOPIC: f"{_BY_BROKER} for a dead letter",
    names.DEAD_LETTER_ORIGIN_MESSAGE_ID: f"{_BY_BROKER} for a dead letter",
    names.DEAD_LETTER_REASON: f"{_BY_BROKER} for a dead letter",
    names.INNER_NUM: _BY_BROKER,
    names.INNER_BASE: _BY_BROKER,
    names.MULTI_DISPATCH: _BY_BROKER,
    names.POP_CHECK_POINT: _BY_BROKER,
    names.PROPERTY_CRC: _BY_BROKER,
    names.PRODUCER_SEQUENCE: "the producer sets it",
}
_TIMER_PREFIX: Final = "TIMER_"


def is_reserved(name: str) -> bool:
    """Is the property NAME not the application's?"""
    return name in _RESERVED or name.startswith(_TIMER_PREFIX)


def refuse_reserved(own: Mapping[str, str]) -> None:
    """Raise InvalidArgument for a name in OWN that is reserved, with a hint, and for a value that is not text."""
    for name, value in own.items():
        if is_reserved(name):
            raise InvalidArgument(
                f"property {name!r} is not for applications: {_RESERVED.get(name, _TIMED)}",
                field="properties",
                value=name,
            )
        if not isinstance(value, str):
            raise InvalidArgument(
                f"property {name!r} is {type(value).__name__}, but must be text: write str(…)",
                field="properties",
                value=name,
            )
