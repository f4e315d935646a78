"""A replica set whose masters are whole brokers, and calls of whoever is master."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from pocketmq.broker.broker import Broker
from pocketmq.broker.replication.mastership import Mastership
from pocketmq.proto.clock import SystemClock
from pocketmq.store.config import StoreConfig
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ...integration.whole_broker import Peer
from ...served import broker_config
from .replica_set import AppendingRoles, Member, ReplicaSet, replica_set


class BrokerRoles(AppendingRoles):
    """Serves as master with a broker over the store of CONFIG."""

    def __init__(self, config: StoreConfig, settings: dict[str, Any]) -> None:
        super().__init__()
        self._config = config
        self._settings = settings
        self.broker: Broker | None = None

    async def lead(self, store: MessageStore, mastership: Mastership) -> None:
        config = broker_config(port=0, nameservers=(), stop_grace_ms=0, **self._settings)
        self.broker = Broker.build(config, self._config, disk=OsDisk(), clock=SystemClock())
        await self.broker.start(store=store, mastership=mastership)
        self.store, self.mastership = store, mastership

    async def follow(self) -> None:
        await super().follow()
        broker, self.broker = self.broker, None
        if broker is not None:
            await broker.stop()


@asynccontextmanager
async def broker_set(
    folder: Path, count: int = 3, broker: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[ReplicaSet]:
    """Run COUNT replicas below FOLDER; BROKER settings and SETTINGS are of all."""

    def roles(config: StoreConfig) -> BrokerRoles:
        return BrokerRoles(config, broker or {})

    async with replica_set(folder, count, make_roles=roles, **settings) as world:
        yield world


def broker_of(member: Member) -> Broker:
    """Return the broker of MEMBER, which is master."""
    assert isinstance(member.roles, BrokerRoles)
    assert member.roles.broker is not None, "it is no master"
    return member.roles.broker


@asynccontextmanager
async def peer_of(member: Member) -> AsyncIterator[Peer]:
    """Connect to MEMBER, which is master."""
    async with grpc.aio.insecure_channel(
        broker_of(member).address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        yield Peer(channel)
