"""Following a Java master: byte by byte over both wires, through kills of either side, and what is not one log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import PocketMQError, StoreMismatch
from pocketmq.store.format.replica_files import parse_epochs
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.follow.follower import (
    LEARNER_ID,
    QUIET_S,
    STOPPING_S,
    JavaFollower,
    OtherHistory,
)
from pocketmq.tools.follow.note import check_promoted, read_note

from ...runs import Hand, make_run, open_store
from ...store.following import assert_equal, send
from .java_master import JavaMasterDouble


def master_of(
    path: Path, seed: int = 1, runs: int = 60
) -> tuple[MessageStore, random.Random, Hand]:
    """Return a store of several log files."""
    clock, rng = Hand(), random.Random(seed)
    store = open_store(path / "java", now_ms=clock, replica=True)
    send(store, rng, clock, runs)
    return store, rng, clock


def follower_of(path: Path, master: JavaMasterDouble) -> JavaFollower:
    clock = SystemClock()
    return JavaFollower(
        str(path / "ours"), master.address, master.rpc, disk=OsDisk(), now_ms=clock.unix_ms
    )


@asynccontextmanager
async def running(follower: JavaFollower) -> AsyncIterator[asyncio.Task[None]]:
    """Have FOLLOWER run meanwhile; stop it cleanly."""
    task = asyncio.ensure_future(follower.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool], task: asyncio.Future[Any]) -> None:
    for _ in range(6000):
        if condition():
            return
        if task.done():
            await task
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


async def refused(follower: JavaFollower, task: asyncio.Future[Any]) -> float:
    """Return since when the master's port for requests refuses FOLLOWER, by the loop's time."""
    await until(lambda: follower._refused_s is not None, task)
    assert follower._refused_s is not None
    return follower._refused_s


def has_trouble(follower: JavaFollower) -> Callable[[], bool]:
    return lambda: bool(follower.trouble)


def has_some(follower: JavaFollower) -> Callable[[], bool]:
    return lambda: follower.end > 0


def has_all(follower: JavaFollower, store: MessageStore) -> Callable[[], bool]:
    """Does FOLLOWER have the log of STORE, and tables of then?"""

    def is_so() -> bool:
        note = follower.note
        end = store.max_log_offset
        return note is not None and follower.end == end == note.tables_end

    return is_so


@pytest.mark.parametrize("epochs", [False, True], ids=["classic", "auto-switch"])
async def test_a_master_is_followed_through_kills_of_either_side(
    epochs: bool, tmp_path: Path
) -> None:
    store, rng, clock = master_of(tmp_path)
    second = store.max_log_offset
    master = JavaMasterDouble(store, tmp_path, ((1, 0),) if epochs else ())
    await master.start()
    for turn in range(4):
        follower = follower_of(tmp_path, master)
        async with running(follower) as task:
            await until(has_some(follower), task)
            send(store, rng, clock, 10)
            if turn == 1:
                master.kill()
                await until(has_trouble(follower), task)
                if epochs:
                    master.epochs = ((1, 0), (3, store.max_log_offset))
                    second = store.max_log_offset
                await master.start()
                send(store, rng, clock, 10)
            if turn % 2:
                await until(has_all(follower, store), task)
                assert follower.trouble == ""
    assert max(master.reports) <= store.max_log_offset
    if epochs:
        learner = bytes.fromhex("0000000100000001") + LEARNER_ID.to_bytes(8, "big")
        assert set(master.handshakes) == {learner}
        text = (tmp_path / "ours" / "epochFileCheckpoint").read_text()
        assert parse_epochs(text) == ((1, 0), (3, second))
    await master.close()
    store.close()
    assert_equal(tmp_path / "ours", tmp_path / "java", crashed=True)
    offsets = (tmp_path / "ours" / "config" / "consumerOffset.json").read_text()
    assert '"A@g"' in offsets
    assert "1:7" in offsets.replace("\t", "").replace("\n", "")
    with pytest.raises(StoreMismatch, match="pocketmq promote"):
        check_promoted(OsDisk(), str(tmp_path / "ours"))


async def test_what_the_device_has_is_reported(tmp_path: Path) -> None:
    store, _, _ = master_of(tmp_path)
    master = await JavaMasterDouble(store, tmp_path).start()
    async with running(follower := follower_of(tmp_path, master)) as task:
        await until(lambda: master.reports[-1:] == [store.max_log_offset], task)
        assert follower.end == store.max_log_offset
    assert master.reports == sorted(master.reports)
    # The first asks for what follows the first record, for who has nothing is sent the newest file alone.
    first = store.log.record_size(0)
    assert master.reports[0] == first
    await master.close()
    store.close()


async def test_tables_are_written_once_the_log_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No offset stands before its messages, whenever the master is lost for good."""
    store, _, _ = master_of(tmp_path)
    master = await JavaMasterDouble(store, tmp_path, frame=0).start()  # It holds its log back.
    disk, offsets = OsDisk(), str(tmp_path / "ours" / "config" / "consumerOffset.json")
    follower, looks = follower_of(tmp_path, master), 0
    apply_tables = follower._apply_tables

    def look() -> None:
        nonlocal looks
        looks += follower._tables is not None
        apply_tables()

    monkeypatch.setattr(follower, "_apply_tables", look)
    async with running(follower) as task:
        await until(lambda: follower.master_end == store.max_log_offset, task)
        await until(lambda: looks >= 3, task)
        assert 0 < follower.end < store.max_log_offset
        assert not disk.exists(offsets)
        master.frame = 700
        await until(has_all(follower, store), task)
        assert disk.exists(offsets)
    await master.close()
    store.close()


