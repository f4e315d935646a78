"""Combines a source of queues with a store of their offsets: for groups, broadcasting, and chosen queues."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import retry_topic
from ..name_server_addresses import parse_addresses
from ..queue import Queue
from ..session import local_host
from ..subscriptions import Subscriptions
from .commits import Commits, OffsetKeeper
from .held_queue import HeldQueue, QueueSource, QueueUser
from .local_offsets import LocalOffsets, offsets_path
from .parts import ConsumerParts
from .sharing import GroupAssignment
from .unshared_queues import AssignedQueues, WholeTopics, committed_offsets


@dataclass(frozen=True, slots=True)
class QueueSupply:
    """A source of queues, and the store of their offsets."""

    source: QueueSource
    keeper: OffsetKeeper

    def doubt(self, held: HeldQueue) -> None:
        """Note that the connection to the broker of HELD broke: the broker may have restarted."""
        self.source.doubt(held)
        self.keeper.doubt(held.queue.broker)

    def fetched(self, held: HeldQueue, sent_ms: int, breaks: int) -> None:
        """Note that the master has answered a fetch of HELD that was sent at SENT_MS.

        BREAKS: how often connections to its broker had broken then.
        """
        self.source.fetched(held, sent_ms)
        if held.token:
            self.keeper.confirm(held.queue, sent_ms, breaks)


def group_supply(
    subscriptions: Subscriptions, user: QueueUser, parts: ConsumerParts, kind: str
) -> QueueSupply:
    """Return a supply that assigns queues of SUBSCRIPTIONS, and of the retry topic, to USER. KIND: "pull" or "push"."""

    def renewed(queue: Queue, sent_ms: int, breaks: int) -> None:
        keeper.confirm(queue, sent_ms, breaks)

    source = GroupAssignment(with_retries(subscriptions, parts), user, parts, kind, renewed)
    keeper = Commits(parts, source)
    return QueueSupply(source, keeper)


def with_retries(subscriptions: Subscriptions, parts: ConsumerParts) -> Subscriptions:
    """Return SUBSCRIPTIONS and, with enable_retries, all messages of the group's retry topic."""
    if not parts.config.enable_retries or not subscriptions:
        return subscriptions
    return {**subscriptions, retry_topic(parts.group): pb.Filter()}


def broadcast_supply(
    subscriptions: Subscriptions, user: QueueUser, parts: ConsumerParts, folder: str
) -> QueueSupply:
    """Return a supply that assigns all queues of SUBSCRIPTIONS to USER, with offsets in a file below FOLDER."""
    keeper = LocalOffsets(partial(_offsets_path, parts, folder), parts.session.clock)
    return QueueSupply(WholeTopics(subscriptions, user, parts, keeper.committed_of), keeper)


def chosen_supply(user: QueueUser, parts: ConsumerParts) -> tuple[QueueSupply, AssignedQueues]:
    """Return a supply of queues that the application chooses."""
    source = AssignedQueues(user, parts, partial(committed_offsets, parts))
    return QueueSupply(source, Commits(parts, source)), source


async def _offsets_path(parts: ConsumerParts, folder: str) -> Path:
    """Return the offsets file of a broadcasting consumer. Its folder is named after the host and the instance id."""
    config = parts.config
    host = await local_host(parse_addresses(config.nameservers)[0])
    client_id = f"{ip_address(host.address)}@{config.instance_id or 'DEFAULT'}"
    return offsets_path(folder, client_id, parts.group)
