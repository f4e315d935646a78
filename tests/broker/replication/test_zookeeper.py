"""The registry in ZooKeeper where connections, sessions and servers end, and where nodes hold what they should not."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from pocketmq.broker.replication.registry import LiveNode, ReplicaSetState
from pocketmq.broker.replication.zookeeper import (
    ZooKeeperRegistry,
    ZooKeeperSession,
    set_names,
    sets_path,
)
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import (
    ConfigError,
    MetadataConflict,
    PocketMQError,
    RegistryUnavailable,
    SessionExpired,
)
from pocketmq.tools.zookeeper_server import ZooKeeperServer

from ...relay import Relay
from ...zookeeper.servers import running

pytestmark = [pytest.mark.java, pytest.mark.processes]

CELL: Final = ReplicaSetState(
    epoch=7, master=2, in_sync=frozenset({2, 1}), replicas={1: "a:1", 2: "b:1", 3: "c:1"}
)
LIVE: Final = LiveNode(address="b:9876", epoch=7, end=4096)
SESSION_MS: Final = 1_500
T = TypeVar("T")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with running(tmp_path_factory.mktemp("zookeeper")) as (server,):
        yield server


class Sets:
    """Sessions of one new set."""

    def __init__(self, server: ZooKeeperServer, stack: AsyncExitStack) -> None:
        self.server = server
        self.name = f"set-{next(_numbers)}"
        self._stack = stack

    async def open(self, servers: str = "", session_ms: int = SESSION_MS) -> ZooKeeperRegistry:
        found = await _opened(servers or self.server.address, self.name, session_ms)
        self._stack.push_async_callback(found.close)
        return found

    @asynccontextmanager
    async def relayed(self) -> AsyncIterator[tuple[Relay, ZooKeeperRegistry]]:
        """A session through a relay."""
        async with Relay(self.server.address) as relay:
            yield relay, await self.open(relay.address)

    async def session(self) -> ZooKeeperSession:
        """A session without a registry, for what no registry does."""
        found = await ZooKeeperSession.open(
            self.server.address, session_ms=SESSION_MS, now_ms=SystemClock().now_ms
        )
        self._stack.push_async_callback(found.close)
        return found


@pytest.fixture
async def sets(server: ZooKeeperServer) -> AsyncIterator[Sets]:
    async with AsyncExitStack() as stack:
        yield Sets(server, stack)


def _told(registry: ZooKeeperRegistry) -> asyncio.Event:
    told = asyncio.Event()
    registry.watch(told.set)
    return told


async def _opened(servers: str, name: str, session_ms: int = SESSION_MS) -> ZooKeeperRegistry:
    """Return a registry whose session has begun: for that a busy machine may need longer than a session."""
    return await _answered(
        lambda: ZooKeeperRegistry.open(
            servers, "faults", name, session_ms=session_ms, now_ms=SystemClock().now_ms
        )
    )


async def _answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Return what ASK, which may be asked again, is answered once it is."""
    async with asyncio.timeout(60):
        while True:
            with suppress(RegistryUnavailable):
                return await ask()


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 (what a server of another process does, not an event)
            await asyncio.sleep(0.01)


async def _failure(asked: Awaitable[object]) -> type[PocketMQError] | None:
    """Return what ASKED, which may fail, raises."""
    try:
        await asked
    except PocketMQError as error:
        return type(error)
    return None


# ---------------------------------------------------------------- versions


async def test_a_cell_that_was_deleted_and_made_anew_is_newer_than_any_before(sets: Sets) -> None:
    registry, by_hand = await sets.open(), await sets.session()
    made = await registry.create(CELL)
    changed = await registry.compare_and_set(CELL, made)

    await by_hand.ask(lambda client: client.delete_async(registry.node))
    assert await registry.read() is None
    anew = await registry.create(CELL)

    assert made < changed < anew
    for old in (made, changed):
        with pytest.raises(MetadataConflict):
            await registry.compare_and_set(CELL, old)


