"""The types of messages: what a message is, by what it asks for, and which of them a topic takes.

The type that a request names is not looked at, but for TRANSACTION: like Apache's proxy, the broker goes by what the
message has. A delivery time makes DELAY, also beside a message group; a group makes FIFO; a priority PRIORITY; a lite
topic LITE; else it is NORMAL. A topic takes its own type, the attribute `message.type`; one without is NORMAL, and one
of type MIXED takes all. Source: v2-protocol.md §4.1, fixture v2/send.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...proto import properties as names
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...store.state_tables import TopicConfig
from ..topics import TYPE_ATTRIBUTE
from .statuses import Refused

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
