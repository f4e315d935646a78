"""Leases that end, times that are changed, attempts that count, and the dead letters at their end."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from pocketmq.proto.errors import DiskFailure, InvalidReceiptHandle
from pocketmq.store.format.state_tables import TopicConfig

from .popping import GROUP, INVISIBLE_MS, TOPIC, Popping, seen


async def test_attempts_count(broker: Popping) -> None:
    broker.send(b"1")
    for attempt in (1, 2, 3):
        assert seen(broker.pop()) == [(b"1", attempt)]
        assert broker.pop() == []
        await broker.clock.advance(INVISIBLE_MS)


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_could_not_be_read_is_still_due(
    broker: Popping, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.group(consume_message_orderly=ordered)
    broker.send(b"1", b"2")
    broker.pop()
    await broker.clock.advance(INVISIBLE_MS)
    read_at, reads = broker.store.read_at, count(1)

    def fail_second(log_offset: int) -> bytes | None:
        if next(reads) == 2:
            raise DiskFailure("cannot read")
        return read_at(log_offset)

    monkeypatch.setattr(broker.store, "read_at", fail_second)
    with pytest.raises(DiskFailure):
        broker.pop()

    assert sorted(seen(broker.pop())) == [(b"1", 2), (b"2", 2)]


async def test_what_is_due_comes_before_what_is_new(broker: Popping) -> None:
    broker.send(b"1")
    broker.pop()
    await broker.clock.advance(INVISIBLE_MS)
    broker.send(b"2")

    assert seen(broker.pop()) == [(b"1", 2), (b"2", 1)]


async def test_large_messages_come_a_few_at_a_time_again_too(tmp_path: Path) -> None:
    broker = Popping(tmp_path, fetch_max_bytes=250_000, fetch_default_bytes=1_024)
    broker.send(*[b"x" * 100_000] * 5)

    assert [len(broker.pop()) for _ in range(3)] == [2, 2, 1]
    await broker.clock.advance(INVISIBLE_MS)

    assert [len(broker.pop()) for _ in range(3)] == [3, 2, 0]
    await broker.stop()


async def test_the_time_of_a_delivery_can_be_changed(broker: Popping) -> None:
    broker.send(b"1")
    (one,) = broker.pop()

    handle = broker.pops.change_invisible(GROUP, TOPIC, one.handle, 60_000)

    await broker.clock.advance(59_999)
    assert broker.pop() == []
    await broker.clock.advance(1)
    assert seen(broker.pop()) == [(b"1", 2)]
    with pytest.raises(InvalidReceiptHandle):
        broker.pops.acknowledge(GROUP, TOPIC, handle)


async def test_a_change_gives_a_new_handle_and_the_old_one_is_dead(broker: Popping) -> None:
    broker.send(b"1")
    (one,) = broker.pop()

    handle = broker.pops.change_invisible(GROUP, TOPIC, one.handle, 15_000)

    with pytest.raises(InvalidReceiptHandle):
        broker.ack(one)
    with pytest.raises(InvalidReceiptHandle):
        broker.pops.forward_to_dead_letters(GROUP, TOPIC, one.handle, "why")
    broker.pops.acknowledge(GROUP, TOPIC, handle)
    with pytest.raises(InvalidReceiptHandle, match="already acknowledged"):
        broker.pops.change_invisible(GROUP, TOPIC, handle, 15_000)


async def test_a_change_to_nothing_makes_it_come_at_once(broker: Popping) -> None:
    broker.send(b"1")
    (one,) = broker.pop()
    broker.wait()

    broker.pops.change_invisible(GROUP, TOPIC, one.handle, 0)

    assert seen(broker.answer().deliveries) == [(b"1", 2)]


async def test_a_suspended_delivery_does_not_count(broker: Popping) -> None:
    broker.send(b"1")
    (one,) = broker.pop()

    broker.pops.change_invisible(GROUP, TOPIC, one.handle, 0, suspend=True)

    assert seen(broker.pop()) == [(b"1", 1)]


async def test_a_delivery_that_is_suspended_twice_does_not_count_less_than_none(
    broker: Popping,
) -> None:
    broker.send(b"1")
    (one,) = broker.pop()
    broker.pops.change_invisible(GROUP, TOPIC, one.handle, 0)
    (one,) = broker.pop()

    handle = one.handle
    for _ in range(3):
        handle = broker.pops.change_invisible(GROUP, TOPIC, handle, 1_000, suspend=True)

    await broker.clock.advance(1_000)
    assert seen(broker.pop()) == [(b"1", 2)]


async def test_what_was_tried_as_often_as_allowed_is_dead_when_it_would_come_again(
    broker: Popping,
) -> None:
    broker.group(retry_times_max=1)
    broker.send(b"1")
    for _ in range(2):
        assert len(broker.pop()) == 1
        await broker.clock.advance(INVISIBLE_MS)
    assert broker.dead() == []

    broker.ask(wait_ms=5_000)

    answer = broker.answer()
    assert answer.filtered_only
    assert not answer.deliveries
    assert broker.dead() == [(b"1", 3)]
    assert broker.committed() == 1


async def test_a_dead_letter_says_where_it_came_from(broker: Popping) -> None:
    broker.send(b"1", properties={"UNIQ_KEY": "id", "TAGS": "red"})
    (one,) = broker.pop()

    broker.pops.forward_to_dead_letters(GROUP, TOPIC, one.handle, "no use")
    broker.pops.forward_to_dead_letters(GROUP, TOPIC, one.handle, "no use")

    (letter,) = broker.pop(topic="%DLQ%g", group="reader")
    assert letter.attempt == 2
    assert broker.dead() == [(b"1", 1)]
    assert broker.committed() == 1
    await broker.clock.advance(INVISIBLE_MS)
    assert broker.pop() == []


async def test_dead_letters_that_cannot_be_written_are_tried_again(broker: Popping) -> None:
    broker.group(retry_times_max=0)
    broker.topics.for_group("%DLQ%g", 1)
    broker.topics._put(TopicConfig(name="%DLQ%g", permission=4))
    broker.send(b"1")
    broker.pop()
    await broker.clock.advance(INVISIBLE_MS)

    assert broker.pop() == []
    broker.topics._put(TopicConfig(name="%DLQ%g", permission=6))
    assert broker.pop() == []
    await broker.clock.advance(10_000)
    broker.ask()

    assert broker.answer().filtered_only
    assert broker.dead() == [(b"1", 2)]