async def test_a_cell_of_a_later_epoch_is_newer_also_if_the_ensemble_counts_anew(
    sets: Sets,
) -> None:
    registry = await sets.open()
    before = await registry.create(CELL)

    after = await registry.compare_and_set(replace(CELL, epoch=8), before)

    # Whatever czxid and version the node has in an ensemble that lost its data: both begin at nothing there.
    counted = 1 << 128
    assert after - after % counted > before


# ---------------------------------------------------------------- lost connections and answers


async def test_without_a_connection_nothing_is_asked_and_the_lease_runs_out(
    sets: Sets, caplog: pytest.LogCaptureFixture
) -> None:
    async with sets.relayed() as (relay, registry):
        await registry.create(CELL)
        await registry.read()
        await registry.live()
        told = _told(registry)
        relay.cut()

        async def is_lost() -> bool:
            return await _failure(registry.live()) is RegistryUnavailable

        await _until(is_lost)
        stands_ms = registry.answered_ms

        for asked in (registry.read(), registry.create(CELL), registry.announce(1, LIVE)):
            with pytest.raises(RegistryUnavailable):
                await asked
        came = relay.accepted
        before_ms = SystemClock().now_ms()
        await asyncio.sleep(SESSION_MS / 2000)
        waited_ms = SystemClock().now_ms() - before_ms
        assert registry.answered_ms == stands_ms
        assert came < relay.accepted < came + waited_ms / 100 + 2
        assert caplog.records == []

        told.clear()
        relay.heal()
        async with asyncio.timeout(60):
            await told.wait()
            while registry.answered_ms == stands_ms:
                told.clear()
                await told.wait()
        found = await registry.read()
        assert found is not None
        assert found.cell == CELL


async def test_a_change_whose_answer_is_lost_may_have_been_made(sets: Sets) -> None:
    other = await sets.open()
    version = await other.create(CELL)
    async with sets.relayed() as (relay, registry):
        relay.freeze(answers_only=True)
        change = asyncio.create_task(registry.compare_and_set(replace(CELL, epoch=8), version))

        async def is_made() -> bool:
            found = await other.read()
            return found is not None and found.cell.epoch == 8

        await _until(is_made)
        relay.cut()

        with pytest.raises(RegistryUnavailable):
            await change

        with pytest.raises(MetadataConflict):
            await other.compare_and_set(CELL, version)


async def test_a_session_that_ended_while_nobody_was_reached_is_over_for_good(sets: Sets) -> None:
    other = await sets.open()
    async with sets.relayed() as (relay, registry):
        await registry.announce(2, LIVE)
        await registry.read()
        told = _told(registry)
        relay.cut()
        stands_ms = registry.answered_ms

        async def is_gone() -> bool:
            return not await other.live()

        async def is_over() -> bool:
            return await _failure(registry.read()) is SessionExpired

        await _until(is_gone)
        told.clear()
        relay.heal()
        await _until(is_over)

        async with asyncio.timeout(60):
            await told.wait()
        for asked in (registry.create(CELL), registry.announce(2, LIVE), registry.live()):
            with pytest.raises(SessionExpired):
                await asked
        assert registry.answered_ms <= stands_ms + SESSION_MS
        assert await other.live() == {}
        await (anew := await sets.open()).announce(2, LIVE)
        assert await anew.live() == {2: LIVE}


async def test_a_session_with_a_server_that_lost_its_data_is_given_up(tmp_path: Path) -> None:
    with running(tmp_path) as (server,):
        registry = await _opened(server.address, "lost", 1_000)
        for _ in range(5):  # What is made anew has seen less.
            await _answered(lambda: registry.announce(1, LIVE))
        told = _told(registry)
        server.kill()
        shutil.rmtree(tmp_path / "1" / "version-2")
        server.start()

        async def is_over() -> bool:
            return await _failure(registry.read()) is SessionExpired

        await _until(is_over)
        assert told.is_set()
        await registry.close()
        anew = await _opened(server.address, "lost", 1_000)
        assert (await _answered(anew.read), await _answered(anew.live)) == (None, {})
        await anew.close()


