"""Pops of groups that keep order: lanes by message group, batches that come again, attempts that are repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.broker.pop import ordered_table
from pocketmq.broker.pop.ordered_table import message_group
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import Host, Record, encode_record
from pocketmq.store.format.state_tables import TopicConfig

from .popping import GROUP, INVISIBLE_MS, TOPIC, Popping, bodies, seen


@pytest.fixture
def broker(broker: Popping) -> Popping:
    broker.group(consume_message_orderly=True)
    return broker


def send(broker: Popping, *messages: str) -> None:
    """Send MESSAGES, whose first letter is their message group."""
    broker.send(
        *[one.encode() for one in messages],
        properties=[
            {"__SHARDINGKEY": one[0]} if one[0] != "-" else {"TAGS": "t"} for one in messages
        ],
    )


class TestMessageGroup:
    """Where the message group stands."""

    @pytest.mark.parametrize(
        ("pairs", "found"),
        [
            ({}, b""),
            ({"__SHARDINGKEY": "g"}, b"g"),
            ({"A": "1", "__SHARDINGKEY": "group"}, b"group"),
            ({"__SHARDINGKEY": "g", "Z": "1"}, b"g"),
            ({"X__SHARDINGKEY": "g"}, b""),
        ],
    )
    @pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
    @pytest.mark.parametrize("topic", ["T", "T" * 200])
    def test_it_is_found(self, pairs: dict[str, str], found: bytes, host: str, topic: str) -> None:
        record = Record(
            topic=topic,
            body=b"\x02__SHARDINGKEY\x01wrong",
            born_host=Host.parse(host, 1),
            properties=pairs,
        )

        assert message_group(encode_record(record)) == found
        open_ended = encode_properties(pairs)[:-1]
        assert message_group(encode_record(record, property_string=open_ended)) == found


class TestOrder:
    """One batch of each message group at a time."""

    async def test_messages_come_in_order_of_the_queue(self, broker: Popping) -> None:
        send(broker, "a1", "b1", "a2", "b2")

        assert bodies(broker.pop(2)) == [b"a1", b"b1"]

    async def test_what_is_behind_a_batch_waits_until_all_of_it_is_acknowledged(
        self, broker: Popping
    ) -> None:
        send(broker, "a1", "a2", "a3")
        one, two = broker.pop(2)

        assert broker.pop() == []
        broker.ack(one)
        assert broker.pop() == []
        broker.ack(two)

        assert seen(broker.pop()) == [(b"a3", 1)]

    async def test_other_message_groups_go_on(self, broker: Popping) -> None:
        send(broker, "a1", "a2", "b1", "a3", "b2", "c1")
        (a1,) = broker.pop(1)

        assert bodies(broker.pop(2)) == [b"b1", b"b2"]
        assert bodies(broker.pop()) == [b"c1"]
        broker.ack(a1)
        assert bodies(broker.pop()) == [b"a2", b"a3"]

    async def test_messages_without_a_group_keep_the_order_of_their_queue(
        self, broker: Popping
    ) -> None:
        send(broker, "-1", "-2")
        broker.pop(1)

        assert broker.pop() == []

    async def test_an_acknowledgement_that_frees_a_group_wakes_who_waits(
        self, broker: Popping
    ) -> None:
        send(broker, "a1", "a2")
        (one,) = broker.pop(1)
        broker.wait()

        broker.ack(one)

        assert bodies(broker.answer().deliveries) == [b"a2"]

    async def test_the_offset_stays_before_what_waits(self, broker: Popping) -> None:
        send(broker, "a1", "b1", "a2")
        broker.pop(1)
        broker.ack(*broker.pop())

        assert broker.committed() == 0

    async def test_what_was_acknowledged_stays_so_once_all_before_it_is(
        self, broker: Popping
    ) -> None:
        send(broker, "a1", "a2", "b1")
        broker.ack(broker.pop()[1])
        await broker.clock.advance(INVISIBLE_MS)
        (again,) = broker.pop(1)

        broker.ack(again)

        assert bodies(broker.pop()) == [b"b1"]
        assert broker.committed() == 2

    async def test_a_queue_that_holds_too_much_waits(
        self, broker: Popping, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ordered_table, "HELD_MAX", 3)
        send(broker, "a1", "a2", "a3", "a4", "b1")
        (one,) = broker.pop(1)

        assert broker.pop(1) == []
        broker.ack(one)

        assert bodies(broker.pop()) == [b"a2", b"a3", b"a4", b"b1"]

    async def test_a_look_past_many_goes_on_in_later_turns(
        self, broker: Popping, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ordered_table, "_LOOKED_AT_MAX", 10)
        send(broker, "a1")
        broker.pop()
        send(broker, *[f"a{n}" for n in range(50)], "b1")

        broker.wait(batch=1)
        assert broker.answers == []
        await broker.clock.advance(1)

        assert bodies(broker.answer().deliveries) == [b"b1"]


class TestComingAgain:
    """A batch that was not wholly acknowledged."""

    async def test_it_comes_again_whole_and_in_order(self, broker: Popping) -> None:
        send(broker, "a1", "a2", "a3", "a4")
        broker.pop(3)
        await broker.clock.advance(INVISIBLE_MS)

        assert seen(broker.pop()) == [(b"a1", 2), (b"a2", 2), (b"a3", 2), (b"a4", 1)]

    async def test_what_was_acknowledged_behind_one_that_was_not_comes_with_it(
        self, broker: Popping
    ) -> None:
        send(broker, "a1", "a2", "a3")
        one, _, three = broker.pop()
        broker.ack(one, three)
        broker.ack(three)
        assert broker.committed() == 1
        await broker.clock.advance(INVISIBLE_MS)
        broker.ack(three)

        again = broker.pop()

        assert seen(again) == [(b"a2", 2), (b"a3", 2)]
        broker.ack(*again)
        assert broker.committed() == 3

    async def test_it_comes_once_none_of_it_is_anybodys_any_more(self, broker: Popping) -> None:
        send(broker, "a1", "a2")
        one, two = broker.pop()
        broker.pops.change_invisible(GROUP, TOPIC, one.handle, 1_000)
        await broker.clock.advance(1_000)
        assert broker.pop() == []

        broker.ack(two)

        assert seen(broker.pop()) == [(b"a1", 2), (b"a2", 2)]

    async def test_a_batch_that_is_refused_at_once_comes_at_once(self, broker: Popping) -> None:
        send(broker, "a1", "a2")
        (one,) = broker.pop(1)
        broker.wait()

        broker.pops.change_invisible(GROUP, TOPIC, one.handle, 0)

        assert seen(broker.answer().deliveries) == [(b"a1", 2), (b"a2", 1)]

    async def test_a_smaller_receive_gets_the_beginning(self, broker: Popping) -> None:
        send(broker, "a1", "a2", "a3")
        broker.pop()
        await broker.clock.advance(INVISIBLE_MS)

        assert seen(broker.pop(1)) == [(b"a1", 2)]
        assert broker.pop() == []
        await broker.clock.advance(INVISIBLE_MS)
        assert seen(broker.pop()) == [(b"a1", 3), (b"a2", 2), (b"a3", 2)]

    async def test_one_that_was_tried_too_often_is_dead_and_the_next_go_on(
        self, broker: Popping
    ) -> None:
        broker.group(consume_message_orderly=True, retry_times_max=0)
        send(broker, "a1", "a2", "a3")
        broker.ack(broker.pop(2)[1])
        await broker.clock.advance(INVISIBLE_MS)

        assert seen(broker.pop()) == [(b"a3", 1)]
        assert broker.dead() == [(b"a1", 2)]
        assert broker.committed() == 2

    async def test_one_that_is_forwarded_does_not_hold_up_the_next(self, broker: Popping) -> None:
        send(broker, "a1", "a2")
        (one,) = broker.pop(1)

        broker.pops.forward_to_dead_letters(GROUP, TOPIC, one.handle, "no use")

        assert bodies(broker.pop()) == [b"a2"]

    async def test_while_the_dead_cannot_be_buried_their_group_waits(self, broker: Popping) -> None:
        broker.group(consume_message_orderly=True, retry_times_max=0)
        broker.topics._put(TopicConfig(name="%DLQ%g", permission=4))
        send(broker, "a1", "a2", "b1")
        broker.pop(1)
        await broker.clock.advance(INVISIBLE_MS)

        assert bodies(broker.pop()) == [b"b1"]
        broker.topics._put(TopicConfig(name="%DLQ%g", permission=6))
        await broker.clock.advance(10_000)

        assert bodies(broker.pop()) == [b"a2"]


class TestAttempts:
    """A receive whose answer was lost."""

    async def test_the_same_messages_come_at_once_without_counting(self, broker: Popping) -> None:
        send(broker, "a1", "b1", "a2")
        first = broker.pop(2, attempt_id="x")

        again = broker.pop(2, attempt_id="x")

        assert seen(again) == [(b"a1", 1), (b"b1", 1)]
        broker.ack(first[0], again[1])
        assert broker.committed() == 2

    async def test_what_is_finished_of_it_does_not_come_again(self, broker: Popping) -> None:
        send(broker, "a1", "b1")
        broker.ack(broker.pop(attempt_id="x")[0])

        assert seen(broker.pop(attempt_id="x")) == [(b"b1", 1)]

    async def test_an_attempt_that_is_over_is_a_new_one(self, broker: Popping) -> None:
        send(broker, "a1", "a2")
        broker.pop(1, attempt_id="x")
        await broker.clock.advance(INVISIBLE_MS)

        assert seen(broker.pop(1, attempt_id="x")) == [(b"a1", 2)]
        broker.ack(*broker.pop(1, attempt_id="x"))
        assert seen(broker.pop(1, attempt_id="x")) == [(b"a2", 1)]

    async def test_another_attempt_gets_nothing_of_it(self, broker: Popping) -> None:
        send(broker, "a1")
        broker.pop(attempt_id="x")

        assert broker.pop(attempt_id="y") == []

    async def test_nothing_is_kept_of_attempts_that_are_over(self, broker: Popping) -> None:
        send(broker, "a1", "b1")
        one, two = broker.pop(attempt_id="x")
        broker.ack(one)
        broker.pops.change_invisible(GROUP, TOPIC, two.handle, 0)

        (table,) = broker.pops._tables.values()
        assert table.attempts == {}


class TestRestart:
    """Order over a restart, and over a change of the group."""

    @pytest.mark.parametrize("clean", [True, False])
    async def test_batches_and_what_waits_behind_them_are_there(
        self, broker: Popping, clean: bool
    ) -> None:
        send(broker, "a1", "a2", "b1", "a3")
        one, two = broker.pop(2)
        broker.ack(*broker.pop())
        broker.ack(two)

        await broker.restart(clean=clean)

        assert broker.pop() == []
        broker.ack(one)
        assert seen(broker.pop()) == [(b"a3", 1)]

    async def test_a_batch_that_was_due_comes_again(self, broker: Popping) -> None:
        send(broker, "a1", "a2", "a3")
        broker.ack(broker.pop(2)[1])
        await broker.clock.advance(INVISIBLE_MS)

        await broker.restart()

        assert seen(broker.pop()) == [(b"a1", 2), (b"a3", 1)]

    async def test_a_suspended_message_is_not_given_to_another(self, broker: Popping) -> None:
        send(broker, "a1", "a2")
        (one,) = broker.pop(1)
        broker.pops.change_invisible(GROUP, TOPIC, one.handle, 1_000, suspend=True)

        await broker.restart()

        assert broker.pop() == []
        await broker.clock.advance(1_000)
        assert seen(broker.pop()) == [(b"a1", 1), (b"a2", 1)]

    async def test_a_group_that_begins_to_keep_order_does_so_with_what_is_in_flight(
        self, tmp_path: Path
    ) -> None:
        broker = Popping(tmp_path)
        send(broker, "a1", "a2")
        (one,) = broker.pop(1)
        broker.group(consume_message_orderly=True)

        assert broker.pop() == []
        broker.ack(one)
        assert bodies(broker.pop()) == [b"a2"]
        broker.check()
        await broker.stop()

    async def test_a_group_that_stops_keeping_order_gets_what_waited(self, broker: Popping) -> None:
        send(broker, "a1", "a2", "b1")
        broker.pop(1)
        broker.pop()
        broker.group(consume_message_orderly=False)

        assert seen(broker.pop()) == [(b"a2", 1)]

    async def test_a_deleted_topic_leaves_nothing(self, broker: Popping) -> None:
        send(broker, "a1", "a2")
        broker.pop(1, attempt_id="x")

        broker.pops.forget_topic(TOPIC)

        assert broker.pops._tables == {}
        assert len(broker.timers) == 0
