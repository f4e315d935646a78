"""A start that fails costs nothing: the next one finds the tables of the broker as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.broker.broker import Broker
from pocketmq.broker.broker_tables import BrokerTables
from pocketmq.broker.pop.deliveries import LOOKED, PopKey
from pocketmq.broker.replication.state_sink import StateSink
from pocketmq.proto.clock import Clock, SystemClock, VirtualClock
from pocketmq.proto.errors import CorruptState, DiskFailure, StoreError
from pocketmq.store.disk import Disk
from pocketmq.store.flush import Flusher
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..fakes import FaultyDisk
from ..runs import Hand
from ..served import broker_config
from .whole_broker import store_config

FILES = ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"]
QUEUE = PopKey("g", "T", 0)


def opened(root: Path) -> tuple[MessageStore, BrokerTables]:
    """Open the store below ROOT, and its tables."""
    store = MessageStore.open(store_config(root), disk=OsDisk(), now_ms=Hand())
    return store, BrokerTables.open(store, VirtualClock())


@pytest.fixture
def delivering(tmp_path: Path) -> Path:
    """Return the folder of a store with messages in flight, whose broker was stopped."""
    store, tables = opened(tmp_path)
    tables.deliveries.put(QUEUE, LOOKED, 7)
    tables.journal.close()
    store.close()
    return tmp_path


def in_flight(root: Path) -> list[object]:
    """Return what a start finds in flight in the store below ROOT."""
    store, tables = opened(root)
    found: list[object] = list(tables.deliveries.items())
    tables.journal.close()
    store.close()
    return found


async def fail_to_start(
    root: Path, error: type[StoreError], disk: Disk, clock: Clock | None = None
) -> None:
    """Have a broker on the store below ROOT fail to start with ERROR."""
    config = broker_config(port=0, nameservers=())
    clock = clock or SystemClock()
    broker = Broker.build(config, store_config(root), disk=disk, clock=clock, wall=SystemClock())
    with pytest.raises(error):
        await broker.start()


@pytest.mark.parametrize("name", FILES)
async def test_a_broker_that_cannot_read_a_file_keeps_what_is_in_flight(
    delivering: Path, name: str
) -> None:
    broken = delivering / "store/config" / name
    broken.parent.mkdir(exist_ok=True)
    broken.write_text("{")
    await fail_to_start(delivering, CorruptState, OsDisk())
    broken.unlink()

    assert in_flight(delivering) == [(QUEUE, LOOKED, 7)]


async def test_a_broker_that_cannot_mark_its_virtual_time_keeps_what_is_in_flight(
    delivering: Path,
) -> None:
    disk = FaultyDisk()
    disk.break_writes("clock.json")
    await fail_to_start(delivering, DiskFailure, disk, VirtualClock())

    assert in_flight(delivering) == [(QUEUE, LOOKED, 7)]


@pytest.mark.parametrize("name", FILES)
def test_a_follower_that_cannot_read_a_file_keeps_what_is_in_flight(
    delivering: Path, name: str
) -> None:
    broken = delivering / "store/config" / name
    broken.parent.mkdir(exist_ok=True)
    broken.write_text("{")
    config = store_config(delivering)
    store = MessageStore.open(config, disk=OsDisk(), now_ms=Hand(), replica=True)
    store.follow()
    with pytest.raises(CorruptState):
        StateSink(store, Hand(), Hand(), lambda ack: None, Flusher("not started"))
    store.close()
    broken.unlink()

    assert in_flight(delivering) == [(QUEUE, LOOKED, 7)]
