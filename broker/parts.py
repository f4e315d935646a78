"""The parts of a broker, and how they start, save their state, and stop. `assembly.py` builds them.

start   finds what is in flight and scheduled (producers, transactions, delays, deliveries), then starts the timers; the
        broker accepts calls last
stop    refuses calls first; then each part saves its progress, once the messages that it covers are on disk
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from ..proto.errors import PocketMQError
from ..proto.rpc import MethodTable
from ..proto.rpc.turn_loop import at_turn_end
from ..store.flush import Flusher
from ..store.message_store import MessageStore
from .broker_tables import BrokerTables
from .consume_stats import ConsumeStats
from .consumer_groups import Groups
from .delay.delays import Delays
from .delay.recalls import Recalls
from .groups.coordination import Coordination
from .groups.dead_letters import DeadLetters
from .groups.retries import Retries
from .messages.appender import Appender, synced
from .messages.fetch import Fetches
from .messages.filters import Filters
from .messages.lookup import Lookups
from .messages.send import Sends
from .metrics.clients import ClientMetrics
from .metrics.traffic import TrafficCounts
from .offsets import Offsets
from .other_brokers import OtherBrokers
from .pop.service import PopService
from .producers.producers import Producers
from .remoting.clients import ClassicClients
from .replication.state_source import StateSource
from .service_v2.service import ServiceV2
from .service_v2.telemetry import Clients
from .timing.purgatory import Purgatory
from .timing.timers import Timers
from .topics import Topics
from .transactions.atomic_commits import AtomicCommits
from .transactions.transactions import Transactions
from .unfinished_messages import UnfinishedMessages


@dataclass(kw_only=True, slots=True)
class BrokerParts:
    """The parts of a broker on one open store."""

    store: MessageStore
    tables: BrokerTables
    topics: Topics
    groups: Groups
    offsets: Offsets
    consume_stats: ConsumeStats
    timers: Timers
    wall_timers: Timers
    purgatory: Purgatory
    appends: Appender
    producers: Producers
    sends: Sends
    fetches: Fetches
    filters: Filters
    lookups: Lookups
    delays: Delays
    transactions: Transactions
    atomic_commits: AtomicCommits
    recalls: Recalls
    retries: Retries
    dead_letters: DeadLetters
    coordination: Coordination
    clients: Clients
    other_brokers: OtherBrokers
    service_v2: ServiceV2
    pops: PopService
    client_metrics: ClientMetrics
    #: Counts of what clients sent and received.
    traffic: TrafficCounts
    #: The clients that are connected by remoting.
    classic: ClassicClients
    #: Replicates the tables to followers; None: the broker has no replicas.
    state: StateSource | None = None
    #: None: the clock is not virtual, or clients use the virtual clock as well.
    awaited: UnfinishedMessages | None = None
    #: Writes whole tables in a thread.
    saver: Flusher = field(default_factory=lambda: Flusher("pocketmq-save-tables"))

    def needed_from(self) -> int | None:
        """Return the lowest log offset that retention must keep; the store knows those in the timer log."""
        waiting = (self.delays, self.transactions, self.atomic_commits)
        found = [part.oldest_log_offset() for part in waiting]
        return min((offset for offset in found if offset is not None), default=None)

    def clean(self) -> None:
        """Delete expired files."""
        if self.store.clean(self.needed_from).log_files:
            self.pops.retain()

    def methods(self) -> MethodTable:
        """Return the methods of official clients, and those of retries, transactions, recalls and groups."""
        several = (
            self.recalls,
            self.retries,
            self.dead_letters,
            self.transactions,
            self.atomic_commits,
            self.coordination,
            self.service_v2,
        )
        return reduce(or_, (part.methods() for part in several))

    def start(self) -> None:
        """Find what is in flight and scheduled, then start the timers. Needs a running loop."""
        self.saver.start()
        self.tables.journal.start(at_turn_end)
        self.wall_timers.every(self.store.config.flush_interval_ms, self.tables.journal.tick)
        for table in (self.topics.table, self.groups.table):
            table.start(self.saver, self.store.call_owner)
        self.offsets.start(self.saver, self.store.call_owner)
        self.store.sync_before_log(self.topics.table.when_safe)
        self.producers.start(self.saver)
        self.transactions.start()
        self.atomic_commits.start()
        self.delays.start()
        self.pops.start()
        self.wall_timers.every(60_000, self.pops.lite.forget_silent)
        self.clients.start()
        self.classic.members.start()
        self.timers.start()
        if self.awaited is not None:
            self.awaited.start()
        if self.wall_timers is not self.timers:
            self.wall_timers.start()

    def save_offsets(self) -> None:
        """Save committed offsets once the present log is on disk."""
        end, sync = self.store.max_log_offset, self.appends.request_sync
        self.offsets.save_after_sync(lambda done: sync(end, done))

    def save_tables(self) -> None:
        """Begin to write the files of topics and groups if they changed."""
        self.topics.table.tick()
        self.groups.table.tick()

    def wind_down(self, error: PocketMQError) -> None:
        """Answer all waiting requests, and refuse new ones with ERROR: the broker is about to stop."""
        self.sends.refuse(error)
        self.atomic_commits.refuse(error)
        self.purgatory.complete_all()
        self.coordination.leases.wind_down()

    def fence(self, error: PocketMQError) -> None:
        """Refuse to store anything more, and fail all waiting requests with ERROR."""
        self.appends.fence(error)
        self.sends.fence(error)
        self.wind_down(error)

    async def stop_timers(self) -> None:
        """Stop all timers."""
        self.filters.stop()
        await self.other_brokers.close()
        if self.awaited is not None:
            self.awaited.stop()
        await self.timers.stop()
        if self.wall_timers is not self.timers:
            await self.wall_timers.stop()

    async def close(self) -> None:
        """Save the progress of each part; raise the first error once all have tried."""
        # First the log: offsets count messages as finished because of their dead letters in it.
        errors = await self._sync_log()
        is_log_on_disk = not errors
        errors += _errors_of(self.transactions.close) + _errors_of(self.atomic_commits.close)
        await self.delays.stop()
        self.coordination.close()
        self.saver.stop()
        if is_log_on_disk:
            errors += _errors_of(self.offsets.save)
        errors += _errors_of(self.topics.table.close) + _errors_of(self.groups.table.close)
        try:
            await self.producers.close(synced)
        except PocketMQError as error:
            errors.append(error)
        if not errors:
            self.delays.forget()
        self.tables.journal.close()
        if errors:
            raise errors[0]

    async def _sync_log(self) -> list[PocketMQError]:
        if self.store.health.failure is not None:
            return []  # It was reported, and no sync can help.
        try:
            await synced(self.store, self.store.max_log_offset)
        except PocketMQError as error:
            return [error]
        return []


def _errors_of(close: Callable[[], None]) -> list[PocketMQError]:
    try:
        close()
    except PocketMQError as error:
        return [error]
    return []
