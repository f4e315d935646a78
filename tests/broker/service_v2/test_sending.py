"""SendMessage: stored where it belongs, answered when it is safe, as Apache answers or better."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.service_v2.sending import QueueChooser, queue_of_group
from pocketmq.proto.errors import Overloaded, ShuttingDown
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.properties import SHARDING_KEY
from pocketmq.proto.recall_handle import decode_handle
from pocketmq.proto.record import Host
from pocketmq.store.format.state_tables import TopicConfig

from ...fakes import FaultyDisk
from ...recorded_names import named_topics
from ...recorded_v2 import recorded_group
from .serving import RECORDED_MS, Served, answered

#: Where we answer otherwise on purpose: unknown topics are told as such, and a batch may hold whatever one message may.
BETTER: dict[str, v2.Code] = {
    "send-36": v2.BAD_REQUEST,
    "send-46": v2.OK,
    "send-47": v2.OK,
    "send-85": v2.TOPIC_NOT_FOUND,
    "send-90": v2.TOPIC_NOT_FOUND,
    "send-91": v2.TOPIC_NOT_FOUND,
}
TOPICS = named_topics(
    "R-",
    [
        "R-normal",
        "R-one",
        "R-fifo",
        "R-delay",
        "R-tx",
        "R-tx2",
        "R-mixed",
        "R-untyped",
        "R-priority",
        "R-lite",
        "R-readonly",
        "R-writeonly",
    ],
)


def recorded_sends() -> Iterator[dict[str, Any]]:
    for case in recorded_group("send")["cases"]:
        if case["rpc"] == "SendMessage" and case["responses"] and case["id"] != "send-94":
            yield case


async def test_recorded_requests_are_answered_as_apache_answers_or_better(tmp_path: Path) -> None:
    cases = list(recorded_sends())
    assert len(cases) > 85
    async with Served(tmp_path) as broker:
        for topic in TOPICS.values():
            broker.parts.topics.create(topic, update=False)
        for case in cases:
            if any(
                "@" in str(message.get("body")) for message in case["request"].get("messages", ())
            ):
                continue  # The limits of bodies are test_checks.py's.

            reply = await broker.ask("SendMessage", case["request"])

            apache = case["responses"][0]["body"]
            code = v2.Code.Value(apache["status"]["code"])
            assert reply.status.code == BETTER.get(case["id"], code), case["title"]
            sent = case["request"].get("messages", ())
            assert len(reply.entries) == (len(sent) if reply.status.code == v2.OK else 0)
            for entry, message in zip(reply.entries, sent, strict=False):
                assert entry.status == v2.Status(code=v2.OK, message="OK")
                assert entry.message_id == message["system_properties"]["message_id"]
                assert entry.transaction_id == entry.message_id
            if code == v2.OK and len(sent) == 1:
                assert bool(reply.entries[0].recall_handle) == bool(
                    apache["entries"][0].get("recall_handle")
                )


async def test_a_message_is_stored_with_all_that_it_says(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("T")

        reply = await broker.send(
            "T",
            b"text",
            tag="red",
            keys=["a", "", "b"],
            born_timestamp={"seconds": 1_600_000_000, "nanos": 5_999_999},
            born_host="10.0.0.1",
            body_encoding=v2.GZIP,
        )

        assert reply.entries[0].offset == 0
        (record,) = broker.records("T")
        assert record.body == b"text"
        assert record.sys_flag == 1
        assert record.born_timestamp_ms == 1_600_000_000_005
        assert record.born_host == Host(bytes((127, 0, 0, 1)), 1)
        assert record.store_timestamp_ms == RECORDED_MS
        assert record.properties == {
            "UNIQ_KEY": "id-0",
            "TAGS": "red",
            "KEYS": "a b",
            "__BORNHOST": "10.0.0.1",
            "BORN_TIMESTAMP": "1600000000005",
        }


async def test_messages_without_a_group_take_the_queues_in_turn(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("T")

        for _ in range(8):
            await broker.send("T", b"x", queue_id=3)

        assert [broker.store.queue_bounds("T", queue)[1] for queue in range(4)] == [2, 2, 2, 2]


async def test_many_requests_of_one_turn_are_stored_in_their_order(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("T", queues=1)

        replies = await asyncio.gather(*(broker.send("T", b"%d" % number) for number in range(40)))

        assert [reply.entries[0].offset for reply in replies] == list(range(40))
        assert [record.body for record in broker.records("T", 1)] == [b"%d" % n for n in range(40)]


@pytest.mark.parametrize("count", [3, 40])
async def test_a_batch_without_groups_lies_together_and_each_has_its_entry(
    tmp_path: Path, count: int
) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("T")

        reply = await broker.send("T", *(b"%d" % number for number in range(count)))

        assert [entry.offset for entry in reply.entries] == list(range(count))
        assert [entry.message_id for entry in reply.entries] == [f"id-{n}" for n in range(count)]
        assert [record.body for record in broker.records("T")] == [b"%d" % n for n in range(count)]


async def test_each_group_of_a_batch_stays_in_its_own_queue(tmp_path: Path) -> None:
    groups = ["g1", "g2", "g3", "g1", "g4", "g2"]
    async with Served(tmp_path) as broker:
        broker.topic("F", "FIFO")
        messages = [
            v2.Message(
                topic={"name": "F"},
                body=b"%d" % number,
                system_properties={"message_id": str(number), "message_group": group},
            )
            for number, group in enumerate(groups)
        ]

        reply = await broker.ask("SendMessage", v2.SendMessageRequest(messages=messages))

        assert reply.status.code == v2.OK
        for number, (group, entry) in enumerate(zip(groups, reply.entries, strict=True)):
            record = broker.record_at("F", queue_of_group(group, 4), entry.offset)
            assert record.body == b"%d" % number
            assert record.properties[SHARDING_KEY] == group


def test_groups_lie_apart_where_they_do_at_apache() -> None:
    # Fixture v2/send: the second message of g1 got the offset 1, and the first of g2 after it the offset 0.
    assert queue_of_group("g1", 4) != queue_of_group("g2", 4)


@pytest.mark.parametrize(("priority", "queue"), [(0, 0), (3, 3), (7, 7), (8, 7), (2**31 - 1, 7)])
async def test_a_priority_names_the_queue(tmp_path: Path, priority: int, queue: int) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("P", "PRIORITY", queues=8)

        await broker.send("P", b"x", priority=priority)

        record = broker.record_at("P", queue, 0)
        assert record.properties["_SYS_MSG_PRIORITY_"] == str(priority)


async def test_a_lite_topic_keeps_its_order(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("L", "LITE")

        for number in range(5):
            await broker.send("L", b"%d" % number, lite_topic="user-1")

        records = broker.records("L")
        assert [record.body for record in records] == [b"0", b"1", b"2", b"3", b"4"]
        assert len({record.queue_id for record in records}) == 1
        assert {record.properties["__LITE_TOPIC"] for record in records} == {"user-1"}


def test_turns_of_topics_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pocketmq.broker.service_v2.sending.TURNS_MAX", 3)
    choice = QueueChooser()

    queues = [
        choice.next_of(TopicConfig(name=name, read_queues=2, write_queues=2)) for name in "abcabc"
    ]

    assert set(queues) <= {0, 1}
    assert len(choice._turns) <= 3


async def test_a_delayed_message_comes_when_it_is_due_and_says_so(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("D", "DELAY")
        due_ms = broker.clock.now_ms() + 5_250
        due = {"seconds": due_ms // 1000, "nanos": due_ms % 1000 * 1_000_000}

        reply = await broker.send("D", b"x", delivery_timestamp=due)

        handle = decode_handle(reply.entries[0].recall_handle)
        assert handle == ("D", "broker-a", due_ms, "id-0")
        assert not broker.records("D")
        await broker.clock.advance(5_249)
        assert not broker.records("D")
        await broker.clock.advance(20)
        (record,) = broker.records("D")
        assert record.properties["TIMER_DELIVER_MS"] == str(due_ms)


@pytest.mark.parametrize("late_ms", [0, 1, 60_001, RECORDED_MS])
async def test_an_instant_that_has_passed_is_now(tmp_path: Path, late_ms: int) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("D", "DELAY")
        due_ms = broker.clock.now_ms() - late_ms

        reply = await broker.send(
            "D",
            b"x",
            delivery_timestamp={"seconds": due_ms // 1000, "nanos": due_ms % 1000 * 1_000_000},
        )

        assert reply.status.code == v2.OK
        assert not reply.entries[0].recall_handle
        assert [record.body for record in broker.records("D")] == [b"x"]


async def test_an_id_with_a_space_has_no_recall_handle(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("D", "DELAY")
        due = {"seconds": broker.clock.now_ms() // 1000 + 60}

        reply = await broker.send("D", b"x", message_id="a b", delivery_timestamp=due)

        assert reply.status.code == v2.OK
        assert not reply.entries[0].recall_handle


async def test_a_transaction_with_a_delivery_time_is_refused(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("M", "MIXED")

        reply = await broker.send(
            "M", b"x", message_type=v2.TRANSACTION, delivery_timestamp={"seconds": 1_795_228_999}
        )

        assert reply.status.code == v2.BAD_REQUEST
        assert "cannot be delayed as well" in reply.status.message


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_the_trailing_metadata_says_how_durable(tmp_path: Path, flush: str) -> None:
    async with Served(tmp_path, flush=flush) as broker:
        broker.topic("T")
        message = v2.Message(topic={"name": "T"}, body=b"x", system_properties={"message_id": "id"})

        call = broker.begin("SendMessage", v2.SendMessageRequest(messages=[message]))
        await answered(call)

        assert call.trailing == {"x-durable": {"async": "memory", "sync": "disk"}[flush]}
        synced = broker.store.flushed_offset == broker.store.max_log_offset
        assert synced or flush == "async"


async def test_a_message_that_did_not_reach_the_device_in_time_is_told_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Served(tmp_path, flush="sync") as broker:
        broker.topic("T")
        monkeypatch.setattr(broker.store, "request_sync", lambda *_: None)
        message = v2.Message(topic={"name": "T"}, body=b"x", system_properties={"message_id": "id"})

        call = broker.begin("SendMessage", v2.SendMessageRequest(messages=[message, message]))
        await broker.clock.advance(5_100)

        reply = call.answer
        assert reply.status.code == v2.MASTER_PERSISTENCE_TIMEOUT
        assert reply.entries == [v2.SendResultEntry(status=reply.status)] * 2
        assert not call.trailing
        assert len(broker.records("T")) == 2
        monkeypatch.undo()


async def test_a_disk_that_is_full_is_told_and_nothing_is_stored(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Served(tmp_path, disk=disk) as broker:
        broker.topic("T")
        disk.run_full("commitlog")

        reply = await broker.send("T", b"x")

        disk.heal()
        assert reply.status.code == v2.TOO_MANY_REQUESTS
        assert not reply.entries


async def test_a_broker_that_stops_takes_nothing(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("T")
        broker.parts.sends.refuse(ShuttingDown("soon"))

        reply = await broker.send("T", b"x")

        assert reply.status == v2.Status(code=v2.INTERNAL_SERVER_ERROR, message="soon")


async def test_too_many_half_messages_are_refused_before_any_is_stored(tmp_path: Path) -> None:
    async with Served(tmp_path, transactions_open_max=1) as broker:
        broker.topic("X", "TRANSACTION")

        reply = await broker.send("X", b"1", b"2", message_type=v2.TRANSACTION)

        assert reply.status.code == v2.TOO_MANY_REQUESTS
        assert not broker.parts.transactions.open_count


async def test_a_run_that_fails_beside_another_is_told_in_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("F", "FIFO")
        append_many = broker.store.append_many

        def second_fails(runs: Any) -> Any:
            return [append_many(runs[:1])[0], Overloaded("no more")]

        monkeypatch.setattr(broker.store, "append_many", second_fails)
        messages = [
            v2.Message(
                topic={"name": "F"},
                body=b"x",
                system_properties={"message_id": group, "message_group": group},
            )
            for group in ("g1", "g2")
        ]
        assert queue_of_group("g1", 4) != queue_of_group("g2", 4)

        reply = await broker.ask("SendMessage", v2.SendMessageRequest(messages=messages))

        assert reply.status.code == v2.MULTIPLE_RESULTS
        assert [entry.status.code for entry in reply.entries] == [v2.OK, v2.TOO_MANY_REQUESTS]
        assert reply.entries[0].message_id == "g1"


async def test_a_topic_without_a_queue_to_write_is_forbidden(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        topic = TopicConfig(name="T", read_queues=1, write_queues=0)
        broker.parts.topics.table.put("T", topic)

        reply = await broker.send("T", b"x")

        assert reply.status.code == v2.FORBIDDEN
