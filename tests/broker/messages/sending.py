"""Sends over a small store, without a server."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Callable
from pathlib import Path

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.messages.appender import Appender, synced
from pocketmq.broker.messages.send import Sends, Waits
from pocketmq.broker.producers.producers import Producers
from pocketmq.broker.timing.timers import Timers
from pocketmq.broker.topics import Topics
from pocketmq.broker.transactions.records import prepare
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import Overloaded, PocketMQError, TopicExists
from pocketmq.proto.errors_wire import from_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.topics import MESSAGE_SIZE_MAX
from pocketmq.store.disk import Disk
from pocketmq.store.file_changes import ChangeTable
from pocketmq.store.format.state_tables import TopicConfig
from pocketmq.store.message_store import MessageStore
from pocketmq.store.state_files import StateFile

from ...fakes import FaultyDisk
from ...runs import small_config

TOPIC = "T"


class Rig:
    """Sends over a small store whose flushing thread reports only when the test says so; or without that thread."""

    def __init__(
        self,
        path: Path,
        *,
        flush: str = "async",
        threads: bool = True,
        disk: Disk | None = None,
        body_max: int = MESSAGE_SIZE_MAX,
        changes: ChangeTable | None = None,
        **settings: object,
    ) -> None:
        self.clock = VirtualClock()
        self.disk = FaultyDisk(disk)
        config = small_config(path / "store", flush=flush, message_size_max_bytes=body_max)
        self.store = MessageStore.open(config, disk=self.disk, now_ms=self.clock.unix_ms)
        self.reports: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        if threads:
            self.store.start(self.reports.put)
        broker = BrokerConfig(**settings)  # type: ignore[arg-type]
        file = StateFile(self.disk, self.store.config.path, "topics.json")
        self.topics = Topics(file, broker, self.clock.unix_ms, changes=changes)
        with contextlib.suppress(TopicExists):
            topic = TopicConfig(name=TOPIC, read_queues=4, write_queues=4)
            self.topics.create(topic, update=False)
        self.timers = Timers(self.clock)
        self.notified: list[object] = []
        self.slots: dict[int, int] = {}
        self.halves_max = 3
        waits = Waits(
            now_ms=self.clock.unix_ms,
            slot_count=lambda slot_ms: self.slots.get(slot_ms, 0),
            prepare=prepare,
            check_room=self._check_room,
        )
        appends = Appender(self.store, self.notified.append)
        self.producers = Producers(
            self.store,
            self.clock,
            producers_max=broker.producers_max,
            expiry_ms=broker.producer_expiry_ms,
        )
        self.producers.start()
        self.sends = Sends(
            broker, self.topics, self.store, self.timers, appends, waits, self.producers
        )
        self.replies: list[pb.ProduceReply] = []

    def _check_room(self, count: int) -> None:
        if count > self.halves_max:
            raise Overloaded("too many half messages")

    async def send(self, *runs: pb.ProduceRun) -> None:
        """Send RUNS in one turn of the loop, and let it end."""
        for run in runs:
            self.sends.send(run, self.replies.append)
        await asyncio.sleep(0)

    async def refusal(self, run: pb.ProduceRun) -> PocketMQError:
        """Return the error that RUN is answered with, without a wait for the device."""
        await self.send(run)
        reply = self.replies.pop()
        assert reply.HasField("error"), reply
        assert reply.run_id == run.run_id
        return from_wire(reply.error)

    def report(self) -> None:
        """Let the next outcome of a sync reach the loop's thread."""
        self.reports.get(timeout=10)()

    def close(self) -> None:
        self.disk.heal()
        self.store.close()

    async def stop(self) -> None:
        """Stop cleanly."""
        self.disk.heal()
        await self.producers.close(synced)
        self.store.close()

    def kill(self) -> None:
        """Leave everything as a kill does."""
        self.store._close_files()
