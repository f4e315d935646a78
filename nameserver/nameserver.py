"""One name server: a route table, the service in front of it, and the scan that forgets silent brokers.

Name servers do not know each other: each broker registers with all of them, and a client asks any of them. A name
server stores nothing on disk. After a restart it is complete again as soon as all brokers have reconnected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..proto.access.audit import Audit
from ..proto.access.files import WatchedUsers, watched_users
from ..proto.access.guard import OwnRefusal, noticing
from ..proto.access.method_rules import NAME_SERVER
from ..proto.carriers import Http2Carrier
from ..proto.clock import Clock
from ..proto.errors import ConfigError
from ..proto.remoting.guard import RemotingGuard, noticing as remoting_noticing
from ..proto.remoting.server import RemotingProtocol
from ..proto.rpc import Carrier, Certificate, Limits, MakeCarrier, MethodTable
from ..proto.rpc.listening import connections_fitting
from ..proto.services.health_service import HealthService
from ..proto.services.port_services import PortServices
from ..proto.services.settings import LiveSettings, SettingsService
from ..proto.tls import read_authorities, read_certificate
from .config import NameServerConfig
from .remoting import RULES, RemotingRoutes
from .route_table import RouteTable
from .service import NameServerService

logger = logging.getLogger(__name__)


class NameServer:
    """A name server that runs on the event loop of its caller."""

    def __init__(
        self,
        config: NameServerConfig,
        table: RouteTable,
        carrier: Carrier,
        health: HealthService,
        clock: Clock,
        certificate: ShownCertificate,
        users: WatchedUsers | None = None,
    ) -> None:
        """USERS: the users and their permissions; None: all callers may do everything."""
        self._config = config
        self._table = table
        self._carrier = carrier
        self._health = health
        self._clock = clock
        self._certificate = certificate
        self._users = users
        self._scanning: asyncio.Task[None] | None = None
        self._port = 0

    @classmethod
    def build(
        cls,
        config: NameServerConfig,
        *,
        clock: Clock,
        make_carrier: MakeCarrier | None = None,
        live: LiveSettings | None = None,
        titles: Iterable[str] = ("nameserver",),
    ) -> NameServer:
        """Create a name server; nothing runs yet. MAKE_CARRIER creates its gRPC server; None: as CONFIG says.

        LIVE: the settings of the process, CONFIG among them. The port serves the sections TITLES of them.

        Raises ConfigError for a certificate that cannot be used.
        """
        table = RouteTable(config)
        own = NameServerService(table, config, clock).methods()
        users = watched_users(config.users, clock.unix_ms, plaintext=config.plaintext_credentials)
        settings = live or LiveSettings({"nameserver": config}, audit=Audit(clock.unix_ms))
        services = PortServices(
            own, lambda: carrier, SettingsService(settings, titles, proves_users=bool(users))
        )
        served = services.methods
        served = (
            users.guard.guarded(served, NAME_SERVER, OwnRefusal()) if users else noticing(served)
        )
        limits = Limits(
            receive_bytes_max=config.request_size_max_bytes,
            connections_max=connections_fitting(Limits().connections_max),
        )
        certificate = ShownCertificate(config)
        make = make_carrier or partial(_make_carrier, config, certificate)
        carrier = make([served], limits=limits)
        if config.remoting and isinstance(carrier, Http2Carrier):
            carrier.speak(_remoting(table, users, limits.half_sent_bytes_server, clock))
        return cls(config, table, carrier, services.health, clock, certificate, users)

    @property
    def port(self) -> int:
        """The port that is listened on, once started."""
        return self._port

    @property
    def address(self) -> str:
        """What clients and brokers connect to, once started."""
        return f"{self._config.host}:{self._port}"

    @property
    def kept(self) -> int:
        """How many topics are in its table."""
        return self._table.kept

    def reload_certificate(self) -> None:
        """Read the files of the certificate again, for new connections. Errors are logged."""
        self._certificate.reload()

    async def start(self) -> None:
        """Listen and serve; raise ConfigError if the address cannot be used."""
        self._port = await self._carrier.start(self._config.host, self._config.port)
        self._scanning = asyncio.create_task(self._scan(), name="nameserver-scan")
        if self._users is not None:
            self._users.start()
        self._health.begin()
        logger.info("name server listens address=%s", self.address)

    def reload_users(self) -> None:
        """Read the file of users again. Errors are logged."""
        if self._users is not None:
            self._users.reload()

    async def stop(self, grace_s: float = 1.0) -> None:
        """Refuse new requests, end the brokers' streams, and close."""
        self._health.end()
        if self._users is not None:
            await self._users.stop()
        if self._scanning is not None:
            self._scanning.cancel()
            await asyncio.wait((self._scanning,))
            self._scanning = None
        await self._carrier.stop(grace_s)

    async def _scan(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.now_ms() + self._config.scan_interval_ms)
            for broker in self._table.expire(self._clock.now_ms()):
                logger.warning(
                    "broker expired broker=%s id=%d address=%s silent_ms=%d",
                    broker.name,
                    broker.id,
                    broker.address,
                    self._config.broker_expiry_ms,
                )


def _remoting(
    table: RouteTable, users: WatchedUsers | None, bytes_max: int, clock: Clock
) -> RemotingProtocol:
    """Return the remoting protocol over TABLE."""
    handlers = RemotingRoutes(table).handlers()
    check = (
        remoting_noticing() if users is None else RemotingGuard(users.guard, handlers, RULES).check
    )
    return RemotingProtocol(handlers, bytes_max=bytes_max, now_ms=clock.now_ms, check=check)


class ShownCertificate:
    """The certificate that CONFIG names; `is_there` is whether it names one. Raises ConfigError."""

    def __init__(self, config: NameServerConfig) -> None:
        self._config = config
        self.is_there = bool(config.tls_cert)
        if self.is_there:
            self._current = self._read()

    def _read(self) -> Certificate:
        config = self._config
        shown = read_certificate(_content, "nameserver", config.tls_cert, config.tls_key)
        if not config.tls_ca:
            return shown
        authorities = read_authorities(_content, "nameserver", "tls_ca", config.tls_ca)
        return replace(shown, authorities=authorities)

    def current(self) -> Certificate:
        """Return the certificate for new connections. Thread-safe."""
        return self._current

    async def shown(self) -> Certificate:
        """Return the certificate for new connections."""
        return self._current

    def reload(self) -> None:
        """Read the files again. If they cannot be used, log the reason and keep the previous certificate."""
        try:
            self._current = self._read()
        except ConfigError as error:
            logger.error("certificate not reloaded reason=%s", error.message)
        else:
            logger.info("certificate reloaded")


def _content(path: str) -> bytes:
    return Path(path).read_bytes()


def _make_carrier(
    config: NameServerConfig,
    certificate: ShownCertificate,
    tables: Iterable[MethodTable],
    *,
    limits: Limits,
) -> Carrier:
    """Return the gRPC server of TABLES that CONFIG asks for. It shows CERTIFICATE."""
    if config.grpc == "grpcio":
        # The builtin server does not need grpcio, whose import takes 0.1 s.
        from ..proto.carrier_grpcio import GrpcioCarrier

        return GrpcioCarrier(
            tables, limits=limits, certificate=certificate.current if certificate.is_there else None
        )
    return Http2Carrier(
        tables,
        limits=limits,
        certificate=certificate.shown if certificate.is_there else None,
        secure_only=config.takes_tls_only,
    )
