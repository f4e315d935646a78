"""Dead letters: listed with reasons and origins, sent again, put away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.groups.dead_letters import LETTERS_MAX, PAGE_BYTES, RANGES_SIZE_MAX, Resent
from pocketmq.broker.offsets import Offsets
from pocketmq.proto.errors import (
    DiskFailure,
    GroupNotFound,
    InvalidArgument,
    InvalidName,
    PocketMQError,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import Record, decode_record, encode_record
from pocketmq.proto.record_run import parse_run, starts_of
from pocketmq.proto.run import Run
from pocketmq.proto.topics import DEAD_LETTERS_GROUP
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.format.state_tables import TopicConfig, parse_consumer_offsets
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ....recorded import recorded_store, settings
from ....runs import bodies_of, records_of
from .retrying import Retrying, origin_of

CALL: Any = None


def die(broker: Retrying, count: int, *, topic: str = "T") -> list[Record]:
    """Send COUNT messages to the dead letters at once; return the originals."""
    originals = [broker.message(b"%d" % number, topic=topic) for number in range(count)]
    for number, original in enumerate(originals):
        broker.send_back(original, delay_level=-1, reason=f"reason {number}")
    return originals


def letters(broker: Retrying, **fields: Any) -> pb.DeadLettersReply:
    request = pb.DeadLettersRequest(**{"group": "g", **fields})
    return broker.dead_letters.list(request, CALL)


async def resend(broker: Retrying, *offsets: int, **fields: Any) -> list[pb.ResentDeadLetter]:
    request = pb.ResendDeadLettersRequest(**{"group": "g", "queue_offsets": offsets, **fields})
    return list((await broker.dead_letters.resend(request, CALL)).letters)


async def purge(broker: Retrying, **fields: Any) -> pb.PurgeDeadLettersReply:
    request = pb.PurgeDeadLettersRequest(**{"group": "g", **fields})
    return await broker.dead_letters.purge(request, CALL)


def make_topic(broker: Retrying, name: str = "T", **fields: Any) -> None:
    topic = TopicConfig(**{"name": name, "read_queues": 2, "write_queues": 2, **fields})
    broker.topics.create(topic, update=False)


class TestListing:
    """What is told of dead letters."""

    async def test_each_says_where_from_why_and_when(self, broker: Retrying) -> None:
        first, second = die(broker, 2)

        reply = letters(broker)

        assert (reply.min_offset, reply.max_offset, reply.next_offset) == (0, 2, 2)
        told = reply.letters[1]
        copy = broker.last("%DLQ%g")
        assert decode_record(told.record) == copy
        told.ClearField("record")
        assert told == pb.DeadLetter(
            queue_offset=1,
            log_offset=copy.log_offset,
            message_id="id",
            origin_topic="T",
            origin_message_id=second.message_id,
            reason="reason 1",
            reconsume_times=1,
            died_ms=broker.clock.now_ms(),
        )
        assert reply.letters[0].origin_message_id == first.message_id

    def test_those_that_java_wrote_say_as_much_as_can_be_told(self, tmp_path: Path) -> None:
        path = recorded_store("consumption", tmp_path / "store")
        java = Retrying(
            path, config=ApacheSettings.of(settings("consumption")).store_config(str(path))
        )

        reply = letters(java, group="G_failing")

        assert len(reply.letters) == 4
        assert {(one.reason, one.origin_topic, one.reconsume_times) for one in reply.letters} == {
            ("failed 3 times", "Failing", 3)
        }
        origins = {
            record.message_id: record.properties["UNIQ_KEY"]
            for queue in (0, 1)
            for record in records_of(java.store, "Failing", queue)
        }
        for one in reply.letters:
            assert origins[one.origin_message_id] == one.message_id
        java.close()

    def test_a_letter_that_says_nothing_is_listed_all_the_same(self, broker: Retrying) -> None:
        broker.message(properties={}, topic="%DLQ%g")

        (letter,) = letters(broker).letters

        assert (letter.message_id, letter.origin_topic, letter.reason) == ("", "", "failed 0 times")

    def test_pages_follow_each_other(self, broker: Retrying) -> None:
        die(broker, 5)

        pages, at = [], 0
        while (reply := letters(broker, from_offset=at, max_letters=2)).letters:
            pages.append([letter.queue_offset for letter in reply.letters])
            at = reply.next_offset

        assert pages == [[0, 1], [2, 3], [4]]
        assert at == 5

    def test_a_page_is_bounded(self, tmp_path: Path) -> None:
        broker = Retrying(tmp_path, queue_file_size_bytes=6_000)
        broker.group()
        die(broker, 70)
        assert len(letters(broker).letters) == 64
        assert len(letters(broker, max_letters=LETTERS_MAX + 1).letters) == 70
        broker.close()

    def test_a_letter_larger_than_a_page_comes_alone(self, tmp_path: Path) -> None:
        broker = Retrying(tmp_path, log_file_size_bytes=1 << 23)
        broker.group()
        for size in (PAGE_BYTES + 1, 10, 10):
            broker.send_back(broker.message(b"x" * size), delay_level=-1)

        assert [letter.queue_offset for letter in letters(broker).letters] == [0]
        assert len(letters(broker, from_offset=1).letters) == 2
        broker.close()

    def test_a_group_without_dead_letters_has_none(self, broker: Retrying) -> None:
        assert letters(broker) == pb.DeadLettersReply()

    def test_those_of_a_group_that_is_gone_are_still_there(self, broker: Retrying) -> None:
        die(broker, 1)
        broker.groups.delete("g")

        assert len(letters(broker).letters) == 1

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"group": "nobody"}, GroupNotFound),
            ({"group": ""}, InvalidName),
            ({"from_offset": -1}, InvalidArgument),
            ({"max_letters": -1}, InvalidArgument),
        ],
    )
    def test_bad_questions_are_refused(
        self, broker: Retrying, fields: dict[str, Any], error: type[PocketMQError]
    ) -> None:
        with pytest.raises(error):
            letters(broker, **fields)

    def test_beyond_the_end_there_is_nothing(self, broker: Retrying) -> None:
        die(broker, 2)

        reply = letters(broker, from_offset=1 << 40)

        assert (len(reply.letters), reply.next_offset, reply.max_offset) == (0, 2, 2)


class TestResending:
    """Fresh copies in the origin topic, or in another."""

    async def test_a_copy_is_as_the_message_was_when_it_was_sent(self, broker: Retrying) -> None:
        make_topic(broker)
        properties = {"UNIQ_KEY": "id", "TAGS": "red", "KEYS": "k", "mine": "1"}
        original = broker.message(b"body", properties)
        broker.deliver()
        broker.timers.start()
        broker.send_back(original)
        await broker.clock.advance(10_000)
        broker.send_back(broker.last("%RETRY%g"), retry_max_times=1)
        await broker.timers.stop()

        (letter,) = await resend(broker, 0)

        copy = broker.last("T", letter.queue)
        assert (letter.topic, letter.new_queue_offset, letter.log_offset) == (
            "T",
            copy.queue_offset,
            copy.log_offset,
        )
        assert copy.properties == properties
        assert (copy.body, copy.reconsume_times, copy.topic) == (b"body", 0, "T")
        assert copy.born_timestamp_ms == original.born_timestamp_ms
        assert copy.log_offset != original.log_offset
        assert len(letters(broker).letters) == 1

    async def test_a_committed_message_of_a_transaction_is_an_ordinary_one_again(
        self, broker: Retrying
    ) -> None:
        make_topic(broker)
        append(
            broker,
            Record(
                topic="%DLQ%g",
                body=b"b",
                sys_flag=8,
                prepared_transaction_offset=77,
                properties={"RETRY_TOPIC": "T", "TRAN_MSG": "true", "PGROUP": "p", "DELAY": "0"},
            ),
        )

        (letter,) = await resend(broker, 0)

        copy = broker.last("T", letter.queue)
        assert (copy.sys_flag, copy.prepared_transaction_offset) == (0, 0)
        assert copy.properties == {"PGROUP": "p"}

    async def test_the_queues_of_the_topic_take_turns(self, broker: Retrying) -> None:
        make_topic(broker, "U")
        die(broker, 4)

        sent = await resend(broker, 0, 1, 2, 3, topic="U")

        assert [letter.queue for letter in sent] == [0, 1, 0, 1]
        assert bodies_of(broker.store, "U", 0) == [b"0", b"2"]
        assert bodies_of(broker.store, "U", 1) == [b"1", b"3"]

    async def test_in_the_groups_retry_topic_it_reaches_the_group_alone_and_names_its_origin(
        self, broker: Retrying
    ) -> None:
        (original,) = die(broker, 1)
        broker.topics.for_group("%RETRY%g", 1)

        await resend(broker, 0, topic="%RETRY%g")

        copy = broker.last("%RETRY%g")
        assert copy.reconsume_times == 0
        assert copy.properties == origin_of(original)

    async def test_what_cannot_be_sent_again_says_so_and_the_others_go(
        self, broker: Retrying
    ) -> None:
        make_topic(broker)
        make_topic(broker, "Locked", permission=4)
        die(broker, 1)
        die(broker, 1, topic="Gone")
        die(broker, 1, topic="Locked")
        broker.message(properties={}, topic="%DLQ%g")

        sent = await resend(broker, 3, 2, 1, 0, 9, -1, 0)

        assert [letter.queue_offset for letter in sent] == [3, 2, 1, 0, 9, -1]
        assert [letter.error.name for letter in sent] == [
            "InvalidArgument",
            "NotWritable",
            "TopicNotFound",
            "",
            "MessageNotFound",
            "MessageNotFound",
        ]
        assert sent[3].topic == "T"

    @pytest.mark.parametrize(
        ("topic", "error"),
        [
            ("nowhere", "TopicNotFound"),
            ("%DLQ%g", "InvalidName"),
            ("%RETRY%other", "InvalidName"),
            ("%RETRY%g", "TopicNotFound"),
            ("SCHEDULE_TOPIC_XXXX", "NotWritable"),
            ("rmq_sys_wheel_timer", "NotWritable"),
        ],
    )
    async def test_a_topic_that_takes_none_takes_none(
        self, broker: Retrying, topic: str, error: str
    ) -> None:
        die(broker, 1)
        before = broker.store.max_log_offset

        (letter,) = await resend(broker, 0, topic=topic)

        assert letter.error.name == error
        assert broker.store.max_log_offset == before

    async def test_many_are_sent_again_in_several_turns_of_the_loop(self, broker: Retrying) -> None:
        make_topic(broker)
        die(broker, 40)

        sending = asyncio.ensure_future(resend(broker, *range(40)))
        await asyncio.sleep(0)
        after_a_turn = len(bodies_of(broker.store, "T", 1))

        assert len(await sending) == 40
        assert (after_a_turn, len(bodies_of(broker.store, "T", 1))) == (8, 20)

    @pytest.mark.parametrize("count", [0, LETTERS_MAX + 1])
    async def test_the_number_of_letters_is_bounded(self, broker: Retrying, count: int) -> None:
        with pytest.raises(InvalidArgument, match="1 to 1000"):
            await resend(broker, *range(count))

    async def test_the_answer_waits_until_the_copies_are_safe(
        self, broker: Retrying, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_topic(broker)
        die(broker, 2)
        asked: list[Any] = []
        monkeypatch.setattr(broker.appends, "when_safe", lambda *args: asked.append(args))

        sending = asyncio.ensure_future(resend(broker, 0, 1))
        for _ in range(5):
            await asyncio.sleep(0)
        ((end_offset, done),) = asked
        assert (sending.done(), end_offset) == (False, broker.store.max_log_offset)
        done(DiskFailure("the device is gone"))

        with pytest.raises(DiskFailure):
            await sending


class TestPurging:
    """What is put away is not listed or sent any more."""

    async def test_a_purge_is_of_all_or_of_those_below_an_offset(self, broker: Retrying) -> None:
        die(broker, 5)

        some = await purge(broker, below_offset=2)
        assert (some.purged, some.min_offset) == (2, 2)
        assert [letter.queue_offset for letter in letters(broker).letters] == [2, 3, 4]
        everything = await purge(broker)
        assert (everything.purged, everything.min_offset) == (3, 5)
        assert len(letters(broker).letters) == 0
        die(broker, 1)
        assert [letter.queue_offset for letter in letters(broker).letters] == [5]

    async def test_it_never_brings_back_what_was_put_away(self, broker: Retrying) -> None:
        die(broker, 3)
        await purge(broker, below_offset=2)

        again = await purge(broker, below_offset=1)

        assert (again.purged, again.min_offset) == (0, 2)
        assert (await resend(broker, 1, topic="T"))[0].error.name == "MessageNotFound"

    async def test_the_mark_is_on_disk_as_an_offset_that_apaches_tools_know(
        self, broker: Retrying
    ) -> None:
        die(broker, 3)

        await purge(broker, below_offset=2)

        file = StateFile(OsDisk(), broker.store.config.path, "consumerOffset.json")
        table = file.load(parse_consumer_offsets).value
        assert table is not None
        assert table.offsets == {f"%DLQ%g@{DEAD_LETTERS_GROUP}": {0: 2}}
        broker.dead_letters._offsets = Offsets(file, broker.clock.now_ms)
        assert letters(broker).min_offset == 2

    async def test_it_waits_until_the_letters_are_on_the_device(
        self, broker: Retrying, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        die(broker, 2)
        asked: list[Any] = []
        monkeypatch.setattr(broker.store, "request_sync", lambda *args: asked.append(args))
        request = pb.PurgeDeadLettersRequest(group="g")

        purging = asyncio.ensure_future(broker.dead_letters.purge(request, CALL))
        await asyncio.sleep(0)
        ((end_offset, done),) = asked
        assert (purging.done(), end_offset) == (False, broker.store.max_log_offset)
        assert letters(broker).min_offset == 0
        done(None)

        assert (await purging).purged == 2

    async def test_a_mark_that_cannot_be_written_is_told(
        self, broker: Retrying, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        die(broker, 1)
        failure = DiskFailure("no")
        monkeypatch.setattr(broker.offsets, "when_saved", lambda done: done(failure))

        with pytest.raises(DiskFailure):
            await purge(broker)

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"group": "nobody"}, GroupNotFound),
            ({"below_offset": -1}, InvalidArgument),
            ({"below_offset": 3}, InvalidArgument),
        ],
    )
    async def test_bad_purges_change_nothing(
        self, broker: Retrying, fields: dict[str, Any], error: type[PocketMQError]
    ) -> None:
        die(broker, 2)

        with pytest.raises(error):
            await purge(broker, **fields)

        assert len(letters(broker).letters) == 2

    async def test_a_mark_beyond_the_end_hides_nothing_that_is_not_there(
        self, broker: Retrying
    ) -> None:
        die(broker, 2)
        broker.offsets.commit("%DLQ%g", DEAD_LETTERS_GROUP, 0, 99)

        assert letters(broker).min_offset == letters(broker).max_offset == 2


def append(broker: Retrying, record: Record) -> None:
    """Store RECORD as it is."""
    data = encode_record(record)
    columns = parse_run(data, starts_of([len(data)]))
    broker.store.append(
        Run(topic=record.topic, queue=record.queue_id, records=data, columns=columns)
    )
    broker.topics.for_group(record.topic, 1)


class TestMarks:
    """What was sent again is marked."""

    async def test_what_was_sent_again_is_marked_over_a_restart(self, broker: Retrying) -> None:
        make_topic(broker)
        die(broker, 6)

        await resend(broker, 1, 2, 4, 99)

        reply = letters(broker)
        assert [letter.resent for letter in reply.letters] == [0, 1, 1, 0, 1, 0]
        assert reply.resent_count == 3
        await purge(broker, below_offset=2)
        reply = letters(broker)
        assert [letter.resent for letter in reply.letters] == [1, 0, 1, 0]
        assert reply.resent_count == 2
        text = broker.offsets.metadata("%DLQ%g", DEAD_LETTERS_GROUP, 0)
        assert text == "1-2,4"

    async def test_what_failed_to_be_sent_is_not_marked(self, broker: Retrying) -> None:
        die(broker, 1, topic="Elsewhere")
        await resend(broker, 0, topic="nowhere")

        assert not letters(broker).letters[0].resent

    def test_ranges_join_and_are_bounded(self) -> None:
        marks = Resent("3-5,9,x,7-,-2")
        marks.add([6, 8, 10, 1])
        assert marks.text_from(0) == "1,3-10"
        assert [one in marks for one in (0, 1, 2, 3, 6, 11)] == [0, 1, 0, 1, 1, 0]
        many = Resent("")
        many.add(range(0, 4_000, 2))
        text = many.text_from(0)
        assert len(text) <= RANGES_SIZE_MAX
        assert text.endswith(",3996,3998")
        assert Resent(text).count(0, 4_000) > 150
        assert Resent(text).count(3_990, 3_999) == 5
