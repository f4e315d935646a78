"""Names of topics and groups as the clients of `apache.rocketmq.v2` give them."""

from __future__ import annotations

from typing import Final

from ...proto.errors import InvalidName
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.topics import check_group, check_topic, is_system_topic
from .statuses import Refused

_OWN_GROUPS: Final = "CID_RMQ_SYS_"


def topic_name(resource: v2.Resource) -> str:
    """Return the name of a topic; raise Refused (ILLEGAL_TOPIC) for none, or one of the broker's own."""
    name = resource.name
    try:
        check_topic(name)
    except InvalidName as error:
        raise Refused(v2.ILLEGAL_TOPIC, error.message, field="topic", value=name[:64]) from error
    if is_system_topic(name):
        raise Refused(
            v2.ILLEGAL_TOPIC,
            f"topic {name!r} is the broker's own: choose another",
            field="topic",
            value=name,
        )
    return name


def group_name(resource: v2.Resource) -> str:
    """Return the name of a consumer group; raise Refused (ILLEGAL_CONSUMER_GROUP) likewise."""
    name = resource.name
    try:
        check_group(name)
    except InvalidName as error:
        raise Refused(
            v2.ILLEGAL_CONSUMER_GROUP, error.message, field="group", value=name[:64]
        ) from error
    if name.startswith(_OWN_GROUPS):
        raise Refused(
            v2.ILLEGAL_CONSUMER_GROUP,
            f"group {name!r} is the broker's own: choose another",
            field="group",
            value=name,
        )
    return name
