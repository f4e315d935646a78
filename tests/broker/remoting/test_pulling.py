"""Pulls over remoting: codes and offsets, long polls, filters; committed offsets, and offsets of queues."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pocketmq.broker.broker import Broker
from pocketmq.broker.parts import BrokerParts
from pocketmq.broker.pop.receives import PoppedMessage, ReceiveRequest, ReceiveResult
from pocketmq.proto.remoting.codes import RequestCode, ResponseCode
from pocketmq.proto.remoting.fastjson import dumps
from pocketmq.proto.topics import retry_topic
from pocketmq.store.format.state_tables import parse_consumer_offsets

from .classic import SUBSCRIPTION, SUSPEND, Classic, consumer, pulled, records, serving

QUERY, UPDATE = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET


async def test_a_pull_returns_records_and_where_to_continue(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        for number in range(5):
            await client.send("orders", b"%d" % number)
        first = await client.pull("orders", maxMsgNums=3)
        rest = await client.pull("orders", offset=3)

        assert [one.body for one in records(first.body)] == [b"0", b"1", b"2"]
        assert (first.code, first.remark) == (0, "FOUND")
        assert dict(first.fields) == {
            "suggestWhichBrokerId": "0", "nextBeginOffset": "3", "minOffset": "0", "maxOffset": "5",
            "topicSysFlag": "0", "groupSysFlag": "0",
        }  # fmt: skip
        assert [one.body for one in records(rest.body)] == [b"3", b"4"]
        assert rest.fields["nextBeginOffset"] == "5"


async def test_a_pull_outside_the_queue_says_where_it_ends(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        await client.send("orders", b"x")
        for queue, offset, code, following in ((0, 1, 19, 1), (0, 9, 21, 1), (1, 0, 19, 0), (1, 9, 21, 0)):  # fmt: skip
            answer = await client.pull("orders", queue, offset)
            assert (answer.code, answer.fields["nextBeginOffset"]) == (code, str(following))
            assert not answer.body


async def test_a_long_poll_waits_for_a_message(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        await client.beat(consumer("g", "orders"))
        await client.send("orders", b"x")
        waiting = asyncio.ensure_future(client.pull("orders", offset=1, sysFlag=SUSPEND))
        short = await client.pull("orders", offset=1, sysFlag=SUSPEND, suspendTimeoutMillis=20)
        assert short.code == ResponseCode.PULL_NOT_FOUND
        assert not waiting.done()
        await client.send("orders", b"y")
        answer = await waiting

        assert [one.body for one in records(answer.body)] == [b"y"]


async def test_pulls_that_wait_end_with_their_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        async with await Classic.connect(broker) as client:
            await client.send("orders", b"x")
            for _ in range(3):
                client.begin(RequestCode.PULL_MESSAGE, {
                    "consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": 1, "maxMsgNums": 1,
                    "sysFlag": 6, "suspendTimeoutMillis": 60_000,
                })  # fmt: skip
            await client.pull("orders")
            assert broker.waiting == 3
        while broker.waiting:  # noqa: ASYNC110 (the test has a time limit)
            await asyncio.sleep(0)


async def test_a_pull_that_wants_no_answer_does_not_wait(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        await client.send("orders", b"x")
        for _ in range(3):
            fields = pulled("orders", 0, 1, "g") | {"sysFlag": SUSPEND | SUBSCRIPTION}
            client.begin(RequestCode.PULL_MESSAGE, fields, flag=2)
        await client.pull("orders")

        assert broker.waiting == 0


async def test_filters_come_from_the_request_or_from_heartbeats(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        for number, tag in enumerate("abab"):
            await client.send("orders", b"%d" % number, properties={"TAGS": tag, "n": str(number)})
        asked = await client.pull("orders", subscription="b")
        sql = await client.pull("orders", subscription="n > 1", expressionType="SQL92")
        none = await client.pull("orders", subscription="c")
        unknown = await client.pull("orders", sysFlag=0)
        await client.beat(consumer("g", "orders", expression="a"))
        known = await client.pull("orders", sysFlag=0, subVersion=1)
        newer = await client.pull("orders", sysFlag=0, subVersion=2)
        wrong = await client.pull("orders", subscription="n >", expressionType="SQL92")
        kind = await client.pull("orders", expressionType="JSON")

        assert [one.body for one in records(asked.body)] == [b"1", b"3"]
        assert [one.body for one in records(sql.body)] == [b"2", b"3"]
        assert (none.code, none.fields["nextBeginOffset"]) == (20, "4")
        assert unknown.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        assert [one.body for one in records(known.body)] == [b"0", b"2"]
        assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert kind.code == ResponseCode.SYSTEM_ERROR


async def test_a_client_has_its_filter_checked(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        for kind, expression, code in (
            ("SQL92", "n > 1", 0),
            ("SQL92", "n >", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            ("TAG", "a || b", 0),
            ("other", "a", ResponseCode.SYSTEM_ERROR),
        ):
            data = {"expressionType": kind, "subString": expression, "topic": "orders"}
            body = dumps({"clientId": "me@1", "group": "g", "subscriptionData": data})
            answer = await client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)
            assert (answer.code, bool(answer.remark)) == (code, code != 0)


async def test_offsets_are_committed_by_requests_and_by_pulls(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        for _ in range(4):
            await client.send("orders", b"x")
        await client.beat(consumer("g", "orders"))
        own = {"consumerGroup": "g"}
        assert await client.queue_offset(QUERY, "orders", consumerGroup="g") == "0"
        client.begin(UPDATE, {"topic": "orders", "queueId": 0, "commitOffset": 2} | own, flag=2)
        assert await client.queue_offset(QUERY, "orders", consumerGroup="g") == "2"
        await client.pull("orders", sysFlag=7, commitOffset=3, suspendTimeoutMillis=1)
        assert await client.queue_offset(QUERY, "orders", consumerGroup="g") == "3"
        wrong = await client.pull("orders", offset=3, sysFlag=7, commitOffset=9)
        assert (wrong.code, wrong.fields["nextBeginOffset"]) == (0, "4")
        late = await client.ask(UPDATE, {"topic": "orders", "queueId": 0, "commitOffset": 5} | own)
        assert (late.code, "ends at 4" in late.remark) == (1, True)


def parts_of(broker: Broker) -> BrokerParts:
    assert broker._running is not None
    return broker._running.parts


def saved_offset(broker: Broker) -> int:
    """Return the offset of group g in the first queue of orders that is in the file."""
    file = Path(parts_of(broker).store.config.path, "config", "consumerOffset.json")
    return parse_consumer_offsets(file.read_text()).offsets["orders@g"][0]


async def test_a_step_back_is_answered_once_it_is_saved(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        for _ in range(4):
            await client.send("orders", b"x")
        await client.beat(consumer("g", "orders"))
        own = {"consumerGroup": "g", "topic": "orders", "queueId": 0}
        for offset in (4, 3, 1):
            answer = await client.ask(UPDATE, {"commitOffset": offset} | own)
            assert answer.code == 0
            if offset < 4:
                assert saved_offset(broker) == offset


async def test_what_a_group_popped_before_is_finished_by_its_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pocketmq.broker.pop.service.POPS_MS", 0)  # Its gRPC clients are gone.
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        for _ in range(6):
            await client.send("orders", b"x")
        assert [one.offset for one in popped(broker, 2)] == [0, 1]
        own = {"consumerGroup": "g", "topic": "orders", "queueId": 0}
        for offset, following in ((4, [4, 5]), (1, [1, 2])):
            answer = await client.ask(UPDATE, {"commitOffset": offset} | own)
            assert answer.code == 0
            assert saved_offset(broker) == offset
            assert [one.offset for one in popped(broker, 2)] == following


def popped(broker: Broker, batch: int) -> list[PoppedMessage]:
    """Receive up to BATCH messages of orders for group g, as an official client of gRPC does."""
    answers: list[ReceiveResult] = []
    request = ReceiveRequest(
        group="g", topic="orders", client_id="c", batch=batch, invisible_ms=60_000
    )
    parts_of(broker).pops.receive(request, answers.append)
    return [one for answer in answers for one in answer.deliveries]


async def test_a_group_without_offset_is_told_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        await client.send("orders", b"x")
        fields = {
            "topic": "orders",
            "queueId": 0,
            "consumerGroup": "g",
            "setZeroIfNotFound": "false",
        }
        answer = await client.ask(QUERY, fields)

        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert answer.remark.startswith("Not found")


async def test_offsets_and_times_of_queues(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        for _ in range(3):
            await client.send("orders", b"x")
        (first, *_) = records((await client.pull("orders")).body)
        offset = client.queue_offset

        assert await offset(RequestCode.GET_MAX_OFFSET, "orders") == "3"
        assert await offset(RequestCode.GET_MIN_OFFSET, "orders") == "0"
        by_time = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        assert await offset(by_time, "orders", timestamp=0) == "0"
        assert await offset(by_time, "orders", timestamp=1 << 50) == "3"
        assert await offset(by_time, "orders", 1, timestamp=0) == "0"
        for queue, found in ((0, str(first.store_timestamp_ms)), (1, "-1")):
            fields = {"topic": "orders", "queueId": queue}
            answer = await client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, fields)
            assert answer.fields["timestamp"] == found


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 99}, ResponseCode.SYSTEM_ERROR),
        ({"queueOffset": "x"}, ResponseCode.SYSTEM_ERROR),
        ({"maxMsgNums": -1}, ResponseCode.SYSTEM_ERROR),
        ({"sysFlag": 1 << 40}, ResponseCode.SYSTEM_ERROR),
        ({"consumerGroup": ""}, ResponseCode.MESSAGE_ILLEGAL),
        ({"suspendTimeoutMillis": "9" * 30, "sysFlag": 6}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_bad_pull_is_refused(tmp_path: Path, changes: dict[str, object], code: int) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        await client.send("orders", b"x")
        answer = await client.ask(RequestCode.PULL_MESSAGE, {
            "consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4,
        } | changes)  # fmt: skip

        assert (answer.code, bool(answer.remark)) == (code, True)


async def test_a_returned_message_is_read_from_the_retry_topic(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        await client.beat(consumer("g", "orders"))
        await client.send("orders", b"x")
        (record,) = records((await client.pull("orders")).body)
        back = {"offset": record.log_offset, "group": "g", "delayLevel": 1, "originMsgId": "ID1",
                "originTopic": "orders", "unitMode": "false", "maxReconsumeTimes": 16}  # fmt: skip
        answer = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        retried = await client.pull(retry_topic("g"), sysFlag=6, suspendTimeoutMillis=8_000)
        (copy,) = records(retried.body)
        dead = back | {"offset": copy.log_offset, "delayLevel": 0, "maxReconsumeTimes": 1}
        await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, dead)
        (letter,) = records((await client.pull("%DLQ%g")).body)

        assert (answer.code, answer.remark) == (0, "")
        assert (copy.body, copy.reconsume_times) == (b"x", 1)
        assert copy.properties["RETRY_TOPIC"] == "orders"
        assert letter.properties["DLQ_ORIGIN_TOPIC"] == "orders"
        for changes, code in (({"offset": 1 << 40}, 22), ({"group": "none"}, 26), ({"offset": 3}, 22)):  # fmt: skip
            assert (
                await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back | changes)
            ).code == code


async def test_a_filter_with_half_of_a_surrogate_pair_is_a_filter(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        await client.send("orders", b"x", properties={"TAGS": "a"})
        await client.beat(consumer("g", "orders", expression="\ud800"))
        answer = await client.pull("orders", sysFlag=0)

        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
