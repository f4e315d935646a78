"""Followers know what producers have stored: after takeovers, stops, kills and cuts, however long the log is."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from pocketmq.broker.assembly import producers_of
from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.producers import producers as producers_module
from pocketmq.broker.producers.found_runs import found_runs
from pocketmq.broker.producers.producers import Producers
from pocketmq.broker.producers.run_numbers import RunNumbers
from pocketmq.broker.producers.snapshots import encoded, rows_of
from pocketmq.broker.replication.device import ReplicaDevice
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import UnknownProducer
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.topics import SCHEDULE_TOPIC
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ...integration.whole_broker import Peer
from ...numbered import bodies, numbered_run
from ...runs import Hand, make_run, open_store, small_config
from ...store.following import raw
from .broker_roles import broker_of, broker_set, peer_of
from .test_device import ME, killed

NAME = "PRODUCER_SEQUENCE"
IDLE, BUSY = 5, 6


async def sent(peer: Peer, producer_id: int, first: int) -> int:
    """Send three messages from number FIRST on; return how many of them were stored before."""
    run = numbered_run(
        bodies(first, 3), first, producer_id=producer_id, durability=pb.REPLICAS, queue=0
    )
    return (await peer.produce(run)).repeated_count


@pytest.mark.slow
async def test_a_new_master_knows_who_was_idle_and_reads_nothing_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers_module, "SCAN_BYTES", 4_096)
    async with broker_set(tmp_path, min_in_sync=2) as world:
        old = await world.whole()
        async with peer_of(old) as peer:
            await peer.create_topic()
            assert await sent(peer, IDLE, 0) == 0
            for first in range(0, 240, 3):
                assert await sent(peer, BUSY, first) == 0
            assert old.store.max_log_offset > 4 * 4_096
        await old.kill()
        new = await world.master()
        running = broker_of(new)._running
        assert running is not None
        found = running.parts.producers.to_json()
        assert (found["scanned_bytes"], found["unknown_before"]) == (0, None)
        async with peer_of(new) as peer:
            assert await sent(peer, IDLE, 0) == 3
            assert await sent(peer, IDLE, 3) == 0
            assert await sent(peer, BUSY, 237) == 3
            assert await sent(peer, BUSY, 240) == 0


# --- beside a device, byte by byte


def producers_in(store: MessageStore) -> Producers:
    return producers_of(BrokerConfig(), VirtualClock(Hand().now_ms), store)


def opened(path: Path, clock: Hand) -> ReplicaDevice:
    device = ReplicaDevice(
        small_config(path / "store"),
        ME,
        disk=OsDisk(),
        unix_ms=clock,
        boot="boot-1",
        producers_of=producers_in,
    )
    device.open(was_led=False)
    return device


def follow(device: ReplicaDevice, master: MessageStore, rng: Random, end: int) -> None:
    """Have the log of DEVICE take that of MASTER in cuts at any place, to END and the rest of a record."""
    while device.store.raw_end < end:
        at = device.store.raw_end
        device.store.append_raw(raw(master, at, rng.choice([7, 100, 1_000, 5_000])), at)


def send(master: MessageStore, rng: Random, clock: Hand, following: dict[int, int]) -> None:
    """Append a run of one of a few producers, numbered in one of the ways that there are, or one without numbers."""
    clock.now_ms += rng.choice([0, 0, 1, 1_000])
    producer_id, count = rng.randint(1, 4), rng.choice([1, 1, 2, 5, 40])
    first = following.get(producer_id, 0)
    following[producer_id] = first + count
    payload = bodies(first, count, rng.choice([1, 50]))
    way = rng.choice(["first", "each", "waits", "none"])
    if way == "first":
        said = [{NAME: f"{producer_id:x}:0:{first}:{count}"}, *({} for _ in payload[1:])]
    else:
        said = [{NAME: f"{producer_id:x}:0:{number}:1"} for number in range(first, first + count)]
    topic, queue = "T", producer_id % 2
    if way == "waits":
        said = [one | {"REAL_TOPIC": "T", "REAL_QID": str(queue), "DELAY": "3"} for one in said]
        topic, queue = SCHEDULE_TOPIC, 2
    if way == "none":
        following[producer_id] = first
        said = [{} for _ in payload]
    master.append(make_run(topic, queue, payload, said))


def known(producers: Producers) -> bytes:
    """Return what the table says, but for when each sequence was used."""
    rows = sorted(rows_of(producers.sequences.items()), key=lambda row: row[:3])
    return encoded(0, 0, [[*row[:-1], 0] for row in rows])


def read_anew(store: MessageStore) -> bytes:
    """Return what a table says that reads all of STORE's log."""
    producers = producers_in(store)
    producers._path = f"{producers._path}.none"
    producers.start()
    return known(producers)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_it_is_what_reading_the_whole_log_says(tmp_path: Path, seed: int) -> None:
    """The device is stopped, killed and cut meanwhile; snapshots are written at any moment."""
    rng, clock = Random(seed), Hand()
    following: dict[int, int] = {}
    master = open_store(tmp_path / "master", now_ms=clock)
    device = opened(tmp_path, clock)
    confirmed = 0
    device.store.confirm(0)
    for _ in range(60):
        for _ in range(rng.randint(0, 4)):
            send(master, rng, clock, following)
        follow(device, master, rng, rng.randint(0, master.max_log_offset))
        if rng.random() < 0.5:
            confirmed = device.store.max_log_offset
            device.store.confirm(confirmed)
        act = rng.choice(["save", "save", "stop", "kill", "cut", "none", "none", "none"])
        if act == "save":
            device.producers.save()
        elif act == "cut":
            begun = [at for at in record_starts(device.store) if at >= confirmed]
            device.cut(rng.choice([*begun, None]))
        elif act in ("stop", "kill"):
            device.close() if act == "stop" else killed(device)
            device = opened(tmp_path, clock)
            confirmed = min(confirmed, device.store.max_log_offset)
        device.store.confirm(confirmed)
    device.cut(None)
    device.producers.start()
    assert known(device.producers) == read_anew(device.store) != encoded(0, 0, [])
    device.close()
    master.close()


