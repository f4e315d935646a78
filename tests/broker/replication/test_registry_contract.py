"""What every registry promises, shown with the one in memory and with a real ZooKeeper alike."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import pytest

from pocketmq.broker.replication.registry import LiveNode, Registry, ReplicaSetState
from pocketmq.broker.replication.zookeeper import ZooKeeperRegistry
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import MetadataConflict, SessionExpired

from ...zookeeper.servers import running
from .memory_registry import Ensemble, MemoryRegistry

ADDRESSES: Final = {1: "10.0.0.1:9876", 2: "b:9876", 3: "[::1]:1"}
CELL: Final = ReplicaSetState(epoch=7, master=2, in_sync=frozenset({2, 1}), replicas=ADDRESSES)
LIVE: Final = LiveNode(address="b:9876", epoch=7, end=4096)
_numbers = itertools.count(1)


class Rig(Protocol):
    """A place for registries: sessions of one set."""

    async def session(self) -> Registry: ...


@dataclass
class _Memory:
    ensemble: Ensemble = field(default_factory=Ensemble)
    now: Callable[[], int] = SystemClock().now_ms

    async def session(self) -> Registry:
        return MemoryRegistry(self.ensemble, self.now)


@dataclass
class _ZooKeeper:
    servers: str
    name: str = field(default_factory=lambda: f"set-{next(_numbers)}")
    sessions: list[ZooKeeperRegistry] = field(default_factory=list)

    async def session(self) -> Registry:
        found = await ZooKeeperRegistry.open(
            self.servers, "test", self.name, session_ms=20_000, now_ms=SystemClock().now_ms
        )
        self.sessions.append(found)
        return found


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("zookeeper")) as (server,):
        yield server.address


@pytest.fixture(
    params=["memory", pytest.param("zookeeper", marks=[pytest.mark.java, pytest.mark.processes])]
)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    if request.param == "memory":
        yield _Memory()
        return
    rig = _ZooKeeper(request.getfixturevalue("servers"))
    yield rig
    for session in rig.sessions:
        await session.close()


def _next(cell: ReplicaSetState) -> ReplicaSetState:
    return ReplicaSetState(
        epoch=cell.epoch + 1, master=1, in_sync=frozenset({1}), replicas=cell.replicas
    )


async def test_only_who_read_the_newest_version_changes_the_cell(rig: Rig) -> None:
    first, second = await rig.session(), await rig.session()
    assert await first.read() is None
    made = await first.create(CELL)
    assert await second.read() == (CELL, made)

    changed = await first.compare_and_set(_next(CELL), made)

    assert changed > made
    with pytest.raises(MetadataConflict):
        await second.compare_and_set(_next(CELL), made)
    with pytest.raises(MetadataConflict):
        await second.create(CELL)
    assert await second.read() == (_next(CELL), changed)
    assert await second.compare_and_set(_next(_next(CELL)), changed) > changed


async def test_there_is_no_cell_to_change_before_there_is_one(rig: Rig) -> None:
    registry = await rig.session()

    with pytest.raises(MetadataConflict):
        await registry.compare_and_set(CELL, 0)

    assert await registry.read() is None


async def test_what_was_announced_ends_with_its_session(rig: Rig) -> None:
    registry, other = await rig.session(), await rig.session()
    await registry.announce(2, LIVE)
    await registry.announce(2, later := LiveNode(address="b:9876", epoch=8, end=5, unclean=True))
    assert await other.live() == {2: later}

    await registry.close()

    assert await other.live() == {}
    for asked in (registry.read(), registry.live(), registry.announce(2, LIVE)):
        with pytest.raises(SessionExpired):
            await asked


async def test_a_new_session_keeps_its_live_node_when_the_old_one_ends(rig: Rig) -> None:
    old, new = await rig.session(), await rig.session()
    await old.announce(2, LIVE)
    await new.announce(2, LIVE)

    await old.close()

    assert await new.live() == {2: LIVE}


async def test_whoever_watches_is_told_of_each_change_until_it_has_been_read(rig: Rig) -> None:
    writer, watcher = await rig.session(), await rig.session()
    told = asyncio.Event()
    watcher.watch(told.set)

    async def change(change: Awaitable[object]) -> None:
        await watcher.read()
        await watcher.live()
        told.clear()
        await change
        async with asyncio.timeout(60):
            await told.wait()

    await change(writer.create(CELL))
    found = await watcher.read()
    assert found is not None
    await change(writer.compare_and_set(_next(CELL), found.version))
    await change(writer.announce(2, LIVE))
    await change(writer.announce(2, LiveNode(address="b:9876", epoch=8, end=5)))
    await change(writer.close())


async def test_a_live_node_is_taken_over_by_who_has_its_address_and_its_store(rig: Rig) -> None:
    first, second = await rig.session(), await rig.session()
    await first.announce(1, replace(LIVE, store_id="one"))

    again = replace(LIVE, store_id="one", end=8192)
    await second.announce(1, again)

    assert await second.live() == {1: again}


async def test_a_change_is_answered_for_from_when_it_was_asked_for(rig: Rig) -> None:
    registry = await rig.session()
    clock = SystemClock()
    before_ms = clock.now_ms()

    await registry.announce(1, LIVE)

    assert registry.answered_ms <= clock.now_ms()
    assert before_ms <= registry.answered_ms


async def test_a_session_is_checked_until_it_is_over(rig: Rig) -> None:
    registry = await rig.session()
    before_ms = registry.answered_ms

    await registry.check_session()
    assert registry.answered_ms >= before_ms

    await registry.close()
    with pytest.raises(SessionExpired):
        await registry.check_session()
