"""Fetches over a small store, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.consumer_groups import Groups
from pocketmq.broker.messages.fetch import Fetches
from pocketmq.broker.messages.filters import Filters
from pocketmq.broker.offsets import Offsets
from pocketmq.broker.timing.purgatory import Purgatory, WatchedOperation
from pocketmq.broker.timing.timers import Timers
from pocketmq.broker.topics import Topics
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import decode_record
from pocketmq.proto.record_run import walk
from pocketmq.store.format.state_tables import TopicConfig
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ...runs import make_run, small_config

TOPIC = "T"
WAIT_MS = 3_000


class Rig:
    """Fetches over a small store, and a clock that the test moves."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.clock = VirtualClock()
        config = BrokerConfig(**settings)  # type: ignore[arg-type]
        disk, root = OsDisk(), str(path / "store")
        self.store = MessageStore.open(
            small_config(path / "store", log_file_size_bytes=1 << 20),
            disk=disk,
            now_ms=self.clock.now_ms,
        )
        self.topics = Topics(StateFile(disk, root, "topics.json"), config, self.clock.now_ms)
        self.topics.create(TopicConfig(name=TOPIC, read_queues=4, write_queues=4), update=False)
        offsets = Offsets(StateFile(disk, root, "consumerOffset.json"), self.clock.now_ms)
        self.timers = Timers(self.clock)
        self.timers.start()
        self.purgatory = Purgatory(self.timers, limit=lambda: config.fetches_waiting_max)
        self.filters = Filters(self.timers, self.clock)
        group_file = StateFile(disk, root, "subscriptionGroup.json")
        self.groups = Groups(group_file, config, self.clock.now_ms)
        self.fetches = Fetches(
            config,
            self.topics,
            offsets,
            self.store,
            self.purgatory,
            self.clock.now_ms,
            self.filters,
            self.groups,
        )
        self.replies: list[pb.FetchReply] = []

    def append(
        self,
        *bodies: bytes,
        queue: int = 0,
        properties: Sequence[dict[str, str]] | dict[str, str] | None = None,
    ) -> None:
        self.store.append(make_run(TOPIC, queue, bodies, properties))
        self.purgatory.notify((TOPIC, queue))

    async def stop(self) -> None:
        self.filters.stop()
        await self.timers.stop()
        self.store.close()

    def fetch(self, **fields: object) -> WatchedOperation | None:
        request = pb.FetchRequest(**{"fetch_id": 7, "topic": TOPIC, **fields})  # type: ignore[arg-type]
        return self.fetches.fetch(request, self.replies.append)

    def wait(self, **fields: object) -> WatchedOperation | None:
        """Fetch with a long poll."""
        return self.fetch(**{"min_bytes": 1, "max_wait_ms": WAIT_MS, **fields})

    def answer(self) -> pb.FetchReply:
        (reply,) = self.replies
        self.replies.clear()
        assert reply.fetch_id == 7
        return reply

    def switch(self, group: str, *, consume: bool) -> None:
        """Switch consumption on or off for GROUP."""
        known = self.groups.ensure(group)
        self.groups.create(replace(known, consume_enable=consume), update=True)

    def bodies(self) -> list[bytes]:
        """Return the bodies in the one answer."""
        records = self.answer().records
        return [decode_record(records, start).body for start in walk(records)[0].tolist()]
