"""Where a push consumer's queues come from, and where its offsets are kept: with its group, or all for itself."""

from __future__ import annotations

from functools import partial
from ipaddress import ip_address
from pathlib import Path

from ..consuming.commits import Commits
from ..consuming.held_queue import QueueUser, Subscriptions
from ..consuming.local_offsets import LocalOffsets, offsets_path
from ..consuming.parts import ConsumerParts
from ..consuming.sharing import Sharing
from ..consuming.whole_topics import WholeTopics
from ..name_servers import parse_addresses
from ..session import local_host
from .config import PushConfig
from .pushing import Supply


def supply_of(user: QueueUser, parts: ConsumerParts, subscriptions: Subscriptions) -> Supply:
    """Return the supply of USER, as the settings in PARTS say."""
    if parts.config.broadcasting:
        keeper = LocalOffsets(partial(_offsets_path, parts), parts.session.clock)
        return Supply(WholeTopics(subscriptions, user, parts, keeper.committed_of), keeper)
    source = Sharing(subscriptions, user, parts, "push")
    return Supply(source, Commits(parts, source))


async def _offsets_path(parts: ConsumerParts) -> Path:
    """Return the file of a broadcasting consumer: in a folder of its machine, and of its instance if it has a name."""
    config = parts.config
    assert isinstance(config, PushConfig)
    host = await local_host(parse_addresses(config.nameservers)[0])
    client_id = f"{ip_address(host.address)}@{config.instance_id or 'DEFAULT'}"
    return offsets_path(config.offsets_folder, client_id, parts.group)
