"""Fetches: what is answered at once, what waits, and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.errors import (
    InvalidArgument,
    InvalidName,
    NotReadable,
    OffsetOutOfRange,
    PocketMQError,
    QueueNotFound,
    TopicNotFound,
)
from pocketmq.proto.errors_wire import from_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.format.state_tables import TopicConfig

from .fetching import TOPIC, WAIT_MS, Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    await rig.stop()


async def test_what_is_there_is_answered_at_once(rig: Rig) -> None:
    rig.append(b"a", b"b", b"c")

    assert rig.wait(offset=1) is None

    assert rig.bodies() == [b"b", b"c"]


@pytest.mark.parametrize("fields", [{}, {"min_bytes": 1}, {"max_wait_ms": WAIT_MS}])
async def test_without_a_wait_an_empty_queue_answers_empty(
    rig: Rig, fields: dict[str, int]
) -> None:
    assert rig.fetch(**fields) is None

    reply = rig.answer()
    assert (reply.records, reply.next_offset, reply.error.name) == (b"", 0, "")


async def test_a_fetch_waits_until_a_message_comes(rig: Rig) -> None:
    rig.wait()
    rig.append(b"elsewhere", queue=1)
    assert rig.replies == []

    rig.append(b"here")

    assert rig.bodies() == [b"here"]
    assert len(rig.purgatory) == len(rig.timers) == 0


async def test_a_fetch_that_waits_in_vain_ends_at_its_deadline(rig: Rig) -> None:
    rig.append(b"a")
    rig.wait(offset=1)
    await rig.clock.advance(WAIT_MS - 1)
    assert rig.replies == []

    await rig.clock.advance(1)

    reply = rig.answer()
    assert (reply.records, reply.next_offset, reply.max_offset) == (b"", 1, 1)


@pytest.mark.long
async def test_long_waits_of_one_length_end_in_bunches_and_never_early(rig: Rig) -> None:
    rig.append(b"a")
    wait_ms, step_ms = 32_000, 500
    asked: dict[int, int] = {}
    for number in range(1, 41):
        asked[number] = rig.clock.now_ms()
        rig.wait(offset=1, max_wait_ms=wait_ms, fetch_id=number)
        await rig.clock.advance(50)

    ended: dict[int, int] = {}
    while len(ended) < len(asked):
        await rig.clock.advance(1)
        for reply in rig.replies:
            ended.setdefault(reply.fetch_id, rig.clock.now_ms())

    lengths = [ended[number] - asked[number] for number in asked]
    assert all(wait_ms <= length < wait_ms + step_ms for length in lengths)
    assert len(set(ended.values())) <= 5, "2 s of coming, and an end every half of a second"


async def test_no_fetch_waits_longer_than_the_broker_allows(tmp_path: Path) -> None:
    rig = Rig(tmp_path, fetch_wait_max_ms=100)
    rig.wait(max_wait_ms=2**31 - 1)

    await rig.clock.advance(100)

    assert rig.answer().records == b""
    await rig.stop()


async def test_beyond_the_bound_a_fetch_is_answered_instead_of_waiting(tmp_path: Path) -> None:
    rig = Rig(tmp_path, fetches_waiting_max=1)
    rig.wait(fetch_id=1)

    assert rig.wait() is None

    assert rig.answer().records == b""
    await rig.stop()


async def test_a_fetch_waits_for_its_bytes_and_reads_no_more_often_than_it_must(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read_queue = rig.store.read_queue

    def counted(topic: str, queue: int, offset: int, *rest: int, **how: bool) -> object:
        reads.append(offset)
        return read_queue(topic, queue, offset, *rest, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.store, "read_queue", counted)
    rig.wait(min_bytes=5_000)

    for _ in range(9):
        rig.append(b"x" * 408)  # 500 bytes with topic and lengths

    assert rig.replies == []
    assert len(reads) < 3
    rig.append(b"x" * 408)
    assert rig.bodies() == [b"x" * 408] * 10


async def test_messages_enough_are_answered_though_their_bytes_are_few(rig: Rig) -> None:
    rig.wait(min_bytes=100_000, max_messages=3)
    for _ in range(3):
        assert rig.replies == []
        rig.append(b"x")

    assert len(rig.bodies()) == 3


async def test_more_bytes_than_a_reply_may_have_are_not_waited_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path, fetch_max_bytes=1024, fetch_default_bytes=1024)
    rig.wait(min_bytes=10**9, max_bytes=10**9)

    rig.append(*[b"x" * 400] * 3)

    assert len(rig.bodies()) == 2
    await rig.stop()


async def test_a_record_larger_than_asked_for_is_returned_alone(rig: Rig) -> None:
    rig.append(b"x" * 3000, b"y")

    rig.wait(max_bytes=10)

    assert rig.bodies() == [b"x" * 3000]


@pytest.mark.parametrize(("offset", "end"), [(4, 3), (2**62, 3)])
async def test_an_offset_outside_is_told_with_the_bounds(rig: Rig, offset: int, end: int) -> None:
    rig.append(b"a", b"b", b"c")

    assert rig.wait(offset=offset) is None

    reply = rig.answer()
    assert isinstance(from_wire(reply.error), OffsetOutOfRange)
    assert (reply.min_offset, reply.max_offset) == (0, end)


async def test_a_queue_that_was_never_written_begins_at_zero(rig: Rig) -> None:
    rig.wait(queue=2, offset=5)

    error = from_wire(rig.answer().error)
    assert isinstance(error, OffsetOutOfRange)
    assert (error.details["min_offset"], error.details["max_offset"]) == ("0", "0")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic": "Other"}, TopicNotFound),
        ({"queue": 4}, QueueNotFound),
        ({"queue": -1}, QueueNotFound),
        ({"topic": "WriteOnly"}, NotReadable),
        ({"offset": -1}, InvalidArgument),
        ({"max_bytes": -1}, InvalidArgument),
        ({"max_messages": -1}, InvalidArgument),
        ({"min_bytes": -1}, InvalidArgument),
        ({"max_wait_ms": -1}, InvalidArgument),
        ({"group": "a/b"}, InvalidName),
        ({"group": "g" * 70_000}, InvalidName),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_bad_fetch_is_refused(
    rig: Rig, fields: dict[str, object], error: type[PocketMQError]
) -> None:
    write_only = TopicConfig(name="WriteOnly", read_queues=1, write_queues=1, permission=2)
    rig.topics.create(write_only, update=False)

    assert rig.wait(**fields) is None

    assert isinstance(from_wire(rig.answer().error), error)


async def test_what_a_follower_has_filtered_is_counted_as_if_it_was_here(tmp_path: Path) -> None:
    told, asked = Rig(tmp_path / "told"), Rig(tmp_path / "asked")
    wanted = pb.Filter(kind=pb.Filter.TAG, expression="red")
    for rig in (told, asked):
        for tag in ("blue", "red", "blue", "blue", "red", "blue"):
            rig.append(tag.encode(), properties={"TAGS": tag})
    asked.fetch(group="g", filter=wanted)
    asked.answer()

    looked = pb.LookedAt(next_offset=4, steps=[2], filtered_count=3)
    told.fetch(group="g", filter=wanted, looked_at=looked)
    reply = told.answer()
    assert (reply.next_offset, reply.records) == (4, b"")
    more = pb.LookedAt(next_offset=6, steps=[3], filtered_count=3)
    told.fetch(group="g", filter=wanted, offset=2, looked_at=more)  # Of two it was told before.
    assert not told.answer().error.name

    (found,), (expected,) = (rig.filters.consume_stats.of_group("g") for rig in (told, asked))
    assert found.count == expected.count == 4
    assert (found.skipped[0].first, found.skipped[0].last) == (0, 5)
    stats = told.filters.consume_stats.get(("g", TOPIC, 0))
    assert stats is not None
    assert stats.looked_through(5) == ("TAG", "red")
    for rig in (told, asked):
        await rig.stop()


@pytest.mark.parametrize(
    "looked",
    [
        {"next_offset": 3},
        {"next_offset": 0},
        {"next_offset": 2, "filtered_count": 3},
        {"next_offset": 2, "filtered_count": -1},
        {"next_offset": 2, "steps": [1, 0]},
        {"next_offset": 2, "steps": [3]},
        {"next_offset": 2, "steps": [1], "filtered_count": 2},
    ],
    ids=str,
)
async def test_a_filtered_stretch_that_cannot_be_is_refused(rig: Rig, looked: Any) -> None:
    rig.append(b"1", b"2")
    wanted = pb.Filter(kind=pb.Filter.TAG, expression="red")

    rig.fetch(group="g", filter=wanted, looked_at=pb.LookedAt(**looked))

    error = from_wire(rig.answer().error)
    assert isinstance(error, InvalidArgument)
    assert error.details["field"] == "looked_at"
    assert rig.filters.consume_stats.of_group("g") == []


async def test_a_fetch_that_was_given_up_is_never_answered(rig: Rig) -> None:
    waiting = rig.wait()
    assert waiting is not None

    waiting.cancel()
    rig.append(b"a")
    await rig.clock.advance(WAIT_MS)

    assert rig.replies == []
    assert len(rig.purgatory) == len(rig.timers) == 0


async def test_all_that_wait_for_a_queue_get_the_message(rig: Rig) -> None:
    for fetch_id in range(5):
        rig.wait(fetch_id=fetch_id)

    rig.append(b"a")

    assert [reply.fetch_id for reply in rig.replies] == list(range(5))
    assert all(reply.next_offset == 1 for reply in rig.replies)


@pytest.mark.parametrize("filter", [None, pb.Filter(kind=pb.Filter.TAG, expression="a")])
async def test_a_group_that_is_switched_off_gets_nothing(
    rig: Rig,
    filter: pb.Filter | None,
) -> None:
    rig.append(b"one", properties={"TAGS": "a"})
    rig.switch("g", consume=False)

    rig.wait(group="g", filter=filter)

    error = from_wire(rig.answer().error)
    assert isinstance(error, NotReadable)
    assert "consumption is switched off" in error.message
    rig.wait(group="other", filter=filter)
    assert rig.bodies() == [b"one"]
    rig.switch("g", consume=True)
    rig.wait(group="g", filter=filter)
    assert rig.bodies() == [b"one"]


@pytest.mark.parametrize("filter", [None, pb.Filter(kind=pb.Filter.TAG, expression="a")])
async def test_a_group_that_is_switched_off_while_it_waits_gets_nothing(
    rig: Rig,
    filter: pb.Filter | None,
) -> None:
    rig.wait(group="g", filter=filter)
    rig.switch("g", consume=False)

    rig.append(b"one", properties={"TAGS": "a"})

    reply = rig.answer()
    assert isinstance(from_wire(reply.error), NotReadable)
    assert reply.records == b""
    assert reply.max_offset == 1
