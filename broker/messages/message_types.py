"""Message types: which types the messages of a batch have, and whether their topic accepts them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto import properties as names
from ...proto.errors import InvalidArgument
from .admission import ValidatedBatch

Flags = NDArray[np.bool_]
#: Types of messages, the properties that decide, and how such messages are sent; later types have
#: priority.
MESSAGE_TYPES: Final = ("NORMAL", "LITE", "PRIORITY", "FIFO", "DELAY", "TRANSACTION")
_ASKED_BY: Final[tuple[tuple[str, ...], ...]] = (
    (),
    (names.LITE_TOPIC,),
    (names.PRIORITY,),
    (names.SHARDING_KEY,),
    names.ASKING_NAMES,
    (),
)
_MADE_BY: Final = (
    "",
    "by an official client with lite_topic",
    "with priority=…",
    "with sharding_key=…",
    "with delay=…, deliver_at=… or delay_level=…",
    "in a transaction",
)


def check_type(admitted: ValidatedBatch, type_name: str) -> None:
    """Raise InvalidArgument unless a topic of the type TYPE_NAME accepts all messages in ADMITTED.

    The properties of a message decide its type, as for official clients (service_v2/messages.py). Topics are NORMAL
    unless the administrator sets another type. NORMAL topics accept all types from PocketMQ's own clients, as Apache
    RocketMQ's do from classic clients.
    """
    if type_name not in MESSAGE_TYPES[1:]:
        return
    run, wanted = admitted.run, MESSAGE_TYPES.index(type_name)
    kinds = types_of(admitted)
    wrong = np.flatnonzero(kinds != wanted)
    if len(wrong):
        index = int(wrong[0])
        found, wanted_name = MESSAGE_TYPES[kinds[index]], MESSAGE_TYPES[wanted]
        raise InvalidArgument(
            f"topic {run.topic!r} accepts {wanted_name} messages (message.type), but record {index} is {found}: send it"
            f" {_MADE_BY[wanted]}, or to a topic of its type, NORMAL or MIXED"
            " (broker.topic_message_type_check)",
            field="message_type",
            limit=wanted_name,
            value=found,
            index=index,
        )


def types_of(admitted: ValidatedBatch) -> NDArray[np.int8]:
    """Return the type of each message in ADMITTED, as an index of MESSAGE_TYPES."""
    run = admitted.run
    ranges = run.properties
    kinds = np.zeros(len(run), np.int8)
    for kind, asking in enumerate(_ASKED_BY):
        for name in asking:
            if ranges.has(name):
                kinds[ranges.find(name)[1] > 0] = kind
    if admitted.halves is not None:
        kinds[admitted.halves] = MESSAGE_TYPES.index("TRANSACTION")
    return kinds


def kinds_of(admitted: ValidatedBatch) -> dict[str, Flags]:
    """Return which messages in ADMITTED have each type, for the types that occur."""
    types = types_of(admitted)
    return {MESSAGE_TYPES[kind]: types == kind for kind in np.unique(types).tolist()}
