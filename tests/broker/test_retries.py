"""Failed messages: what their copies are, when they come again, and when they are dead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketmq.broker.delay.roads import DelayRules
from pocketmq.broker.retries import REASON_BYTES_MAX, Fate, copied_properties, fate_of
from pocketmq.proto.errors import (
    CorruptRecord,
    GroupNotFound,
    InvalidArgument,
    InvalidName,
    MessageNotFound,
    MessageTooLarge,
    NotServed,
    NotWritable,
    PocketMQError,
    StoreFull,
    TopicNotFound,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import SYS_INNER_BATCH, Host, Record, encode_record
from pocketmq.proto.record_run import parse_run, starts_of
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.run import Run
from pocketmq.store.state_tables import GroupConfig, TopicConfig
from pocketmq.tools.stores.our_reading import store_config

from ..fake_calls import FakeCall
from ..recorded import recorded_store, settings
from ..runs import records_of
from .retrying import RULES, SCHEDULE, TIMER, Retrying, request_for

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
#: Before the first retry, the second, …, the sixteenth: Apache's levels 3 to 18.
CLASSIC = [
    *(10 * SECOND, 30 * SECOND),
    *(minutes * MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Retrying]:
    made = Retrying(tmp_path)
    made.group()
    yield made
    made.close()


class TestFate:
    """What becomes of a failed message, without a broker."""

    @pytest.mark.parametrize(("times", "wait_ms"), list(enumerate(CLASSIC)))
    def test_the_nth_retry_waits_as_long_as_apaches(self, times: int, wait_ms: int) -> None:
        fate = fate_of(times, pb.SendBackRequest(), GroupConfig(name="g"), RULES)

        assert fate == Fate(level=times + 3)
        assert RULES.levels_ms[fate.level - 1] == wait_ms

    def test_after_sixteen_retries_it_is_dead_or_comes_every_two_hours(self) -> None:
        request = pb.SendBackRequest()

        assert fate_of(16, request, GroupConfig(name="g"), RULES).reason == "failed 17 times"
        patient = GroupConfig(name="g", retry_times_max=100)
        assert {fate_of(times, request, patient, RULES).level for times in range(15, 100)} == {18}
        assert fate_of(100, request, patient, RULES).reason == "failed 101 times"
        impatient = GroupConfig(name="g", retry_times_max=0)
        assert fate_of(0, request, impatient, RULES).reason == "failed once"

    def test_the_consumers_own_number_of_retries_counts_before_the_groups(self) -> None:
        group = GroupConfig(name="g", retry_times_max=1)

        assert fate_of(3, pb.SendBackRequest(retry_max_times=4), group, RULES).level == 6
        assert fate_of(0, pb.SendBackRequest(retry_max_times=0), group, RULES).reason

    def test_a_negative_level_is_dead_at_once(self) -> None:
        fate = fate_of(0, pb.SendBackRequest(delay_level=-1), GroupConfig(name="g"), RULES)

        assert fate.reason == "sent to the dead letters by the consumer"

    @pytest.mark.parametrize(("asked", "level"), [(1, 1), (18, 18), (19, 18), (1 << 30, 18)])
    def test_a_level_that_is_asked_for_counts_and_is_at_most_the_highest(
        self, asked: int, level: int
    ) -> None:
        request = pb.SendBackRequest(delay_level=asked)

        assert fate_of(7, request, with_intervals([123_000]), RULES) == Fate(level=level)

    def test_own_intervals_take_the_level_of_their_length_or_the_timer(self) -> None:
        group = with_intervals([15 * SECOND, 10 * SECOND, 2 * HOUR])

        fates = [fate_of(times, pb.SendBackRequest(), group, RULES) for times in range(5)]

        assert fates == [Fate(wait_ms=15_000), *map(of_level, (3, 18, 18, 18))]

    def test_an_interval_beyond_what_the_broker_allows_is_shortened(self) -> None:
        rules = DelayRules(RULES.levels_ms, 1_000, HOUR + 1)

        assert fate_of(0, pb.SendBackRequest(), with_intervals([9 * HOUR]), rules).wait_ms == (
            HOUR + 1
        )

    @given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 31), (1 << 31) - 1))
    def test_whatever_a_record_and_a_consumer_say_it_is_dead_or_has_a_level(
        self, times: int, asked: int
    ) -> None:
        fate = fate_of(times, pb.SendBackRequest(delay_level=asked), GroupConfig(name="g"), RULES)

        assert bool(fate.reason) == (asked < 0 or times >= 16)
        assert fate.reason or 1 <= fate.level <= 18

    @given(st.text(st.characters(codec="utf-8"), max_size=3_000))
    def test_a_reason_is_one_line_that_a_property_can_hold(self, text: str) -> None:
        request = pb.SendBackRequest(delay_level=-1, reason=text)

        reason = fate_of(0, request, GroupConfig(name="g"), RULES).reason

        assert reason
        assert reason.isprintable()
        assert len(reason.encode()) <= REASON_BYTES_MAX
        if text.isprintable() and text.strip() and len(text.encode()) <= REASON_BYTES_MAX:
            assert reason == text.strip()


def of_level(level: int) -> Fate:
    return Fate(level=level)


def with_intervals(intervals: list[int]) -> GroupConfig:
    return GroupConfig(
        name="g",
        retry_policy={
            "type": "CUSTOMIZED",
            "customizedRetryPolicy": {"next": [*[intervals[0]] * 2, *intervals]},
        },
    )


class TestCopies:
    """What the copy of a failed message is."""

    def test_it_waits_for_the_retry_topic_in_the_queue_of_its_level(self, broker: Retrying) -> None:
        original = broker.message()

        reply = broker.send_back(original)

        copy = broker.last(SCHEDULE, 2)
        assert copy.properties == {
            "UNIQ_KEY": "id",
            "TAGS": "red",
            "RETRY_TOPIC": "T",
            "ORIGIN_MESSAGE_ID": original.message_id,
            "WAIT": "false",
            "DELAY": "3",
            "REAL_TOPIC": "%RETRY%g",
            "REAL_QID": "0",
        }
        assert unchanged(copy) == unchanged(original)
        assert (reply.dead, reply.topic, reply.reconsume_times) == (False, "%RETRY%g", 1)
        assert (reply.log_offset, reply.due_ms) == (
            copy.log_offset,
            broker.clock.now_ms() + 10 * SECOND,
        )

    def test_a_dead_one_lies_in_the_dead_letters_at_once(self, broker: Retrying) -> None:
        original = broker.message()

        reply = broker.send_back(original, delay_level=-1, reason="no such\x01customer\n")

        copy = broker.last("%DLQ%g")
        assert copy.properties == {
            "UNIQ_KEY": "id",
            "TAGS": "red",
            "RETRY_TOPIC": "T",
            "ORIGIN_MESSAGE_ID": original.message_id,
            "WAIT": "false",
            "DELAY": "0",
            "DLQ_ORIGIN_TOPIC": "T",
            "DLQ_ORIGIN_MESSAGE_ID": original.message_id,
            "DLQ_REASON": "no such customer",
        }
        assert unchanged(copy) == unchanged(original)
        assert (reply.dead, reply.topic, reply.due_ms) == (True, "%DLQ%g", broker.clock.now_ms())

    def test_what_the_timer_left_is_gone_so_that_it_is_scheduled_anew(
        self, broker: Retrying
    ) -> None:
        broker.group("own", [15 * SECOND])
        now_ms = broker.clock.now_ms()
        left = {
            "KEYS": "k",
            "TIMER_DELIVER_MS": str(now_ms - 1),
            "TIMER_OUT_MS": "1",
            "TIMER_ENQUEUE_MS": "2",
            "TIMER_DEQUEUE_MS": "3",
            "TIMER_ROLL_TIMES": "4",
            "REAL_TOPIC": "T",
            "REAL_QID": "9",
            "DELAY": "2",
        }

        reply = broker.send_back(broker.message(properties=left), "own")

        assert reply.due_ms == now_ms + 15 * SECOND
        properties = broker.last(TIMER).properties
        assert {name: properties.get(name) for name in left} == {
            "KEYS": "k",
            "TIMER_DELIVER_MS": str(reply.due_ms),
            "TIMER_OUT_MS": str((reply.due_ms - 1) // 1_000 * 1_000),
            "TIMER_ENQUEUE_MS": None,
            "TIMER_DEQUEUE_MS": None,
            "TIMER_ROLL_TIMES": None,
            "REAL_TOPIC": "%RETRY%own",
            "REAL_QID": "0",
            "DELAY": None,
        }

    def test_topics_are_made_when_they_are_first_needed(self, broker: Retrying) -> None:
        broker.group("many", retry_queues=3)
        original = broker.message()

        broker.send_back(original, "many")
        made = broker.topics.get("%RETRY%many")
        assert (made.read_queues, made.write_queues, made.permission) == (3, 3, 6)
        with pytest.raises(TopicNotFound):
            broker.topics.get("%DLQ%many")
        broker.send_back(original, "many", delay_level=-1)
        made = broker.topics.get("%DLQ%many")
        assert (made.read_queues, made.write_queues, made.permission) == (1, 1, 6)

    def test_every_retry_queue_of_a_group_is_used(self, broker: Retrying) -> None:
        broker.group("many", retry_queues=3)
        original = broker.message()

        for _ in range(60):
            broker.send_back(original, "many", delay_level=1)

        queues = {record.properties["REAL_QID"] for record in records_of(broker.store, SCHEDULE, 0)}
        assert queues == {"0", "1", "2"}

    def test_a_group_of_a_java_broker_without_retry_queues_loses_nothing(
        self, broker: Retrying
    ) -> None:
        table = {**broker.groups._table.groups, "none": GroupConfig(name="none", retry_queues=0)}
        broker.groups._change(table)

        assert broker.send_back(broker.message(), "none").topic == "%RETRY%none"

    def test_a_dead_letter_without_room_for_its_reason_does_without(self, broker: Retrying) -> None:
        original = broker.message(properties={"big": "x" * 32_500})

        broker.send_back(original, delay_level=-1, reason="y" * 500)

        assert broker.last("%DLQ%g").properties.keys() == {
            *("big", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "WAIT", "DELAY")
        }

    def test_a_record_that_claims_absurd_counts_is_copied_all_the_same(self) -> None:
        record = Record(topic="T", body=b"", reconsume_times=-3, store_host=Host.parse("::1", 1))

        assert copied_properties(record, Fate(level=1), 0)["ORIGIN_MESSAGE_ID"].endswith("0" * 16)


def unchanged(record: Record) -> tuple[object, ...]:
    """Return what a copy has in common with its original."""
    return (
        record.body,
        record.flag,
        record.sys_flag,
        record.born_timestamp_ms,
        record.born_host,
        record.body_crc,
    )


class TestBadInput:
    """A clear error, and nothing stored: no record, no topic."""

    @pytest.mark.parametrize(
        ("changes", "error", "field"),
        [
            ({"group": "nobody"}, GroupNotFound, None),
            ({"group": ""}, InvalidName, "group"),
            ({"group": "a b"}, InvalidName, "group"),
            ({"topic": ""}, MessageNotFound, None),
            ({"topic": "Another"}, MessageNotFound, None),
            ({"topic": "%RETRY%other"}, InvalidArgument, "topic"),
            ({"topic": "SCHEDULE_TOPIC_XXXX"}, InvalidArgument, "topic"),
            ({"topic": "rmq_sys_wheel_timer"}, InvalidArgument, "topic"),
            ({"queue": 1}, MessageNotFound, None),
            ({"queue": -1}, MessageNotFound, None),
            ({"queue_offset": 1}, MessageNotFound, None),
            ({"queue_offset": -1}, MessageNotFound, None),
            ({"queue_offset": 1 << 62}, MessageNotFound, None),
            ({"log_offset": 1}, InvalidArgument, "log_offset"),
            ({"log_offset": -1}, InvalidArgument, "log_offset"),
            ({"retry_max_times": -1}, InvalidArgument, "retry_max_times"),
        ],
    )
    def test_what_is_wrong_is_refused(
        self,
        broker: Retrying,
        changes: dict[str, Any],
        error: type[PocketMQError],
        field: str | None,
    ) -> None:
        request = request_for(broker.message(), **changes)
        before = state_of(broker)

        with pytest.raises(error) as caught:
            broker.retries.send_back(request)

        assert field is None or caught.value.details["field"] == field
        assert all(str(value) in caught.value.message for value in changes.values())
        assert state_of(broker) == before

    @pytest.mark.parametrize("level", [0, -1])
    def test_properties_without_room_are_refused(self, broker: Retrying, level: int) -> None:
        original = broker.message(properties={"big": "x" * 32_750})
        before = state_of(broker)

        with pytest.raises(MessageTooLarge):
            broker.send_back(original, delay_level=level)

        assert state_of(broker) == before

    def test_a_retry_topic_that_takes_no_messages_is_refused(self, broker: Retrying) -> None:
        broker.topics.create(TopicConfig(name="%RETRY%g", permission=4), update=False)
        original = broker.message()
        before = state_of(broker)

        with pytest.raises(NotWritable):
            broker.send_back(original)

        assert state_of(broker) == before

    def test_what_the_store_refuses_is_the_answer(
        self, broker: Retrying, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = broker.message()
        monkeypatch.setattr(broker.appends, "append", lambda runs: [StoreFull("the disk is full")])

        with pytest.raises(StoreFull):
            broker.send_back(original)

    def test_a_batch_is_not_sent_back_as_one_message(self, broker: Retrying) -> None:
        batch = encode_record(Record(topic="T", body=b"", sys_flag=SYS_INNER_BATCH))
        columns = parse_run(batch, starts_of([len(batch)]))
        broker.store.append(Run(topic="T", queue=0, records=batch, columns=columns))

        with pytest.raises(NotServed, match="batch"):
            broker.send_back(broker.last("T"))

    def test_a_damaged_message_is_not_passed_on(
        self, broker: Retrying, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = broker.message()
        found = broker.store.read_queue("T", 0, 0, 1, 1)
        damaged = replace(found, records=found.records[:-1])
        monkeypatch.setattr(broker.store, "read_queue", lambda *place: damaged)

        with pytest.raises(CorruptRecord):
            broker.send_back(original)

    def test_no_request_breaks_anything(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        broker = Retrying(tmp_path_factory.mktemp("store"))
        broker.group()
        original = broker.message()
        numbers = st.sampled_from([0, 1, -1, 17, (1 << 31) - 1, -(1 << 31)])
        names = st.sampled_from(["", "g", "T", "%RETRY%g", "%DLQ%g", "\0", "x" * 300, "é"])

        @given(
            st.fixed_dictionaries(
                {},
                optional={
                    "group": names,
                    "topic": names,
                    "queue": numbers,
                    "queue_offset": numbers,
                    "log_offset": numbers,
                    "delay_level": numbers,
                    "retry_max_times": numbers,
                    "reason": st.text(st.characters(codec="utf-8")),
                },
            )
        )
        def try_one(changes: dict[str, Any]) -> None:
            before = broker.store.max_log_offset
            try:
                broker.retries.send_back(request_for(original, **changes))
            except PocketMQError:
                assert broker.store.max_log_offset == before
            else:
                assert broker.store.max_log_offset > before

        try_one()
        broker.close()


def state_of(broker: Retrying) -> tuple[int, list[TopicConfig]]:
    return broker.store.max_log_offset, broker.topics.all(include_system=True)


class TestInTime:
    """From the first failure to the dead letters, on a virtual clock."""

    async def failing(
        self, broker: Retrying, group: str, hours: float
    ) -> tuple[list[int], list[int]]:
        """Fail each delivery at once for HOURS; return the waits between them, and when they were dead."""
        broker.deliver()
        instants = [broker.clock.now_ms()]
        dead: list[int] = []
        retry, letters = f"%RETRY%{group}", f"%DLQ%{group}"

        def failed() -> None:
            instants.append(broker.clock.now_ms())
            broker.send_back(broker.last(retry), group)

        broker.appends.listen(retry, 0, failed)
        broker.appends.listen(letters, 0, lambda: dead.append(broker.clock.now_ms()))
        broker.timers.start()
        broker.send_back(broker.message(), group)
        await broker.clock.advance(round(hours * HOUR))
        await broker.timers.stop()
        waits = [later - earlier for earlier, later in pairwise(instants)]
        return waits, dead

    async def test_sixteen_retries_take_four_hours_and_46_minutes_in_all(
        self, broker: Retrying
    ) -> None:
        began_ms, real = broker.clock.now_ms(), time.perf_counter()

        waits, dead = await self.failing(broker, "g", 24)

        assert time.perf_counter() - real < 1
        assert waits == CLASSIC
        assert (
            dead == [began_ms + 4 * HOUR + 46 * MINUTE - 20 * SECOND] == [began_ms + sum(CLASSIC)]
        )
        letter = broker.last("%DLQ%g")
        assert letter.reconsume_times == 17
        assert letter.properties["DLQ_REASON"] == "failed 17 times"
        assert letter.properties["RETRY_TOPIC"] == letter.properties["DLQ_ORIGIN_TOPIC"] == "T"
        origin = broker.last("T").message_id
        assert letter.properties["DLQ_ORIGIN_MESSAGE_ID"] == origin

    async def test_a_group_that_allows_more_has_them_every_two_hours(
        self, broker: Retrying
    ) -> None:
        broker.group("patient", retry_times_max=20)

        waits, dead = await self.failing(broker, "patient", 24)

        assert waits == [*CLASSIC, *[2 * HOUR] * 4]
        assert len(dead) == 1

    async def test_own_intervals_are_kept_to_the_millisecond_and_the_last_one_repeats(
        self, broker: Retrying
    ) -> None:
        own = [10 * SECOND, 12_345, 1 * MINUTE, 90 * SECOND]
        broker.group("own", own, retry_times_max=7)

        waits, dead = await self.failing(broker, "own", 1)

        assert waits == [*own, *[90 * SECOND] * 3]
        assert len(dead) == 1
        assert "TIMER_DELIVER_MS" in broker.last("%DLQ%own").properties

    async def test_nothing_comes_before_its_time(self, broker: Retrying) -> None:
        broker.deliver()
        broker.timers.start()
        broker.send_back(broker.message())

        await broker.clock.advance(10 * SECOND - 1)
        assert broker.store.queue_bounds("%RETRY%g", 0) == (0, 0)
        await broker.clock.advance(1)
        assert broker.store.queue_bounds("%RETRY%g", 0) == (0, 1)
        await broker.timers.stop()


class TestJavasCopies:
    """Ours of the messages in Java's store are what Java made of them: property for property."""

    @pytest.fixture
    def java(self, tmp_path: Path) -> Iterator[Retrying]:
        path = recorded_store("consumption", tmp_path / "store")
        config = store_config(str(path), ApacheSettings.of(settings("consumption")))
        made = Retrying(path, config=config)
        yield made
        made.close()

    @pytest.mark.parametrize(("topics", "first"), [("Failing", 0), ("%RETRY%G_failing", 4)])
    def test_retries(self, java: Retrying, topics: str, first: int) -> None:
        theirs = records_of(java.store, SCHEDULE, 0)[first : first + 4]
        originals = {
            record.properties["UNIQ_KEY"]: record
            for queue in (0, 1)
            for record in records_of(java.store, topics, queue)
            if record.reconsume_times == first // 4
        }

        for copy in theirs:
            java.send_back(originals[copy.properties["UNIQ_KEY"]], "G_failing", delay_level=1)

        ours = records_of(java.store, SCHEDULE, 0)[8:]
        assert [settled(record) for record in ours] == [settled(record) for record in theirs]

    def test_dead_letters(self, java: Retrying) -> None:
        theirs = records_of(java.store, "%DLQ%G_failing", 0)
        retried = records_of(java.store, "%RETRY%G_failing", 0)[4:]
        added = {"DLQ_REASON", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"}

        for record in retried:
            java.send_back(record, "G_failing", retry_max_times=2)

        ours = [
            replace(
                record,
                properties={
                    name: value for name, value in record.properties.items() if name not in added
                },
            )
            for record in records_of(java.store, "%DLQ%G_failing", 0)[4:]
        ]
        assert len(ours) == 4
        assert [settled(record) for record in ours] == [settled(record) for record in theirs]


def settled(record: Record) -> Record:
    """Return RECORD without what the store fills in."""
    return replace(
        record,
        queue_offset=0,
        log_offset=0,
        store_timestamp_ms=0,
        store_host=Host(bytes(4), 0),
        total_size=0,
        properties=dict(record.properties),
    )


class TestAnswers:
    """The answer goes out when the copy is as safe as the store promises."""

    async def test_with_synchronous_flushing_it_waits_for_the_device(self, tmp_path: Path) -> None:
        broker = Retrying(tmp_path)
        broker.group()
        original = broker.message()
        safe: list[Any] = []
        broker.appends.when_safe = lambda end_offset, done: safe.append((end_offset, done))  # type: ignore[method-assign]
        (method,) = broker.retries.methods()
        good, late = FakeCall(), FakeCall()

        for call in (good, late):
            method.handler(request_for(original), call)

        assert good.answers == late.answers == []
        (_, done), (end_offset, done_too) = safe
        assert end_offset == broker.store.max_log_offset
        done(None)
        done_too(StoreFull("too late"))
        await asyncio.sleep(0)
        assert isinstance(good.answer, pb.SendBackReply)
        assert isinstance(late.error, StoreFull)
        broker.close()
