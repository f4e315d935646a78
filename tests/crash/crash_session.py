"""A session that uses what a broker offers, on a disk that is watched: what was sent, and what was promised when.

It sends single messages, batches, messages with keys and tags, to lite topics, delayed ones and transactions, asks for
syncs, pulls and commits, pushes with retries and a dead letter, pops and acknowledges, commits atomically, fills log,
queue and index files, lets files expire, stops and starts, resets offsets, and deletes a topic and creates it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from pocketmq.broker.pop.receives import ReceiveRequest, ReceiveResult
from pocketmq.client import (
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    Message,
    OffsetTarget,
)
from pocketmq.proto.properties import LITE_TOPIC
from pocketmq.proto.record import decode_record
from pocketmq.store.config import StoreConfig
from pocketmq.store.disk import Disk
from pocketmq.store.retention import local_hour

from ..simulation.cluster import Client, Cluster, SimulatedBroker, cluster_of
from ..simulation.virtual_loop import EPOCH_MS, loop_clock
from .crash_states import WatchedDisk

ORDERS, EVENTS, COPIES, CHATS = "orders", "events", "copies", "chats"
#: The last one has lite topics.
TOPICS: Final = (ORDERS, EVENTS, COPIES, CHATS)
PULLING, PUSHING, POPPING, COMMITTING = "pulling", "pushing", "popping", "committing"
QUEUES: Final = 2
RETENTION_MS: Final = 600_000
_LATER_MS: Final = 5_000
#: A delay for longer than files are kept.
LONGEST_MS: Final = RETENTION_MS + 120_000
#: The beginning of the message whose listener always fails.
FAILING: Final = b"4 "


def session_config(folder: Path, **changes: Any) -> StoreConfig:
    """Return the settings of the session's store: files so small that all kinds are filled."""
    sizes: dict[str, Any] = {
        "log_file_size_bytes": 32_768,
        "queue_file_size_bytes": 1_000,
        "timer_log_file_size_bytes": 5_200,
        "index_slots": 97,
        "index_entries": 60,
        "flush_queues_thorough_interval_ms": 5_000,
        "retention_ms": RETENTION_MS,
        "disk_expire_percent": 98,
        "disk_force_percent": 99,
        "disk_refuse_percent": 100,
        "timer_precision_ms": 1_000,
        "timer_roll_window_slots": 600,
        "delete_hour": local_hour(EPOCH_MS + RETENTION_MS),
    }
    return StoreConfig(path=str(folder), **(sizes | changes))


class Stored(NamedTuple):
    """An acknowledged message and its place. It was ON_DEVICE when it was acknowledged."""

    topic: str
    queue: int
    offset: int
    body: bytes
    on_device: bool


@dataclass
class Ledger:
    """What the session knows: every list only grows, so that lengths say what was known at a moment."""

    #: Topics whose creation was acknowledged.
    created: list[str] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    #: Acknowledged messages that are delivered later, and whether they were on disk when they were acknowledged.
    due: list[tuple[bytes, bool]] = field(default_factory=list)
    #: Bodies that a group has got, so that it need not get them again.
    got: list[tuple[str, bytes]] = field(default_factory=list)
    #: Offsets that a group asked to commit: group, topic, queue, offset.
    committed: list[tuple[str, str, int, int]] = field(default_factory=list)
    #: How many of STORED may be gone: their topic was about to be deleted, or their files to expire.
    withdrawn: list[tuple[str, int]] = field(default_factory=list)
    #: How many of DUE may be gone, because they were delivered and their files expire.
    due_withdrawn: int = 0

    def known(self, now_ms: int) -> Known:
        """Return what is known at NOW_MS, the present time."""
        gone = dict.fromkeys(TOPICS, 0) | dict(self.withdrawn)
        return Known(
            self,
            now_ms,
            len(self.created),
            len(self.sent),
            len(self.stored),
            len(self.due),
            len(self.got),
            len(self.committed),
            gone,
            self.due_withdrawn,
        )


@dataclass(frozen=True)
class Known:
    """What the ledger knew at a moment: lengths of its lists."""

    ledger: Ledger
    now_ms: int
    created_count: int
    sent_count: int
    stored_count: int
    due_count: int
    got_count: int
    committed_count: int
    #: By topic: how many of the stored messages may be gone.
    gone: dict[str, int]
    due_gone: int

    def topics(self) -> Collection[str]:
        """Return the topics that a crash must leave."""
        return set(self.ledger.created[: self.created_count])

    def promised(self, *, killed: bool) -> list[Stored]:
        """Return the messages that a crash must leave."""
        return [
            one
            for number, one in enumerate(self.ledger.stored[: self.stored_count])
            if number >= self.gone[one.topic] and (killed or one.on_device)
        ]

    def due(self, *, killed: bool) -> list[bytes]:
        """Return the bodies that must be delivered to EVENTS some time."""
        due = self.ledger.due[self.due_gone : self.due_count]
        return [body for body, on_device in due if killed or on_device]

    def got(self, group: str) -> set[bytes]:
        """Return the bodies that GROUP has got."""
        return {body for name, body in self.ledger.got[: self.got_count] if name == group}

    def sent(self) -> Collection[bytes]:
        return set(self.ledger.sent[: self.sent_count])

    def committed_up_to(self) -> dict[tuple[str, str, int], int]:
        """Return the highest offset that each group asked to commit, by group, topic, queue."""
        highest: dict[tuple[str, str, int], int] = {}
        for group, topic, queue, offset in self.ledger.committed[: self.committed_count]:
            key = group, topic, queue
            highest[key] = max(highest.get(key, 0), offset)
        return highest


