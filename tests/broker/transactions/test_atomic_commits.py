"""Atomic commits: messages and offsets together or neither, for whoever may, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pocketmq.broker.transactions.atomic_commits import MESSAGES_MAX
from pocketmq.proto.errors import (
    DiskFailure,
    InvalidArgument,
    InvalidName,
    InvalidRecord,
    LeaseLost,
    MessageTooLarge,
    NotWritable,
    OffsetMoved,
    PocketMQError,
    QueueNotFound,
    ShuttingDown,
    StoreFull,
    TopicNotFound,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.topics import COMMIT_COPIES_GROUP, COMMIT_OFFSETS_GROUP, COMMIT_TOPIC

from ...fakes import FaultyDisk
from .committing import GROUP, SOURCE, TARGET, Desk, request_of

OUT = (TARGET, 0)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    fill(made)
    yield made
    if not made.store.health.closed:
        made.stop()


def fill(desk: Desk) -> None:
    desk.start()
    desk.make_topic(SOURCE)
    desk.make_topic(TARGET)
    for queue in range(3):
        desk.send([f"{queue}.{number}" for number in range(10)], queue=queue)


def by_hand(path: Path) -> Desk:
    made = Desk(path, by_hand=True)
    fill(made)
    first = made.commit("first", {2: (-1, 1)}, {})
    made.sync()
    assert first.answer is not None  # From here on nothing is saved before a commit.
    return made


def test_offsets_and_messages_are_there_together(desk: Desk) -> None:
    call = desk.commit("c1", {0: (-1, 3), 1: (-1, 2)}, {OUT: ["a", "b"], (TARGET, 1): ["c"]})

    assert desk.bodies() == ["a", "b"]
    assert desk.bodies(queue=1) == ["c"]
    assert (desk.committed(0), desk.committed(1)) == (3, 2)
    first, second = call.answer.places
    records = desk.records()
    assert list(first.queue_offsets) == [0, 1]
    assert list(first.log_offsets) == [record.log_offset for record in records]
    assert list(second.queue_offsets) == [0]
    assert not call.answer.repeated
    assert call.answer.store_timestamp_ms == records[0].store_timestamp_ms
    assert call.answer.store_host == str(desk.store.host)


def test_a_message_is_stored_as_it_was_sent_and_names_its_commit(desk: Desk) -> None:
    desk.commit("c1", {0: (-1, 3)}, {OUT: ["a"]})

    (record,) = desk.records()
    (commit,) = desk.records(COMMIT_TOPIC)
    assert record.properties == {"UNIQ_KEY": "c1-0", "TAGS": "t"}
    assert record.sys_flag == 0
    assert record.prepared_transaction_offset == commit.log_offset


def test_who_waits_for_messages_hears_of_them(desk: Desk) -> None:
    desk.commit("c1", {0: (-1, 3)}, {OUT: ["a"]})

    assert OUT in desk.woken


def test_offsets_alone_can_be_committed(desk: Desk) -> None:
    call = desk.commit("c1", {0: (-1, 3)}, {})

    assert not call.answer.places
    assert desk.committed() == 3


def test_messages_can_be_read_when_the_device_has_the_record_and_not_before(tmp_path: Path) -> None:
    desk = by_hand(tmp_path)

    call = desk.commit("c1", {0: (-1, 3)}, {OUT: ["a"]})
    assert not call.answers
    assert desk.store.queue_bounds(*OUT) == (0, 0)
    assert desk.committed() == 3  # Whoever gets the queue now begins behind.

    desk.flusher.do_next()
    assert call.answer.places[0].queue_offsets == [0]
    assert desk.bodies() == ["a"]
    desk.sync()
    desk.stop()


def test_commits_share_a_sync_and_keep_their_order(tmp_path: Path) -> None:
    desk = by_hand(tmp_path)
    calls = [desk.commit(f"c{n}", {0: (n or -1, n + 1)}, {OUT: [str(n)]}) for n in range(4)]

    assert len(desk.flusher.jobs) == 1
    desk.sync()

    assert desk.bodies() == ["0", "1", "2", "3"]
    assert [call.answer.places[0].queue_offsets[0] for call in calls] == [0, 1, 2, 3]
    desk.stop()


# --- who may


def test_a_zombie_of_a_queue_that_has_moved_commits_nothing(desk: Desk) -> None:
    zombie = desk.lease("old")
    desk.leases.table.end(GROUP, next(iter(desk.leases.table.of_group(GROUP)))[0])
    heir = desk.lease("new")

    with pytest.raises(LeaseLost):
        desk.commit("c1", {0: (-1, 3)}, {OUT: ["a"]}, lease=zombie)
    assert desk.committed() is None
    desk.commit("c2", {0: (-1, 3)}, {OUT: ["b"]}, lease=heir)
    assert desk.bodies() == ["b"]


def test_without_a_lease_nobody_commits_a_queue_that_is_held(desk: Desk) -> None:
    desk.lease("holder")

    with pytest.raises(LeaseLost):
        desk.commit("c1", {0: (-1, 3)}, {OUT: ["a"]})
    assert desk.store.queue_bounds(COMMIT_TOPIC, 0) == (0, 0)


@pytest.mark.parametrize("begin", [-1, 2, 4])
def test_who_began_elsewhere_than_the_group_stands_commits_nothing(desk: Desk, begin: int) -> None:
    desk.commit("c1", {0: (-1, 3)}, {})

    with pytest.raises(OffsetMoved) as refused:
        desk.commit("c2", {1: (-1, 1), 0: (begin, 5)}, {OUT: ["a"]})

    assert f"group {GROUP!r} is at 3 in queue 0 of {SOURCE!r}" in refused.value.message
    assert str(begin) in refused.value.message
    assert refused.value.details["committed"] == "3"
    assert desk.committed(1) is None
    assert desk.store.queue_bounds(*OUT) == (0, 0)


# --- asked again


def test_a_commit_that_is_asked_for_again_is_answered_and_not_made_again(desk: Desk) -> None:
    first = desk.commit("c1", {0: (-1, 3)}, {OUT: ["a", "b"]})
    again = desk.commit("c1", {0: (-1, 3)}, {OUT: ["a", "b"]})

    assert again.answer.repeated
    assert again.answer.places == first.answer.places
    assert desk.bodies() == ["a", "b"]


def test_a_commit_that_is_asked_for_again_meanwhile_is_answered_with_the_first(
    tmp_path: Path,
) -> None:
    desk = by_hand(tmp_path)
    first = desk.commit("c1", {0: (-1, 3)}, {OUT: ["a"]})
    again = desk.commit("c1", {0: (-1, 3)}, {OUT: ["a"]})
    desk.sync()

    assert first.answer == again.answer
    assert desk.bodies() == ["a"]
    desk.stop()


def end_with_stop(desk: Desk) -> None:
    desk.stop()


def end_with_kill(desk: Desk) -> None:
    desk.kill()


@pytest.mark.parametrize("end", [end_with_stop, end_with_kill])
def test_a_commit_that_is_asked_for_again_after_a_restart_is_answered(
    end: Callable[[Desk], None], tmp_path: Path
) -> None:
    desk = Desk(tmp_path)
    fill(desk)
    first = desk.commit("c1", {0: (-1, 3)}, {OUT: ["a", "b"]})
    end(desk)

    desk = Desk(tmp_path)
    desk.start()
    again = desk.commit("c1", {0: (-1, 3)}, {OUT: ["a", "b"]})

    assert again.answer.repeated
    assert [list(place.log_offsets) for place in again.answer.places] == [
        list(place.log_offsets) for place in first.answer.places
    ]
    assert desk.bodies() == ["a", "b"]
    desk.stop()


# --- what is refused


def bad_requests() -> Iterator[tuple[pb.AtomicCommitRequest, type[PocketMQError]]]:
    good = {0: (-1, 3)}
    yield request_of("", good, {}), InvalidArgument
    yield request_of("x" * 65, good, {}), InvalidArgument
    yield request_of("c", {}, {OUT: ["a"]}), InvalidArgument
    yield request_of("c", {0: (-1, 11)}, {}), InvalidArgument
    yield request_of("c", {0: (3, 3)}, {}), InvalidArgument
    yield request_of("c", {0: (-1, -1)}, {}), InvalidArgument
    yield request_of("c", {9: (-1, 1)}, {}), QueueNotFound
    yield request_of("c", good, {("nowhere", 0): ["a"]}), TopicNotFound
    yield request_of("c", good, {(TARGET, 9): ["a"]}), QueueNotFound
    yield request_of("c", good, {(COMMIT_TOPIC, 0): ["a"]}), NotWritable
    yield request_of("c", good, {OUT: ["x" * (1 << 20)] * 5}), MessageTooLarge
    yield request_of("c", good, {OUT: ["x"] * (MESSAGES_MAX + 1)}), InvalidArgument
    own = request_of("c", good, {})
    own.group = "CID_RMQ_SYS_TRANS"
    yield own, InvalidName
    twice = request_of("c", good, {OUT: ["a"]})
    twice.runs.append(twice.runs[0])
    yield twice, InvalidArgument
    twice = request_of("c", good, {})
    twice.offsets.append(twice.offsets[0])
    yield twice, InvalidArgument
    for name in (b"UNIQ_KEY", b"TAGS"):
        bad = request_of("c", good, {OUT: ["a"]})
        other = b"DELAY\x012\x02\x02\x02" if name == b"TAGS" else b"OTHER_ID"
        was = name + b"\x01t\x02" if name == b"TAGS" else name
        bad.runs[0].records = bad.runs[0].records.replace(was, other[: len(was)])
        yield bad, InvalidRecord if name == b"UNIQ_KEY" else InvalidArgument
    same = request_of("c", good, {OUT: ["a", "b"]})
    same.runs[0].records = same.runs[0].records.replace(b"c-1", b"c-0")
    yield same, InvalidRecord


def test_what_cannot_be_done_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path, auto_create_topics=False)
    fill(desk)
    begin = desk.store.max_log_offset

    for request, error in bad_requests():
        with pytest.raises(error):
            desk.ask(request)

    assert desk.store.max_log_offset == begin
    assert desk.offsets.of_group(GROUP) == []
    desk.stop()


def test_a_message_that_its_topic_does_not_take_is_refused(desk: Desk) -> None:
    desk.make_topic("fifo", "FIFO")

    with pytest.raises(InvalidArgument, match="FIFO"):
        desk.commit("c1", {0: (-1, 3)}, {("fifo", 0): ["a"]})


def test_a_broker_that_stops_decides_nothing_more_and_still_answers(desk: Desk) -> None:
    desk.commit("c1", {0: (-1, 3)}, {OUT: ["a"]})
    desk.commits.refuse(ShuttingDown("the broker is about to stop"))

    assert desk.commit("c1", {0: (-1, 3)}, {OUT: ["a"]}).answer.repeated
    with pytest.raises(ShuttingDown):
        desk.commit("c2", {0: (3, 4)}, {OUT: ["b"]})


# --- trouble


async def test_messages_that_find_no_room_are_appended_later(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    fill(desk)
    desk.commit("c1", {0: (-1, 1)}, {OUT: ["a"]})
    desk.timers.start()
    full = StoreFull("no room")
    append, refusals = desk.store.append_together, [full, full]

    def refuse(runs: object) -> object:
        if refusals:
            raise refusals.pop()
        return append(runs)  # type: ignore[arg-type]

    desk.store.append_together = refuse  # type: ignore[method-assign,assignment]
    call = desk.commit("c2", {0: (1, 2)}, {OUT: ["b"]})
    again = desk.commit("c2", {0: (1, 2)}, {OUT: ["b"]})
    assert not call.answers
    assert desk.commits.oldest_log_offset() is not None

    await desk.clock.advance(2_000)

    assert call.answer == again.answer
    assert desk.bodies() == ["a", "b"]
    await desk.timers.stop()
    desk.stop()


def test_messages_for_a_topic_that_was_deleted_go_with_it(tmp_path: Path) -> None:
    desk = by_hand(tmp_path)
    call = desk.commit("c1", {0: (-1, 3)}, {OUT: ["a"], (SOURCE, 3): ["b"]})
    desk.store.delete_topic(TARGET)
    desk.topics.delete(TARGET)
    desk.sync()

    assert [list(place.queue_offsets) for place in call.answer.places] == [[-1], [0]]
    assert desk.bodies(SOURCE, 3) == ["b"]
    desk.stop()


def test_a_failed_sync_is_an_error_and_nothing_is_saved_of_it(tmp_path: Path) -> None:
    disk = FaultyDisk()
    desk = Desk(tmp_path, disk, by_hand=True)
    fill(desk)
    desk.commit("c1", {0: (-1, 1)}, {OUT: ["a"]})
    desk.sync()
    desk.save()
    desk.sync()
    disk.fail_sync = lambda path: DiskFailure("the device is gone")
    call = desk.commit("c2", {0: (1, 2)}, {OUT: ["b"]})
    desk.flusher.do_next()

    assert isinstance(call.error, PocketMQError)
    assert desk.bodies() == ["a"]
    with pytest.raises(PocketMQError):
        desk.commit("c2", {0: (1, 2)}, {OUT: ["b"]})
    saved: list[object] = []
    desk.offsets.when_saved(saved.append)
    assert isinstance(saved[0], PocketMQError)
    with pytest.raises(PocketMQError):
        desk.offsets.save()


# --- starts


def test_a_kill_right_behind_the_record_leaves_a_start_to_make_it_true(tmp_path: Path) -> None:
    desk = by_hand(tmp_path)
    desk.commit("c1", {0: (-1, 3)}, {OUT: ["a", "b"], (TARGET, 1): ["c"]})
    desk.kill()

    desk = Desk(tmp_path)
    desk.start()

    assert desk.committed() == 3
    assert (desk.bodies(), desk.bodies(queue=1)) == (["a", "b"], ["c"])
    desk.stop()
    desk = Desk(tmp_path)
    desk.start()
    assert (desk.bodies(), desk.bodies(queue=1)) == (["a", "b"], ["c"])
    desk.stop()


def test_a_reset_that_was_saved_behind_a_commit_is_not_undone_by_a_start(tmp_path: Path) -> None:
    desk = by_hand(tmp_path)
    desk.commit("c1", {0: (-1, 5)}, {OUT: ["a"]})
    desk.offsets.commit(SOURCE, GROUP, 0, 2)
    saved: list[object] = []
    desk.offsets.when_saved(saved.append)
    assert saved == []  # First the device gets the record whose offsets are in the file.
    desk.sync()
    assert saved == [None]
    desk.kill()

    desk = Desk(tmp_path)
    desk.start()

    assert desk.committed() == 2
    assert desk.bodies() == ["a"]
    desk.stop()


def test_without_the_file_no_group_is_moved(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    fill(desk)
    desk.commit("c1", {0: (-1, 5)}, {OUT: ["a"]})
    desk.stop()
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (tmp_path / "config" / name).unlink(missing_ok=True)

    desk = Desk(tmp_path)
    desk.start()

    assert desk.committed() is None
    assert desk.bodies() == ["a"]
    desk.commit("c2", {0: (-1, 1)}, {OUT: ["b"]})
    desk.kill()
    desk = Desk(tmp_path)
    desk.start()
    assert desk.committed() == 1
    assert desk.bodies() == ["a", "b"]
    desk.stop()


def test_how_far_it_is_stands_beside_the_offsets(tmp_path: Path) -> None:
    desk = by_hand(tmp_path)
    desk.commit("c1", {0: (-1, 3)}, {OUT: ["a"]})
    offsets = desk.offsets
    assert offsets.committed(COMMIT_TOPIC, COMMIT_OFFSETS_GROUP, 0) == 2
    assert offsets.committed(COMMIT_TOPIC, COMMIT_COPIES_GROUP, 0) == 1

    desk.sync()
    assert desk.commits.open_count == 1  # The device may lack the message.
    desk.store.request_sync(desk.store.max_log_offset, lambda error: None)
    desk.sync()

    assert offsets.committed(COMMIT_TOPIC, COMMIT_COPIES_GROUP, 0) == 2
    assert desk.commits.oldest_log_offset() is None
    desk.stop()


def test_a_store_that_never_had_a_commit_says_nothing_of_them(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    fill(desk)
    desk.stop()

    assert not (tmp_path / "config" / "consumerOffset.json").exists()
    assert "ATOMIC" not in (tmp_path / "config" / "topics.json").read_text()
