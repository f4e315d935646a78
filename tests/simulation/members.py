"""Consumers of the campaign: each is an application on a machine of its own, which writes into the ledger."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from pocketmq.client import AsyncPullConsumer, AsyncPushConsumer, Queue, ReceivedMessage
from pocketmq.client.config import ReadingConfig
from pocketmq.client.consuming.commits import Commits, RegularCommits
from pocketmq.client.consuming.held_queue import HeldQueue
from pocketmq.client.consuming.parts import ConsumerParts
from pocketmq.client.consuming.queue_reader import QueueReader
from pocketmq.client.consuming.queue_supply import QueueSupply
from pocketmq.client.consuming.sharing import GroupAssignment
from pocketmq.client.received_message import FetchedRun
from pocketmq.client.session import Session
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .cluster import Client
from .ledger import Ledger

GROUP = "campaign"
TOPIC = "orders"
SESSION_MS = 10_000
LEASE_MS = 15_000
COMMIT_MS = 1_000
#: How many of single messages take a while.
_SLOW = 0.02
#: Runs that wait for the application.
_BACKLOG_MAX = 16


class Member(Protocol):
    """A consumer that can come, go, die and stand still."""

    number: int
    client: Client

    async def start(self) -> None: ...

    async def leave(self) -> None:
        """Go as one goes: finish, commit, give back."""
        ...

    def die(self) -> None:
        """Be gone: nothing is handled any more. The machine is dead already."""
        ...


class Application:
    """What handles messages, and takes its time for it."""

    def __init__(self, number: int, client: Client, ledger: Ledger) -> None:
        self.number = number
        self.client = client
        self._ledger = ledger

    async def handle_one(self, message: ReceivedMessage) -> None:
        """Handle MESSAGE."""
        machine, random = self.client.machine, self.client.random
        await machine.awake()
        self._ledger.note_numbers([int(message.body[:10])])
        queue = Queue(message.topic, message.broker, message.queue)
        self._ledger.handle(self.number, queue, message.queue_offset, 1)
        if random.random() < _SLOW:
            await machine.clock.sleep_until(machine.clock.now_ms() + random.randrange(20))

    async def handle(self, messages: Sequence[ReceivedMessage]) -> None:
        """Handle MESSAGES, which follow each other in one queue."""
        machine, random = self.client.machine, self.client.random
        await machine.awake()
        first = messages[0]
        numbers = [int(message.body[:10]) for message in messages]
        self._ledger.note_numbers(numbers)
        queue = Queue(first.topic, first.broker, first.queue)
        self._ledger.handle(self.number, queue, first.queue_offset, len(messages))
        await machine.clock.sleep_until(machine.clock.now_ms() + random.randrange(10))


class CoreMember:
    """The parts that share queues and read them, with nothing above."""

    def __init__(self, number: int, client: Client, ledger: Ledger, strategy: str) -> None:
        self.number = number
        self.client = client
        self._application = Application(number, client, ledger)
        config = ReadingConfig(
            nameservers=client.cluster.addresses,
            strategy=strategy,
            session_timeout_ms=SESSION_MS,
            lease_ms=LEASE_MS,
            enable_retries=False,
            auto_commit_interval_ms=COMMIT_MS,
        )
        session = Session(config, client.connections(), client.machine.clock, client.random)
        self._parts = ConsumerParts(GROUP, config, session)
        self._sharing = GroupAssignment({TOPIC: pb.Filter()}, self, self._parts, "pull")
        self._commits = Commits(self._parts, self._sharing)
        self._supply = QueueSupply(self._sharing, self._commits)
        self._readers: dict[Queue, QueueReader] = {}
        self._finished: dict[Queue, int] = {}
        self._backlog: deque[tuple[Queue, FetchedRun, int, int]] = deque()
        self._changed = asyncio.Condition()
        self._busy: Queue | None = None
        self._working: asyncio.Task[None] | None = None
        self.errors: list[PocketMQError] = []

    async def start(self) -> None:
        tasks = self._parts.session.tasks
        self._working = tasks.spawn(self._work())
        RegularCommits(self._parts, self._commits, lambda: dict(self._finished)).start()
        self._sharing.start()

    async def leave(self) -> None:
        await self._sharing.close()
        await self._parts.session.close()
        self.client.kill()

    def die(self) -> None:
        assert self._working is not None
        self._working.cancel()

    async def _work(self) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._backlog)
                queue, run, begin, next_offset = self._backlog.popleft()
                self._busy = queue
                self._changed.notify_all()
            await self.client.machine.awake()
            if self._sharing.held(queue) is not None:
                await self._application.handle(run.messages(begin))
                self._finished[queue] = next_offset
            async with self._changed:
                self._busy = None
                self._changed.notify_all()

    # --- what sharing says

    def begin(self, held: HeldQueue) -> None:
        self._commits.begin(held)
        reader = QueueReader(held, None, self, self._supply, self._parts)
        self._readers[held.queue] = reader
        reader.start()

    async def end(self, queue: Queue, *, lost: bool) -> None:
        self._readers.pop(queue).stop()
        async with self._changed:
            self._backlog = deque(row for row in self._backlog if row[0] != queue)
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._busy != queue)
        offset = self._finished.pop(queue, None)
        if not lost and offset is not None:
            await self._commits.commit({queue: offset})
        self._commits.forget(queue)

    def fail(self, error: PocketMQError) -> None:
        self.errors.append(error)

    # --- what readers say

    async def wait_for_space(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._backlog) < _BACKLOG_MAX)

    def started(self, queue: Queue, offset: int) -> None:
        """Reading begins."""

    def put(self, queue: Queue, run: FetchedRun, begin: int, next_offset: int) -> None:
        self._backlog.append((queue, run, begin, next_offset))
        self._parts.session.tasks.spawn(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def skip(self, queue: Queue, next_offset: int) -> None:
        """There is no filter."""


class PullMember:
    """An application that polls."""

    def __init__(self, number: int, client: Client, ledger: Ledger, strategy: str) -> None:
        self.number = number
        self.client = client
        self._application = Application(number, client, ledger)
        self._consumer = AsyncPullConsumer(
            GROUP,
            TOPIC,
            client.cluster.addresses,
            clock=client.machine.clock,
            connections=client.connections(),
            random=client.random,
            strategy=strategy,
            session_timeout_ms=SESSION_MS,
            lease_ms=LEASE_MS,
            auto_commit_interval_ms=COMMIT_MS,
        )
        self._leaves = False
        self._working: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._consumer.start()
        self._working = asyncio.ensure_future(self._work())

    async def leave(self) -> None:
        assert self._working is not None
        self._leaves = True
        await self._working
        try:
            await self._consumer.close()
        finally:
            self.client.kill()

    def die(self) -> None:
        assert self._working is not None
        self._working.cancel()

    async def _work(self) -> None:
        while not self._leaves:
            await self.client.machine.awake()
            if messages := await self._consumer.poll():
                await self._application.handle(messages)


class PushMember:
    """An application with a listener that is called with one message at a time."""

    def __init__(
        self, number: int, client: Client, ledger: Ledger, strategy: str, *, ordered: bool = False
    ) -> None:
        self.number = number
        self.client = client
        application = Application(number, client, ledger)
        self._consumer = AsyncPushConsumer(
            GROUP,
            TOPIC,
            application.handle_one,
            client.cluster.addresses,
            clock=client.machine.clock,
            connections=client.connections(),
            random=client.random,
            strategy=strategy,
            session_timeout_ms=SESSION_MS,
            lease_ms=LEASE_MS,
            auto_commit_interval_ms=COMMIT_MS,
            ordered=ordered,
        )

    async def start(self) -> None:
        await self._consumer.start()

    async def leave(self) -> None:
        try:
            await self._consumer.close()
        finally:
            self.client.kill()

    def die(self) -> None:
        """Its listeners end when they next look at the clock: nothing of it is woken any more."""
