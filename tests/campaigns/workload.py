"""Clients that send and read all the time, and write down what became of it (history.py).

Producers number what they send, one after the other in each queue, some with acks="replicas", one with acks="disk".
Readers: one that pulls each queue from its beginning on its own account, one that polls for a group and commits, one
that is pushed to. Whatever fails is counted and tried again; what was sent is never sent again by anybody but the
client itself. In the end the readers go on until they have all that there is, or time is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pocketmq.client import (
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    Message,
    Queue,
    Receipt,
    ReceivedMessage,
)
from pocketmq.client.producing.receipt import Acks
from pocketmq.proto.errors import (
    ConnectionLost,
    InvalidArgument,
    MasterFenced,
    PocketMQError,
    RequestTimeout,
    ShuttingDown,
    TopicExists,
)

from ..crash.kill_campaign import body_of
from .history import Acknowledged, Committed, Fetched, History, Sent, digest_of

TOPIC: Final = "campaign"
QUEUES: Final = 4
#: Runs of one producer that are under way.
_IN_FLIGHT: Final = 4
_RUN_MAX: Final = 8
#: Longer than any trouble lasts: a producer that loses nothing but time fails no message.
_DELIVERY_MS: Final = 120_000
_PAUSE_S: Final = 0.05
_EXPECTED: Final = (ConnectionLost, MasterFenced, RequestTimeout, ShuttingDown)
_COMMIT_EVERY: Final = 20
_GROUP: Final = "campaign-polls"
_PUSH_GROUP: Final = "campaign-pushed"


def record_digest(message: ReceivedMessage) -> int:
    """Return the digest of a message's record, as the broker sent it."""
    run, index = message._run, message._index
    begin = run.starts[index]
    end = run.starts[index + 1] if index + 1 < len(run) else len(run.data)
    return digest_of(run.data[begin:end])


@dataclass(slots=True)
class _Producer:
    """A producer, its name, and how many it sends a second."""

    name: str
    acks: Acks
    client: AsyncProducer
    seed: int


