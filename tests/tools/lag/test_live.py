"""The report on a cluster that runs, by its brokers and by the files under them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pocketmq.client import (
    Admin,
    GroupDescription,
    Message,
    OffsetTarget,
    Producer,
    PullConsumer,
    Queue,
)
from pocketmq.client.administration.groups import GroupAdmin
from pocketmq.proto.clock import SystemClock
from pocketmq.tools.cli import run
from pocketmq.tools.hidden_names import HiddenNames
from pocketmq.tools.lag.cold import store_rows
from pocketmq.tools.lag.live import cluster_rows
from pocketmq.tools.lag.rows import LagRow
from pocketmq.tools.stores.cold_store import open_cold
from pocketmq.tools.stores.locations import locate

from ...integration.v2_caller import Caller
from ...integration.whole_broker import serving, store_config
from ...waiting import until


def told(rows: list[LagRow]) -> dict[tuple[str, str, int, str], tuple[object, ...]]:
    """Return what both ways of asking tell."""
    return {
        row.key: (
            row.facts.committed_offset,
            row.facts.min_offset,
            row.facts.max_offset,
            row.lag,
            row.lag_bytes,
            row.verdict,
        )
        for row in rows
    }


def use(address: str) -> list[LagRow]:
    """Send and commit at ADDRESS; return the rows of its brokers."""
    with Admin(address) as admin:
        admin.create_topic("T", queues=2)
        admin.create_group("G")
        with Producer(address) as producer:
            for number in range(10):
                producer.send(Message("T", b"x" * (number + 1), queue=number % 2))
        broker = admin.describe_topic("T").brokers[0]
        admin.set_group_offsets("G", {Queue("T", broker, 0): 2})
        return cluster_rows(admin, HiddenNames())


def pop(nameserver: str, broker: str) -> list[LagRow]:
    """Receive four of five messages at BROKER, and finish one; return the rows that NAMESERVER's brokers tell."""
    with Admin(nameserver) as admin:
        admin.create_topic("T", queues=1)
        caller = Caller(broker)
        for number in range(4):
            caller.send(b"%d" % number)
        received = caller.receive()
        caller.send(b"more")
        caller.acknowledge(received[0])
        caller.channel.close()
        assert len(received) == 4
        return cluster_rows(admin, HiddenNames())


