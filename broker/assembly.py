"""The assembly of a broker: which parts it has, in which order they are built, and which part reacts to what."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

from ..proto.clock import Clock, VirtualClock
from ..proto.remoting.server import Handler
from ..proto.rpc.channels import Dial
from ..store.format.state_tables import GROUPS, TOPICS
from ..store.message_store import MessageStore
from ..store.offsets_file import OffsetsFile
from ..store.state_files import StateFile
from .broker_tables import BrokerTables
from .commit_texts import CommitTexts
from .config import BrokerConfig
from .consume_stats import ConsumeStats
from .consumer_groups import Groups
from .delay.delays import Delays
from .delay.recalls import Recalls
from .delay_rules import DelayLimits
from .events import BrokerEvents
from .groups.coordination import Coordination
from .groups.coordinator import Coordinator
from .groups.dead_letters import DeadLetters
from .groups.kept_leases import LeaseStore
from .groups.lease_guard import LeaseGuard
from .groups.leases import LeaseService
from .groups.protocols import GroupProtocols
from .groups.retries import Retries
from .messages.appender import Appender
from .messages.fetch import Fetches
from .messages.filters import Filters
from .messages.lookup import Lookups
from .messages.send import Sends, Waits
from .metrics.call_times import timed
from .metrics.clients import ClientMetrics
from .metrics.opencensus import CensusMeasurements
from .metrics.opentelemetry import Measurements
from .metrics.traffic import TrafficCounts
from .offset_updates import OffsetUpdates
from .offsets import Offsets
from .other_brokers import OtherBrokers
from .parts import BrokerParts
from .pop.deliveries import KeptDeliveries
from .pop.handles import serials_from
from .pop.leases import PopLeases
from .pop.service import PopService
from .pop.table import PopParts
from .producers.producers import Producers
from .remoting import filters as remoting_filters
from .remoting.clients import ClassicClients
from .remoting.heartbeats import RemotingHeartbeats
from .remoting.locks import QueueLocks
from .remoting.lookups import RemotingLookups
from .remoting.pulling import RemotingPulls
from .remoting.recalling import RemotingRecalls
from .remoting.replies import ReplyMessages
from .remoting.returning import ReturnedMessages
from .remoting.sending import RemotingSends
from .replication.file_stream import table_parts
from .replication.mastership import Mastership
from .replication.state_deliveries import DeliveriesPart
from .replication.state_source import StateSource
from .replication.state_timers import TimersState
from .replication.table_part import TablePart
from .replication.table_stream import TableState
from .service_v2.acknowledging import Acknowledging
from .service_v2.diagnostics import Diagnostics
from .service_v2.lite_subscriptions import LiteSubscriptions
from .service_v2.pulling import PullConsumers
from .service_v2.receiving import Receiving
from .service_v2.routes import RouteQueries
from .service_v2.sending import EndTransactions, RecallMessages, SendMessages
from .service_v2.service import ServiceV2
from .service_v2.telemetry import Clients
from .timing.purgatory import Purgatory
from .timing.timers import Timers
from .topics import Topics
from .transactions.atomic_commits import AtomicCommits, CommitParts
from .transactions.records import prepare
from .transactions.transactions import Transactions
from .unfinished_messages import UnfinishedMessages

logger = logging.getLogger(__name__)

#: The start logs one warning each for so many unusual entries of tables.
_WARNINGS_MAX: Final = 20


def assemble(  # noqa: PLR0913  (the parts depend on all of this)
    config: BrokerConfig,
    store: MessageStore,
    *,
    state_file: Callable[[str], StateFile],
    clock: Clock,
    wall: Clock,
    random: Random,
    dial: Dial,
    mastership: Mastership | None = None,
    replicas: Callable[[], Sequence[str]] = tuple,
    events: BrokerEvents,
) -> BrokerParts:
    """Return the parts over STORE, not started yet. CLOCK is the time of messages, WALL the time of the machine.

    DIAL opens channels to other servers. MASTERSHIP is given for the master of a replica set. REPLICAS returns the
    addresses of its live replicas.
    """
    epoch = 0 if mastership is None else mastership.epoch
    unix_ms = clock.unix_ms
    timers = Timers(clock)
    wall_timers = timers if wall is clock else Timers(wall)
    purgatory = Purgatory(wall_timers, limit=lambda: config.fetches_waiting_max)
    traffic = TrafficCounts(lambda: config.metrics_series_max)
    appends = Appender(store, purgatory.notify, mastership, traffic, events)
    tables = BrokerTables.open(store, wall_timers, entry_clock=timers, forget_own=epoch > 0)
    with tables.closed_on_error():
        topics = Topics(state_file(TOPICS.file), config, unix_ms, events, tables.topics)
        groups = Groups(state_file(GROUPS.file), config, unix_ms, tables.groups)
        offsets_file, texts = OffsetsFile(store.disk, store.config.path), tables.commit_texts
        offsets = Offsets(offsets_file, unix_ms, CommitTexts(texts), appends)
        delays = Delays(config, store, timers, clock, appends, state_file, tables.delivered)
    _warn_of_unusual([*topics.unusual(), *groups.unusual()])
    leases = LeaseStore(tables.leases, wall_timers, limit=lambda: config.leases_max, epoch=epoch)
    lease_guard = LeaseGuard(leases, lambda: config.lease_ms)
    consume_stats = ConsumeStats(wall.unix_ms, tables.statistics, holder=leases.member_of)
    filters = Filters(wall_timers, wall, consume_stats, traffic)
    renew = lease_guard.renew_by_fetch
    fetches = Fetches(
        config, topics, offsets, store, purgatory, wall.now_ms, filters, groups, renew, events
    )
    transactions = Transactions(config, store, topics, offsets, appends, timers, clock)
    waits = _waits(store, transactions, unix_ms)
    producers = _producers(config, clock, store, mastership)
    delay_rules = _delay_rules(config, store)
    retries = Retries(store, topics, groups, appends, delay_rules, unix_ms, random, events)
    is_sync = store.config.flush == "sync"
    pop_parts = PopParts(
        store=store,
        offsets=offsets,
        leases=PopLeases(timers, wall_timers.now_ms),
        deliveries=KeptDeliveries(tables.deliveries, tables.journal, is_sync=is_sync),
        serials=serials_from(random.randbytes),
        make_dead_letter=retries.bury,
        config=config,
        consume_stats=consume_stats,
        traffic=traffic,
    )
    protocols = GroupProtocols()
    classic = ClassicClients(config, store, wall_timers, transactions, protocols.check_remoting)
    coordinator = Coordinator(config, groups, wall_timers, protocols.check_sharing, epoch)
    has_members = protocols.has_members
    pops = PopService(config, topics, groups, filters, purgatory, pop_parts, has_members, events)
    protocols.connect(coordinator, classic.members, pops)
    own = _own_addresses(config, store, replicas)
    clients = Clients(
        config, store.config, groups, wall_timers, own, transactions.listeners, events
    )
    diagnostics = Diagnostics(clients.sessions, topics, store, wall_timers)
    queue_leases = LeaseService(config, topics, groups, offsets, wall_timers, leases)
    coordination = Coordination(
        topics, coordinator, queue_leases, leases, lease_guard, consume_stats, clients.subscriptions
    )
    commit_parts = CommitParts(
        store=store,
        topics=topics,
        groups=groups,
        offsets=offsets,
        appends=appends,
        lease_guard=lease_guard,
        check_not_popped=pops.check_not_popped,
        timers=wall_timers,
        unix_ms=unix_ms,
    )
    parts = BrokerParts(
        store=store,
        tables=tables,
        topics=topics,
        groups=groups,
        offsets=offsets,
        consume_stats=consume_stats,
        timers=timers,
        wall_timers=wall_timers,
        purgatory=purgatory,
        appends=appends,
        producers=producers,
        sends=Sends(config, topics, store, wall_timers, appends, waits, producers),
        fetches=fetches,
        filters=filters,
        lookups=Lookups(topics.get, store),
        delays=delays,
        transactions=transactions,
        atomic_commits=AtomicCommits(config, commit_parts),
        recalls=Recalls(config, topics, store, appends, unix_ms),
        retries=retries,
        dead_letters=DeadLetters(store, topics, groups, offsets, appends),
        coordination=coordination,
        pops=pops,
        clients=clients,
        other_brokers=_other_brokers(config, dial, wall),
        service_v2=ServiceV2(()),
        client_metrics=ClientMetrics(wall.now_ms),
        traffic=traffic,
        classic=classic,
    )
    parts.service_v2 = _service_v2(parts, diagnostics, config, unix_ms, wall)
    _connect(events, parts, diagnostics)
    parts.state = _replicated(mastership, parts)
    parts.awaited = _awaited(clock, wall, events, parts)
    return parts


def remoting_handlers(
    parts: BrokerParts, config: BrokerConfig, now_ms: Callable[[], int]
) -> dict[int, Handler]:
    """Return the handlers of remoting requests over PARTS, by code. NOW_MS is the machine's time."""
    store, topics, groups, members = parts.store, parts.topics, parts.groups, parts.classic.members
    several = (
        RemotingHeartbeats(members, groups, topics),
        RemotingSends(config, topics, groups, parts.sends),
        RemotingPulls(store, topics, parts.offsets, _offset_updates(parts), parts.fetches, members),
        QueueLocks(config.name, topics, members, now_ms),
        ReturnedMessages(store, parts.retries, parts.appends, members.check_allowed),
        parts.classic.transactions,
        RemotingRecalls(parts.recalls),
        RemotingLookups(store, parts.lookups),
        ReplyMessages(members),
    )
    return remoting_filters.handlers() | {
        code: handler for part in several for code, handler in part.handlers().items()
    }


