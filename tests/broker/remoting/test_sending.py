"""Sends over remoting: messages, batches, delays, retries; ids, and what is refused."""

from __future__ import annotations

import asyncio
import re
import struct
from pathlib import Path

import pytest

from pocketmq.proto.message_id import decode_offset_message_id
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.remoting.codes import RequestCode, ResponseCode
from pocketmq.proto.topics import dead_letter_topic, retry_topic

from .classic import Classic, consumer, records, sent, serving


def batch(*bodies: bytes) -> bytes:
    out = []
    for number, body in enumerate(bodies):
        properties = encode_properties({"UNIQ_KEY": f"ID{number}"})[:-1]
        size = 20 + len(body) + 2 + len(properties)
        head = struct.pack(">iiiii", size, 0, 0, number, len(body))
        out.append(head + body + struct.pack(">h", len(properties)) + properties)
    return b"".join(out)


@pytest.mark.parametrize("is_json", [True, False])
async def test_a_message_is_stored_as_it_was_sent(tmp_path: Path, is_json: bool) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        properties = {"UNIQ_KEY": "ID1", "KEYS": "k1", "TAGS": "t1"}
        fields = sent("orders", 1, properties) | {"h": 5, "j": 2}
        answer = await client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"hello", is_json=is_json)

        assert (answer.code, answer.remark) == (0, "")
        assert {**answer.fields, "msgId": ""} == {
            "msgId": "", "queueId": "1", "queueOffset": "0", "transactionId": "ID1", "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }  # fmt: skip
        host, port, at = decode_offset_message_id(answer.fields["msgId"])
        assert (host, port) == (bytes([127, 0, 0, 1]), broker.port)
        (record,) = records((await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": at})).body)
        assert (record.topic, record.queue_id, record.body) == ("orders", 1, b"hello")
        assert (record.flag, record.reconsume_times, record.properties) == (5, 2, properties)
        assert record.born_timestamp_ms == 1_700_000_000_000


async def test_old_clients_send_long_names(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        fields = {"producerGroup": "p", "topic": "orders", "queueId": 3, "sysFlag": 0, "bornTimestamp": 1,
                  "flag": 0, "properties": "TAGS\x01a\x02", "reconsumeTimes": 0}  # fmt: skip
        answer = await client.ask(RequestCode.SEND_MESSAGE, fields, b"old")

        assert (answer.code, answer.fields["queueId"]) == (0, "3")
        assert [one.body for one in records((await client.pull("orders", 3)).body)] == [b"old"]


async def test_a_batch_is_one_run_of_its_queue(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        await client.send("orders", b"first")
        fields = sent("orders") | {"m": "true"}
        answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, batch(b"a", b"bb", b"c"))

        assert (answer.code, answer.remark) == (0, "")
        assert answer.fields["queueOffset"] == "1"
        found = records((await client.pull("orders")).body)
        assert [(one.body, one.flag) for one in found[1:]] == [(b"a", 0), (b"bb", 1), (b"c", 2)]
        at = [decode_offset_message_id(one)[2] for one in answer.fields["msgId"].split(",")]
        assert at == [one.log_offset for one in found[1:]]


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", batch(b"a")[:-1], batch(b"a") + b"x", b"\0\0\0\x16" + bytes(16) + b"\xff" * 4],
)
async def test_a_malformed_batch_is_refused_completely(tmp_path: Path, body: bytes) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        answer = await client.ask(
            RequestCode.SEND_BATCH_MESSAGE, sent("orders") | {"m": "true"}, body
        )

        assert answer.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR)
        assert broker.store.max_log_offset == 0


async def test_a_message_without_answer_is_stored(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        client.begin(RequestCode.SEND_MESSAGE_V2, sent("orders"), b"one way", flag=2)
        client.begin(RequestCode.SEND_MESSAGE_V2, sent("%RETRY%unknown"), b"no group", flag=2)
        assert (await client.send("orders", b"next")).fields["queueOffset"] == "1"


async def test_a_delayed_message_waits_and_has_a_recall_handle(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        await client.send("orders", b"now")
        level = await client.send("orders", b"late", properties={"UNIQ_KEY": "a", "DELAY": "18"})
        timed = await client.send(
            "orders", b"late", properties={"UNIQ_KEY": "b", "TIMER_DELAY_SEC": "3600"}
        )

        assert (level.code, timed.code) == (0, 0)
        assert timed.fields["recallHandle"]
        assert "recallHandle" not in level.fields
        assert [one.body for one in records((await client.pull("orders")).body)] == [b"now"]


async def test_a_waiting_message_is_recalled(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        properties = {"UNIQ_KEY": "b", "TIMER_DELAY_SEC": "3600"}
        timed = await client.send("orders", b"late", properties=properties)
        wanted = {"topic": "orders", "recallHandle": timed.fields["recallHandle"]}
        answer = await client.ask(RequestCode.RECALL_MESSAGE, wanted)
        wrong = await client.ask(RequestCode.RECALL_MESSAGE, wanted | {"recallHandle": "x"})

        assert (answer.code, dict(answer.fields)) == (0, {"msgId": "b"})
        assert (wrong.code, bool(wrong.remark)) == (ResponseCode.SYSTEM_ERROR, True)


async def test_a_request_message_gets_its_cluster(tmp_path: Path) -> None:
    async with serving(tmp_path, cluster="c1") as broker, await Classic.connect(broker) as client:
        await client.send("orders", b"rq", properties={"UNIQ_KEY": "a", "REPLY_TO_CLIENT": "x"})
        (record,) = records((await client.pull("orders")).body)

        assert record.properties["CLUSTER"] == "c1"


async def test_a_failed_message_that_could_not_be_sent_back_is_retried_and_dies(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        await client.beat(consumer("g", "orders"))
        topic = retry_topic("g")
        again = await client.send(topic, b"x", j=1)
        dead = await client.send(topic, b"y", j=16)
        own = await client.send(topic, b"z", j=3, l=3)

        assert [one.code for one in (again, dead, own)] == [0, 0, 0]
        assert [one.body for one in records((await client.pull(topic)).body)] == [b"x"]
        found = records((await client.pull(dead_letter_topic("g"))).body)
        assert [one.body for one in found] == [b"y", b"z"]
        assert found[0].properties["DLQ_REASON"] == "failed 16 times"


async def test_refusals_name_the_field(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, auto_create_topics=False) as broker,
        await Classic.connect(broker) as client,
    ):
        cases = [
            ({}, 1, "field b is missing"),
            (sent("nope"), 17, "'nope' does not exist"),
            (sent("no good"), 13, "no good"),
            (sent("SCHEDULE_TOPIC_XXXX"), 16, "broker's own"),
            (sent("BenchmarkTest", 5_000), 1, "5000"),
            (sent("BenchmarkTest") | {"e": "x"}, 1, "field e is 'x'"),
            (sent("BenchmarkTest") | {"f": "8"}, 13, "transaction"),
            (sent("%RETRY%none"), 26, "none"),
            (sent("BenchmarkTest", properties={"a": "b" * 40_000}), 13, "32,?767"),
            (sent("BenchmarkTest", properties={"DELAY": "1", "TRAN_MSG": "true"}), 1, "DELAY"),
        ]  # fmt: skip
        for fields, code, words in cases:
            answer = await client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x")
            assert (answer.code, bool(answer.remark)) == (code, True), (fields, answer)
            assert re.search(words, answer.remark), answer.remark
        assert broker.store.max_log_offset == 0


async def test_many_sends_of_one_connection_are_answered_each(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        futures = [
            client.begin(RequestCode.SEND_MESSAGE_V2, sent("orders", -1), b"%d" % number)
            for number in range(500)
        ]
        answers = await asyncio.gather(*futures)

        assert {one.code for one in answers} == {0}
        assert len({one.fields["msgId"] for one in answers}) == 500
        assert {one.fields["queueId"] for one in answers} == {"0", "1", "2", "3"}