def record_starts(store: MessageStore) -> list[int]:
    """Return where the records of STORE's log begin."""
    return [
        int(at)
        for queue in store.queues
        for at in queue.entries(queue.min_offset, queue.max_offset - queue.min_offset)[0]
    ]


def test_a_start_after_a_kill_reads_what_came_behind_the_last_snapshot(tmp_path: Path) -> None:
    clock = Hand()
    master = open_store(tmp_path / "master", now_ms=clock)
    device = opened(tmp_path, clock)
    rng, following = Random(1), dict[int, int]()
    for _ in range(30):
        send(master, rng, clock, following)
    follow(device, master, rng, master.max_log_offset)
    device.store.confirm(master.max_log_offset)
    master.append(make_run("T", 0, bodies(0, 2), [{NAME: "9:0:0:2"}, {}]))
    follow(device, master, rng, master.max_log_offset)
    saved = device.store.max_log_offset
    device.store.confirm(saved)
    device.producers.tick()
    master.append(make_run("T", 0, [b"later"]))
    follow(device, master, rng, master.max_log_offset)
    killed(device)

    again = opened(tmp_path, clock)

    assert again.producers.to_json()["scanned_bytes"] == master.max_log_offset - saved
    assert known(again.producers) == read_anew(again.store)
    again.close()
    master.close()


def test_what_is_not_confirmed_is_not_saved_and_after_a_cut_the_earlier_snapshot_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers_module, "SCAN_BYTES", 0)
    clock = Hand()
    device = opened(tmp_path, clock)
    device.store.lead()
    device.producers.start()
    send_run(device, 0)
    common = device.store.max_log_offset
    device.store.confirm(common)
    device.producers.save()
    for first in range(3, 300, 3):
        send_run(device, first)
    device.producers.save()
    device.producers.tick()
    device.follow()

    device.cut(common)

    assert device.producers.unknown_before is None
    sequence = device.producers.sequences.get((IDLE, "T", 0))
    assert sequence is not None
    assert (sequence.known_from, sequence.next) == (0, 3)
    device.close()


def send_run(device: ReplicaDevice, first: int) -> None:
    """Append three messages of the idle producer, as a master that notes them."""
    said = [{NAME: f"{IDLE:x}:0:{first}:3"}, {}, {}]
    begin = device.store.max_log_offset
    device.store.append(make_run("T", 0, bodies(first, 3), said))
    for found in found_runs(device.store.log, begin, device.store.max_log_offset):
        device.producers.sequences.note(*found)


def test_a_log_that_begins_later_tells_that_earlier_runs_are_not_known(tmp_path: Path) -> None:
    clock = Hand()
    master = open_store(tmp_path / "master", now_ms=clock)
    rng, following = Random(3), dict[int, int]()
    for _ in range(200):
        send(master, rng, clock, following)
    begin = master.log.files.files[2].start
    device = opened(tmp_path, clock)
    device.store.append_raw(raw(master, begin, 1_000), begin)
    follow(device, master, rng, master.max_log_offset)
    device.producers.start()

    assert device.producers.unknown_before is not None
    assert device.producers.unknown_before[0] == begin
    with pytest.raises(UnknownProducer):
        device.producers.sequences.judge((99, "T", 0), RunNumbers(99, 0, 7, 1), clock.now_ms)
    device.close()
    master.close()