def _offset_updates(parts: BrokerParts) -> OffsetUpdates:
    check_commit = parts.coordination.lease_guard.check_commit
    return OffsetUpdates(parts.groups, parts.offsets, parts.pops, check_commit)


def _warn_of_unusual(sentences: Sequence[str]) -> None:
    for sentence in sentences[:_WARNINGS_MAX]:
        logger.warning("unusual entry found: %s", sentence)
    if len(sentences) > _WARNINGS_MAX:
        logger.warning("further unusual entries found count=%d", len(sentences) - _WARNINGS_MAX)


def _replicated(mastership: Mastership | None, parts: BrokerParts) -> StateSource | None:
    """Return what sends the tables of PARTS to followers; None: there are none."""
    if mastership is None:
        return None
    store = parts.store

    def log_end() -> int:
        return store.max_log_offset

    replicated_parts = table_parts(
        parts.topics.table,
        parts.groups.table,
        parts.offsets,
        parts.delays.next_of_levels,
        log_end,
    )
    replicated_parts += (
        DeliveriesPart(parts.tables.deliveries, parts.timers),
        TablePart(TimersState(store.timers)),
    )
    replicated_parts += [TablePart(TableState(table)) for table in parts.tables.replicated]
    return mastership.replicate(replicated_parts, log_end)


