"""A broker stops: committed offsets are saved once the log is on the device."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path

from pocketmq.broker.broker import Broker, Network
from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.pop.receives import ReceiveRequest, ReceiveResult
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import StoreError
from pocketmq.proto.rpc import Limits, MethodTable
from pocketmq.store.disk import Buffer
from pocketmq.store.format.state_tables import GroupConfig, TopicConfig
from pocketmq.store.message_store import MessageStore

from ...fakes import FaultyDisk
from ...runs import make_run, small_config


class NoCarrier:
    """A carrier of no connections."""

    def __init__(self, tables: Iterable[MethodTable], *, limits: Limits) -> None:
        pass

    async def start(self, host: str, port: int) -> int:
        return port

    async def stop(self, grace_s: float) -> None:
        pass


class SlowLog(FaultyDisk):
    """A disk that takes long to sync the log; `log_ends` has up to where it had the log when offsets were saved."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_sync = self._wait
        self.store: MessageStore | None = None
        self.synced = 0
        self._saved = threading.Event()
        self.log_ends: list[int] = []

    def _wait(self, path: str) -> StoreError | None:
        if "commitlog" in path:
            self._saved.wait(0.3)
            self.synced += 1
        return None

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        if path.endswith("consumerOffset.json") and self.store is not None:
            self.log_ends.append(self.store.flushed_offset if self.synced else 0)
            self._saved.set()
        super().write_atomically(path, data, backup=backup)


async def test_offsets_are_saved_behind_the_dead_letters_that_they_rely_on(tmp_path: Path) -> None:
    disk = SlowLog()
    broker = Broker.build(
        BrokerConfig(nameservers=(), port=8081),
        small_config(tmp_path, flush="async"),
        disk=disk,
        clock=SystemClock(),
        network=Network(make_carrier=NoCarrier),
    )
    await broker.start()
    assert broker._running is not None
    parts = broker._running.parts
    parts.topics.create(TopicConfig(name="T", read_queues=1, write_queues=1), update=False)
    parts.groups.create(GroupConfig(name="g"), update=False)
    parts.appends.append_one(make_run("T", 0, [b"a"]))
    answer: asyncio.Future[ReceiveResult] = asyncio.get_running_loop().create_future()
    asked = ReceiveRequest(group="g", topic="T", client_id="c", batch=1, invisible_ms=10_000)
    parts.pops.receive(asked, answer.set_result)
    (popped,) = (await answer).deliveries
    parts.pops.forward_to_dead_letters("g", "T", popped.handle, "asked for")
    disk.store, disk.synced = broker.store, 0
    end = disk.store.max_log_offset

    await broker.stop()

    assert disk.log_ends
    assert min(disk.log_ends) >= end
