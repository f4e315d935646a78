"""Sends: what is stored, what is refused, and when the answer comes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from pocketmq.proto.errors import (
    DiskFailure,
    FlushTimeout,
    InvalidArgument,
    InvalidDelay,
    InvalidRecord,
    MessageTooLarge,
    Overloaded,
    PocketMQError,
    QueueNotFound,
    ShuttingDown,
    StoreFull,
    TopicNotFound,
    Unsupported,
)
from pocketmq.proto.errors_wire import from_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import (
    FIXED_SIZE_V4,
    MAGIC_V1,
    MAGIC_V2,
    SYS_COMMIT,
    SYS_INNER_BATCH,
    SYS_PREPARED,
    SYS_ROLLBACK,
    Record,
    encode_record,
    encode_run,
)
from pocketmq.proto.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from pocketmq.store.format.state_tables import TopicConfig

from ...numbered import numbered_run
from ...runs import BORN, bodies_of, records_of
from .sending import TOPIC, Rig


def run_of(bodies: Sequence[bytes] = (b"one", b"two"), **fields: object) -> pb.ProduceRun:
    records, sizes = encode_run(
        TOPIC, 0, [(body, b"") for body in bodies], born_timestamp_ms=1, born_host=BORN
    )
    return pb.ProduceRun(
        **{"run_id": 1, "topic": TOPIC, "records": records, "sizes": sizes, **fields}  # type: ignore[arg-type]
    )


def run_of_record(record: Record) -> pb.ProduceRun:
    data = encode_record(record)
    return pb.ProduceRun(topic=record.topic, records=data, sizes=[len(data)])


def record(body: bytes, sys_flag: int = 0, **properties: str) -> Record:
    """Return a record of a message with PROPERTIES."""
    return Record(
        topic=TOPIC,
        body=body,
        sys_flag=sys_flag,
        born_timestamp_ms=1_600_000_000_000,
        properties=properties,
    )


def half(body: bytes, sys_flag: int = SYS_PREPARED, **properties: str) -> Record:
    """Return a record of a half message."""
    needed = {"TRAN_MSG": "true", "PGROUP": "G", "UNIQ_KEY": body.decode()}
    return record(body, sys_flag, **needed, **properties)


def run_of_records(records: Sequence[Record], **fields: object) -> pb.ProduceRun:
    encoded = [encode_record(one) for one in records]
    data, sizes = b"".join(encoded), [len(one) for one in encoded]
    return pb.ProduceRun(topic=TOPIC, records=data, sizes=sizes, **fields)  # type: ignore[arg-type]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


async def test_a_send_to_memory_is_answered_at_once_and_told_to_who_waits(rig: Rig) -> None:
    await rig.send(run_of(durability=pb.MEMORY))

    (reply,) = rig.replies
    assert not reply.HasField("error")
    assert (reply.first_queue_offset, reply.durability) == (0, pb.MEMORY)
    assert rig.notified == [(TOPIC, 0)]
    assert bodies_of(rig.store, TOPIC, 0) == [b"one", b"two"]


async def test_a_send_to_disk_is_answered_when_the_device_has_it(rig: Rig) -> None:
    await rig.send(run_of(durability=pb.DISK))
    assert rig.replies == []
    assert rig.sends.waiting == 1

    rig.report()

    assert [reply.durability for reply in rig.replies] == [pb.DISK]
    assert rig.store.flushed_offset == rig.store.max_log_offset
    assert rig.sends.waiting == 0


async def test_sends_of_one_turn_share_a_sync(rig: Rig) -> None:
    await rig.send(*(run_of(run_id=run_id, durability=pb.DISK) for run_id in range(50)))

    rig.report()

    assert [reply.run_id for reply in rig.replies] == list(range(50))
    assert rig.reports.empty()


async def test_runs_of_one_turn_keep_their_order_whatever_their_size(rig: Rig) -> None:
    small, large = [b"s" * 50], [b"l" * 900] * 80
    await rig.send(*(run_of(bodies, run_id=n) for n, bodies in enumerate((small, large, small))))

    assert [reply.run_id for reply in rig.replies] == [0, 1, 2]
    assert [reply.first_queue_offset for reply in rig.replies] == [0, 1, 81]
    assert bodies_of(rig.store, TOPIC, 0) == [*small, *large, *small]
    assert rig.notified == [(TOPIC, 0)], "once a turn"


async def test_a_bad_run_among_good_ones_costs_only_itself(rig: Rig) -> None:
    await rig.send(
        run_of([b"a"], run_id=1), run_of([b"b"], run_id=2, queue=3), run_of([b"c"], run_id=3)
    )

    answers = {reply.run_id: reply.HasField("error") for reply in rig.replies}
    assert answers == {1: False, 2: True, 3: False}
    assert bodies_of(rig.store, TOPIC, 0) == [b"a", b"c"]


async def test_what_was_sent_is_counted_by_topic(rig: Rig) -> None:
    good, unknown = run_of([b"a", b"b"]), run_of([b"a"], topic="Nobody")
    await rig.send(good, run_of([b"b"], queue=3), unknown)
    await rig.send(good)

    counts = rig.sends.counts
    assert (counts.stored, counts.messages, counts.failed) == (2, 4, 2)
    assert list(counts.by_topic) == [TOPIC], "names that somebody makes up are not kept"
    topic = counts.by_topic[TOPIC]
    assert (topic.stored, topic.messages, topic.bytes) == (2, 4, 2 * len(good.records))
    assert topic.last_ms == rig.replies[-1].store_timestamp_ms
    counts.forget(TOPIC)
    assert not counts.by_topic


async def test_a_bug_in_the_store_is_answered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(runs: object) -> NoReturn:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rig.store, "append_many", broken)

    refused = await rig.refusal(run_of())

    assert refused.message == "internal error in the store"
    assert "a bug" in caplog.text


async def test_a_bug_behind_the_store_is_answered_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(rig.producers, "note", broken)

    refused = await rig.refusal(numbered_run([b"one"], 0))

    assert refused.message == "internal error in the store"
    assert "MemoryError" in caplog.text


async def test_an_answer_that_cannot_be_given_keeps_no_other_from_its_own(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(reply: pb.ProduceReply) -> NoReturn:
        raise MemoryError

    rig.sends.send(run_of(), broken)

    await rig.send(run_of())

    assert [reply.HasField("error") for reply in rig.replies] == [False]
    assert "MemoryError" in caplog.text


async def test_the_stores_own_durability_serves_who_asks_for_none(tmp_path: Path) -> None:
    rig = Rig(tmp_path, flush="sync", flush_waiting_max=1)
    await rig.send(run_of())
    assert rig.replies == []

    assert isinstance(await rig.refusal(run_of()), Overloaded), "its bound counts too"

    rig.report()
    assert [reply.durability for reply in rig.replies] == [pb.DISK]
    rig.close()


async def test_a_device_that_takes_too_long_is_told_and_its_late_answer_is_not(rig: Rig) -> None:
    rig.timers.start()
    await rig.send(run_of(durability=pb.DISK))
    await rig.clock.advance(4_999)
    assert rig.replies == []

    await rig.clock.advance(1)

    (reply,) = rig.replies
    assert isinstance(from_wire(reply.error), FlushTimeout)
    assert "flush_timeout_ms" in reply.error.message
    rig.report()
    assert len(rig.replies) == 1
    assert rig.sends.waiting == 0
    await rig.timers.stop()


async def test_a_failed_sync_fails_who_waits_and_every_later_send(rig: Rig) -> None:
    rig.disk.break_syncs("commitlog")
    await rig.send(*[run_of(durability=pb.DISK)] * 3)
    rig.report()
    rig.disk.heal()

    errors = [from_wire(reply.error) for reply in rig.replies]
    assert [type(error) for error in errors] == [DiskFailure] * 3
    later = await rig.refusal(run_of(durability=pb.MEMORY))

    assert isinstance(later, DiskFailure)
    assert "input/output error" in later.message, "the reason is told"


async def test_more_sends_than_may_wait_are_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, flush_waiting_max=2)
    for _ in range(2):
        await rig.send(run_of(durability=pb.DISK))

    refused = await rig.refusal(run_of(durability=pb.DISK))

    assert isinstance(refused, Overloaded)
    assert refused.details["limit"] == "2"
    assert len(bodies_of(rig.store, TOPIC, 0)) == 4, "nothing of it was stored"
    await rig.send(run_of(durability=pb.MEMORY))
    assert rig.replies.pop().durability == pb.MEMORY
    rig.report()
    rig.close()


@pytest.mark.parametrize(
    ("run", "error", "field"),
    [
        (run_of(durability=7), InvalidArgument, "durability"),
        (run_of(durability=pb.REPLICAS), Unsupported, "durability"),
        (run_of(topic="a b"), InvalidArgument, "topic"),
        (run_of(topic="Other"), InvalidRecord, "topic"),
        (run_of(queue=1), InvalidRecord, "queueId"),
        (run_of(records=bytes(200), sizes=[200]), InvalidRecord, "magicCode"),
        (
            run_of_record(Record(topic=TOPIC, body=b"x", sys_flag=SYS_PREPARED)),
            InvalidRecord,
            "sysFlag",
        ),
        (run_of_record(half(b"x", sys_flag=SYS_COMMIT)), InvalidRecord, "sysFlag"),
        (run_of_record(half(b"x", sys_flag=SYS_ROLLBACK)), InvalidRecord, "sysFlag"),
        (run_of_record(half(b"x", DELAY="1")), InvalidArgument, "DELAY"),
        (run_of_record(half(b"x", TIMER_DELIVER_MS="1")), InvalidArgument, "TIMER_DELIVER_MS"),
        (
            run_of_record(record(b"x", TIMER_DEL_UNIQKEY="ID")),
            InvalidArgument,
            "TIMER_DEL_UNIQKEY",
        ),
        (run_of_record(record(b"x", DELAY="soon")), InvalidDelay, "DELAY"),
        (
            run_of_record(Record(topic=TOPIC, body=b"x", sys_flag=SYS_INNER_BATCH)),
            InvalidRecord,
            "sysFlag",
        ),
    ],
    ids=[
        "durability",
        "replicas",
        "name",
        "topic",
        "queue",
        "magic",
        "prepared without TRAN_MSG",
        "committed",
        "rolled back",
        "half with a level",
        "half with an instant",
        "recall",
        "delay",
        "inner batch",
    ],
)
async def test_a_bad_run_is_refused_by_field(
    rig: Rig, run: pb.ProduceRun, error: type[PocketMQError], field: str
) -> None:
    refused = await rig.refusal(run)

    assert isinstance(refused, error), refused
    assert refused.details["field"] == field
    assert rig.store.max_log_offset == 0


async def test_a_bad_run_makes_no_topic(rig: Rig) -> None:
    assert isinstance(await rig.refusal(run_of(topic="New")), InvalidRecord)

    with pytest.raises(TopicNotFound):
        rig.topics.get("New")


async def test_a_queue_that_is_not_there_is_named(rig: Rig) -> None:
    refused = await rig.refusal(run_of_record(Record(topic=TOPIC, body=b"x", queue_id=4)))

    assert isinstance(refused, InvalidRecord), "the run says 0, its record 4"
    data = encode_record(Record(topic=TOPIC, body=b"x", queue_id=4))
    refused = await rig.refusal(
        pb.ProduceRun(topic=TOPIC, queue=4, records=data, sizes=[len(data)])
    )
    assert isinstance(refused, QueueNotFound)


async def test_a_run_that_is_too_large_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, batch_max_bytes=1024)

    refused = await rig.refusal(run_of([b"x" * 500] * 2))

    assert isinstance(refused, MessageTooLarge)
    assert refused.details["limit"] == "1024"
    rig.close()


@pytest.mark.parametrize("count", [1, 3, 40])
async def test_a_body_over_the_limit_of_the_store_is_refused(tmp_path: Path, count: int) -> None:
    rig = Rig(tmp_path, body_max=10)

    await rig.send(run_of([b"x" * 10] * count))
    refused = await rig.refusal(run_of([b"x" * 10] * (count - 1) + [b"x" * 11]))

    assert not rig.replies[0].HasField("error")
    assert isinstance(refused, MessageTooLarge)
    assert (refused.details["limit"], refused.details["value"]) == ("10", "11")
    assert f"record {count - 1}" in refused.message
    assert "store.message_size_max_bytes" in refused.message
    rig.close()


async def test_a_run_that_crosses_files_tells_where_each_record_is(rig: Rig) -> None:
    await rig.send(run_of([b"x" * 1000] * 8))

    (reply,) = rig.replies
    stored = records_of(rig.store, TOPIC, 0)
    assert list(reply.log_offsets) == [record.log_offset for record in stored]
    assert len(stored) == 8


async def test_a_long_topic_in_a_short_form_is_stored_in_the_long_one(rig: Rig) -> None:
    topic = "%RETRY%" + "g" * 190
    rig.topics.create(TopicConfig(name=topic, read_queues=1, write_queues=1), update=False)
    long = encode_record(Record(topic=topic, body=b"x", properties={"KEYS": "k"}))
    at = FIXED_SIZE_V4 - 3 + 1  # behind the body of one byte: the topic's length in two bytes
    short = bytearray(long[:at] + long[at + 1 :])
    short[0:4] = len(short).to_bytes(4, "big")
    short[4:8] = MAGIC_V1.to_bytes(4, "big", signed=True)

    await rig.send(pb.ProduceRun(topic=topic, records=bytes(short), sizes=[len(short)]))

    (stored,) = records_of(rig.store, topic, 0)
    assert (stored.magic, stored.topic, stored.properties) == (MAGIC_V2, topic, {"KEYS": "k"})
    (reply,) = rig.replies
    assert list(reply.log_offsets) == [stored.log_offset]


async def test_a_broker_that_stops_refuses(rig: Rig) -> None:
    rig.sends.refuse(ShuttingDown("soon"))

    assert isinstance(await rig.refusal(run_of()), ShuttingDown)


# --- what waits


async def test_a_run_of_all_kinds_tells_where_each_message_is(rig: Rig) -> None:
    now = rig.clock.now_ms()
    await rig.send(
        run_of_records(
            [
                record(b"timed", TIMER_DELIVER_MS=str(now + 5_500)),
                record(b"prompt"),
                half(b"half"),
                record(b"level", DELAY="2"),
                record(b"soon", TIMER_DELAY_MS="7"),
                record(b"prompt too", DELAY="0"),
            ]
        )
    )

    (reply,) = rig.replies
    assert not reply.HasField("error"), reply
    where = {
        topic: {
            one.body: (one.queue_offset, one.log_offset) for one in records_of(rig.store, topic, q)
        }
        for topic, q in [(TOPIC, 0), (HALF_TOPIC, 0), (SCHEDULE_TOPIC, 1), (TIMER_TOPIC, 0)]
    }
    assert {topic: list(found) for topic, found in where.items()} == {
        TOPIC: [b"prompt", b"prompt too"],
        HALF_TOPIC: [b"half"],
        SCHEDULE_TOPIC: [b"level"],
        TIMER_TOPIC: [b"timed", b"soon"],
    }
    places = {body: place for found in where.values() for body, place in found.items()}
    order = [b"timed", b"prompt", b"half", b"level", b"soon", b"prompt too"]
    told = zip(reply.queue_offsets, reply.log_offsets, strict=True)
    assert list(told) == [places[body] for body in order]
    assert (reply.first_queue_offset, reply.first_log_offset) == places[b"timed"]
    assert list(reply.due_ms) == [now + 5_500, 0, 0, now + 5_000, now + 7, 0]
    assert set(rig.notified) == {(TOPIC, 0), (HALF_TOPIC, 0), (SCHEDULE_TOPIC, 1), (TIMER_TOPIC, 0)}


async def test_a_timed_run_tells_its_place_in_the_timer_topic_and_its_times(rig: Rig) -> None:
    now = rig.clock.now_ms()
    for _ in range(2):
        await rig.send(run_of_records([record(b"%d" % n, TIMER_DELAY_SEC="3") for n in range(9)]))

    reply = rig.replies[1]
    assert reply.first_queue_offset == 9
    assert not reply.queue_offsets, "they follow each other"
    stored = records_of(rig.store, TIMER_TOPIC, 0)[9:]
    assert list(reply.log_offsets) == [one.log_offset for one in stored]
    assert list(reply.due_ms) == [now + 3_000] * 9


async def test_a_level_counts_from_the_time_that_the_store_gave(rig: Rig) -> None:
    now = rig.clock.now_ms()
    rig.sends.send(run_of_records([record(b"x", DELAY="1")]), rig.replies.append)
    rig.clock.start_at(now + 3)
    await asyncio.sleep(0)

    (reply,) = rig.replies
    slices = rig.store.read_queue(SCHEDULE_TOPIC, 0, 0, 1, 1 << 20)
    assert reply.store_timestamp_ms == now + 3
    assert slices.tags_codes.tolist() == list(reply.due_ms) == [now + 1_003]


async def test_a_level_counts_from_now_where_the_clock_was_set_back_behind_the_store(
    rig: Rig,
) -> None:
    await rig.send(run_of_records([record(b"before")]))
    rig.clock.step(-3_600_000)

    await rig.send(run_of_records([record(b"after", DELAY="1")]))

    assert list(rig.replies[-1].due_ms) == [rig.clock.unix_ms() + 1_000]


async def test_half_messages_lie_in_their_topic_without_the_prepared_type(rig: Rig) -> None:
    await rig.send(run_of_records([half(b"a"), half(b"b", sys_flag=0)]))

    (reply,) = rig.replies
    stored = records_of(rig.store, HALF_TOPIC, 0)
    assert [(one.body, one.sys_flag) for one in stored] == [(b"a", 0), (b"b", 0)]
    assert list(reply.log_offsets) == [one.log_offset for one in stored]
    assert not reply.due_ms
    assert bodies_of(rig.store, TOPIC, 0) == []


async def test_a_message_that_says_it_is_no_half_is_none(rig: Rig) -> None:
    await rig.send(run_of_records([record(b"x", TRAN_MSG="false")]))

    assert bodies_of(rig.store, TOPIC, 0) == [b"x"]


async def test_more_half_messages_than_there_is_room_for_are_refused(rig: Rig) -> None:
    run = run_of_records([half(b"%d" % n) for n in range(4)] + [record(b"x", DELAY="1")])

    assert isinstance(await rig.refusal(run), Overloaded)
    assert rig.store.max_log_offset == 0


async def test_errors_of_a_mixed_run_count_by_the_whole_run(rig: Rig) -> None:
    without_group = record(b"h", TRAN_MSG="true", UNIQ_KEY="K")
    refused = await rig.refusal(run_of_records([record(b"a"), without_group]))
    assert refused.details["index"] == "1"
    assert "record 1 of the batch" in refused.message

    refused = await rig.refusal(
        run_of_records([half(b"h"), record(b"a"), record(b"late", DELAY="x")])
    )
    assert refused.details["index"] == "2"
    assert "record 2 of the batch" in refused.message
    assert rig.store.max_log_offset == 0


async def test_a_slot_takes_so_many_messages_and_no_more(tmp_path: Path) -> None:
    rig = Rig(tmp_path, delay_slot_messages_max=5)
    now = rig.clock.now_ms()
    rig.slots = {now + 1_000: 3}

    def due(*instants: int) -> pb.ProduceRun:
        return run_of_records([record(b"x", TIMER_DELIVER_MS=str(one)) for one in instants])

    await rig.send(due(now + 1_001, now + 2_000, now + 2_001))
    assert not rig.replies.pop().HasField("error")
    refused = await rig.refusal(due(now + 2_001, now + 1_001, now + 1_500, now + 2_000))

    assert isinstance(refused, Overloaded)
    assert (refused.details["limit"], refused.details["value"]) == ("5", "6")
    assert len(bodies_of(rig.store, TIMER_TOPIC, 0)) == 3, "nothing of it was stored"
    rig.close()


@pytest.mark.parametrize("others", [0, 1])
async def test_a_send_of_which_a_part_finds_no_room_is_not_stored_and_can_be_sent_again(
    rig: Rig, others: int
) -> None:
    end = rig.store.max_log_offset
    divided = run_of_records([record(b"a" * 2500), record(b"b" * 2500, DELAY="1")], run_id=7)
    rig.disk.fail_create = lambda path: StoreFull("no room") if path.endswith("4096") else None
    await rig.send(divided, *[run_of([b"other"], run_id=8)] * others)

    first = rig.replies.pop(0)
    assert (first.run_id, type(from_wire(first.error))) == (7, StoreFull)
    assert [reply.HasField("error") for reply in rig.replies] == [False] * others
    assert bodies_of(rig.store, TOPIC, 0) == [b"other"] * others
    assert others or rig.store.max_log_offset == end

    rig.disk.heal()
    await rig.send(divided)
    assert not rig.replies.pop().HasField("error")
    assert bodies_of(rig.store, TOPIC, 0) == [b"other"] * others + [b"a" * 2500]
    assert bodies_of(rig.store, SCHEDULE_TOPIC, 0) == [b"b" * 2500], "level 1 has queue 0"


async def test_delayed_messages_reach_the_device_before_they_are_answered(rig: Rig) -> None:
    await rig.send(run_of_records([record(b"a", DELAY="1"), record(b"b")], durability=pb.DISK))
    assert rig.replies == []

    rig.report()

    assert [reply.durability for reply in rig.replies] == [pb.DISK]
    assert rig.store.flushed_offset == rig.store.max_log_offset


async def test_a_run_with_delays_makes_its_topic(rig: Rig) -> None:
    await rig.send(
        pb.ProduceRun(
            topic="New",
            records=(
                data := encode_record(Record(topic="New", body=b"x", properties={"DELAY": "1"}))
            ),
            sizes=[len(data)],
        )
    )

    assert not rig.replies[0].HasField("error")
    assert rig.topics.get("New").name == "New"


MESSAGES = {
    "NORMAL": record(b"n", KEYS="k"),
    "FIFO": record(b"f", __SHARDINGKEY="a"),
    "DELAY": record(b"d", DELAY="1"),
    "TRANSACTION": half(b"t"),
    "PRIORITY": record(b"p", _SYS_MSG_PRIORITY_="1"),
}


@pytest.mark.parametrize("sent", MESSAGES)
@pytest.mark.parametrize(
    "taken", ["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED", ""]
)
async def test_a_topic_takes_the_messages_of_its_type(
    tmp_path: Path, taken: str, sent: str
) -> None:
    rig = Rig(tmp_path)
    attributes = {"message.type": taken} if taken else {}
    rig.topics.create(
        TopicConfig(name=TOPIC, read_queues=4, write_queues=4, attributes=attributes), update=True
    )

    await rig.send(run_of_records([MESSAGES[sent], MESSAGES[sent]]))
    (reply,) = rig.replies

    if taken in (sent, "NORMAL", "MIXED", ""):
        assert not reply.HasField("error")
    else:
        assert reply.error.name == "InvalidArgument"
        assert (
            f"accepts {taken} messages (message.type), but record 0 is {sent}"
            in reply.error.message
        )
        assert rig.store.max_log_offset == 0
    rig.close()


async def test_one_message_of_another_type_refuses_its_run_unless_the_setting_is_off(
    tmp_path: Path,
) -> None:
    for check in (True, False):
        rig = Rig(tmp_path / str(check), topic_message_type_check=check)
        topic = TopicConfig(
            name=TOPIC, read_queues=4, write_queues=4, attributes={"message.type": "FIFO"}
        )
        rig.topics.create(topic, update=True)

        await rig.send(run_of_records([MESSAGES["FIFO"]] * 40 + [MESSAGES["NORMAL"]]))
        (reply,) = rig.replies

        assert reply.HasField("error") is check
        assert (
            not check or "record 40 is NORMAL: send it with sharding_key=…" in reply.error.message
        )
        rig.close()
