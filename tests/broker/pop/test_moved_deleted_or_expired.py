"""Groups that are moved, topics that are deleted, messages that retention takes."""

from __future__ import annotations

import pytest

from .popping import GROUP, INVISIBLE_MS, TOPIC, Popping, bodies, seen


async def test_a_group_can_be_moved(broker: Popping) -> None:
    broker.send(b"1", b"2", b"3")
    one, *_ = broker.pop()

    broker.pops.move(GROUP, TOPIC, 0, 1)

    assert seen(broker.pop()) == [(b"2", 1), (b"3", 1)]
    assert broker.committed() == 1
    await broker.clock.advance(INVISIBLE_MS)
    assert seen(broker.pop()) == [(b"2", 2), (b"3", 2)]
    broker.ack(one)


async def test_a_moved_group_wakes_who_waits(broker: Popping) -> None:
    broker.send(b"1")
    broker.ack(*broker.pop())
    broker.wait()

    broker.pops.move(GROUP, TOPIC, 0, 0)

    assert seen(broker.answer().deliveries) == [(b"1", 1)]


@pytest.mark.parametrize("what", ["topic", "group"])
async def test_what_is_deleted_is_not_in_flight(broker: Popping, what: str) -> None:
    broker.send(b"1")
    broker.pop()

    if what == "topic":
        broker.pops.forget_topic(TOPIC)
    else:
        broker.pops.forget_group(GROUP)

    assert broker.pops.in_flight == 0
    assert len(broker.timers) == 0
    await broker.restart()
    assert broker.pops._tables == {}


async def test_a_group_that_was_put_elsewhere_by_hand_goes_on_there(broker: Popping) -> None:
    broker.send(b"1", b"2")
    broker.pop()

    broker.pops.moved(GROUP, TOPIC, 0, 1)
    broker.pops.moved("stranger", TOPIC, 0, 1)

    assert bodies(broker.pop()) == [b"2"]
    assert len(broker.pops._tables) == 1


async def test_what_retention_has_taken_is_finished_and_said(
    broker: Popping, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        broker.send(b"x" * 300_000)
    one, *_ = broker.pop()
    low = _delete_oldest_files(broker)

    broker.pops.retain()

    assert broker.committed() == low > 0
    assert broker.pops.in_flight == 5 - low
    assert f"messages expired unfinished group=g topic=T queue=0 in_flight={low}" in caplog.text
    broker.ack(one)


async def test_what_retention_has_taken_does_not_come_again(broker: Popping) -> None:
    for _ in range(5):
        broker.send(b"x" * 300_000)
    broker.send(b"6")
    count = len(broker.pop())
    assert count == 6
    low = _delete_oldest_files(broker)
    await broker.clock.advance(INVISIBLE_MS)

    assert [one.offset for one in broker.pop()] == list(range(low, 6))
    assert broker.committed() == low


async def test_retention_takes_what_was_acknowledged_behind_what_was_not(broker: Popping) -> None:
    broker.group(consume_message_orderly=True)
    for _ in range(5):
        broker.send(b"x" * 300_000, properties={"__SHARDINGKEY": "a"})
    broker.ack(broker.pop()[1])
    low = _delete_oldest_files(broker)
    assert low >= 2

    broker.pops.retain()

    assert broker.committed() == low
    assert broker.pops.in_flight == 5 - low


def _delete_oldest_files(broker: Popping) -> int:
    """Delete the oldest file of the log, as retention does, and return where the queue begins now."""
    broker.store.log.files.delete_leading(1)
    broker.store.queues.delete_expired(broker.store.min_log_offset)
    return broker.store.queue_bounds(TOPIC, 0)[0]
