"""What classic consumers sent back comes to those who pop: to receives of the topic that it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.messages.filters import choice_of
from pocketmq.broker.pop import retry_table
from pocketmq.proto.errors import DiskFailure
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import Record, encode_record
from pocketmq.proto.run import Run
from pocketmq.store.format.state_tables import TopicConfig
from pocketmq.store.slices import Slices

from .popping import GROUP, INVISIBLE_MS, TOPIC, Popping, bodies, seen

RETRY = "%RETRY%g"


@pytest.fixture
def broker(broker: Popping) -> Popping:
    broker.group()
    broker.topics.create(TopicConfig(name="U"), update=False)
    broker.topics.for_group(RETRY, 1)
    return broker


def send_back(
    broker: Popping, body: bytes, origin: str = TOPIC, times: int = 1, queue: int = 0
) -> None:
    """Store what the retry topic gets once the delay of a message that was sent back is over."""
    properties = {"RETRY_TOPIC": origin} if origin else {"TAGS": "lost"}
    record = Record(
        topic=RETRY, body=body, queue_id=queue, reconsume_times=times, properties=properties
    )
    broker.appends.append_one(Run.of(RETRY, queue, [encode_record(record)]))


async def test_they_come_first_and_as_of_the_topic_that_was_asked_for(broker: Popping) -> None:
    broker.send(b"new")
    send_back(broker, b"again")

    found = broker.pop()

    assert seen(found) == [(b"again", 2), (b"new", 1)]
    assert {one.topic for one in found} == {TOPIC}
    broker.ack(*found)
    assert broker.committed(topic=RETRY) == 1
    await broker.clock.advance(INVISIBLE_MS)
    assert broker.pop() == []


async def test_a_group_that_begins_with_new_messages_gets_those_that_came_back_before(
    tmp_path: Path,
) -> None:
    broker = Popping(tmp_path)
    broker.group(consume_from_min_enable=False)
    broker.topics.for_group(RETRY, 1)
    broker.send(b"old")
    send_back(broker, b"again")

    assert bodies(broker.pop()) == [b"again"]
    await broker.stop()


async def test_those_of_another_topic_wait_for_a_receive_of_theirs(broker: Popping) -> None:
    send_back(broker, b"of T")
    send_back(broker, b"of U", "U")
    send_back(broker, b"of nobody", "")

    assert bodies(broker.pop(topic="U")) == [b"of U", b"of nobody"]
    assert bodies(broker.pop()) == [b"of T"]


async def test_they_wake_who_waits_and_come_again_when_their_time_is_over(broker: Popping) -> None:
    broker.wait()
    send_back(broker, b"again")
    assert seen(broker.answer().deliveries) == [(b"again", 2)]
    broker.wait(60_000)

    await broker.clock.advance(INVISIBLE_MS)

    assert seen(broker.answer().deliveries) == [(b"again", 3)]


async def test_earlier_attempts_count(broker: Popping) -> None:
    broker.group(retry_times_max=2)
    send_back(broker, b"again", times=2)
    assert seen(broker.pop()) == [(b"again", 3)]
    await broker.clock.advance(INVISIBLE_MS)

    broker.ask()

    assert broker.answer().filtered_only
    assert broker.dead() == [(b"again", 4)]


async def test_a_push_consumer_is_told_of_the_last_attempt_with_the_earlier_ones(
    broker: Popping,
) -> None:
    send_back(broker, b"again", times=2)
    (one,) = broker.pop(auto_renew=True)

    assert broker.pops.renewed_attempt(GROUP, TOPIC, one.handle) == one.attempt == 3


async def test_the_receives_filter_does_not_apply(broker: Popping) -> None:
    send_back(broker, b"again")

    choice = choice_of(pb.Filter(kind=pb.Filter.TAG, expression="red"))

    assert bodies(broker.pop(choice=choice)) == [b"again"]


async def test_the_time_of_one_can_be_changed_and_it_can_be_given_up(broker: Popping) -> None:
    send_back(broker, b"1")
    send_back(broker, b"2")
    one, two = broker.pop()

    handle = broker.pops.change_invisible(GROUP, TOPIC, one.handle, 1_000)
    broker.pops.forward_to_dead_letters(GROUP, TOPIC, two.handle, "no use")
    broker.pops.acknowledge(GROUP, TOPIC, handle)

    assert broker.dead() == [(b"2", 2)]
    assert broker.committed(topic=RETRY) == 2


async def test_they_are_there_after_a_restart(broker: Popping) -> None:
    send_back(broker, b"of U", "U")
    send_back(broker, b"of T")
    (one,) = broker.pop()

    await broker.restart()

    assert bodies(broker.pop(topic="U")) == [b"of U"]
    broker.ack(one)
    assert broker.pop() == []


async def test_what_was_looked_at_before_a_look_failed_outlives_a_kill(
    broker: Popping, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.topics.delete(RETRY)
    broker.topics.for_group(RETRY, 2)
    send_back(broker, b"of T")
    send_back(broker, b"of T as well", queue=1)
    read_queue = broker.store.read_queue

    def fail_second(topic: str, queue: int, *rest: Any) -> Slices:
        if queue:
            raise DiskFailure("cannot read")
        return read_queue(topic, queue, *rest)

    monkeypatch.setattr(broker.store, "read_queue", fail_second)
    with pytest.raises(DiskFailure):
        broker.pop()
    monkeypatch.undo()
    send_back(broker, b"of U", "U")
    assert bodies(broker.pop(topic="U")) == [b"of U"]

    await broker.restart(clean=False)

    assert sorted(bodies(broker.pop())) == [b"of T", b"of T as well"]


async def test_no_more_than_a_bounded_number_waits_for_others(
    broker: Popping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_table, "HELD_MAX", 1)
    send_back(broker, b"of U", "U")
    send_back(broker, b"of T")

    assert broker.pop(1) == []
    assert bodies(broker.pop(1, topic="U")) == [b"of U"]
    assert bodies(broker.pop(1)) == [b"of T"]


async def test_a_receive_of_the_retry_topic_itself_gets_all(broker: Popping) -> None:
    send_back(broker, b"of U", "U")
    assert broker.pop() == []
    send_back(broker, b"of T")

    assert bodies(broker.pop(topic=RETRY)) == [b"of U", b"of T"]