async def test_a_master_that_has_deleted_its_first_files_is_followed_from_the_oldest(
    tmp_path: Path,
) -> None:
    store, rng, clock = master_of(tmp_path)
    begin = store.log.files.files[1].start
    store.delete_before(begin)
    master = await JavaMasterDouble(store, tmp_path).start()
    async with running(follower := follower_of(tmp_path, master)) as task:
        await until(has_all(follower, store), task)
        assert master.reports[0] == begin == store.min_log_offset
        send(store, rng, clock, 40)
        kept = store.log.files.files[2].start
        store.delete_before(kept)
        await until(has_all(follower, store), task)
        ours = tmp_path / "ours" / "commitlog"
        await until(lambda: min(one.name for one in ours.iterdir()) == f"{kept:020d}", task)
    await master.close()
    store.close()


async def test_epochs_say_what_is_cut(tmp_path: Path) -> None:
    """The master of epoch 1 had more than the one of epoch 2 knows: the follower gives that up."""
    store, rng, clock = master_of(tmp_path)
    master = await JavaMasterDouble(store, tmp_path, ((1, 0),)).start()
    async with running(follower := follower_of(tmp_path, master)) as task:
        await until(has_all(follower, store), task)
    common = store.newest_record
    assert common is not None
    store.truncate_to(common[0])
    store = open_store(tmp_path / "java", now_ms=clock, replica=True)
    master.store, master.epochs = store, ((1, 0), (2, common[0]))
    store.append(make_run("A", 0, [b"of epoch 2" * 30]))
    send(store, rng, clock, 5)
    async with running(follower := follower_of(tmp_path, master)) as task:
        await until(has_all(follower, store), task)
    await master.close()
    store.close()
    assert_equal(tmp_path / "ours", tmp_path / "java", crashed=True)
    text = (tmp_path / "ours" / "epochFileCheckpoint").read_text()
    assert parse_epochs(text) == ((1, 0), (2, common[0]))


async def cut_to_newest(master: JavaMasterDouble, clock: Hand) -> None:
    """The master lost its newest record, and goes on."""
    newest = master.store.newest_record
    assert newest is not None
    master.store.truncate_to(newest[0])
    master.store = open_store(master.path / "java", now_ms=clock, replica=True)


async def cut_and_write(master: JavaMasterDouble, clock: Hand) -> None:
    await cut_to_newest(master, clock)
    for _ in range(3):
        master.store.append(make_run("A", 0, [b"other" * 200]))


async def other_epochs(master: JavaMasterDouble, clock: Hand) -> None:
    master.epochs = ((7, 0),)


async def other_name(master: JavaMasterDouble, clock: Hand) -> None:
    master.name = "broker-b"


async def other_size(master: JavaMasterDouble, clock: Hand) -> None:
    master.settings["mappedFileSizeCommitLog"] = "123456"


async def a_slave(master: JavaMasterDouble, clock: Hand) -> None:
    master.settings["brokerRole"] = "SLAVE"


async def deleted(master: JavaMasterDouble, clock: Hand) -> None:
    send(master.store, random.Random(5), clock, 60)
    master.store.delete_before(master.store.log.files.files[-1].start)


