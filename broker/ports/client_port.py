"""The port of a replica for its clients, and its registration at the name servers, while the process runs.

    port = ClientPort(config, replica, …)
    await port.start()                      as a follower: follower_methods, and registered as a follower
    broker = Broker.build(…, network=Network(port=port))
    await broker.start(store=…, mastership=…)    the broker's methods, at the same port and over the same connections
    await broker.stop()                     as a follower again

The socket and its connections stay open. Requests that wait at the follower for a master are answered by the broker
once it is master. Requests under way at a broker that stops get its grace period, and then fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from random import Random
from typing import Any, Final, Protocol

from ... import __version__
from ...proto import speedups
from ...proto.access.audit import Audit
from ...proto.access.files import signing, watched_users
from ...proto.access.guard import noticing
from ...proto.carriers import Http2Carrier
from ...proto.clock import Clock
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.remoting.refusal import refuse_for_replicas
from ...proto.remoting.server import RemotingProtocol
from ...proto.rpc import Call, Certificate, Limits, MethodTable, service, unary
from ...proto.rpc.carrier import ConnectionFigures, ConnectionTotals
from ...proto.rpc.channels import Dial
from ...proto.rpc.listening import connections_fitting
from ...proto.rpc.pages import Page
from ...proto.services.port_services import PortServices
from ...proto.services.settings import LiveSettings, SettingsService
from ..config import BROKER_SECTIONS, BrokerConfig
from ..metrics.page import MetricsPage, PageFigure
from ..replication.follower_view import FollowerView
from ..replication.in_sync import ReplicaSettings
from ..replication.replica_metrics import ReplicaStatus, replica_figures
from ..service_v2.permissions import guarded
from .certificates import Certificates
from .follower_port import FollowerReads, follower_methods
from .held_calls import holding
from .registration import Registration, follower_state
from .relays import WAIT_S, KnownMaster, Relays

logger = logging.getLogger(__name__)

#: How long requests that wait for a master may continue after this replica became master.
_WAITERS_S: Final = WAIT_S + 0.5
#: Interval of checks for another epoch or master.
_LOOK_S: Final = 0.1


class PortReplica(Protocol):
    """The replica, as its port uses it."""

    @property
    def settings(self) -> ReplicaSettings:
        """Its identity, and its address for clients."""
        ...

    @property
    def known_master(self) -> tuple[str, int] | None:
        """The master's address for clients, and its epoch; None: this replica is the master, or it is unknown."""
        ...

    @property
    def epoch(self) -> int:
        """The highest epoch that it knows."""
        ...

    @property
    def takes_calls(self) -> bool:
        """Return whether it is a master that takes requests: not during a transfer, nor after stepping down."""
        ...

    @property
    def follower_view(self) -> FollowerView | None:
        """The log and tables of the set, as far as this replica has them; None: it does not follow, or they are not
        available.
        """
        ...

    @property
    def client_addresses(self) -> Sequence[str]:
        """The addresses for clients of all live replicas, by replica id."""
        ...

    def look(self) -> ReplicaStatus:
        """Return its status, for `/metrics`."""
        ...


def port_limits(config: BrokerConfig) -> Limits:
    """Return the limits of the port that CONFIG sets."""
    return Limits(
        receive_bytes_max=2 * config.batch_max_bytes,
        half_sent_bytes_server=config.pending_max_bytes,
        queue_bytes_server=config.pending_max_bytes,
        connections_max=connections_fitting(config.connections_max),
        connection_age_ms=config.connection_age_ms,
        connection_age_grace_ms=config.connection_age_grace_ms,
    )