async def test_a_server_that_says_nothing_is_waited_for_two_thirds_of_a_session(sets: Sets) -> None:
    clock, session_ms = SystemClock(), 6_000  # A third of it is what a slow machine has to be late.
    registry = await sets.open(session_ms=session_ms)
    await registry.create(CELL)
    sets.server.signal(signal.SIGSTOP)
    try:
        before_ms = clock.now_ms()
        asked = [asyncio.create_task(registry.read()) for _ in range(200)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        took_ms = clock.now_ms() - before_ms
    finally:
        sets.server.signal(signal.SIGCONT)

    assert {type(one) for one in found} == {RegistryUnavailable}
    assert any("requests wait for ZooKeeper" in str(one) for one in found)
    assert took_ms < session_ms
    assert registry.answered_ms <= before_ms


async def test_the_lease_is_renewed_by_what_a_quorum_agreed_to_alone(sets: Sets) -> None:
    registry = await sets.open()
    await registry.create(CELL)
    stands_ms = registry.answered_ms
    clock = SystemClock()

    for _ in range(5):
        await registry.read()
    read_ms = registry.answered_ms

    assert read_ms == stands_ms

    async def is_renewed() -> bool:
        return registry.answered_ms > stands_ms

    await _until(is_renewed)
    assert registry.answered_ms <= clock.now_ms()


# ---------------------------------------------------------------- what nodes hold


def _create_broken(path: str, client: Any) -> Any:
    return client.create_async(path, b"{")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"master: 1", "it is not JSON: b'master: 1'; correct the node"),
        (b'{"format":2}', '"format" is 2, and this program knows 1; upgrade this broker'),
    ],
)
async def test_a_cell_that_cannot_be_understood_is_refused_by_its_name(
    sets: Sets, data: bytes, fault: str
) -> None:
    registry, by_hand = await sets.open(), await sets.session()
    await registry.create(CELL)
    await by_hand.ask(lambda client: client.set_async(registry.node, data))

    with pytest.raises(ConfigError) as refused:
        await registry.read()

    assert f"/pocketmq/faults/sets/{sets.name}/state: {fault}" in str(refused.value)


async def test_live_nodes_that_cannot_be_understood_are_left_out(sets: Sets) -> None:
    registry, by_hand = await sets.open(), await sets.session()
    await registry.announce(1, LIVE)
    for name in ("2", "none", "0", "9" * 30):
        path = f"{sets_path('faults')}/{sets.name}/live/{name}"
        await by_hand.ask(partial(_create_broken, path))

    assert await registry.live() == {1: LIVE}
    assert sets.name in await set_names(by_hand, "faults")


@pytest.mark.long
async def test_an_id_of_another_process_is_refused_until_that_has_ended(sets: Sets) -> None:
    first, second = await sets.open(), await sets.open()
    await first.announce(2, replace(LIVE, store_id="one"))
    with pytest.raises(ConfigError, match="replica id 2 is taken by another running process"):
        await second.announce(2, replace(LIVE, store_id="two"))
    await first.announce(2, LIVE)
    elsewhere = replace(LIVE, address="c:9876")

    with pytest.raises(ConfigError, match="replica id 2 is taken by another running process"):
        await second.announce(2, elsewhere)
    assert await second.live() == {2: LIVE}

    waiting = asyncio.create_task(second.announce(2, elsewhere))
    await first.close()
    await waiting
    assert await second.live() == {2: elsewhere}


# ---------------------------------------------------------------- beginning


