"""Pops of groups without order: what is delivered to whom, when it comes again, and when it does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pocketmq.broker.filters.choice import choice_of
from pocketmq.broker.pop.asked import Popped
from pocketmq.broker.pop.pops import POPS_MS
from pocketmq.proto.errors import (
    GroupInUse,
    InvalidReceiptHandle,
    NotReadable,
    NotServed,
    Overloaded,
    PocketMQError,
    TopicNotFound,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.state_tables import TopicConfig

from .popping import GROUP, INVISIBLE_MS, TOPIC, Popping, bodies, seen


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Popping]:
    made = Popping(tmp_path)
    yield made
    made.check()
    await made.stop()


class TestDelivery:
    """Who gets what."""

    async def test_messages_come_in_order_of_the_queue_and_once(self, broker: Popping) -> None:
        broker.send(b"1", b"2", b"3")

        assert seen(broker.pop(2)) == [(b"1", 1), (b"2", 1)]
        assert seen(broker.pop(2)) == [(b"3", 1)]
        assert broker.pop() == []

    async def test_all_queues_are_popped_and_each_receive_begins_with_another(
        self, tmp_path: Path
    ) -> None:
        broker = Popping(tmp_path, queues=3)
        for queue in range(3):
            broker.send(b"a%d" % queue, b"b%d" % queue, queue=queue)

        firsts = {bodies(broker.pop(1))[0] for _ in range(3)}

        assert firsts == {b"a0", b"a1", b"a2"}
        assert sorted(bodies(broker.pop())) == [b"b0", b"b1", b"b2"]
        await broker.stop()

    async def test_a_topic_of_priorities_is_popped_from_the_highest_queue_down(
        self, tmp_path: Path
    ) -> None:
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

    async def test_groups_have_each_their_own(self, broker: Popping) -> None:
        broker.send(b"1")

        assert bodies(broker.pop()) == [b"1"]
        assert bodies(broker.pop(group="other")) == [b"1"]

    async def test_a_new_group_begins_with_the_oldest_message(self, broker: Popping) -> None:
        broker.send(b"before")

        assert bodies(broker.pop()) == [b"before"]

    async def test_a_group_that_says_so_begins_behind_the_newest(self, broker: Popping) -> None:
        broker.group(consume_from_min_enable=False)
        broker.send(b"before")

        assert broker.pop() == []
        broker.send(b"after")
        assert bodies(broker.pop()) == [b"after"]

    async def test_a_group_with_offsets_goes_on_there(self, broker: Popping) -> None:
        broker.send(b"1", b"2")
        broker.offsets.commit(TOPIC, GROUP, 0, 1)

        assert bodies(broker.pop()) == [b"2"]

    async def test_what_cannot_be_popped_is_refused(self, broker: Popping) -> None:
        with pytest.raises(TopicNotFound):
            broker.pop(topic="nowhere")
        broker.topics._put(TopicConfig(name="B", attributes={"queue.type": "BatchCQ"}))
        with pytest.raises(NotServed, match="one by one"):
            broker.pop(topic="B")
        broker.group("off", consume_enable=False)
        with pytest.raises(NotReadable, match="switched off"):
            broker.pop(group="off")

    async def test_too_many_in_flight_are_refused_until_some_are_finished(
        self, tmp_path: Path
    ) -> None:
        broker = Popping(tmp_path, pop_in_flight_max=2)
        broker.send(b"1", b"2", b"3")
        first = broker.pop(2)

        with pytest.raises(Overloaded, match="pop_in_flight_max"):
            broker.pop()
        broker.ack(*first)

        assert bodies(broker.pop()) == [b"3"]
        await broker.stop()


class TestAcknowledging:
    """What a handle finishes."""

    async def test_what_is_acknowledged_does_not_come_again(self, broker: Popping) -> None:
        broker.send(b"1", b"2")
        first, _ = broker.pop()

        broker.ack(first)
        await broker.clock.advance(INVISIBLE_MS)

        assert seen(broker.pop()) == [(b"2", 2)]

    async def test_the_offset_is_that_of_the_lowest_that_is_not_finished(
        self, broker: Popping
    ) -> None:
        broker.send(b"1", b"2", b"3")
        one, two, three = broker.pop()

        assert broker.committed() == 0
        broker.ack(two)
        assert broker.committed() == 0
        broker.ack(one)
        assert broker.committed() == 2
        broker.ack(three)
        assert broker.committed() == 3

    async def test_again_is_fine(self, broker: Popping) -> None:
        broker.send(b"1", b"2")
        one, _ = broker.pop()

        broker.ack(one)
        broker.ack(one)

    @pytest.mark.parametrize(
        "handle", ["", "nonsense", "p0-0", "p0-0-zz", "x0-0-0", "p0-0-1", "p7-0-1", "p0-63-1"]
    )
    async def test_a_handle_that_never_was_is_refused(self, broker: Popping, handle: str) -> None:
        broker.send(b"1")
        broker.pop()

        with pytest.raises(InvalidReceiptHandle):
            broker.pops.acknowledge(GROUP, TOPIC, handle)

    async def test_a_handle_is_refused_once_its_time_is_over(self, broker: Popping) -> None:
        broker.send(b"1")
        (one,) = broker.pop()

        await broker.clock.advance(INVISIBLE_MS)

        with pytest.raises(InvalidReceiptHandle, match="its time is over"):
            broker.ack(one)

    async def test_the_handle_of_an_earlier_delivery_does_not_finish_a_later_one(
        self, broker: Popping
    ) -> None:
        broker.send(b"1")
        (one,) = broker.pop()
        await broker.clock.advance(INVISIBLE_MS)
        (again,) = broker.pop()

        with pytest.raises(InvalidReceiptHandle, match="later delivery"):
            broker.ack(one)
        broker.ack(again)

    async def test_another_group_is_not_told_anything(self, broker: Popping) -> None:
        broker.send(b"1")
        (one,) = broker.pop()

        with pytest.raises(InvalidReceiptHandle):
            broker.ack(one, group="stranger")
        assert len(broker.pops._tables) == 1


class TestComingAgain:
    """Leases, attempts and the dead."""

    async def test_attempts_count(self, broker: Popping) -> None:
        broker.send(b"1")
        for attempt in (1, 2, 3):
            assert seen(broker.pop()) == [(b"1", attempt)]
            assert broker.pop() == []
            await broker.clock.advance(INVISIBLE_MS)

    async def test_what_is_due_comes_before_what_is_new(self, broker: Popping) -> None:
        broker.send(b"1")
        broker.pop()
        await broker.clock.advance(INVISIBLE_MS)
        broker.send(b"2")

        assert seen(broker.pop()) == [(b"1", 2), (b"2", 1)]

    async def test_large_messages_come_a_few_at_a_time_again_too(self, tmp_path: Path) -> None:
        broker = Popping(tmp_path, fetch_bytes_max=250_000, fetch_bytes_default=1_024)
        broker.send(*[b"x" * 100_000] * 5)

        assert [len(broker.pop()) for _ in range(3)] == [2, 2, 1]
        await broker.clock.advance(INVISIBLE_MS)

        assert [len(broker.pop()) for _ in range(3)] == [3, 2, 0]
        await broker.stop()

    async def test_the_time_of_a_delivery_can_be_changed(self, broker: Popping) -> None:
        broker.send(b"1")
        (one,) = broker.pop()

        handle = broker.pops.change_invisible(GROUP, TOPIC, one.handle, 60_000)

        await broker.clock.advance(59_999)
        assert broker.pop() == []
        await broker.clock.advance(1)
        assert seen(broker.pop()) == [(b"1", 2)]
        with pytest.raises(InvalidReceiptHandle):
            broker.pops.acknowledge(GROUP, TOPIC, handle)

    async def test_a_change_gives_a_new_handle_and_the_old_one_is_dead(
        self, broker: Popping
    ) -> None:
        broker.send(b"1")
        (one,) = broker.pop()

        handle = broker.pops.change_invisible(GROUP, TOPIC, one.handle, 15_000)

        with pytest.raises(InvalidReceiptHandle):
            broker.ack(one)
        with pytest.raises(InvalidReceiptHandle):
            broker.pops.forward_to_dead_letters(GROUP, TOPIC, one.handle, "why")
        broker.pops.acknowledge(GROUP, TOPIC, handle)
        with pytest.raises(InvalidReceiptHandle, match="finished"):
            broker.pops.change_invisible(GROUP, TOPIC, handle, 15_000)

    async def test_a_change_to_nothing_makes_it_come_at_once(self, broker: Popping) -> None:
        broker.send(b"1")
        (one,) = broker.pop()
        broker.wait()

        broker.pops.change_invisible(GROUP, TOPIC, one.handle, 0)

        assert seen(broker.answer().deliveries) == [(b"1", 2)]

    async def test_a_suspended_delivery_does_not_count(self, broker: Popping) -> None:
        broker.send(b"1")
        (one,) = broker.pop()

        broker.pops.change_invisible(GROUP, TOPIC, one.handle, 0, suspend=True)

        assert seen(broker.pop()) == [(b"1", 1)]

    async def test_what_was_tried_as_often_as_allowed_is_dead_when_it_would_come_again(
        self, broker: Popping
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

    async def test_a_dead_letter_says_where_it_came_from(self, broker: Popping) -> None:
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

    async def test_dead_letters_that_cannot_be_written_are_tried_again(
        self, broker: Popping
    ) -> None:
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


class TestWaiting:
    """Receives that wait."""

    async def test_a_message_that_arrives_goes_to_the_one_that_waited_longest(
        self, broker: Popping
    ) -> None:
        broker.wait(client_id="a")
        broker.wait(client_id="b")

        broker.send(b"1")

        assert bodies(broker.answer().deliveries) == [b"1"]
        assert len(broker.purgatory) == 1
        broker.send(b"2")
        assert bodies(broker.answer().deliveries) == [b"2"]

    async def test_more_messages_go_to_more_receives(self, broker: Popping) -> None:
        for _ in range(3):
            broker.wait(batch=2)

        broker.send(b"1", b"2", b"3")

        assert [bodies(one.deliveries) for one in broker.answers] == [[b"1", b"2"], [b"3"]]

    async def test_a_wait_ends_with_nothing(self, broker: Popping) -> None:
        broker.wait(5_000)
        await broker.clock.advance(4_999)
        assert broker.answers == []

        await broker.clock.advance(1)

        assert broker.answer() == Popped()
        assert len(broker.purgatory) == 0

    async def test_long_waits_end_together_and_not_late(self, broker: Popping) -> None:
        broker.wait(20_000)
        await broker.clock.advance(7)
        broker.wait(20_000)

        await broker.clock.advance(20_000 - 7 - 20_000 // 64)
        assert broker.answers == []
        await broker.clock.advance(20_000 // 64)

        assert len(broker.answers) == 2

    async def test_a_lease_that_lapses_wakes_one_that_waits(self, broker: Popping) -> None:
        broker.send(b"1")
        broker.pop(invisible_ms=1_000)
        broker.wait(5_000)

        await broker.clock.advance(1_000)

        assert seen(broker.answer().deliveries) == [(b"1", 2)]

    async def test_a_receive_that_is_cancelled_takes_nothing(self, broker: Popping) -> None:
        broker.wait().cancel()

        broker.send(b"1")

        assert broker.answers == []
        assert bodies(broker.pop()) == [b"1"]
        assert broker.pops._waits._of_client == {}

    async def test_a_bug_in_one_receive_does_not_reach_who_sends(
        self, broker: Popping, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broker.wait()
        monkeypatch.setattr(broker.pops, "take", lambda asked: 1 // 0)

        broker.send(b"1")

        with pytest.raises(PocketMQError, match="receive failed"):
            broker.answer()

    async def test_too_many_receives_are_refused(self, tmp_path: Path) -> None:
        broker = Popping(tmp_path, fetches_waiting_max=1)
        broker.wait()

        with pytest.raises(Overloaded, match="fetches_waiting_max"):
            broker.wait()
        await broker.stop()

    async def test_a_topic_that_is_deleted_ends_the_wait(self, broker: Popping) -> None:
        broker.wait()
        broker.topics.delete(TOPIC)
        broker.pops.arrived(TOPIC)

        with pytest.raises(TopicNotFound):
            broker.answer()
        assert broker.pops._waits._waiting == {}


class TestAttempts:
    """A receive whose answer was lost."""

    async def test_the_same_messages_come_at_once_without_counting(self, broker: Popping) -> None:
        broker.send(b"1", b"2", b"3")
        first = broker.pop(2, attempt_id="x")
        broker.ack(first[0])

        again = broker.pop(2, attempt_id="x")

        assert seen(again) == [(b"2", 1)]
        assert [one.handle for one in again] == [first[1].handle]
        broker.ack(*again)
        assert seen(broker.pop(attempt_id="x")) == [(b"3", 1)]

    @pytest.mark.parametrize("clean", [True, False])
    async def test_an_attempt_outlasts_the_broker(self, tmp_path: Path, clean: bool) -> None:
        broker = Popping(tmp_path, queues=2)
        broker.send(b"1")
        broker.send(b"2", queue=1)
        first = broker.pop(auto_renew=True, attempt_id="x")

        await broker.restart(clean=clean)

        assert broker.pop(attempt_id="y") == []
        again = broker.pop(auto_renew=True, attempt_id="x")
        assert sorted(seen(again)) == [(b"1", 1), (b"2", 1)]
        assert {one.handle for one in again} == {one.handle for one in first}
        broker.ack(*again)
        assert broker.pops.in_flight == 0
        await broker.stop()

    async def test_an_id_that_is_too_long_is_none(self, broker: Popping) -> None:
        broker.send(b"1")
        broker.pop(attempt_id="x" * 257)

        assert broker.pop(attempt_id="x" * 257) == []

    async def test_an_attempt_that_is_over_is_a_new_one(self, broker: Popping) -> None:
        broker.send(b"1")
        broker.pop(attempt_id="x")
        await broker.clock.advance(INVISIBLE_MS)

        assert seen(broker.pop(attempt_id="x")) == [(b"1", 2)]


class TestFilters:
    """Receives that do not want everything."""

    async def test_only_what_is_wanted_comes_and_the_rest_is_finished(
        self, broker: Popping
    ) -> None:
        colours = [{"TAGS": "red"}, {"TAGS": "blue"}, {"TAGS": "red"}, {"TAGS": "blue"}]
        broker.send(b"1", b"2", b"3", b"4", properties=colours)

        found = broker.pop(choice=tagged("red"))

        assert bodies(found) == [b"1", b"3"]
        broker.ack(*found)
        assert broker.pop() == []
        assert broker.committed() == 4

    async def test_tags_of_one_hash_are_told_apart(self, broker: Popping) -> None:
        broker.send(b"1", b"2", properties=[{"TAGS": "Aa"}, {"TAGS": "BB"}])

        assert bodies(broker.pop(choice=tagged("BB"))) == [b"2"]

    async def test_an_expression_looks_at_many_to_find_one(self, broker: Popping) -> None:
        choice = choice_of(pb.Filter(kind=pb.Filter.SQL, expression="n = 299"))
        broker.send(
            *[b"%d" % n for n in range(300)], properties=[{"n": str(n)} for n in range(300)]
        )

        assert bodies(broker.pop(1, choice=choice)) == [b"299"]

    async def test_a_look_at_very_many_goes_on_in_later_turns(self, broker: Popping) -> None:
        choice = choice_of(pb.Filter(kind=pb.Filter.SQL, expression="n = 8999"))
        for first in range(0, 9_000, 3_000):
            numbers = range(first, first + 3_000)
            broker.send(*[b"-"] * 3_000, properties=[{"n": str(n)} for n in numbers])

        broker.wait(choice=choice)
        assert broker.answers == []
        await broker.clock.advance(1)

        (one,) = broker.answer().deliveries
        assert one.offset == 8_999
        broker.ack(one)
        assert broker.committed() == 9_000


def tagged(*tags: str) -> object:
    return choice_of(pb.Filter(kind=pb.Filter.TAG, expression=" || ".join(tags)))


class TestClients:
    """Leases that last as long as their owner."""

    async def test_a_client_that_is_heard_of_keeps_what_it_has_for_three_hours(
        self, broker: Popping
    ) -> None:
        broker.send(b"1")
        (one,) = broker.pop(auto_renew=True, invisible_ms=0)

        for _ in range(3 * 60 * 6 - 1):
            await broker.clock.advance(10_000)
            broker.pops.client_alive("c")
        assert broker.pop() == []
        await broker.clock.advance(10_000)

        assert seen(broker.pop()) == [(b"1", 2)]
        assert one.invisible_ms == 60_000

    async def test_a_client_that_is_not_heard_of_loses_it_after_a_minute(
        self, broker: Popping
    ) -> None:
        broker.send(b"1")
        broker.pop(auto_renew=True)
        await broker.clock.advance(30_000)
        broker.pops.client_alive("c")

        await broker.clock.advance(59_999)
        assert broker.pop(client_id="d") == []
        await broker.clock.advance(1)

        assert seen(broker.pop(client_id="d")) == [(b"1", 2)]

    async def test_a_client_that_goes_loses_it_within_a_second_and_its_receives_end(
        self, broker: Popping
    ) -> None:
        broker.send(b"1")
        broker.pop(auto_renew=True)
        broker.wait()

        broker.pops.client_gone("c")

        assert broker.answer().deliveries == ()
        broker.wait(client_id="d")
        await broker.clock.advance(1_000)
        assert seen(broker.answer().deliveries) == [(b"1", 2)]

    async def test_a_time_that_was_asked_for_outlasts_its_client(self, broker: Popping) -> None:
        broker.send(b"1")
        broker.pop()

        broker.pops.client_gone("c")

        await broker.clock.advance(INVISIBLE_MS - 1)
        assert broker.pop() == []

    async def test_the_first_handle_stays_good_while_it_is_renewed(self, broker: Popping) -> None:
        broker.send(b"1")
        (one,) = broker.pop(auto_renew=True)
        await broker.clock.advance(50_000)
        broker.pops.client_alive("c")
        await broker.clock.advance(50_000)

        broker.ack(one)

        assert broker.pops._leases._by_owner == {}
        assert len(broker.timers) == 0


class TestRestart:
    """What a broker knows again."""

    @pytest.mark.parametrize("clean", [True, False])
    async def test_what_is_in_flight_stays_so_and_handles_stay_good(
        self, broker: Popping, clean: bool
    ) -> None:
        broker.send(b"1", b"2", b"3")
        one, two, three = broker.pop()
        broker.ack(two)

        await broker.restart(clean=clean)

        assert broker.pop() == []
        broker.ack(one)
        assert broker.committed() == 2
        await broker.clock.advance(INVISIBLE_MS)
        assert seen(broker.pop()) == [(b"3", 2)]
        with pytest.raises(InvalidReceiptHandle):
            broker.ack(three)

    async def test_what_was_due_is(self, broker: Popping) -> None:
        broker.send(b"1")
        broker.pop()
        await broker.clock.advance(INVISIBLE_MS)

        await broker.restart()

        assert seen(broker.pop()) == [(b"1", 2)]

    async def test_a_client_that_lives_on_has_half_a_minute_at_least(self, broker: Popping) -> None:
        broker.send(b"1")
        (one,) = broker.pop(auto_renew=True)
        await broker.clock.advance(55_000)
        broker.pops.client_alive("c")

        await broker.restart()
        await broker.clock.advance(29_999)

        broker.ack(one)

    async def test_what_a_client_may_never_have_got_comes_again_while_it_lives(
        self, broker: Popping
    ) -> None:
        broker.send(b"1")
        broker.pop(auto_renew=True)

        await broker.restart(clean=False)
        for _ in range(6):
            broker.pops.client_alive("c")
            await broker.clock.advance(10_000)

        assert seen(broker.pop()) == [(b"1", 2)]

    async def test_without_a_journal_what_is_not_finished_comes_again(
        self, broker: Popping
    ) -> None:
        broker.send(b"1", b"2", b"3")
        broker.ack(broker.pop()[0])
        broker.remembered.changes.clear()

        await broker.restart()

        assert seen(broker.pop()) == [(b"2", 1), (b"3", 1)]

    async def test_a_group_that_was_put_back_while_the_broker_was_down_is_there(
        self, broker: Popping
    ) -> None:
        broker.send(b"1", b"2", b"3")
        broker.ack(*broker.pop())
        broker.offsets.commit(TOPIC, GROUP, 0, 1)

        await broker.restart()

        assert bodies(broker.pop()) == [b"2", b"3"]

    async def test_a_group_that_went_on_elsewhere_goes_on_there(self, broker: Popping) -> None:
        broker.send(b"1", b"2", b"3")
        broker.pop()
        broker.offsets.commit(TOPIC, GROUP, 0, 2)

        await broker.restart()
        await broker.clock.advance(INVISIBLE_MS)

        assert seen(broker.pop()) == [(b"3", 2)]

    async def test_a_kill_that_lost_offsets_brings_nothing_again_that_the_journal_knows(
        self, broker: Popping
    ) -> None:
        broker.send(b"1", b"2")
        broker.pop(1)
        broker.offsets.save()
        broker.ack(*broker.pop(1))

        await broker.restart(clean=False)
        await broker.clock.advance(INVISIBLE_MS)

        assert seen(broker.pop()) == [(b"1", 2)]


class TestChangesOfOthers:
    """Deleted topics, retention, offsets that are set."""

    async def test_a_group_can_be_moved(self, broker: Popping) -> None:
        broker.send(b"1", b"2", b"3")
        one, *_ = broker.pop()

        broker.pops.move(GROUP, TOPIC, 0, 1)

        assert seen(broker.pop()) == [(b"2", 1), (b"3", 1)]
        assert broker.committed() == 1
        await broker.clock.advance(INVISIBLE_MS)
        assert seen(broker.pop()) == [(b"2", 2), (b"3", 2)]
        broker.ack(one)

    async def test_a_moved_group_wakes_who_waits(self, broker: Popping) -> None:
        broker.send(b"1")
        broker.ack(*broker.pop())
        broker.wait()

        broker.pops.move(GROUP, TOPIC, 0, 0)

        assert seen(broker.answer().deliveries) == [(b"1", 1)]

    @pytest.mark.parametrize("what", ["topic", "group"])
    async def test_what_is_deleted_is_not_in_flight(self, broker: Popping, what: str) -> None:
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

    async def test_a_group_that_was_put_elsewhere_by_hand_goes_on_there(
        self, broker: Popping
    ) -> None:
        broker.send(b"1", b"2")
        broker.pop()

        broker.pops.moved(GROUP, TOPIC, 0, 1)
        broker.pops.moved("stranger", TOPIC, 0, 1)

        assert bodies(broker.pop()) == [b"2"]
        assert len(broker.pops._tables) == 1

    async def test_what_retention_has_taken_is_finished_and_said(
        self, broker: Popping, caplog: pytest.LogCaptureFixture
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

    async def test_what_retention_has_taken_does_not_come_again(self, broker: Popping) -> None:
        for _ in range(5):
            broker.send(b"x" * 300_000)
        broker.send(b"6")
        count = len(broker.pop())
        assert count == 6
        low = _delete_oldest_files(broker)
        await broker.clock.advance(INVISIBLE_MS)

        assert [one.offset for one in broker.pop()] == list(range(low, 6))
        assert broker.committed() == low


def _delete_oldest_files(broker: Popping) -> int:
    """Delete the oldest file of the log, as retention does, and return where the queue begins now."""
    broker.store.log.files.delete_leading(1)
    broker.store.queues.delete_expired(broker.store.min_log_offset)
    return broker.store.queue_bounds(TOPIC, 0)[0]


class TestOneWay:
    """A group either pops or shares queues."""

    async def test_a_group_with_members_does_not_pop(self, broker: Popping) -> None:
        broker.pops.has_members = lambda group: group == GROUP

        with pytest.raises(GroupInUse, match="has members"):
            broker.pop()
        assert broker.pop(group="other") == []

    async def test_a_group_that_pops_is_not_shared_until_a_while_after(
        self, broker: Popping
    ) -> None:
        broker.pops.check_not_popped(GROUP)
        broker.wait()
        await broker.clock.advance(POPS_MS - 1)

        with pytest.raises(GroupInUse, match="again in 1 ms"):
            broker.pops.check_not_popped(GROUP)
        await broker.clock.advance(1)

        broker.pops.check_not_popped(GROUP)
        assert broker.pops._popped_ms == {}