async def test_a_group_that_is_deleted_while_lag_watches_it_is_not_found(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"

    def watch(address: str) -> int:
        words = ["lag", "--nameserver", address, "--group", "G", "--output", str(out)]
        return run([*words, "--watch", "--interval", "10ms", "--iterations", "500"])

    def delete(address: str) -> None:
        with Admin(address) as admin:
            admin.delete_group("G")

    async with serving(store_config(tmp_path / "store")) as (nameserver, _):
        await asyncio.to_thread(use, nameserver)
        watching = asyncio.create_task(asyncio.to_thread(watch, nameserver))
        await until(out.exists)
        await asyncio.to_thread(delete, nameserver)

        assert await watching == 3


async def test_what_was_popped_and_is_not_finished_is_told(tmp_path: Path) -> None:
    store = store_config(tmp_path)
    async with serving(store) as (nameserver, broker):
        (live,) = await asyncio.to_thread(pop, nameserver, broker.address)

    assert (live.facts.committed_offset, live.facts.held, live.facts.read_to) == (1, 3, 4)
    assert live.reasons == ("1 message unread", "3 messages popped and not acknowledged")
    (location,) = locate([store.path])
    now_ms = SystemClock().now_ms()
    (cold,) = store_rows(open_cold(location, now_ms=now_ms), now_ms)
    assert (cold.facts.held, cold.facts.read_to, cold.verdict) == (3, 4, live.verdict)


async def test_all_groups_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def counted(self: GroupAdmin) -> list[GroupDescription]:
        nonlocal asked
        asked += 1
        return await groups(self)

    groups = GroupAdmin.groups
    monkeypatch.setattr(GroupAdmin, "groups", counted)

    def look(address: str) -> set[str]:
        with Admin(address) as admin:
            admin.create_topic("T", queues=1)
            for name in ("A", "B", "C"):
                admin.create_group(name)
                admin.reset_offsets(name, "T", OffsetTarget(last=True), create=True)
            nonlocal asked
            asked = 0
            return {row.facts.group for row in cluster_rows(admin, HiddenNames())}

    async with serving(store_config(tmp_path)) as (nameserver, _):
        assert await asyncio.to_thread(look, nameserver) == {"A", "B", "C"}
    assert asked == 1


def purge(address: str, committed: int | None, below: int | None) -> list[LagRow]:
    """Have G give up five messages at ADDRESS, commit in their queue, and purge some; return the rows."""
    with Admin(address) as admin, Producer(address) as producer:
        admin.create_topic("T", queues=1)
        producer.send_many("T", [b"x" * size for size in range(1, 6)])
        died = 0
        with PullConsumer("G", "T", address) as consumer:
            while died < 5:
                for message in consumer.poll(20_000):
                    consumer.send_back(message, delay_level=-1)
                    died += 1
            consumer.commit()
        if committed is not None:
            (broker,) = admin.describe_topic("T").brokers
            admin.set_group_offsets("G", {Queue("%DLQ%G", broker, 0): committed})
        admin.purge_dead_letters("G", below=below)
        return [row for row in cluster_rows(admin, HiddenNames()) if "%RETRY%" not in row.key[1]]


@pytest.mark.parametrize(
    ("committed", "below", "lag", "count", "reasons"),
    [
        (None, 3, None, 2, ("2 dead letters",)),
        (1, 3, 2, 2, ("2 dead letters unread",)),
        (4, 3, 1, 2, ("1 dead letter unread",)),
        (1, None, 0, 0, ("all read up to 5",)),
        (None, None, None, 0, None),
    ],
)
async def test_purged_dead_letters_do_not_count(
    tmp_path: Path,
    committed: int | None,
    below: int | None,
    lag: int | None,
    count: int,
    reasons: tuple[str, ...] | None,
) -> None:
    store = store_config(tmp_path)
    async with serving(store) as (nameserver, _):
        live = await asyncio.to_thread(purge, nameserver, committed, below)

    (location,) = locate([store.path])
    now_ms = SystemClock().now_ms()
    cold = store_rows(open_cold(location, now_ms=now_ms), now_ms)
    cold = [row for row in cold if "%RETRY%" not in row.key[1]]
    assert told(live) == told(cold)
    for rows in (live, cold):
        by_topic = {row.key[1]: row for row in rows}
        assert (by_topic["T"].facts.dead_letters or 0) == count
        assert (f"the group has {count} dead letters" in by_topic["T"].reasons) == bool(count)
        if reasons is None:
            assert list(by_topic) == ["T"]
        else:
            assert by_topic["%DLQ%G"].lag == lag
            assert by_topic["%DLQ%G"].reasons[0] == reasons[0]


async def test_brokers_and_files_tell_the_same(tmp_path: Path) -> None:
    store = store_config(tmp_path)
    before_ms = SystemClock().now_ms()
    async with serving(store) as (nameserver, _):
        live = await asyncio.to_thread(use, nameserver)

    (location,) = locate([store.path])
    now_ms = SystemClock().now_ms()
    cold = store_rows(open_cold(location, now_ms=now_ms), now_ms)

    assert told(live) == told(cold)
    assert {row.key[2]: (row.lag, str(row.verdict)) for row in live} == {
        0: (3, "lagging"),
        1: (5, "never_committed"),
    }
    age_ms = live[0].oldest_unread_age_ms
    assert age_ms is not None
    assert 0 <= age_ms <= now_ms - before_ms
    assert live[0].lag_bytes is not None
    assert live[0].lag_bytes > 0