class Workload:
    """Sends to TOPIC and reads it at NAMESERVERS, and fills HISTORY.

    PER_SECOND: messages of each producer.
    """

    def __init__(
        self,
        nameservers: str,
        history: History,
        *,
        seed: int,
        acks: Iterable[Acks] = ("replicas", "replicas", "disk"),
        per_second: int = 60,
    ) -> None:
        self._nameservers = nameservers
        self._history = history
        self._per_second = per_second
        chooser = random.Random(seed)
        self._producers = [
            _Producer(f"{name}-{index}", name, self._client(name), chooser.randrange(1 << 32))
            for index, name in enumerate(acks)
        ]
        self._next_number = 0
        self._ending = False
        self._tasks: list[asyncio.Task[None]] = []
        self._push: AsyncPushConsumer | None = None
        #: Up to where each reader has read each queue without a gap.
        self._read: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._ahead: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._ends: Mapping[int, int] | None = None
        self._all_read = asyncio.Event()
        #: What failed, by kind and who.
        self.failures: Counter[str] = Counter()
        #: The first of each kind that a failover need not bring.
        self.told: dict[str, str] = {}
        #: Handed out more than once, by reader.
        self.repeats: Counter[str] = Counter()
        #: When acks="replicas" was acknowledged, by the loop's time.
        self.acknowledged_s: list[float] = []
        self._acknowledged = asyncio.Event()

    def _client(self, acks: Acks) -> AsyncProducer:
        return AsyncProducer(
            self._nameservers, acks=acks, delivery_timeout_ms=_DELIVERY_MS, compression=None
        )

    async def start(self) -> None:
        """Make the topic and begin."""
        async with AsyncAdmin(self._nameservers) as admin:
            await self._create_topic(admin)
        for producer in self._producers:
            await producer.client.start()
            self._spawn(self._send(producer))
        for queue in range(QUEUES):
            self._spawn(self._pull(queue))
        self._spawn(self._poll())
        self._push = AsyncPushConsumer(
            _PUSH_GROUP, TOPIC, self._pushed, self._nameservers, start="earliest"
        )
        await self._push.start()

    async def next_acknowledged(self) -> None:
        """Wait for the next acknowledgement with acks="replicas"."""
        self._acknowledged.clear()
        await self._acknowledged.wait()

    async def stop_sending(self) -> None:
        """Send no more, and wait for what is under way."""
        self._ending = True
        for task in self._tasks[: len(self._producers)]:
            await task
        for producer in self._producers:
            await producer.client.close(timeout_ms=0)

    async def finish(self, ends: Mapping[int, int], timeout_s: float) -> None:
        """Wait until all have read each queue to its end in ENDS, TIMEOUT_S at most; end all clients.

        Whoever has not by then is written down as if it had: what it lacks is then found.
        """
        self._ends = ends
        self._look_for_the_end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._all_read.wait()
        self._history.finished |= {(reader, queue) for reader in self.readers for queue in ends}
        for task in self._tasks[len(self._producers) :]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._push is not None:
            await self._push.close()

    @property
    def readers(self) -> tuple[str, ...]:
        return ("puller", _GROUP, _PUSH_GROUP)

    def _look_for_the_end(self) -> None:
        if self._ends is not None and all(
            self._read[reader][queue] >= end
            for reader in self.readers
            for queue, end in self._ends.items()
        ):
            self._all_read.set()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def _create_topic(self, admin: AsyncAdmin) -> None:
        while True:
            try:
                await admin.create_topic(TOPIC, queues=QUEUES)
            except TopicExists:
                return
            except InvalidArgument:
                raise
            except PocketMQError as error:
                self._count("create topic", error)
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    def _count(self, who: str, error: BaseException) -> None:
        """Count what failed; what is no loss of a connection or a master is told as well."""
        kind = type(error).__name__
        if not isinstance(error, _EXPECTED) and kind not in self.told:
            self.told[kind] = f"{who}: {error}"
        self.failures[f"{who}: {kind}"] += 1

    # --- sending

    async def _send(self, producer: _Producer) -> None:
        chooser = random.Random(producer.seed)
        under_way: set[asyncio.Future[Receipt]] = set()
        while not self._ending:
            count = chooser.randint(1, _RUN_MAX)
            for _ in range(count):
                under_way.add(self._hand_over(producer, chooser.randrange(QUEUES)))
            await asyncio.sleep(count / self._per_second)
            while len(under_way) > _IN_FLIGHT * _RUN_MAX:
                _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        if under_way:
            await asyncio.wait(under_way)

    def _hand_over(self, producer: _Producer, queue: int) -> asyncio.Future[Receipt]:
        number, self._next_number = self._next_number, self._next_number + 1
        self._history.sent[number] = Sent(number, producer.name, producer.acks, queue)
        future = producer.client.send_nowait(Message(TOPIC, body_of(number), queue=queue))
        future.add_done_callback(lambda done: self._answered(producer, number, done))
        return future

    def _answered(self, producer: _Producer, number: int, done: asyncio.Future[Receipt]) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            self._count(producer.acks, error)
            return
        receipt = done.result()
        offset = -1 if receipt.repeated else receipt.queue_offset
        self._history.acknowledged.append(Acknowledged(number, receipt.queue, offset))
        if producer.acks == "replicas":
            self.acknowledged_s.append(asyncio.get_running_loop().time())
            self._acknowledged.set()

    # --- reading

    def _note(self, reader: str, messages: Iterable[ReceivedMessage]) -> None:
        """Write down what READER was handed: messages of one queue, one after the other."""
        rows = list(messages)
        if not rows:
            return
        queue, first = rows[0].queue, rows[0].queue_offset
        runs: list[list[ReceivedMessage]] = [[]]
        for row in rows:
            if runs[-1] and row.queue_offset != runs[-1][-1].queue_offset + 1:
                runs.append([])
            runs[-1].append(row)
        for run in runs:
            first = run[0].queue_offset
            self._history.fetched.append(
                Fetched(reader, queue, first, [record_digest(row) for row in run])
            )
            ahead = self._ahead[reader, queue]
            at = self._read[reader][queue]
            offsets = range(first, first + len(run))
            self.repeats[reader] += sum(offset < at or offset in ahead for offset in offsets)
            ahead.update(offset for offset in offsets if offset >= at)
            while at in ahead:
                ahead.remove(at)
                at += 1
            self._read[reader][queue] = at
        self._look_for_the_end()

    async def _pull(self, queue: int) -> None:
        offset = 0
        async with AsyncPullConsumer("campaign-pulls", nameservers=self._nameservers) as consumer:
            while True:
                try:
                    pulled = await consumer.pull(TOPIC, queue, offset, wait_ms=500)
                except PocketMQError as error:
                    self._count("pull", error)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                self._note("puller", pulled.messages)
                offset = pulled.next_offset

    async def _poll(self) -> None:
        consumer = AsyncPullConsumer(
            _GROUP, TOPIC, self._nameservers, auto_commit=False, start="earliest"
        )
        uncommitted: dict[Queue, int] = {}
        polls = 0
        async with consumer:
            while True:
                polls += 1
                try:
                    batch = await consumer.poll(timeout_ms=500)
                    self._note(_GROUP, batch)
                    for row in batch:
                        uncommitted[Queue(TOPIC, row.broker, row.queue)] = row.queue_offset + 1
                    if polls % _COMMIT_EVERY == 0 and uncommitted:
                        await consumer.commit_sync(uncommitted)
                        for queue, offset in uncommitted.items():
                            self._history.committed.append(Committed(_GROUP, queue.number, offset))
                        uncommitted.clear()
                except PocketMQError as error:
                    self._count("poll", error)
                    uncommitted.clear()
                    await asyncio.sleep(_PAUSE_S)

    async def _pushed(self, message: ReceivedMessage) -> None:
        self._note(_PUSH_GROUP, [message])