@pytest.mark.parametrize(
    ("change", "epochs", "kind", "message"),
    [
        (cut_to_newest, (), OtherHistory, "the master's log ends at .*--set-aside"),
        (cut_and_write, (), OtherHistory, "another record at .*--set-aside"),
        (deleted, (), OtherHistory, "has deleted its log below .*--set-aside"),
        (other_epochs, ((1, 0),), OtherHistory, "no epoch of its log .*--set-aside"),
        (other_name, (), StoreMismatch, "is broker-b of DefaultCluster"),
        (other_size, (), StoreMismatch, "mappedFileSizeCommitLog=123456|of 123456"),
        (a_slave, (), StoreMismatch, "it is a slave: follow its master"),
    ],
)
async def test_what_is_not_its_masters_log_is_left_alone(
    change: Callable[[JavaMasterDouble, Hand], Awaitable[None]],
    epochs: tuple[tuple[int, int], ...],
    kind: type[PocketMQError],
    message: str,
    tmp_path: Path,
) -> None:
    store, _, clock = master_of(tmp_path)
    master = await JavaMasterDouble(store, tmp_path, epochs).start()
    async with running(follower := follower_of(tmp_path, master)) as task:
        await until(has_all(follower, store), task)
    log = tmp_path / "ours" / "commitlog"
    before = {one.name: one.read_bytes() for one in log.iterdir()}
    await change(master, clock)

    async with running(follower_of(tmp_path, master)) as task:
        with pytest.raises(kind, match=message):
            await asyncio.wait_for(task, 20)

    assert {one.name: one.read_bytes() for one in log.iterdir()} == before
    await master.close()
    master.store.close()


async def test_a_port_that_is_not_a_masters_is_told(tmp_path: Path) -> None:
    store, _, _ = master_of(tmp_path)
    master = await JavaMasterDouble(store, tmp_path).start()
    wrong = JavaFollower(
        str(tmp_path / "ours"), master.rpc, master.rpc, disk=OsDisk(), now_ms=SystemClock().unix_ms
    )
    async with running(wrong) as task:
        await until(lambda: "cannot be reached" in wrong.trouble or "closed" in wrong.trouble, task)
        assert wrong.end in (0, store.log.record_size(0))
    await master.close()
    store.close()


async def test_two_brokers_are_not_taken_for_one(tmp_path: Path) -> None:
    """Requests go to one, and the log comes from another whose first record happens to be the same."""
    store, _, _ = master_of(tmp_path / "one", runs=0)
    other, _, _ = master_of(tmp_path / "two", runs=0)
    for each, body in ((store, b"one" * 400), (other, b"two" * 400)):
        each.append(make_run("A", 0, [b"the same"]))
        for _ in range(20):
            each.append(make_run("A", 0, [body]))
    first = await JavaMasterDouble(store, tmp_path / "one").start()
    second = await JavaMasterDouble(other, tmp_path / "two").start()
    mixed = JavaFollower(
        str(tmp_path / "ours"), second.address, first.rpc, disk=OsDisk(), now_ms=Hand()
    )
    async with running(mixed) as task:
        with pytest.raises(OtherHistory, match=r"is not the log of the broker at|another record"):
            await asyncio.wait_for(task, 20)
    await first.close()
    await second.close()
    store.close()
    other.close()


async def test_a_stop_in_order_is_told_from_a_kill(tmp_path: Path) -> None:
    store, rng, clock = master_of(tmp_path)
    master = await JavaMasterDouble(store, tmp_path).start()
    loop = asyncio.get_running_loop()
    async with running(follower := follower_of(tmp_path, master)) as task:
        await until(has_all(follower, store), task)
        await until(lambda: loop.time() - follower._bytes_s >= QUIET_S, task)
        master.kill()  # Everything at once.
        await until(has_trouble(follower), task)
        assert follower.stopped_at is None
        await master.start()
        await until(lambda: not follower.trouble and follower._refused_s is None, task)
        master.stop(0)
        refused_s = await refused(follower, task)
        send(store, rng, clock, 3)  # What was under way when the port was closed.
        await until(lambda: follower.end == store.max_log_offset, task)
        await until(lambda: loop.time() - follower._bytes_s >= QUIET_S, task)
        await until(lambda: loop.time() - refused_s >= STOPPING_S, task)
        master.stop(1)
        await until(lambda: follower.stopped_at == store.max_log_offset, task)
        await master.start()
        send(store, rng, clock, 3)
        await until(has_all(follower, store), task)
        assert follower.stopped_at is None  # It is there again, and has more.
    note = read_note(OsDisk(), str(tmp_path / "ours"))
    assert note is not None
    assert note.stopped_at is None
    await master.close()
    store.close()