async def test_where_no_server_is_the_start_says_so_in_time(server: ZooKeeperServer) -> None:
    async with Relay(server.address) as relay:
        relay.freeze()
        clock = SystemClock()
        before_ms = clock.now_ms()

        with pytest.raises(RegistryUnavailable, match=r"no ZooKeeper of .* has started a session"):
            await ZooKeeperSession.open(
                relay.address, session_ms=SESSION_MS, now_ms=clock.now_ms, wait_ms=300
            )

        assert clock.now_ms() - before_ms < 30_000


async def test_a_session_that_zookeeper_makes_shorter_is_refused(server: ZooKeeperServer) -> None:
    with pytest.raises(
        ConfigError, match=r"session_ms is 90000, but ZooKeeper .* ends sessions after 60000 ms"
    ):
        await ZooKeeperRegistry.open(
            server.address, "faults", "short", session_ms=90_000, now_ms=SystemClock().now_ms
        )


async def test_a_session_that_zookeeper_makes_longer_is_told(
    server: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    registry = await _opened(server.address, "long", 600)
    await registry.close()

    assert "session_ms=600 given_ms=1000" in caplog.text


@pytest.mark.parametrize("servers", ["", "localhost", "a:b", "a:0", "a:1,", "a:70000", ":2181"])
async def test_servers_of_another_form_are_refused(servers: str) -> None:
    with pytest.raises(ConfigError, match=r"is not HOST:PORT, as in 127\.0\.0\.1:2181"):
        await ZooKeeperSession.open(servers, session_ms=SESSION_MS, now_ms=SystemClock().now_ms)


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a\n", "n" * 256])
async def test_names_that_no_node_can_have_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="printable characters without slash"):
        await ZooKeeperRegistry.open(
            "a:1", "c", name, session_ms=SESSION_MS, now_ms=SystemClock().now_ms
        )


async def test_without_kazoo_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)

    with pytest.raises(ConfigError, match=r"pip install .*\[replication\]'"):
        await ZooKeeperSession.open("a:1", session_ms=SESSION_MS, now_ms=SystemClock().now_ms)


# ---------------------------------------------------------------- an ensemble


@pytest.mark.long
async def test_a_session_outlives_the_leader_of_an_ensemble(tmp_path: Path) -> None:
    with running(tmp_path, 3) as servers:
        modes = [await server.mode() for server in servers]
        assert sorted(map(str, modes)) == ["follower", "follower", "leader"]
        registry = await ZooKeeperRegistry.open(
            ",".join(server.address for server in servers),
            "faults",
            "ensemble",
            session_ms=6_000,
            now_ms=SystemClock().now_ms,
        )
        try:
            version = await registry.create(CELL)
            await registry.announce(1, LIVE)
            servers[modes.index("leader")].kill()

            async def is_led_again() -> bool:
                return await _failure(registry.announce(1, LIVE)) is None

            await _until(is_led_again)
            assert await registry.read() == (CELL, version)
            assert await registry.compare_and_set(replace(CELL, epoch=8), version) > version
            assert await registry.live() == {1: LIVE}
        finally:
            await registry.close()


@pytest.mark.long
async def test_without_a_quorum_the_lease_is_not_renewed(tmp_path: Path) -> None:
    with running(tmp_path, 3) as servers:
        modes = [await server.mode() for server in servers]
        stays = servers[modes.index("leader")]
        registry = await ZooKeeperRegistry.open(
            stays.address, "faults", "quorum", session_ms=2_000, now_ms=SystemClock().now_ms
        )
        try:
            await registry.create(CELL)
            for server in servers:
                if server is not stays:
                    server.signal(signal.SIGSTOP)
            before_ms = SystemClock().now_ms()
            # The leader goes on answering reads of its own until it notices.
            assert await _failure(registry.read()) is None
            await _failure(registry.announce(1, LIVE))

            assert registry.answered_ms <= before_ms
        finally:
            for server in servers:
                server.signal(signal.SIGCONT)
            await registry.close()
