"""The broker of a replica set in a process: the replica, its port for the others, and what clients are served.

A master has a broker on the port of clients, which begins and ends with its leadership. A follower has none: its port
leads clients to the master. `ReplicaRoles` is the one place that chooses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from random import SystemRandom
from typing import Any, Final

from ..broker.assembly import producers_of
from ..broker.broker import Broker, Network
from ..broker.ports.certificates import Certificates, replica_certificate
from ..broker.ports.client_port import ClientPort
from ..broker.replication.device import ReplicaDevice, boot_id
from ..broker.replication.mastership import Mastership
from ..broker.replication.node import ReplicaNode
from ..broker.replication.registry import Registry
from ..broker.replication.replica_state import ReplicaRole
from ..broker.replication.running import ReplicaParts
from ..broker.replication.zookeeper import ZooKeeperRegistry
from ..broker.replication.zookeeper_access import ZooKeeperAccess
from ..proto.access.audit import Audit
from ..proto.carriers import Http2Carrier
from ..proto.clock import Clock
from ..proto.errors import ConfigError
from ..proto.rpc import Certificate, Channel, connect
from ..proto.rpc.limits import ChannelLimits, Limits
from ..proto.rpc.listening import listen
from ..proto.services.settings import LiveSettings
from ..store.disk import Disk
from ..store.format.replica_files import BrokerIdentity
from ..store.message_store import MessageStore
from .console.site import site
from .settings import Settings

logger = logging.getLogger(__name__)

_MIB: Final = 1_048_576
#: Frames of a mebibyte wait for the disk: few, so that heartbeats are not delayed.
_FOLLOWING: Final = ChannelLimits(unread_bytes=8 * _MIB)
#: A link lasts as long as both ends do.
_FOLLOWED: Final = Limits(connection_age_ms=0, queue_bytes=4 * _MIB, connections_max=256)
#: How long a start waits for a master before it says that the replica serves.
_SETTLE_S: Final = 5.0
#: How long a port that was a master's leads clients to the next one.
_LEAD_AWAY_S: Final = 0.3


class ReplicaRoles:
    """What clients are served: as master by a broker that BUILD makes; as a follower by the port itself."""

    def __init__(self, build: Callable[[], Broker]) -> None:
        self._build = build
        self.broker: Broker | None = None

    async def lead(self, store: MessageStore, mastership: Mastership) -> None:
        self.broker = self._build()
        await self.broker.start(store=store, mastership=mastership)

    async def follow(self) -> None:
        broker, self.broker = self.broker, None
        if broker is not None:
            await broker.stop()


class ReplicaServer:
    """The replica of SETTINGS, which has a set; CLOCK is the machine's, LIVE has all settings of the process."""

    def __init__(
        self, settings: Settings, *, disk: Disk, clock: Clock, live: LiveSettings | None = None
    ) -> None:
        self._settings = settings = _with_own_names(settings)
        live = live or LiveSettings(settings.sections, settings.origins, audit=Audit(clock.unix_ms))
        live.hold(settings.sections, settings.origins)
        config = settings.replication
        self.client_address = _client_address(settings)
        device = ReplicaDevice(
            settings.store,
            BrokerIdentity(settings.broker.cluster, config.replica_set, config.replica_id),
            disk=disk,
            unix_ms=clock.unix_ms,
            boot=boot_id(disk),
            producers_of=partial(producers_of, settings.broker, clock),
        )
        mine = config.settings(
            cluster=settings.broker.cluster,
            client_address=self.client_address,
            file_size=settings.store.log_file_size_bytes,
            flush_sync=settings.store.flush == "sync",
        )

        self._disk = disk
        self._certificate = replica_certificate(config, disk)

        async def certificate() -> Certificate:
            assert self._certificate is not None, "asked where there is one"
            return self._certificate

        def dial(address: str) -> Channel:
            tls = self._certificate.client_context() if self._certificate else None
            return connect(address, limits=_FOLLOWING, user_agent="pocketmq-replica", tls=tls)

        async def open_session() -> Registry:
            return await ZooKeeperRegistry.open(
                ",".join(config.zookeeper),
                mine.cluster,
                mine.set_name,
                session_ms=mine.session_ms,
                now_ms=clock.now_ms,
                access=ZooKeeperAccess.of(config),
            )

        def build() -> Broker:
            network = Network(port=self.port, site=site, live=live)
            return Broker.build(
                settings.broker, settings.store, disk=disk, clock=clock, network=network
            )

        self.roles = ReplicaRoles(build)
        self.node = ReplicaNode(
            mine,
            ReplicaParts(
                device=device,
                clock=clock,
                open_session=open_session,
                dial=dial,
                roles=self.roles,
            ),
        )
        self._carrier = Http2Carrier(
            [self.node.methods()],
            limits=_FOLLOWED,
            certificate=certificate if self._certificate else None,
            secure_only=self._certificate is not None,
        )
        self.port = ClientPort(
            settings.broker,
            self.node,
            Certificates(settings.broker, disk, settings.store.own_folder, clock),
            clock=clock,
            dial=settings.broker.peers.dial(),
            random=SystemRandom(),
            live=live,
        )

    @property
    def kept(self) -> int:
        """How many topics, groups and queues are in the tables of its broker."""
        return self.roles.broker.kept if self.roles.broker else 0

    async def start(self) -> None:
        """Listen, begin, and wait some seconds to be live and for a master. Raises ConfigError, StoreError."""
        await self._carrier.start(*self._settings.replication.place)
        try:
            await self.port.start()
            await self.node.start()
            await self._settle()
        except BaseException:
            await self.port.stop()
            await self.node.stop()
            await self._carrier.stop(0)
            raise

    async def _settle(self) -> None:
        """Wait some seconds to be live, and for a master. Raises ConfigError if this replica's id is taken."""
        mine = self.node.settings
        # ZooKeeper waits until the session of the previous owner of this id has ended.
        within_s = max(_SETTLE_S, 2 * mine.session_ms / 1000)
        try:
            async with asyncio.timeout(within_s):
                while not (self.node.is_live and self.node.master):
                    if self.node.refused is not None:
                        raise self.node.refused
                    await asyncio.sleep(0.02)
        except TimeoutError:
            logger.warning("no master yet set=%s", mine.set_name)

    def reload_certificate(self) -> None:
        """Read the files of certificates again, for connections from now on; log what is wrong with them."""
        self.port.reload_certificate()
        if self._certificate is None:
            return
        try:
            self._certificate = replica_certificate(self._settings.replication, self._disk)
        except ConfigError as error:
            logger.error("certificate not reloaded reason=%s", error.message)
        else:
            logger.info("certificate reloaded")

    def reload_users(self) -> None:
        """Read the file of users again; what is wrong with it is logged."""
        self.port.reload_users()

    async def stop(self) -> None:
        """End it; if it is master, transfer leadership first, and tell clients the new one."""
        if await self.node.transfer_leadership():
            await asyncio.sleep(_LEAD_AWAY_S)
        await self.port.stop()
        await self.node.stop()
        await self._carrier.stop(0.2)

    def ready(self) -> dict[str, Any]:
        """Return what the ready line says of it."""
        config, node = self._settings.replication, self.node
        return {
            "broker": self.client_address,
            "store": self._settings.store.path,
            "replica": {
                "set": config.replica_set,
                "id": config.replica_id,
                "role": "master" if node.role is ReplicaRole.MASTER else "follower",
                "master": node.master,
                "epoch": node.epoch,
                "address": node.settings.address,
            },
        }


def _with_own_names(settings: Settings) -> Settings:
    """Return SETTINGS with the set as the broker's name, and the port of clients chosen, for good."""
    settings = settings.given(
        "replication.replica_set", broker={"name": settings.replication.replica_set}
    )
    if settings.broker.port == 0:
        sockets = listen(settings.broker.host, 0)
        settings = settings.given("a free one", broker={"port": sockets[0].getsockname()[1]})
        for one in sockets:
            one.close()
    return settings


def _client_address(settings: Settings) -> str:
    broker = settings.broker
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    return broker.advertised_address or f"{host}:{broker.port}"
