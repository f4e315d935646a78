"""One broker: a store, the tables, and the gRPC server.

Start: the store recovers, the tables load, the timers start, the server listens, the broker registers at the name
servers. Stop is the reverse: unregister, refuse new sends, finish open work, save the tables, close the store. After a
kill the next start recovers: nothing that was acknowledged is missing.

The master of a replica set starts a broker on its own open store. It stops the broker when another replica is, or may
be, the master; the store stays open. The end of the mastership fences the broker first: from that turn of the event
loop on, it stores nothing, and all answers say that it is not the master. Such a broker serves only after everything in
its store is confirmed, so messages that are not confirmed are always from its own time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import mmap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random, SystemRandom
from typing import Final, NamedTuple

from .. import __version__
from ..proto import speedups
from ..proto.access.audit import Audit
from ..proto.access.files import WatchedUsers, signing, watched_users
from ..proto.access.guard import Guard, noticing
from ..proto.carriers import Http2Carrier
from ..proto.clock import Clock
from ..proto.errors import PocketMQError, ShuttingDown
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.record import Host
from ..proto.remoting.guard import RemotingGuard, noticing as remoting_noticing
from ..proto.remoting.server import RemotingProtocol
from ..proto.rpc import Carrier, Certificate, MakeCarrier, MethodTable
from ..proto.rpc.carrier import ConnectionTotals, CountsConnections
from ..proto.rpc.channels import Dial
from ..proto.rpc.pages import Page
from ..proto.services.health_service import HealthService
from ..proto.services.port_services import PortServices
from ..proto.services.settings import LiveSettings, SettingsService
from ..store.config import StoreConfig
from ..store.disk import Disk
from ..store.events import StoreEvents
from ..store.message_store import MessageStore
from ..store.recovery.report import RecoveryReport
from ..store.state_files import StateFile
from ..store.system import cpu_seconds, peak_memory_bytes
from .assembly import assemble, remoting_handlers
from .config import BROKER_SECTIONS, BrokerConfig
from .events import BrokerEvents
from .groups.lag import GroupLag, lags, note_lag
from .metrics.page import MetricsPage, PageFigure
from .metrics.pocketmq_families import client_figures, figures
from .metrics.rocketmq_families import RocketMQFigures
from .metrics.traffic import TrafficCounts
from .parts import BrokerParts
from .ports.certificates import Certificates
from .ports.client_port import ClientPort, port_limits
from .ports.registration import Registration, RegistrationState
from .producers.producers import PRODUCERS_TICK_MS
from .remoting.permissions import broker_rules as remoting_rules
from .replication.answering import MasterChecks, as_master
from .replication.java_slaves import JavaSlaves
from .replication.mastership import Mastership
from .service_v1 import BrokerService, topic_message
from .service_v2.permissions import guarded
from .timing.timers import TimerClock
from .timing.virtual_mark import ClockMarker, begin, keep_mark
from .timing.virtual_time import advance, is_virtual, methods as clock_methods
from .transactions.transactions import Transactions

logger = logging.getLogger(__name__)

_PAGE_SIZE = mmap.PAGESIZE
#: How often a broker with a virtual clock deletes expired files: they expire at an hour of the day.
_MOVED_CLEAN_MS = 600_000
#: How often the broker checks whether topics or groups have changed, to write their complete
#: tables.
_TABLES_TICK_MS = 1_000
#: How often the broker checks whether its health has changed, for clients that watch it.
_HEALTH_TICK_MS = 1_000
#: Service name of the health check: does the broker accept messages?
WRITABLE = "writable"
#: Service name of the health check, replica sets only: is this replica the master?
MASTER = "master"
#: How long clients have to receive the answer that this is not the master any more.
_FENCED_GRACE_S: Final = 0.05
#: Methods that are served whether or not this replica is the master.
_ALWAYS: Final = frozenset({"/pocketmq.v1.Broker/Status"})
#: How long the reply to a change of topics waits for the name servers.
_ANNOUNCE_TIMEOUT_S = 3.0


class SiteCounters(NamedTuple):
    """Counters for pages that poll often: they are cheap to read."""

    sent_messages: int
    appended_bytes: int
    sends_failed: int
    dispatched_offset: int
    connections: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteParts:
    """What web pages at the port may use.

    METHODS, METRICS, TRAFFIC and STORE are those of the broker. FIGURES yields all values of the metrics page, COUNTERS
    the few that are cheap to read. LAGS yields the lag of up to so many groups and topics. EVERY runs work each so
    many ms. CLOSE_CONNECTION aborts the connection with a number, and returns whether it existed. GUARD checks the
    permissions of METHODS in CLUSTER; None: all callers may do everything.
    """

    methods: MethodTable
    metrics: Page
    figures: Callable[[], Iterable[PageFigure]]
    traffic: TrafficCounts
    counters: Callable[[], SiteCounters]
    lags: Callable[[int], Iterator[GroupLag]]
    every: Callable[[int, Callable[[], None]], object]
    close_connection: Callable[[int], bool]
    guard: Guard | None
    cluster: str
    store: MessageStore
    transactions: Transactions


def _metrics_alone(parts: SiteParts) -> Page:
    return parts.metrics


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """How a broker is reached, and reaches others.

    MAKE_CARRIER serves the broker's methods. DIAL opens channels (None: as the settings say). SITE answers plain HTTP
    requests.
    """

    make_carrier: MakeCarrier | None = None
    dial: Dial | None = None
    #: The port that a replica keeps open; None for a broker without replicas.
    port: ClientPort | None = None
    site: Callable[[SiteParts], Page] = _metrics_alone
    #: The live settings of the process, including those of the broker and its store; None: only
    #: these.
    live: LiveSettings | None = None

    def carrier(
        self, table: MethodTable, config: BrokerConfig, certificates: Certificates, page: Page
    ) -> Carrier:
        """Return the carrier of TABLE. The built-in one uses CERTIFICATES for TLS, and PAGE for plain HTTP."""
        if self.port is not None:
            return self.port.leading([table], page)
        limits = port_limits(config)
        if self.make_carrier is not None:
            return self.make_carrier([table], limits=limits)
        if config.grpc == "grpcio":
            #             # Import it here: it is an optional dependency.
            from ..proto.carrier_grpcio import GrpcioCarrier

            secure = config.tls and config.tls_cert
            return GrpcioCarrier(
                [table], limits=limits, certificate=certificates.current if secure else None
            )

        async def certificate() -> Certificate:
            await certificates.prepare()
            return certificates.current()

        return Http2Carrier(
            [table],
            limits=limits,
            certificate=certificate if config.tls else None,
            secure_only=config.takes_tls_only,
            page=page,
        )


#: The network of a real process; tests use their own.
GRPC = Network()


@dataclass(kw_only=True, slots=True)
class _Running:
    """What a started broker has besides its parts."""

    parts: BrokerParts
    mark: ClockMarker
    carrier: Carrier
    health: HealthService
    #: The events that the store reported to before.
    listeners: StoreEvents
    apache: JavaSlaves | None
    registration: Registration | None = None


class Broker:
    """A broker. `build`, `start`, `stop`; its event loop owns it."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        disk: Disk,
        clock: Clock,
        wall: Clock,
        random: Random,
        network: Network,
    ) -> None:
        self._config = config
        self._store_config = store_config
        self._disk = disk
        self._clock = clock
        self._wall = wall
        self._random = random
        self._network = network
        self._certificates = Certificates(config, disk, store_config.own_folder, wall)
        self._users: WatchedUsers | None = None
        if network.port is None:
            self._users = watched_users(
                config.users,
                wall.unix_ms,
                plaintext=config.plaintext_credentials,
                cluster=config.cluster,
            )
        #: The users that the port checks.
        self._asked_users = network.port.users if network.port else self._users
        self._dial = network.dial or signing(config.peers, self._asked_users)
        self._running: _Running | None = None
        self._mastership: Mastership | None = None
        self._fenced: PocketMQError | None = None
        #: Done when a start with a mastership may continue.
        self._confirmed: asyncio.Future[None] | None = None
        self._started_ms = 0
        self.port = 0

    @classmethod
    def build(
        cls,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        disk: Disk,
        clock: Clock,
        wall: Clock | None = None,
        random: Random | None = None,
        network: Network = GRPC,
    ) -> Broker:
        """Put a broker together; nothing is opened yet.

        CLOCK is the time of messages: when they are stored, due, retried, expired. WALL is the time of the machine
        and of connections: flushing, heartbeats, long polls; None: CLOCK as well. The two differ for a virtual clock,
        while clients use real time. NETWORK connects the broker to others. RANDOM also makes tokens that must not be
        guessed: pass one only in a test that must be reproducible.
        """
        chance = random or SystemRandom()
        return cls(config, store_config, disk, clock, wall or clock, chance, network)

    @property
    def store(self) -> MessageStore:
        """The open store of a started broker."""
        assert self._running is not None, "the broker is not running"
        return self._running.parts.store

    @property
    def recovery(self) -> RecoveryReport:
        """What recovery found when the store was opened."""
        return self.store.recovery

    @property
    def address(self) -> str:
        """The address that clients connect to, once started."""
        host = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        return self._config.advertised_address or f"{host}:{self.port}"

    def reload_certificate(self) -> None:
        """Read the certificate files again, for new connections; log what is wrong with them."""
        self._certificates.reload()

    def reload_users(self) -> None:
        """Read the users file again; log what is wrong with it."""
        if self._users is not None:
            self._users.reload()

    @property
    def _broker_id(self) -> int:
        return self._mastership.replica_id if self._mastership else self._config.broker_id

    @property
    def kept(self) -> int:
        """The number of topics, groups and queues in its tables."""
        if self._running is None:
            return 0
        parts = self._running.parts
        tables = parts.topics.table, parts.groups.table
        return sum(len(table.entries) for table in tables) + parts.store.queues.count

    @property
    def waiting(self) -> int:
        """The number of fetches that wait for messages."""
        return len(self._running.parts.purgatory) if self._running else 0

    async def advance(self, by: int | str) -> int:
        """Move the virtual clock by BY, milliseconds or a duration such as "2h30m"; return the new time in Unix ms.

        Everything that is due until then happens in order, each at its own time.

        Raises:
            Unsupported: The broker uses the machine's clock.
            InvalidArgument: BY is not a duration.
        """
        return await advance(self._clock, by)

    async def start(
        self, *, store: MessageStore | None = None, mastership: Mastership | None = None
    ) -> None:
        """Recover, listen and register.

        With a MASTERSHIP: serve as master on STORE, which is open and started, and stays open at the end. This returns
        after everything in the store is confirmed.

        Raises:
            StoreError: The store cannot be opened.
            ConfigError: The address cannot be used.
            PocketMQError: The mastership has ended; the error says why.
        """
        self._certificates.load()
        owned = store is None
        if store is None:
            begin(self._clock, self._disk, self._store_config)
            store = MessageStore.open(
                self._store_config, disk=self._disk, now_ms=self._clock.unix_ms
            )
        listeners = store.events.kept()
        try:
            if mastership is not None:
                self._mastership = mastership
                await self._all_confirmed(store, mastership)
            await self._serve(store, listeners, owned=owned)
        except BaseException:
            running, self._running = self._running, None
            if running is not None:
                await self._give_up(running)
            self._leave(store, listeners)
            raise
        self._started_ms = self._clock.unix_ms()
        logger.info("broker started address=%s store=%s", self.address, self._store_config.path)

    async def _all_confirmed(self, store: MessageStore, mastership: Mastership) -> None:
        """Return when everything in STORE is confirmed; raise the error that fences the broker before."""
        end = store.max_log_offset
        self._confirmed = asyncio.get_running_loop().create_future()

        def rose(offset: int) -> None:
            if offset >= end and self._confirmed is not None and not self._confirmed.done():
                self._confirmed.set_result(None)

        mastership.on_confirm(rose)
        mastership.on_end(self._fence)
        rose(store.confirmed_offset)
        await self._confirmed
        if self._fenced is not None:
            raise self._fenced

    async def _serve(self, store: MessageStore, listeners: StoreEvents, *, owned: bool) -> None:
        store.host = Host.parse(self._config.store_host, self._config.port)
        parts = assemble(
            self._config,
            store,
            state_file=self._state_file,
            clock=self._clock,
            wall=self._wall,
            random=self._random,
            dial=self._dial,
            mastership=self._mastership,
            replicas=self._network.port.replicas if self._network.port else tuple,
            events=BrokerEvents(topic_changed=[self._topic_changed]),
        )
        with parts.tables.closed_on_error():
            self._running = running = self._built(parts, store, listeners)
        if owned:
            store.start(asyncio.get_running_loop().call_soon_threadsafe)
        parts.start()  # Before cleaning: it must keep the files of waiting messages.
        self._schedule(parts)
        if running.apache is not None:
            await running.apache.start()
        self.port = await running.carrier.start(self._config.host, self._config.port)
        store.host = store.host._replace(port=self.port)
        if self._users is not None:
            self._users.start()
        self._register(running)
        parts.wall_timers.every(_HEALTH_TICK_MS, running.health.look)
        running.health.begin()

    def _built(self, parts: BrokerParts, store: MessageStore, listeners: StoreEvents) -> _Running:
        """Return what serves PARTS, not started yet."""
        service = BrokerService(
            self._config,
            store,
            parts.topics,
            parts.groups,
            parts.offsets,
            parts.coordination,
            parts.pops,
            parts.state,
        )
        table = service.methods(
            parts.sends, parts.fetches, parts.lookups, self._announced, self._status
        )
        table |= parts.methods()
        if self._mastership is not None:
            checks = MasterChecks(
                self._check_open, self._check_master, self._mastership.when_still_master
            )
            table = as_master(table, checks, _ALWAYS)
            if self._network.port is not None:
                table = self._network.port.holding(table, self._check_open)
        table |= clock_methods(self._clock)
        conditions = {WRITABLE: lambda: store.health.state == "open"}
        if self._mastership is not None:
            conditions[MASTER] = lambda: True
        live = self._network.live or LiveSettings(
            {"broker": self._config, "store": self._store_config}, audit=Audit(self._wall.unix_ms)
        )
        settings = SettingsService(
            live, BROKER_SECTIONS, proves_users=self._asked_users is not None
        )
        services = PortServices(table, lambda: carrier, settings, conditions)
        served = services.methods
        if self._asked_users is None:
            served = noticing(served)
        else:
            served = guarded(self._asked_users.guard, served, self._config.cluster)
        rocketmq = RocketMQFigures(
            parts,
            self._status,
            lambda: self._config.metrics_series_max,
            lambda: self._config.metrics_names,
        )
        clients = partial(client_figures, parts.client_metrics)
        page = self._network.site(
            SiteParts(
                methods=served,
                metrics=MetricsPage([self._figures, clients, rocketmq]),
                figures=self._figures,
                traffic=parts.traffic,
                counters=self._counters,
                lags=partial(_lags, parts),
                every=parts.wall_timers.every,
                close_connection=self._close_connection,
                guard=None if self._asked_users is None else self._asked_users.guard,
                cluster=self._config.cluster,
                store=store,
                transactions=parts.transactions,
            )
        )
        carrier = self._network.carrier(served, self._config, self._certificates, page)
        if self._config.remoting and isinstance(carrier, Http2Carrier):
            carrier.speak(self._remoting(parts))
        apache = None
        if self._config.java_slaves:
            apache = JavaSlaves(self._config, store, parts.topics.table, parts.groups.table)
        return _Running(
            parts=parts,
            mark=keep_mark(self._clock, self._disk, self._store_config),
            carrier=carrier,
            health=services.health,
            listeners=listeners,
            apache=apache,
        )

    def _remoting(self, parts: BrokerParts) -> RemotingProtocol:
        """Return the remoting protocol over PARTS."""
        handlers = remoting_handlers(parts, self._config, self._wall.now_ms)
        if self._asked_users is None:
            check = remoting_noticing()
        else:
            rules = remoting_rules(parts.store, self._config.cluster)
            check = RemotingGuard(self._asked_users.guard, handlers, rules).check
        return RemotingProtocol(
            handlers,
            bytes_max=self._config.pending_max_bytes,
            now_ms=self._wall.now_ms,
            check=check,
        )

    def _figures(self) -> Iterator[PageFigure]:
        assert self._running is not None, "asked while running"
        parts, totals = self._running.parts, _totals(self._running.carrier)
        denials = {} if self._asked_users is None else self._asked_users.guard.audit.denials
        yield from figures(parts, self._status(), totals, denials)
        if self._network.port is not None:
            yield from self._network.port.figures()

    def _counters(self) -> SiteCounters:
        assert self._running is not None, "asked while running"
        sends, store = self._running.parts.sends.counts, self._running.parts.store
        totals = _totals(self._running.carrier)
        return SiteCounters(
            sends.messages,
            store.max_log_offset,
            sends.failed,
            store.dispatched_offset,
            0 if totals is None else totals.open,
        )

    def _close_connection(self, number: int) -> bool:
        assert self._running is not None, "asked while running"
        carrier = self._running.carrier
        return isinstance(carrier, CountsConnections) and carrier.close_connection(number)

    async def _give_up(self, running: _Running) -> None:
        """End a start that failed: some messages may have been delivered already."""
        if running.apache is not None:
            await running.apache.stop()
        await running.parts.stop_timers()
        try:
            await running.parts.close()
        except PocketMQError as error:
            logger.error("progress not saved reason=%s", error.message)
        running.mark.close()

    def _leave(self, store: MessageStore, listeners: StoreEvents) -> None:
        """Close STORE; or give it back to its replica, with the LISTENERS that it had before."""
        if self._mastership is None:
            store.close()
            return
        store.events.restore(listeners)
        store.sync_before_log(lambda done: done(None))

    def _state_file(self, name: str) -> StateFile:
        return StateFile(self._disk, self._store_config.path, name)

    def _schedule(self, parts: BrokerParts) -> None:
        """Start the periodic work on the timers."""
        every_so_often = parts.wall_timers.every
        every_so_often(
            self._store_config.flush_interval_ms, lambda: parts.store.tick(self._wall.now_ms())
        )
        every_so_often(self._config.offsets_persist_interval_ms, _guarded(parts.save_offsets))
        every_so_often(_TABLES_TICK_MS, _guarded(parts.save_tables))
        every_so_often(self._config.delay_persist_interval_ms, _guarded(parts.delays.save))
        every_so_often(PRODUCERS_TICK_MS, _guarded(parts.producers.tick))
        clean = _guarded(parts.clean)
        clean()  # Before the first send: it notices a full disk.
        every_so_often(self._store_config.clean_interval_ms, clean)
        if parts.timers is not parts.wall_timers:
            # Files expire by the virtual clock, which may move by months at once.
            parts.timers.every(max(_MOVED_CLEAN_MS, self._store_config.clean_interval_ms), clean)

    def _register(self, running: _Running) -> None:
        registration = Registration(
            self._config.nameservers,
            self._state(),
            TimerClock(self._wall, running.parts.wall_timers),
            self._random,
            self._config.registration_interval_ms,
            self._dial,
        )
        running.registration = registration
        registration.start()

    def _topic_changed(self, name: str) -> None:
        registration = self._running.registration if self._running else None
        if registration is not None:
            registration.changed()

    def _state(self) -> RegistrationState:
        """Return the state that is registered at name servers."""
        assert self._running is not None, "registered while running"
        topics = self._running.parts.topics

        def topic(name: str) -> pb.TopicConfig | None:
            found = topics.find(name)
            return None if found is None else topic_message(found)

        return RegistrationState(self._head, topics.names, topic, topics.changed_since)

    def _head(self) -> pb.BrokerRegistration:
        assert self._running is not None, "registered while running"
        head = pb.BrokerRegistration(
            cluster=self._config.cluster,
            broker_name=self._config.name,
            broker_id=self._broker_id,
            address=self.address,
            data_version=self._running.parts.topics.version,
        )
        if self._mastership is not None:
            head.epoch, head.role = self._mastership.epoch, pb.MASTER
        return head

    async def registered(self, timeout_s: float) -> bool:
        """Wait up to TIMEOUT_S seconds until every name server knows the broker; return whether they do."""
        assert self._running is not None, "the broker is not running"
        registration = self._running.registration
        assert registration is not None, "the broker has not started"
        try:
            async with asyncio.timeout(timeout_s):
                await registration.registered()
        except TimeoutError:
            return False
        return True

    async def _announced(self) -> None:
        """Wait until the reachable name servers know the topics, with a time limit."""
        registration = self._running.registration if self._running else None
        if registration is None:
            return
        try:
            async with asyncio.timeout(_ANNOUNCE_TIMEOUT_S):
                await registration.announced()
        except TimeoutError:
            logger.warning("name servers slow to accept a change timeout_s=%g", _ANNOUNCE_TIMEOUT_S)

    def _fence(self, error: PocketMQError) -> None:
        """Stop being the master, from this turn of the event loop on: the mastership has ended, and `stop` follows.

        Nothing is stored any more, all waiting requests fail with ERROR, and no other answer is sent.
        """
        if self._fenced is not None:
            return
        self._fenced = error
        if self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_exception(error)
        if self._running is not None:
            self._running.parts.fence(error)

    def _check_open(self) -> None:
        """Raise MasterFenced unless requests may be executed in this turn of the event loop."""
        assert self._mastership is not None, "only for a master"
        if self._fenced is not None:
            raise self._fenced
        self._mastership.check_open()

    def _check_master(self) -> None:
        """Raise MasterFenced unless answers may be sent in this turn of the event loop."""
        assert self._mastership is not None, "only for a master"
        if self._fenced is not None:
            raise self._fenced
        self._mastership.check_master()

    async def stop(self) -> None:
        """Unregister, finish open work, save, and close the store unless a replica owns it. Idempotent."""
        running = self._running
        if running is None:
            return
        parts = running.parts
        running.health.end()
        if self._users is not None:
            await self._users.stop()
        if running.registration is not None:
            await running.registration.stop()
        if self._fenced is None:
            parts.wind_down(ShuttingDown("the broker is shutting down: send to another broker"))
        parts.store.flush_soon()
        grace_s = self._config.stop_grace_ms / 1000
        await running.carrier.stop(grace_s if self._fenced is None else _FENCED_GRACE_S)
        if running.apache is not None:
            await running.apache.stop(grace_s if self._fenced is None else 0)
        await parts.stop_timers()
        self._running = None
        try:
            await parts.close()
        except PocketMQError as error:
            if self._fenced is None:
                raise
            logger.warning(
                "state for the next master not saved completely reason=%s", error.message
            )
        finally:
            running.mark.close()
            self._leave(parts.store, running.listeners)
        logger.info("broker stopped store=%s", self._store_config.path)

    def _status(self) -> pb.BrokerStatusReply:
        assert self._running is not None, "asked while running"
        parts = self._running.parts
        store = parts.store
        health = store.health
        reason = health.failure.message if health.failure else health.full or ""
        return pb.BrokerStatusReply(
            cluster=self._config.cluster,
            broker_name=self._config.name,
            broker_id=self._broker_id,
            address=self.address,
            version=__version__,
            code=speedups.running(),
            started_ms=self._started_ms,
            min_log_offset=store.min_log_offset,
            max_log_offset=store.max_log_offset,
            flushed_offset=store.flushed_offset,
            dispatched_offset=store.dispatched_offset,
            disk_used_ratio=self._disk.usage(self._store_config.path).used_percent / 100,
            store_path=self._store_config.path,
            recovery=json.dumps(
                store.recovery.to_json() | {"producers": parts.producers.to_json()}
            ),
            rss_bytes=self._resident_bytes(),
            cpu_seconds=cpu_seconds(),
            writable=health.state == "open",
            not_writable_because="" if health.state == "open" else reason or health.state,
            delayed_waiting=parts.delays.waiting,
            transactions_open=parts.transactions.open_count,
            now_ms=self._clock.unix_ms(),
            virtual_clock=is_virtual(self._clock),
            epoch=0 if self._mastership is None else self._mastership.epoch,
            in_sync=0 if self._mastership is None else self._mastership.in_sync,
            confirm_offset=store.confirmed_offset,
        )

    def _resident_bytes(self) -> int:
        """Return the process's resident memory; its peak where the system reports nothing else."""
        try:
            return int(self._disk.read("/proc/self/statm").split()[1]) * _PAGE_SIZE
        except FileNotFoundError:
            return peak_memory_bytes()


def _totals(carrier: object) -> ConnectionTotals | None:
    return carrier.connection_totals() if isinstance(carrier, CountsConnections) else None


def _lags(parts: BrokerParts, limit: int) -> Iterator[GroupLag]:
    return lags(note_lag(parts.store, parts.topics, parts.offsets, parts.pops, limit))


def _guarded(work: Callable[[], object]) -> Callable[[], None]:
    """Return WORK with disk errors logged instead of raised: it runs again at the next interval."""

    def guarded() -> None:
        try:
            work()
        except PocketMQError as error:
            logger.error("periodic work failed reason=%s", error.message)

    return guarded