class WatchedBroker(SimulatedBroker):
    """A broker on one watched disk, over all its runs."""

    watched: WatchedDisk
    changes: dict[str, Any]

    def disk(self) -> Disk:
        return self.watched

    def store_config(self, folder: Path) -> StoreConfig:
        return session_config(folder, **self.changes)


class Session:
    """The session on CLUSTER; everything that it learns goes to LEDGER."""

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self.cluster = cluster
        self.ledger = ledger
        self.number = 0

    async def run(self) -> None:
        broker = self.cluster.brokers[0]
        async with self.cluster.admin() as admin:
            await self._create(admin)
            await self._send()
            await self._later()
            await self._pull()
            await self._push()
            self._pop()
            await self._commit_atomically()
            await admin.reset_offsets(PULLING, ORDERS, OffsetTarget(first=True), force=True)
        await broker.stop()
        await broker.start()
        await broker.broker.registered(10)
        async with self.cluster.admin() as admin:
            self._pop()
            await self._send()
            self._withdraw(COPIES)
            await admin.delete_topic(COPIES)
            await admin.create_topic(COPIES, queues=QUEUES)
            self._withdraw(*TOPICS)
            self.ledger.due_withdrawn = len(self.ledger.due) - 1
            await self.cluster.sleep(RETENTION_MS + 60_000)
            await self._send()
            await self._pull()
        await broker.stop()

    def _withdraw(self, *topics: str) -> None:
        self.ledger.withdrawn += [(topic, len(self.ledger.stored)) for topic in topics]

    async def _create(self, admin: AsyncAdmin) -> None:
        for topic in TOPICS:
            kind = "LITE" if topic == CHATS else ""
            await admin.create_topic(topic, queues=QUEUES, type=kind)
            self.ledger.created.append(topic)
        for group in (PULLING, PUSHING, POPPING, COMMITTING):
            await admin.create_group(group, retry_max_times=1, retry_intervals_ms=[1_000])

    def _body(self, size: int = 0) -> bytes:
        self.number += 1
        body = b"%d " % self.number + bytes(range(256)) * (size // 256)
        self.ledger.sent.append(body)
        return body

    def _client(self, name: str) -> tuple[Client, dict[str, Any]]:
        client = self.cluster.client(name)
        return client, {"clock": client.machine.clock, "connections": client.connections()}

    def _producer(self, **settings: Any) -> AsyncProducer:
        client, parts = self._client("producer")
        return AsyncProducer(self.cluster.addresses, random=client.random, **parts, **settings)

    async def _send(self) -> None:
        """Send to both topics: single messages, batches, large ones, each in memory and on disk."""
        for acks in ("memory", "disk"):
            async with self._producer(acks=acks) as producer:
                for size in (0, 300, 3_000):
                    await self._send_one(producer, ORDERS, size, key=f"k{size}", tag="red")
                await self._send_one(producer, EVENTS, 0, sharding_key="one")
                for name in ("ann", "bob", "ann"):
                    await self._send_one(producer, CHATS, 0, properties={LITE_TOPIC: name})
                await self._send_many(producer, ORDERS, 40)
                await self._send_many(producer, EVENTS, 20)

    async def _send_one(self, producer: AsyncProducer, topic: str, size: int, **parts: Any) -> None:
        body = self._body(size)
        receipt = await producer.send(Message(topic, body, **parts))
        self._note(body, receipt)

    async def _send_many(self, producer: AsyncProducer, topic: str, count: int) -> None:
        bodies = [self._body() for _ in range(count)]
        receipts = await producer.send_many(
            Message(topic, body, key=f"k{number}", tag="blue") for number, body in enumerate(bodies)
        )
        for body, receipt in zip(bodies, receipts, strict=True):
            self._note(body, receipt)

    def _note(self, body: bytes, receipt: Any) -> None:
        self.ledger.stored.append(
            Stored(
                receipt.topic,
                receipt.queue,
                receipt.queue_offset,
                body,
                receipt.durability == "disk",
            )
        )

    async def _later(self) -> None:
        """Send delayed messages, one of them for longer than a crash, and transactions."""
        async with self._producer(acks="disk", group="transactions") as producer:
            times: list[dict[str, Any]] = [{"delay": f"{_LATER_MS // 1_000}s"}, {"delay_level": 1}]
            for when in times:
                body = self._body()
                receipt = await producer.send(Message(EVENTS, body, **when))
                self.ledger.due.append((body, receipt.durability == "disk"))
            for is_wanted in (True, False):
                body = self._body()
                try:
                    async with producer.transaction(Message(EVENTS, body)) as transaction:
                        if not is_wanted:
                            raise _NotWantedError
                except _NotWantedError:
                    continue
                committed = transaction.commit_receipt
                assert committed is not None
                self.ledger.due.append((body, committed.durability == "disk"))
            body = self._body()
            receipt = await producer.send(Message(EVENTS, body, delay=f"{LONGEST_MS // 1_000}s"))
            self.ledger.due.append((body, receipt.durability == "disk"))
            await self.cluster.sleep(2 * _LATER_MS)

    async def _pull(self) -> None:
        """Read some messages and commit them one batch at a time."""
        _, parts = self._client("puller")
        consumer = AsyncPullConsumer(
            PULLING, ORDERS, self.cluster.addresses, auto_commit=False, **parts
        )
        async with consumer:
            for _ in range(3):
                messages = await consumer.poll(timeout_ms=2_000)
                for one in messages:
                    self.ledger.got.append((PULLING, one.body))
                    self.ledger.committed.append(
                        (PULLING, one.topic, one.queue, one.queue_offset + 1)
                    )
                await consumer.commit()

    async def _push(self) -> None:
        """Consume everything of a topic; one message fails until it is a dead letter."""
        client, parts = self._client("pusher")
        failed: set[bytes] = set()

        async def handle(message: Any) -> bool:
            if message.body.startswith(FAILING) or message.body in failed:
                failed.add(message.body)
                return False
            self.ledger.got.append((PUSHING, message.body))
            return True

        consumer = AsyncPushConsumer(
            PUSHING,
            ORDERS,
            handle,
            self.cluster.addresses,
            random=client.random,
            **parts,
        )
        async with consumer:
            await self.cluster.sleep(12_000)

    def _pop(self) -> None:
        """Receive some messages of a topic as official clients do, and acknowledge every other one."""
        for number, (body, acknowledge) in enumerate(_received(self.cluster)):
            if number % 2:
                self.ledger.got.append((POPPING, body))
                acknowledge()

    async def _commit_atomically(self) -> None:
        """Copy messages to another topic, with the offsets of what was read."""
        _, parts = self._client("copier")
        consumer = AsyncPullConsumer(
            COMMITTING, EVENTS, self.cluster.addresses, auto_commit=False, **parts
        )
        async with consumer, self._producer() as producer:
            for _ in range(2):
                async with producer.atomic_commit(consumer) as commit:
                    for one in await consumer.poll(timeout_ms=2_000, max_messages=10):
                        self.ledger.committed.append(
                            (COMMITTING, one.topic, one.queue, one.queue_offset + 1)
                        )
                        commit.send(Message(COPIES, self._body()))


def _received(cluster: Cluster) -> list[tuple[bytes, Callable[[], object]]]:
    """Receive a batch of a topic; return the body of each message, and what acknowledges it."""
    running = cluster.brokers[0].broker._running
    assert running is not None
    pops = running.parts.pops
    answers: list[ReceiveResult] = []
    request = ReceiveRequest(
        group=POPPING, topic=EVENTS, client_id="c", batch=16, invisible_ms=20_000
    )
    pops.receive(request, answers.append)
    return [
        (decode_record(one.record).body, partial(pops.acknowledge, POPPING, one.topic, one.handle))
        for result in answers
        for one in result.deliveries
    ]


async def popped(cluster: Cluster) -> set[bytes]:
    """Receive and acknowledge until nothing comes any more, not even what was in flight; return the bodies."""
    bodies: set[bytes] = set()
    waits = 0
    while waits < 2:
        received = _received(cluster)
        for body, acknowledge in received:
            bodies.add(body)
            acknowledge()
        if not received:
            waits += 1
            await cluster.sleep(30_000)
    return bodies


async def pulled(cluster: Cluster, group: str, topic: str) -> set[bytes]:
    """Read TOPIC as GROUP until nothing comes any more; return the bodies."""
    client = cluster.client(group)
    bodies: set[bytes] = set()
    async with AsyncPullConsumer(
        group,
        topic,
        cluster.addresses,
        clock=client.machine.clock,
        connections=client.connections(),
    ) as consumer:
        while messages := await consumer.poll(timeout_ms=100_000):
            bodies |= {one.body for one in messages}
    return bodies


class _NotWantedError(Exception):
    """Rolls a transaction back."""


async def watched_session(
    folder: Path, watch: Callable[[WatchedDisk, Known], None], *, seed: int = 1, **changes: Any
) -> None:
    """Run the session in FOLDER; WATCH is called before each operation of the disk. CHANGES: settings of the store."""
    ledger = Ledger()
    home = folder / "broker-a"
    home.mkdir(parents=True)

    class Broker(WatchedBroker):
        pass

    def seen() -> None:
        watch(disk, ledger.known(clusters[0].clock.now_ms()))

    clusters: list[Cluster] = []
    disk = Broker.watched = WatchedDisk(
        str(home), lambda: seen() if clusters else None, loop_clock().now_ms
    )
    Broker.changes = changes
    async with cluster_of(folder, seed=seed, brokers=1, name_servers=1, broker_type=Broker) as one:
        clusters.append(one)
        await Session(one, ledger).run()
        disk.rest()
