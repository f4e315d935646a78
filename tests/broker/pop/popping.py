"""A broker's pops without its network: a store, the tables and their journal, timers on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import ClassVar, Literal

from pocketmq.broker.broker_tables import BrokerTables, folder_in
from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.consumer_groups import Groups
from pocketmq.broker.events import BrokerEvents
from pocketmq.broker.groups.retries import Retries
from pocketmq.broker.messages.appender import Appender
from pocketmq.broker.messages.filters import Filters
from pocketmq.broker.offsets import Offsets
from pocketmq.broker.pop.deliveries import (
    DeliveryTable,
    FoundQueue,
    InFlight,
    KeptDeliveries,
    PopKey,
)
from pocketmq.broker.pop.handles import serials_from
from pocketmq.broker.pop.leases import PopLeases
from pocketmq.broker.pop.receives import PoppedMessage, Receive, ReceiveRequest, ReceiveResult
from pocketmq.broker.pop.service import PopService
from pocketmq.broker.pop.table import PopParts
from pocketmq.broker.timing.purgatory import Purgatory
from pocketmq.broker.timing.timers import Timers
from pocketmq.broker.topics import Topics
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.record import decode_record
from pocketmq.store.disk import Disk
from pocketmq.store.format.state_tables import (
    GROUPS,
    TOPICS,
    DataVersion,
    GroupConfig,
    TopicConfig,
    TopicTable,
    render_topics,
)
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile
from pocketmq.store.table_files import read_tables
from pocketmq.store.table_journal import JournalSizes

from ...runs import make_run, records_of, small_config
from ..groups.retries.retrying import RULES

TOPIC, GROUP = "T", "g"
INVISIBLE_MS = 30_000


class Popping:
    """Pops over a small store; `restart` begins again with what a restart leaves."""

    deliveries_type: ClassVar[type[KeptDeliveries]] = KeptDeliveries

    def __init__(
        self,
        path: Path,
        *,
        queues: int = 1,
        sizes: JournalSizes | None = None,
        disk: Disk | None = None,
        flush: Literal["async", "sync"] = "async",
        **settings: object,
    ) -> None:
        self.clock = VirtualClock()
        self.path = path
        self.config = BrokerConfig(**settings)  # type: ignore[arg-type]
        self.disk = disk or OsDisk()
        self.flush = flush
        self.random = Random(7)
        self.sizes = sizes
        #: Groups with members that share queues.
        self.sharing: set[str] = set()
        file = StateFile(self.disk, str(path / "store"), TOPICS.file)
        if not self.disk.exists(file.path):
            topic = TopicConfig(name=TOPIC, read_queues=queues, write_queues=queues)
            file.save(render_topics(TopicTable(DataVersion(1, 0, 1), {TOPIC: topic})))
        self._begin()

    def _begin(self) -> None:
        disk, root, unix_ms = self.disk, str(self.path / "store"), self.clock.unix_ms
        store_config = small_config(
            self.path / "store", log_file_size_bytes=1 << 20, flush=self.flush
        )
        self.store = MessageStore.open(store_config, disk=disk, now_ms=unix_ms)
        self.timers = Timers(self.clock)
        self.tables = tables = BrokerTables.open(self.store, self.timers, sizes=self.sizes)
        self.journal = tables.journal
        topics, groups = (StateFile(disk, root, form.file) for form in (TOPICS, GROUPS))
        self.topics = Topics(topics, self.config, unix_ms, changes=tables.topics)
        self.groups = Groups(groups, self.config, unix_ms, tables.groups)
        self.offsets = Offsets(StateFile(disk, root, "consumerOffset.json"), unix_ms)
        self.purgatory = Purgatory(self.timers, limit=lambda: self.config.fetches_waiting_max)
        self.filters = Filters(self.timers, self.clock)
        events = BrokerEvents()
        self.appends = Appender(self.store, self.purgatory.notify, events=events)
        retries = Retries(
            self.store, self.topics, self.groups, self.appends, RULES, unix_ms, Random(1)
        )
        is_sync = self.flush == "sync"
        parts = PopParts(
            store=self.store,
            offsets=self.offsets,
            leases=PopLeases(self.timers, self.clock.now_ms),
            deliveries=self.deliveries_type(self.tables.deliveries, self.journal, is_sync=is_sync),
            serials=serials_from(self.random.randbytes),
            make_dead_letter=retries.bury,
            config=self.config,
        )
        self.consume_stats = parts.consume_stats
        self.pops = PopService(
            self.config,
            self.topics,
            self.groups,
            self.filters,
            self.purgatory,
            parts,
            lambda group: group in self.sharing,
        )
        events.connect(BrokerEvents(messages_stored=[self.pops.arrived]))
        self.journal.start(asyncio.get_running_loop().call_soon)
        self.ticks = Timers(self.clock)
        self.ticks.every(store_config.flush_interval_ms, self.journal.tick)
        self.ticks.start()
        self.pops.start()
        self.timers.start()
        self.answers: list[ReceiveResult] = []

    async def stop(self, *, clean: bool = True) -> None:
        self.purgatory.complete_all()
        self.filters.stop()
        await self.timers.stop()
        await self.ticks.stop()
        if clean:
            self.store.flush()  # Offsets must not say more than the device has.
            self.offsets.save()
            self.journal.close()
            self.store.close()
        else:
            self.kill()
            self.store._close_files()

    def kill(self) -> None:
        """Have the journal do nothing more, as in a process that was killed."""
        self.journal._is_open = False
        self.journal._abandon_snapshots()

    def kept(self) -> dict[PopKey, FoundQueue]:
        """Return what the files of the journal say."""
        table = DeliveryTable()
        read_tables(self.disk, folder_in(self.store.config.own_folder), [table])
        return table.found()

    async def safe(self) -> Exception | None:
        """Wait until what was noted is safe; return what went wrong."""
        told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.pops.when_safe(told.set_result)
        return await told

    async def settle(self) -> None:
        """Let the snapshots that the journal makes be finished, those of a start too."""
        for _ in range(1_000):
            await asyncio.sleep(0)
            if not self.journal._snapshots and not self.journal._is_asked:
                return

    async def restart(self, *, clean: bool = True) -> None:
        await self.stop(clean=clean)
        self._begin()

    def group(self, name: str = GROUP, **fields: object) -> None:
        config = GroupConfig(name=name, **fields)  # type: ignore[arg-type]
        self.groups.create(config, update=name in self.groups._groups)

    def send(
        self,
        *bodies: bytes,
        queue: int = 0,
        topic: str = TOPIC,
        properties: Sequence[dict[str, str]] | dict[str, str] | None = None,
    ) -> None:
        self.appends.append_one(make_run(topic, queue, bodies, properties))

    def ask(self, batch: int = 32, **fields: object) -> Receive | None:
        """Receive; the answer comes to `answers`."""
        asked = ReceiveRequest(
            **{
                "group": GROUP,
                "topic": TOPIC,
                "client_id": "c",
                "batch": batch,
                "invisible_ms": INVISIBLE_MS,
                **fields,
            }  # type: ignore[arg-type]
        )
        return self.pops.receive(asked, self.answers.append)

    def wait(self, wait_ms: int = 5_000, **fields: object) -> Receive:
        """Receive, where there is nothing."""
        receive = self.ask(wait_ms=wait_ms, **fields)  # type: ignore[arg-type]
        assert receive is not None
        return receive

    def answer(self) -> ReceiveResult:
        (answer,) = self.answers
        self.answers.clear()
        if answer.error is not None:
            raise answer.error
        return answer

    def pop(self, batch: int = 32, **fields: object) -> list[PoppedMessage]:
        self.ask(batch, **fields)
        return list(self.answer().deliveries)

    def ack(self, *deliveries: PoppedMessage, group: str = GROUP) -> None:
        for one in deliveries:
            self.pops.acknowledge(group, one.topic, one.handle)

    def committed(self, queue: int = 0, topic: str = TOPIC) -> int | None:
        return self.offsets.committed(topic, GROUP, queue)

    def dead(self, group: str = GROUP) -> list[tuple[bytes, int]]:
        """Return body and reconsume times of the group's dead letters."""
        found = records_of(self.store, f"%DLQ%{group}", 0)
        return [(record.body, record.reconsume_times) for record in found]

    def check(self) -> None:
        """Assert what always holds, and that a snapshot is worth as much as the journal."""
        for table in self.pops._tables.values():
            table.check()
        self.journal.write()
        mine = self.kept()
        for key, found in found_in(self.pops).items():
            if key in mine:
                assert _entries(mine[key]) == _entries(found)


def found_in(pops: PopService) -> dict[PopKey, FoundQueue]:
    """Return what a snapshot of POPS says."""
    rows: dict[PopKey, list[tuple[int, InFlight | int]]] = {}
    for key, offset, value in pops.rows():
        rows.setdefault(key, []).append((offset, value))
    return {key: FoundQueue.of(found) for key, found in rows.items()}


def _entries(found: FoundQueue) -> dict[int, tuple[int, int]]:
    return {offset: (one.attempt, one.serial) for offset, one in found.in_flight.items()}


def bodies(deliveries: Iterable[PoppedMessage]) -> list[bytes]:
    return [decode_record(one.record).body for one in deliveries]


def seen(deliveries: Iterable[PoppedMessage]) -> list[tuple[bytes, int]]:
    """Return body and attempt of each."""
    return [(decode_record(one.record).body, one.attempt) for one in deliveries]
