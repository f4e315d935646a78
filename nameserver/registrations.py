"""Registrations of brokers: checked and decoded into the route table's entries.

Each broken rule raises InvalidArgument with field, limit and value. Two things never fail a registration: a topic with
an invalid name is left out, and queue numbers out of range are clamped.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Final

from ..proto.errors import InvalidArgument, InvalidName
from ..proto.gen.pocketmq_v1_pb2 import FOLLOWER, MASTER, BrokerRegistration, TopicConfig
from ..proto.topics import (
    PERMISSION_ALL,
    PERMISSION_INHERIT,
    TOPIC_LENGTH_MAX,
    check_new_topic,
    check_topic,
)
from .route_table import BrokerState, Role, TopicQueues

logger = logging.getLogger(__name__)
#: Clusters and brokers have topics of their own names, so they follow the rules of topics.
NAME_LENGTH_MAX: Final = TOPIC_LENGTH_MAX
ADDRESS_LENGTH_MAX: Final = 255
TYPE_LENGTH_MAX: Final = 32
QUEUES_MAX: Final = 65_536  # of one topic on one broker
_PERMISSION_MAX: Final = PERMISSION_ALL | PERMISSION_INHERIT
_PORT_MAX: Final = 65_535
_ROLES: Final = {0: None, MASTER: Role.MASTER, FOLLOWER: Role.FOLLOWER}
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/@\s]+):(?P<port>[0-9]{1,5})")


def read_registration(message: BrokerRegistration, *, topics_max: int) -> BrokerState:
    """Return the decoded MESSAGE; raise InvalidArgument if a field is invalid."""
    role = _role(message.role)
    return BrokerState(
        cluster=_name("cluster", message.cluster),
        name=_name("broker_name", message.broker_name),
        id=_in_range("broker_id", message.broker_id, 1 if role else 0, None),
        address=_address(message.address),
        data_version=_in_range("data_version", message.data_version, 0, None),
        topics=None if message.unchanged else _topics(message, topics_max),
        changed_since=message.changed_since if message.HasField("changed_since") else None,
        gone=tuple(message.gone),
        role=role,
        # A follower may not know an epoch yet.
        epoch=_in_range("epoch", message.epoch, int(role is Role.MASTER), None if role else 0),
    )


def check_count(count: int, topics_max: int) -> None:
    """Raise InvalidArgument for a broker with more than TOPICS_MAX topics."""
    if count > topics_max:
        raise InvalidArgument(
            f"topics: the broker has {count}, the limit is {topics_max}: raise nameserver.topics_per_broker_max",
            field="topics",
            limit=topics_max,
            value=count,
        )


def _role(value: int) -> Role | None:
    """Return the role of a replica; None: a broker without replicas."""
    _in_range("role", value, 0, max(_ROLES))
    return _ROLES[value]


def _topics(message: BrokerRegistration, topics_max: int) -> dict[str, TopicQueues]:
    check_count(len(message.topics), topics_max)
    topics: dict[str, TopicQueues] = {}
    for index, config in enumerate(message.topics):
        try:
            name = check_topic(config.name)
        except InvalidName as error:
            # The other topics are registered all the same: older brokers register whatever their stores contain.
            logger.warning(
                "topic not registered broker=%s reason=%s", message.broker_name, error.message
            )
            continue
        if name in topics:
            field = f"topics[{index}].name"
            raise InvalidArgument(f"{field}: {name} is given twice", field=field, value=name)
        topics[name] = _queues(config)
    return topics


def _queues(config: TopicConfig) -> TopicQueues:
    """Return the queues of a topic. Numbers out of range are clamped, so that the broker is registered all the same."""
    return TopicQueues(
        min(max(config.read_queues, 0), QUEUES_MAX),
        min(max(config.write_queues, 0), QUEUES_MAX),
        config.permission & _PERMISSION_MAX,
        sys.intern(config.type[:TYPE_LENGTH_MAX]),
    )


def _name(field: str, name: str) -> str:
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidName(
            f"{field}: {len(name)} characters, the limit is {NAME_LENGTH_MAX}: {name[:40]}…",
            field=field,
            limit=NAME_LENGTH_MAX,
            value=len(name),
        )
    try:
        return check_new_topic(name)
    except InvalidName as error:
        raise InvalidName(
            f"{field}: {error.message}", **{**error.details, "field": field}
        ) from None


def _address(address: str) -> str:
    if len(address) > ADDRESS_LENGTH_MAX:
        raise InvalidArgument(
            f"address: {len(address)} characters, the limit is {ADDRESS_LENGTH_MAX}",
            field="address",
            limit=ADDRESS_LENGTH_MAX,
            value=len(address),
        )
    match = _ADDRESS.fullmatch(address)
    if match is None or not 1 <= int(match["port"]) <= _PORT_MAX:
        raise InvalidArgument(
            f"address: {address!r} is not host:port with a port of 1 to {_PORT_MAX}",
            field="address",
            limit="host:port",
            value=address,
        )
    return address


def _in_range(field: str, value: int, least: int, most: int | None) -> int:
    if value < least or (most is not None and value > most):
        limit = f"at least {least}" if most is None else f"{least} to {most}"
        raise InvalidArgument(
            f"{field}: {value} is out of range, it must be {limit}",
            field=field,
            limit=limit,
            value=value,
        )
    return value
