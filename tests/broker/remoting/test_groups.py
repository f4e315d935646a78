"""Groups of classic clients: members, notifications, locks, and that no group has members of two protocols."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.remoting import members
from pocketmq.proto.errors import GroupInUse
from pocketmq.proto.remoting.codes import RequestCode, ResponseCode
from pocketmq.proto.remoting.fastjson import loads

from .classic import Classic, consumer, locked, queues, serving

LIST, NOTIFY = RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


async def ids(client: Classic, group: str = "g") -> list[str]:
    answer = await client.ask(LIST, {"consumerGroup": group})
    found: list[str] = loads(answer.body)["consumerIdList"] if answer.code == 0 else []
    return found


async def test_a_heartbeat_creates_group_and_retry_topic(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        answer = await client.beat(consumer("g", "orders"), producers=("p",))

        assert answer.code == 0
        assert dict(answer.fields) == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        max_offset = RequestCode.GET_MAX_OFFSET
        assert await client.queue_offset(max_offset, "%RETRY%g") == "0"
        assert await ids(client) == ["me@1"]


async def test_members_hear_of_each_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker, "a@1") as one:
        await one.beat(consumer("g", "orders"))
        assert (await one.next_request(NOTIFY)).fields == {"consumerGroup": "g"}
        two = await Classic.connect(broker, "b@1")
        await two.beat(consumer("g", "orders"))
        notified = await one.next_request(NOTIFY)
        assert (notified.flag, await ids(one)) == (2, ["a@1", "b@1"])
        await two.close()
        await one.next_request(NOTIFY)
        assert await ids(one) == ["a@1"]
        await one.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "a@1", "consumerGroup": "g"})
        assert await ids(one) == []


async def test_an_unchanged_heartbeat_notifies_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        await client.beat(consumer("g", "orders"))
        await client.next_request(NOTIFY)
        await client.beat(consumer("g", "orders"))
        assert client.received.empty()
        await client.beat(consumer("g", "orders", expression="a", subVersion=2))
        await client.next_request(NOTIFY)


async def test_a_heartbeat_may_leave_out_what_is_known(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        short: dict[str, Any] = {"heartbeatFingerprint": 5, "withoutSub": True}
        assert (await client.beat(**short)).fields["IS_SUB_CHANGE"] == "true"
        await client.beat(consumer("g", "orders"), heartbeatFingerprint=5)
        assert (await client.beat(**short)).fields["IS_SUB_CHANGE"] == "false"
        assert await ids(client) == ["me@1"]
        again = await client.beat(heartbeatFingerprint=6, withoutSub=True)
        assert again.fields["IS_SUB_CHANGE"] == "true"


async def test_a_reconnected_client_replaces_its_old_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as old:
        await old.beat(consumer("g", "orders"))
        async with await Classic.connect(broker) as new:
            await new.beat(consumer("g", "orders"))
            await old.close()
            await new.pull("orders")
            assert await ids(new) == ["me@1"]


async def test_one_id_on_two_connections_takes_no_more_memory_each_time(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as broker,
        await Classic.connect(broker) as one,
        await Classic.connect(broker) as other,
    ):
        assert broker._running is not None
        members = broker._running.parts.classic.members
        connections = set()
        for _ in range(3):
            for client in (one, other):
                await client.beat(producers=("p",))
                connections |= {each.connection for each in members._members.values()}

        assert [len(each._on_close) for each in connections] == [1, 1]
        await one.close()
        await other.beat(producers=("p",))
        assert len(members) == 1


async def test_a_silent_client_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "EXPIRY_MS", 30)
    monkeypatch.setattr(members, "_SCAN_MS", 10)
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        await client.beat(consumer("g", "orders"))
        while await ids(client):  # noqa: ASYNC110 (the test has a time limit)
            await asyncio.sleep(0.01)


async def test_a_queue_has_one_lock(tmp_path: Path) -> None:
    lock, unlock = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
    async with (
        serving(tmp_path) as broker,
        await Classic.connect(broker, "a@1") as one,
        await Classic.connect(broker, "b@1") as two,
    ):
        await one.send("orders", b"x")
        wanted = [("orders", 0), ("orders", 1), ("orders", 9), ("none", 0)]
        assert locked(await one.ask(lock, body=queues("g", "a@1", *wanted))) == []
        await one.beat(consumer("g", "orders"))
        await two.beat(consumer("g", "orders"))
        assert locked(await one.ask(lock, body=queues("g", "a@1", *wanted))) == wanted[:2]
        assert locked(await one.ask(lock, body=queues("g", "a@1", *wanted))) == wanted[:2]
        assert locked(await two.ask(lock, body=queues("g", "b@1", *wanted))) == []
        await two.ask(unlock, body=queues("g", "b@1", ("orders", 0)))
        await one.ask(unlock, body=queues("g", "a@1", ("orders", 1), ("%RETRY%g", 0)))
        assert locked(await two.ask(lock, body=queues("g", "b@1", *wanted))) == [("orders", 1)]
        await one.close()
        await two.next_request(NOTIFY)
        while len(await ids(two)) > 1:  # noqa: ASYNC110 (the test has a time limit)
            await asyncio.sleep(0)
        assert locked(await two.ask(lock, body=queues("g", "b@1", *wanted))) == wanted[:2]


async def test_a_connection_acts_for_its_own_client_only(tmp_path: Path) -> None:
    lock, unlock = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
    queue = ("orders", 0)
    async with (
        serving(tmp_path) as broker,
        await Classic.connect(broker, "a@1") as one,
        await Classic.connect(broker, "b@1") as other,
    ):
        await one.send("orders", b"x")
        await one.beat(consumer("g", "orders"))
        assert locked(await other.ask(lock, body=queues("g", "a@1", queue))) == []
        assert locked(await one.ask(lock, body=queues("g", "a@1", queue))) == [queue]
        await other.ask(unlock, body=queues("g", "a@1", queue))
        await other.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "a@1", "consumerGroup": "g"})
        assert await ids(other) == ["a@1"]
        await other.beat(consumer("g", "orders"))
        assert locked(await other.ask(lock, body=queues("g", "b@1", queue))) == []


async def test_a_group_has_members_of_one_protocol(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        assert broker._running is not None
        parts = broker._running.parts
        await client.send("orders", b"x")
        await client.beat(consumer("mine", "orders"))
        with pytest.raises(GroupInUse, match="remoting protocol"):
            parts.coordination.coordinator._check_join("mine")
        assert parts.pops._has_members("mine")

        parts.pops._popped_ms["theirs"] = parts.wall_timers.now_ms()
        refused = await client.beat(consumer("theirs", "orders"))
        assert (refused.code, "'theirs' has official clients that pop" in refused.remark) == (
            1,
            True,
        )
        own = {"topic": "orders", "queueId": 0, "consumerGroup": "theirs", "commitOffset": 1}
        for code, fields in (
            (LIST, own),
            (RequestCode.UPDATE_CONSUMER_OFFSET, own),
            (
                RequestCode.PULL_MESSAGE,
                own | {"queueOffset": 0, "sysFlag": 4, "maxMsgNums": 1},
            ),
        ):
            assert (await client.ask(code, fields)).code == ResponseCode.SYSTEM_ERROR
        lock = await client.ask(RequestCode.LOCK_BATCH_MQ, body=queues("theirs", "me@1"))
        assert lock.code == ResponseCode.SYSTEM_ERROR
        assert await ids(client, "mine") == ["me@1"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b"[" * 100_000, b" " * (1 << 20) + b"{}", b'{"clientID":5}',
        b'{"clientID":"a","consumerDataSet":5}',
        b'{"clientID":"a","consumerDataSet":[5]}', b'{"clientID":"a","consumerDataSet":[{}]}',
        b'{"clientID":"a","consumerDataSet":[{"groupName":"CID_RMQ_SYS_x"}]}',
        b'{"clientID":"a","producerDataSet":[{"groupName":"' + b"x" * 300 + b'"}]}',
        b'{"clientID":"a","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"\\u0000"}]}]}',
    ],
)  # fmt: skip
async def test_a_bad_heartbeat_is_refused(tmp_path: Path, body: bytes) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        for code in (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):  # fmt: skip
            answer = await client.ask(code, body=body)
            assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL)
            assert answer.remark


async def test_clients_and_their_groups_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, clients_max=1) as broker, await Classic.connect(broker) as client:
        await client.beat()
        async with await Classic.connect(broker, "other") as other:
            busy = await other.beat()
        assert (busy.code, "broker.clients_max" in busy.remark) == (ResponseCode.SYSTEM_BUSY, True)
        many = tuple(f"p{number}" for number in range(members.GROUPS_MAX + 1))
        assert (await client.beat(producers=many)).code == ResponseCode.SYSTEM_ERROR
        topics = [f"t{number}" for number in range(members.SUBSCRIPTIONS_MAX + 1)]
        assert (await client.beat(consumer("g", *topics))).code == ResponseCode.SYSTEM_ERROR


async def test_clients_of_one_connection_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        for number in range(members.IDS_MAX):
            client.name = f"client-{number}"
            assert (await client.beat()).code == ResponseCode.SUCCESS
        client.name = "one more"
        busy = await client.beat()
        assert (busy.code, "the limit" in busy.remark) == (ResponseCode.SYSTEM_BUSY, True)
        client.name = "client-0"
        assert (await client.beat()).code == ResponseCode.SUCCESS