class ClientPort:
    """The port of REPLICA with the settings CONFIG and CERTIFICATES."""

    def __init__(
        self,
        config: BrokerConfig,
        replica: PortReplica,
        certificates: Certificates,
        *,
        clock: Clock,
        dial: Dial,
        random: Random,
        live: LiveSettings | None = None,
    ) -> None:
        """CLOCK is the machine's. DIAL opens channels to masters, for calls that are relayed with their signatures.

        LIVE: the live settings of the process, including CONFIG.
        """
        self._config = config
        self._replica = replica
        self._id = replica.settings.replica_id
        #: Its address for clients.
        self.address = replica.settings.reached_at
        self._certificates = certificates
        self._clock = clock
        self._random = random
        self._started_ms = clock.unix_ms()
        self._leads = False
        self.relays = Relays(config.name, self._master, dial)
        status = unary(pb.BrokerStatusRequest, pb.BrokerStatusReply, self._status)
        own = service("pocketmq.v1.Broker", {"Status": status})
        self._reads = FollowerReads(config, lambda: self._replica.follower_view, clock)
        #: Users and their permissions, also while the broker is master; None: everything is allowed.
        self.users = watched_users(
            config.users,
            clock.unix_ms,
            plaintext=config.plaintext_credentials,
            cluster=config.cluster,
        )
        self._dial = signing(config.peers, self.users)
        settings = live or LiveSettings({"broker": config}, audit=Audit(clock.unix_ms))
        services = PortServices(
            follower_methods(self.relays, own, self._reads),
            lambda: self._carrier,
            SettingsService(settings, BROKER_SECTIONS, proves_users=self.users is not None),
            {"writable": _never, "master": _never},
        )
        self._following, self._health = services.methods, services.health
        if self.users is None:
            self._following = noticing(self._following)
        else:
            self._following = guarded(self.users.guard, self._following, config.cluster)
        self._page = MetricsPage([self.figures])
        self._carrier = Http2Carrier(
            [self._following],
            page=self._page,
            limits=port_limits(config),
            certificate=self._certificate if config.tls else None,
            secure_only=config.takes_tls_only,
        )
        if config.remoting:
            refusal = RemotingProtocol(
                {},
                bytes_max=config.pending_max_bytes,
                now_ms=clock.now_ms,
                check=refuse_for_replicas,
            )
            self._carrier.speak(refusal)
        self._registration: Registration | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def _certificate(self) -> Certificate:
        await self._certificates.prepare()
        return self._certificates.current()

    async def start(self) -> None:
        """Listen, and serve as a follower. Raises ConfigError."""
        self._certificates.load()
        await self._carrier.start(self._config.host, self._config.port)
        self._health.begin()
        if self.users is not None:
            self.users.start()
        self._register()
        self._spawn(self._watch())

    async def stop(self) -> None:
        """Close the port; the broker on it must have stopped."""
        self._health.end()
        if self.users is not None:
            await self.users.stop()
        for task in list(self._tasks):
            task.cancel()
        await self._unregister()
        self._reads.stop()
        await self.relays.close()
        await self._carrier.stop(self._config.stop_grace_ms / 1000)

    def reload_certificate(self) -> None:
        """Read the certificate files again, for new connections; log what is wrong with them."""
        if self._config.names_tls_files:
            self._certificates.reload()

    def reload_users(self) -> None:
        """Read the users file again; log what is wrong with it."""
        if self.users is not None:
            self.users.reload()

    def leading(self, tables: Iterable[MethodTable], page: Page) -> LeadingCarrier:
        """Return the carrier that serves TABLES and PAGE of a broker here, from its start to its stop."""
        return LeadingCarrier(self, tables, page)

    def holding(self, table: MethodTable, check_open: Callable[[], None]) -> MethodTable:
        """Return TABLE of the master's broker; its calls are held and relayed while CHECK_OPEN raises an error."""
        return holding(table, check_open, self.relays)

    async def lead(self, tables: Iterable[MethodTable], page: Page) -> None:
        """Serve TABLES and PAGE of the broker, which is master now; it registers itself."""
        self._health.end()
        await self._unregister()
        self._leads = True
        self._spawn(self._carrier.replace(tables, _WAITERS_S, page=page))
        await asyncio.sleep(0)  # After this turn of the event loop they are served.

    async def follow(self, grace_s: float) -> None:
        """Serve as a follower. Open requests at the broker may continue for GRACE_S."""
        self._leads = False
        await self._carrier.replace([self._following], grace_s, page=self._page)
        self._health.begin()
        self._register()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        """Check for a new epoch or another master, and inform the name servers and the relays."""
        epoch = self._replica.epoch
        while True:
            await asyncio.sleep(_LOOK_S)
            self.relays.look()
            if self._replica.epoch != epoch:
                epoch = self._replica.epoch
                if self._registration is not None:
                    self._registration.changed()

    def figures(self) -> Iterable[PageFigure]:
        """Return the metrics of the replica, in either role."""
        return replica_figures(self._replica.look())

    def replicas(self) -> Sequence[str]:
        """Return the addresses for clients of all live replicas."""
        return self._replica.client_addresses

    def _master(self) -> KnownMaster | None:
        if self._leads and self._replica.takes_calls:
            return KnownMaster(self.address, self._replica.epoch)
        heard = self._replica.known_master
        return None if heard is None else KnownMaster(*heard)

    def _status(self, request: pb.BrokerStatusRequest, call: Call) -> pb.BrokerStatusReply:
        heard = self._replica.known_master
        where = "no master is known" if heard is None else f"the master is at {heard[0]}"
        return pb.BrokerStatusReply(
            cluster=self._config.cluster,
            broker_name=self._config.name,
            broker_id=self._id,
            address=self.address,
            version=__version__,
            code=speedups.running(),
            started_ms=self._started_ms,
            writable=False,
            not_writable_because=f"this replica is a follower, {where}",
            epoch=self._replica.epoch,
            now_ms=self._clock.unix_ms(),
        )

    def _register(self) -> None:
        self._registration = Registration(
            self._config.nameservers,
            follower_state(self._head),
            self._clock,
            self._random,
            self._config.registration_interval_ms,
            self._dial,
        )
        self._registration.start()

    async def _unregister(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.stop()

    def _head(self) -> pb.BrokerRegistration:
        return pb.BrokerRegistration(
            cluster=self._config.cluster,
            broker_name=self._config.name,
            broker_id=self._id,
            address=self.address,
            role=pb.FOLLOWER,
            epoch=self._replica.epoch,
        )


class LeadingCarrier:
    """The carrier of a broker that is master: it serves TABLES and PAGE at PORT. Implements `Carrier`."""

    def __init__(self, port: ClientPort, tables: Iterable[MethodTable], page: Page) -> None:
        self._port = port
        self._tables = list(tables)
        self._page = page

    async def start(self, host: str, port: int) -> int:
        await self._port.lead(self._tables, self._page)
        return int(self._port.address.rpartition(":")[2]) if port == 0 else port

    async def stop(self, grace_s: float) -> None:
        await self._port.follow(grace_s)

    def connection_figures(self, first_id: int, limit: int) -> Sequence[ConnectionFigures]:
        return self._port._carrier.connection_figures(first_id, limit)

    def connection_totals(self) -> ConnectionTotals:
        return self._port._carrier.connection_totals()

    def close_connection(self, number: int) -> bool:
        return self._port._carrier.close_connection(number)


def _never() -> bool:
    return False
