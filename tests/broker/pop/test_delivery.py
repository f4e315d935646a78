"""Who gets which messages of a group without order, and what cannot be popped."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.proto.errors import NotReadable, Overloaded, TopicNotFound, Unsupported
from pocketmq.store.format.state_tables import TopicConfig

from .popping import GROUP, TOPIC, Popping, bodies, seen


async def test_messages_come_in_order_of_the_queue_and_once(broker: Popping) -> None:
    broker.send(b"1", b"2", b"3")

    assert seen(broker.pop(2)) == [(b"1", 1), (b"2", 1)]
    assert seen(broker.pop(2)) == [(b"3", 1)]
    assert broker.pop() == []


async def test_all_queues_are_popped_and_each_receive_begins_with_another(tmp_path: Path) -> None:
    broker = Popping(tmp_path, queues=3)
    for queue in range(3):
        broker.send(b"a%d" % queue, b"b%d" % queue, queue=queue)

    firsts = {bodies(broker.pop(1))[0] for _ in range(3)}

    assert firsts == {b"a0", b"a1", b"a2"}
    assert sorted(bodies(broker.pop())) == [b"b0", b"b1", b"b2"]
    await broker.stop()


async def test_a_topic_of_priorities_is_popped_from_the_highest_queue_down(tmp_path: Path) -> None:
    broker = Popping(tmp_path)
    config = TopicConfig(
        name="P", read_queues=3, write_queues=3, attributes={"message.type": "PRIORITY"}
    )
    broker.topics._put(config)
    for queue in range(3):
        broker.send(b"%d" % queue, queue=queue, topic="P")

    assert bodies(broker.pop(2, topic="P")) == [b"2", b"1"]
    broker.send(b"urgent", queue=2, topic="P")
    assert bodies(broker.pop(2, topic="P")) == [b"urgent", b"0"]
    await broker.stop()


async def test_groups_have_each_their_own(broker: Popping) -> None:
    broker.send(b"1")

    assert bodies(broker.pop()) == [b"1"]
    assert bodies(broker.pop(group="other")) == [b"1"]


async def test_a_new_group_begins_with_the_oldest_message(broker: Popping) -> None:
    broker.send(b"before")

    assert bodies(broker.pop()) == [b"before"]


async def test_a_group_that_says_so_begins_behind_the_newest(broker: Popping) -> None:
    broker.group(consume_from_min_enable=False)
    broker.send(b"before")

    assert broker.pop() == []
    broker.send(b"after")
    assert bodies(broker.pop()) == [b"after"]


async def test_a_group_with_offsets_goes_on_there(broker: Popping) -> None:
    broker.send(b"1", b"2")
    broker.offsets.commit(TOPIC, GROUP, 0, 1)

    assert bodies(broker.pop()) == [b"2"]


async def test_what_cannot_be_popped_is_refused(broker: Popping) -> None:
    with pytest.raises(TopicNotFound):
        broker.pop(topic="nowhere")
    broker.topics._put(TopicConfig(name="B", attributes={"queue.type": "BatchCQ"}))
    with pytest.raises(Unsupported, match="one by one"):
        broker.pop(topic="B")
    broker.group("off", consume_enable=False)
    with pytest.raises(NotReadable, match="switched off"):
        broker.pop(group="off")


async def test_too_many_in_flight_are_refused_until_some_are_finished(tmp_path: Path) -> None:
    broker = Popping(tmp_path, pop_in_flight_max=2)
    broker.send(b"1", b"2", b"3")
    first = broker.pop(2)

    with pytest.raises(Overloaded, match="pop_in_flight_max"):
        broker.pop()
    broker.ack(*first)

    assert bodies(broker.pop()) == [b"3"]
    await broker.stop()
