"""Receives that wait: who gets what arrives, and when a wait ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.broker.messages.filters import choice_of
from pocketmq.broker.pop.receives import Receive, ReceiveResult
from pocketmq.proto.errors import Overloaded, PocketMQError, TopicNotFound
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .popping import TOPIC, Popping, bodies, seen


async def test_a_message_that_arrives_goes_to_the_one_that_waited_longest(broker: Popping) -> None:
    broker.wait(client_id="a")
    broker.wait(client_id="b")

    broker.send(b"1")

    assert bodies(broker.answer().deliveries) == [b"1"]
    assert len(broker.purgatory) == 1
    broker.send(b"2")
    assert bodies(broker.answer().deliveries) == [b"2"]


async def test_more_messages_go_to_more_receives(broker: Popping) -> None:
    for _ in range(3):
        broker.wait(batch=2)

    broker.send(b"1", b"2", b"3")

    assert [bodies(one.deliveries) for one in broker.answers] == [[b"1", b"2"], [b"3"]]


async def test_a_wait_ends_with_nothing(broker: Popping) -> None:
    broker.wait(5_000)
    await broker.clock.advance(4_999)
    assert broker.answers == []

    await broker.clock.advance(1)

    assert broker.answer() == ReceiveResult()
    assert len(broker.purgatory) == 0


async def test_long_waits_end_together_and_never_early(broker: Popping) -> None:
    broker.wait(20_000)
    await broker.clock.advance(7)
    broker.wait(20_000)

    await broker.clock.advance(20_000 - 1)
    assert len(broker.answers) in (0, 2), "they end together"
    await broker.clock.advance(20_000 // 64)

    assert len(broker.answers) == 2


@pytest.mark.parametrize("begin_ms", [0, 1, 155, 311, 312])
async def test_a_long_wait_takes_its_whole_time(broker: Popping, begin_ms: int) -> None:
    await broker.clock.advance(begin_ms)
    broker.wait(20_000)

    await broker.clock.advance(20_000 - 1)

    assert broker.answers == []


async def test_what_one_that_looks_on_leaves_goes_to_the_next(
    broker: Popping, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Receive] = []
    monkeypatch.setattr(broker.pops, "scan_more", later.append)
    wanted = choice_of(pb.Filter(kind=pb.Filter.SQL, expression="n = 1"))
    broker.send(*[b"-"] * 3_000, properties={"n": "0"})
    broker.wait(batch=1, choice=wanted)
    assert len(later) == 1
    for _ in range(2):
        broker.wait(batch=1, choice=wanted)
    assert len(later) == 1
    broker.send(b"1", b"2", properties={"n": "1"})

    later[0].scan_more()

    assert [bodies(one.deliveries) for one in broker.answers] == [[b"1"], [b"2"]]


async def test_a_lease_that_lapses_wakes_one_that_waits(broker: Popping) -> None:
    broker.send(b"1")
    broker.pop(invisible_ms=1_000)
    broker.wait(5_000)

    await broker.clock.advance(1_000)

    assert seen(broker.answer().deliveries) == [(b"1", 2)]


async def test_a_receive_that_is_cancelled_takes_nothing(broker: Popping) -> None:
    broker.wait().cancel()

    broker.send(b"1")

    assert broker.answers == []
    assert bodies(broker.pop()) == [b"1"]
    assert broker.pops._waits._of_client == {}


async def test_a_bug_in_one_receive_does_not_reach_who_sends(
    broker: Popping, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.wait()
    monkeypatch.setattr(broker.pops, "take", lambda asked: 1 // 0)

    broker.send(b"1")

    with pytest.raises(PocketMQError, match="receive failed"):
        broker.answer()


async def test_too_many_receives_are_refused(tmp_path: Path) -> None:
    broker = Popping(tmp_path, fetches_waiting_max=1)
    broker.wait()

    with pytest.raises(Overloaded, match="fetches_waiting_max"):
        broker.wait()
    await broker.stop()


async def test_a_topic_that_is_deleted_ends_the_wait(broker: Popping) -> None:
    broker.wait()
    broker.topics.delete(TOPIC)
    broker.pops.arrived(TOPIC)

    with pytest.raises(TopicNotFound):
        broker.answer()
    assert broker.pops._waits._waiting == {}
