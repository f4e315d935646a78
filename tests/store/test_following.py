"""A store that follows: bytes of a master's log, cut anywhere, make the same store; nothing else is taken."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.errors import (
    CorruptRecord,
    InvalidArgument,
    StoreClosed,
    StoreFull,
    StoreMismatch,
)
from pocketmq.proto.record import Record, encode_record
from pocketmq.proto.run import Run
from pocketmq.store.message_store import MessageStore

from ..fakes import FaultyDisk
from ..runs import Hand, bodies_of, make_run, open_store, records_of
from .following import assert_equal, feed, frames, raw, send, take


def pair(path: Path, **changes: Any) -> tuple[MessageStore, MessageStore, Hand]:
    """Return a master and a follower, both empty, and their clock."""
    clock = Hand()
    master = open_store(path / "master", now_ms=clock, replica=True, **changes)
    follower = open_store(path / "follower", now_ms=clock, replica=True, **changes)
    follower.follow()
    return master, follower, clock


@pytest.mark.parametrize("seed", range(6))
def test_a_log_in_any_cuts_makes_the_same_store(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    master, follower, clock = pair(tmp_path, log_roll_ms=rng.choice([0, 300_000]))
    for _ in range(4):
        clock.now_ms += rng.choice([0, 200_000])
        send(master, rng, clock, 15)
        master.tick()
        feed(master, follower, rng)
        follower.tick()
        if rng.random() < 0.3:  # Between two records as well as anywhere else.
            follower.close()
            follower = open_store(tmp_path / "follower", now_ms=clock, replica=True)
            assert follower.recovery.findings == []
            follower.follow()
    assert follower.dispatched_offset == follower.max_log_offset
    for topic, queue in master.queue_names():
        assert records_of(follower, topic, queue) == records_of(master, topic, queue)
    assert follower.lookup("A", "all") == master.lookup("A", "all") != []
    master.close()
    follower.close()
    assert_equal(tmp_path / "follower", tmp_path / "master")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_log_in_frames_of_a_few_whole_records_makes_the_same_store(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    master, follower, clock = pair(tmp_path)
    for _ in range(120):
        begin = master.max_log_offset
        send(master, rng, clock, rng.choice([1, 1, 2, 5]))
        if rng.random() < 0.1:  # Of a kind that is not read one by one.
            master.append(Run.of("A", 0, [encode_record(Record(topic="A", body=b"b", sys_flag=8))]))
        while begin < master.max_log_offset:
            data = raw(master, begin, 100_000)
            take(follower, data, begin)
            begin += len(data)
        assert follower.dispatched_offset == follower.max_log_offset == begin
        assert follower.newest_record == master.newest_record
    for topic, queue in master.queue_names():
        assert records_of(follower, topic, queue) == records_of(master, topic, queue)
    assert follower.lookup("A", "all") == master.lookup("A", "all") != []
    master.close()
    follower.close()
    assert_equal(tmp_path / "follower", tmp_path / "master")


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_not_whole_is_sent_again_after_a_restart(
    seed: int, how: str, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    master, follower, clock = pair(tmp_path)
    send(master, rng, clock, 40)
    for data, at in frames(master, rng, 0):
        take(follower, data, at)
        if at > master.max_log_offset // 2 and follower.raw_end != follower.max_log_offset:
            break
    whole = follower.max_log_offset
    assert follower.raw_end > whole == follower.dispatched_offset
    if how == "stop":
        follower.close()
    else:
        follower._close_files()

    follower = open_store(tmp_path / "follower", now_ms=clock, replica=True)
    follower.follow()
    # A blank that was not followed by all of its file is no record either.
    assert follower.raw_end == follower.max_log_offset == whole
    assert follower.recovery.findings == []
    feed(master, follower, rng)
    master.close()
    follower.close()
    assert_equal(tmp_path / "follower", tmp_path / "master")


def test_a_follower_that_leads_goes_on_behind_the_last_whole_record(tmp_path: Path) -> None:
    master, follower, _ = pair(tmp_path)
    end = master.append(make_run("A", 0, [b"one", b"two"])).end_offset
    master.append(make_run("A", 0, [b"three"]))
    take(follower, raw(master, 0, end + 50), 0)
    assert follower.raw_end == end + 50

    follower.lead()

    assert follower.raw_end == follower.max_log_offset == end
    appended = follower.append(make_run("A", 0, [b"other"]))
    assert (appended.first_queue_offset, int(appended.log_offsets[0])) == (2, end)
    assert [one.body for one in records_of(follower, "A", 0)] == [b"one", b"two", b"other"]


def test_new_records_are_never_stamped_as_older_than_those_that_were_taken(tmp_path: Path) -> None:
    master, follower, clock = pair(tmp_path)
    clock.now_ms += 1_000_000
    stamped_ms = master.append(make_run("A", 0, [b"one"])).store_timestamp_ms
    feed(master, follower, random.Random(1))
    clock.now_ms -= 1_000_000
    follower.lead()

    assert follower.append(make_run("A", 0, [b"two"])).store_timestamp_ms == stamped_ms


def test_an_empty_store_may_begin_with_any_file(tmp_path: Path) -> None:
    master, follower, clock = pair(tmp_path)
    send(master, random.Random(3), clock, 40)
    begin = master.log.files.files[2].start
    with pytest.raises(InvalidArgument, match="is not the end of the log, 0"):
        take(follower, raw(master, begin + 1, 10), begin + 1)

    for data, at in frames(master, random.Random(3), begin):
        take(follower, data, at)

    assert (follower.min_log_offset, follower.max_log_offset) == (begin, master.max_log_offset)
    for name in follower.queue_names():
        found, there = records_of(follower, *name), records_of(master, *name)
        assert found == [one for one in there if one.log_offset >= begin]
    follower.close()
    again = open_store(tmp_path / "follower", now_ms=clock, replica=True)
    assert again.recovery.findings == []
    assert again.min_log_offset == begin


def test_what_does_not_continue_the_log_is_refused(tmp_path: Path) -> None:
    master, follower, clock = pair(tmp_path)
    send(master, random.Random(5), clock, 40)
    data = raw(master, 0, 300)
    take(follower, data[:200], 0)

    for offset in (0, 199, 201, 4096):
        with pytest.raises(InvalidArgument, match="is not the end of the log, 200") as raised:
            take(follower, data[200:], offset)
        assert raised.value.details["field"] == "offset"
    with pytest.raises(CorruptRecord, match="damaged in transfer, send them again"):
        follower.append_raw(data[200:], 200, zlib.crc32(data[200:]) ^ 1)
    with pytest.raises(InvalidArgument, match="cross the end of a log file of 4,096"):
        take(follower, raw(master, 200, 4000) + bytes(4000), 200)

    assert follower.raw_end == 200
    feed(master, follower, random.Random(5))


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (4, b"\0\0\0\0", "not a record: size"),
        (0, b"\0\0\0\7", "not a record: size 7"),
        (0, b"\0\1\0\0", "not a record: size 65,536"),
        (28, b"\0\0\0\0\0\0\0\7", "has another log offset"),
        (84, b"\7\7\7\7", "malformed"),
    ],
)
def test_bytes_that_are_no_records_are_not_taken(
    at: int, value: bytes, why: str, tmp_path: Path
) -> None:
    master, follower, _ = pair(tmp_path)
    first = master.append(make_run("A", 0, [b"one"])).end_offset
    master.append(make_run("A", 0, [b"two"]))
    data = bytearray(raw(master, 0, 4096))
    data[first + at : first + at + len(value)] = value

    with pytest.raises(CorruptRecord, match=rf"cannot follow the master.s log at {first}: .*{why}"):
        take(follower, bytes(data), 0)

    assert follower.raw_end == follower.max_log_offset == 0
    feed(master, follower, random.Random(1))


def test_a_store_that_is_no_replicas_does_not_follow(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    with pytest.raises(StoreMismatch, match="was not opened as part of a replica set"):
        store.follow()
    store.append(make_run("A", 0, [b"one"]))


@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "index"])
def test_a_full_disk_keeps_it_waiting_and_loses_nothing(part: str, tmp_path: Path) -> None:
    rng, clock = random.Random(11), Hand()
    master = open_store(tmp_path / "master", now_ms=clock, replica=True)
    disk = FaultyDisk()
    disk.torn_write = 40
    follower = open_store(tmp_path / "follower", now_ms=clock, disk=disk, replica=True)
    follower.follow()
    send(master, rng, clock, 60)
    refused = 0
    while follower.raw_end < master.max_log_offset:
        if rng.random() < 0.2:
            disk.run_full(part)
        at = follower.raw_end
        data = raw(master, at, rng.choice([7, 300, 2000]))
        try:
            take(follower, data, at)
        except StoreFull:
            refused += 1
            assert follower.raw_end in (at, at + len(data)), "taken, or not"
            assert follower.raw_end >= follower.max_log_offset
            disk.heal()
            take(follower, b"", follower.raw_end)
    assert refused > 2
    disk.heal()
    take(follower, b"", follower.raw_end)
    master.close()
    follower.close()
    assert_equal(tmp_path / "follower", tmp_path / "master", crashed=True)


def test_only_a_follower_takes_bytes_and_it_takes_nothing_else(tmp_path: Path) -> None:
    master, follower, _ = pair(tmp_path)
    master.append(make_run("A", 0, [b"one"]))
    data = raw(master, 0, 4096)

    with pytest.raises(StoreMismatch, match="follows a master's log: messages are sent to"):
        follower.append(make_run("A", 0, [b"own"]))
    with pytest.raises(StoreMismatch, match="does not follow a master"):
        take(master, data, master.max_log_offset)
    follower.close()
    with pytest.raises(StoreClosed):
        take(follower, data, 0)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("how", ["goes on", "is killed"])
def test_a_queue_begins_anew_where_its_topic_was_made_again(
    how: str, count: int, tmp_path: Path
) -> None:
    master, follower, clock = pair(tmp_path)
    master.append(make_run("A", 0, [b"of before"] * 7))
    feed(master, follower, random.Random(1))
    master.delete_topic("A")
    master.append(make_run("A", 0, [b"new"] * count))
    feed(master, follower, random.Random(1))
    if how == "is killed":
        follower._close_files()
        follower = open_store(tmp_path / "follower", now_ms=clock, replica=True)
    assert bodies_of(follower, "A", 0) == [b"new"] * count
    follower.close()
    master.close()


def test_only_queues_of_before_are_deleted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(make_run("A", 0, [b"old"]))
    store.append(make_run("A", 1, [b"old"]))
    deleted_at = store.max_log_offset
    store.append(make_run("A", 1, [b"new"]))
    store.delete_topic("A", before=deleted_at)
    assert store.queue_names() == [("A", 1)]
    assert bodies_of(store, "A", 1) == [b"old", b"new"]
    store.delete_topic("A", before=store.max_log_offset)
    assert store.queue_names() == []
    assert not (tmp_path / "consumequeue" / "A").exists()
    store.close()