def _connect(events: BrokerEvents, parts: BrokerParts, diagnostics: Diagnostics) -> None:
    """Connect the parts to EVENTS."""
    forget_deleted = partial(_forget_deleted, parts.topics, parts.sends, parts.traffic)
    events.connect(
        BrokerEvents(
            topic_changed=[
                parts.coordination.topic_changed,
                parts.other_brokers.forget,
                forget_deleted,
            ],
            topic_auto_created=[parts.other_brokers.create_topic],
            messages_stored=[parts.pops.arrived],
            client_alive=[parts.pops.client_alive],
            client_gone=[parts.pops.client_gone],
            client_answered=[diagnostics.take],
        )
    )


def _awaited(
    clock: Clock, wall: Clock, events: BrokerEvents, parts: BrokerParts
) -> UnfinishedMessages | None:
    """Return the unfinished messages that CLOCK waits for; None: it is not virtual, or clients use it as well."""
    if not isinstance(clock, VirtualClock) or wall is clock:
        return None
    awaited = UnfinishedMessages(
        clock, parts.store, parts.topics, parts.offsets, parts.pops, parts.coordination
    )
    events.connect(
        BrokerEvents(
            fetch_began=[awaited.fetching],
            receive_began=[awaited.receiving],
            message_returned=[awaited.sent_back],
        )
    )
    return awaited


