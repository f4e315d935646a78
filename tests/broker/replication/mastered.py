"""A whole broker under a mastership that a test plays: what is confirmed, acknowledged and over is said by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from pocketmq.broker.broker import Broker, Network
from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.producers.producers import Producers
from pocketmq.broker.replication.mastership import Acknowledged, Told
from pocketmq.broker.replication.state_source import StatePart, StateSource
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import MasterFenced, NotEnoughReplicas, PocketMQError
from pocketmq.proto.errors_wire import from_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import decode_record
from pocketmq.proto.record_run import walk
from pocketmq.proto.rpc import Limits, MethodTable
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ...fake_calls import FakeCall, FakeStream
from ...runs import make_run, small_config

TOPIC = "T"
FENCED = MasterFenced("replica 2 is the master", address="b:1", epoch="8")


class PlayedMastership:
    """The mastership of replica 1 over STORE in EPOCH: nothing is confirmed before the test says so."""

    def __init__(self, store: MessageStore, epoch: int = 7) -> None:
        self._store = store
        self.replica_id = 1
        self.epoch = epoch
        self.in_sync = 2
        self.producers: Producers | None = None
        self.confirm = store.confirmed_offset
        store.confirm(self.confirm)
        self.ends: list[int] = []
        self.waiting: list[tuple[int, Acknowledged]] = []
        self.over: PocketMQError | None = None
        self._on_confirm: list[Callable[[int], None]] = []
        self._on_end: list[Callable[[PocketMQError], None]] = []

    # --- what the broker asks

    def check_master(self) -> None:
        if self.over is not None:
            raise self.over

    def when_still_master(self, told: Told) -> None:
        told(self.over)

    def check_open(self) -> None:
        self.check_master()

    def check_acks(self, min_in_sync: int = 0) -> None:
        if self.in_sync < (min_in_sync or 1):
            raise NotEnoughReplicas(f"{self.in_sync} in sync, and {min_in_sync} are needed")

    def appended(self, end: int) -> None:
        assert self.over is None, "appended after the end"
        assert end == self._store.max_log_offset
        self.ends.append(end)

    def when_acknowledged(self, end: int, tell: Acknowledged) -> None:
        assert end <= self.ends[-1], "told of before it is waited for"
        self.waiting.append((end, tell))

    def on_confirm(self, tell: Callable[[int], None]) -> None:
        self._on_confirm.append(tell)

    def on_end(self, tell: Callable[[PocketMQError], None]) -> None:
        self._on_end.append(tell)

    def replicate(self, parts: Iterable[StatePart], log_end: Callable[[], int]) -> StateSource:
        return StateSource(self.epoch, parts, log_end, lambda: ())

    # --- what the test says

    def raise_confirm(self, offset: int | None = None) -> None:
        """Confirm all before OFFSET, or everything."""
        offset = self._store.max_log_offset if offset is None else offset
        if offset <= self.confirm:
            return
        self.confirm = offset
        self._store.confirm(offset)
        for tell in self._on_confirm:
            tell(offset)

    def acknowledge(self, replicas: int = 2, error: PocketMQError | None = None) -> None:
        """Acknowledge all that waits, or fail it with ERROR."""
        waiting, self.waiting = self.waiting, []
        for _, tell in waiting:
            tell(replicas, error)

    def end(self, error: PocketMQError = FENCED) -> None:
        """End it, because of ERROR."""
        self.over = error
        for tell in self._on_end:
            tell(error)


class _Tables:
    """A carrier that carries nothing: the tables are asked as they are."""

    def __init__(self, tables: Iterable[MethodTable], *, limits: Limits) -> None:
        self.table = next(iter(tables))

    async def start(self, host: str, port: int) -> int:
        return 10911

    async def stop(self, grace_s: float) -> None:
        """Nobody is connected."""


class Mastered:
    """A broker over a store that is open before and after it."""

    def __init__(
        self, path: Path, *, epoch: int = 7, flush: str = "async", **settings: Any
    ) -> None:
        self.clock = VirtualClock(1_700_000_000_000)
        self.disk = OsDisk()
        self.config = small_config(
            path / "store", log_file_size_bytes=1 << 20, flush=flush, timer_precision_ms=1_000
        )
        self.store = MessageStore.open(
            self.config, disk=self.disk, now_ms=self.clock.unix_ms, replica=True
        )
        self._epoch = epoch
        self._settings: dict[str, Any] = {"nameservers": (), **settings}
        self.mastership: PlayedMastership
        self.broker: Broker
        self._tables: _Tables

    def _carrier(self, tables: Iterable[MethodTable], *, limits: Limits) -> _Tables:
        self._tables = _Tables(tables, limits=limits)
        return self._tables

    def build(self) -> Broker:
        """Make the broker, and its mastership."""
        self.mastership = PlayedMastership(self.store, self._epoch)
        self.broker = Broker.build(
            BrokerConfig(**self._settings),
            self.config,
            disk=self.disk,
            clock=self.clock,
            random=Random(7),
            network=Network(make_carrier=self._carrier),
        )
        return self.broker

    async def start(self) -> None:
        await self.build().start(store=self.store, mastership=self.mastership)

    async def __aenter__(self) -> Mastered:
        self.store.start(asyncio.get_running_loop().call_soon_threadsafe)
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.mastership.over is None:
            self.mastership.end()
        await self.broker.stop()
        self.store.close()

    @property
    def parts(self) -> Any:
        assert self.broker._running is not None
        return self.broker._running.parts

    # --- asking

    def handler(self, path: str) -> Callable[..., Any]:
        return self._tables.table[path].handler

    def begin(self, method: str, request: Any, service: str = "pocketmq.v1.Broker") -> FakeCall:
        """Call the unary METHOD; return the call, answered or not."""
        call = FakeCall(metadata={"x-mq-client-id": "me"})
        answer: Any = None
        try:
            answer = self.handler(f"/{service}/{method}")(request, call)
        except PocketMQError as error:
            call.fail(error)
        if hasattr(answer, "SerializeToString"):
            call.reply(answer)
        elif asyncio.iscoroutine(answer):
            task = asyncio.ensure_future(answer)
            task.add_done_callback(lambda done: _answer(call, done))
        return call

    def stream(self, method: str) -> tuple[FakeStream, Any]:
        """Open the stream METHOD; return both halves."""
        stream = FakeStream()
        return stream, self.handler(f"/pocketmq.v1.Broker/{method}")(stream)

    async def turns(self, count: int = 20) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def topic(self, name: str = TOPIC, queues: int = 1, **attributes: str) -> None:
        request = pb.CreateTopicRequest(
            topic=pb.TopicConfig(
                name=name,
                read_queues=queues,
                write_queues=queues,
                permission=6,
                attributes=attributes,
            )
        )
        call = self.begin("CreateTopic", request)
        while call.answer is None:  # noqa: ASYNC110 (a thread has to come round first)
            await asyncio.sleep(0.001)
        assert call.error is None, call.error


def _answer(call: FakeCall, done: asyncio.Future[Any]) -> None:
    error = done.exception()
    if isinstance(error, PocketMQError):
        call.fail(error)
    else:
        call.reply(done.result())


class Sender:
    """A Produce stream of MASTERED; answers by run."""

    def __init__(self, mastered: Mastered) -> None:
        self._mastered = mastered
        self.stream, self._receiver = mastered.stream("Produce")
        self._runs = 0

    @staticmethod
    def run(
        *bodies: bytes,
        acks: pb.Durability = pb.MEMORY,
        topic: str = TOPIC,
        properties: dict[str, str] | None = None,
    ) -> pb.ProduceRun:
        """Return BODIES as a run."""
        run = make_run(topic, 0, bodies, properties or {})
        return pb.ProduceRun(
            topic=topic,
            records=bytes(run.records),
            sizes=run.columns.sizes.tolist(),
            durability=acks,
        )

    def begin(self, run: pb.ProduceRun) -> int:
        """Send RUN, and return its number."""
        self._runs += 1
        run.run_id = self._runs
        self._receiver.on_message(run)
        return self._runs

    async def put(self, run: pb.ProduceRun) -> int:
        """Send RUN, let the turn end, and return its number."""
        number = self.begin(run)
        await self._mastered.turns()
        return number

    async def send(
        self,
        *bodies: bytes,
        acks: pb.Durability = pb.MEMORY,
        topic: str = TOPIC,
        properties: dict[str, str] | None = None,
    ) -> int:
        """Send BODIES, let the turn end, and return the number of the run."""
        return await self.put(self.run(*bodies, acks=acks, topic=topic, properties=properties))

    def answer(self, run: int) -> pb.ProduceReply | None:
        """Return the answer to RUN; None: there is none yet."""
        return next((one for one in self.stream.sent if one.run_id == run), None)

    def error(self, run: int) -> PocketMQError | None:
        reply = self.answer(run)
        assert reply is not None, "it was not answered"
        return from_wire(reply.error) if reply.error.name else None


class Fetcher:
    """A Fetch stream of MASTERED."""

    def __init__(self, mastered: Mastered) -> None:
        self.stream, self._receiver = mastered.stream("Fetch")
        self._bodies: list[list[bytes]] = []

    def fetch(self, offset: int = 0, topic: str = TOPIC, **fields: Any) -> None:
        self._receiver.on_message(
            pb.FetchRequest(
                fetch_id=len(self.stream.sent) + 1, topic=topic, queue=0, offset=offset, **fields
            )
        )

    def wait(self, offset: int = 0, topic: str = TOPIC, **fields: Any) -> None:
        self.fetch(offset, topic, min_bytes=1, max_wait_ms=60_000, **fields)

    @property
    def bodies(self) -> list[list[bytes]]:
        """The bodies that each answer has brought."""
        new = self.stream.sent[len(self._bodies) :]
        self._bodies += [bodies_in(reply.records) for reply in new]
        return self._bodies


def bodies_in(records: bytes) -> list[bytes]:
    """Return the bodies of RECORDS, end to end."""
    starts, _ = walk(records)
    return [decode_record(records, start).body for start in starts.tolist()]