def _forget_deleted(topics: Topics, sends: Sends, traffic: TrafficCounts, name: str) -> None:
    if topics.find(name) is None:
        sends.counts.forget(name)
        traffic.forget_topic(name)


def _service_v2(
    parts: BrokerParts,
    diagnostics: Diagnostics,
    config: BrokerConfig,
    unix_ms: Callable[[], int],
    wall: Clock,
) -> ServiceV2:
    """Return the service for official clients over PARTS. UNIX_MS is the time of messages, WALL the time of the
    machine.
    """
    store, topics, groups, pops = parts.store, parts.topics, parts.groups, parts.pops
    clients = parts.clients
    handlers = (
        clients,
        RouteQueries(config.name, topics, groups, clients.reach, parts.other_brokers),
        diagnostics,
        SendMessages(config, topics, parts.sends, unix_ms, clients.checks.remember),
        EndTransactions(topics, parts.transactions, parts.other_brokers),
        RecallMessages(topics, parts.recalls, parts.other_brokers),
        Receiving(pops, clients.subscriptions, wall.unix_ms, config),
        Acknowledging(pops, topics, groups, store.config.delay_levels_ms),
        LiteSubscriptions(topics, groups, pops.lite, store, clients.sessions),
        PullConsumers(store, topics, parts.offsets, _offset_updates(parts), parts.fetches),
        Measurements(parts.client_metrics),
        CensusMeasurements(parts.client_metrics, clients.sessions),
    )
    return ServiceV2(handlers, partial(timed, traffic=parts.traffic, now_ms=wall.now_ms))


def _waits(store: MessageStore, transactions: Transactions, unix_ms: Callable[[], int]) -> Waits:
    return Waits(
        now_ms=unix_ms,
        slot_count=store.timers.count,
        prepare=prepare,
        check_room=transactions.check_room,
    )


def _delay_rules(config: BrokerConfig, store: MessageStore) -> DelayLimits:
    levels_ms, precision_ms = store.config.delay_levels_ms, store.config.timer_precision_ms
    return DelayLimits(levels_ms, precision_ms, config.delay_max_ms)


def _other_brokers(config: BrokerConfig, dial: Dial, wall: Clock) -> OtherBrokers:
    sees_all = config.v2_cluster and not config.v2_endpoints
    servers = config.nameservers if sees_all else ()
    return OtherBrokers(config.name, servers, dial, wall.now_ms)


def _own_addresses(
    config: BrokerConfig, store: MessageStore, replicas: Callable[[], Sequence[str]]
) -> Callable[[], Sequence[str]]:
    """Return a function that returns the addresses of this broker: its own first, then those of REPLICAS."""
    host = f"[{config.host}]" if ":" in config.host else config.host

    def own() -> Sequence[str]:
        mine = config.advertised_address or f"{host}:{store.host.port}"
        return (mine, *(one for one in replicas() if one != mine))

    return own


def _producers(
    config: BrokerConfig, clock: Clock, store: MessageStore, mastership: Mastership | None
) -> Producers:
    """Return the producers that this replica knew as a follower, or a table that it fills from the log."""
    known = None if mastership is None else mastership.producers
    return known or producers_of(config, clock, store)


def producers_of(config: BrokerConfig, clock: Clock, store: MessageStore) -> Producers:
    """Return the table of producers' sequences in STORE, with the limits in CONFIG. CLOCK is the time of messages."""
    return Producers(
        store,
        clock,
        producers_max=config.producers_max,
        expiry_ms=config.producer_expiry_ms,
    )
