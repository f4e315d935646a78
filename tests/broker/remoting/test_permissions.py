"""A broker with users and classic clients: each request needs what it needs over gRPC, and nothing leads past that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from pocketmq.broker.assembly import remoting_handlers
from pocketmq.broker.broker import Broker
from pocketmq.broker.remoting.members import SUBSCRIPTIONS_MAX
from pocketmq.broker.remoting.permissions import broker_rules
from pocketmq.proto.access.users import Users, read_users
from pocketmq.proto.message_id import decode_offset_message_id
from pocketmq.proto.record import Record, decode_record, encode_record
from pocketmq.proto.remoting.codes import RequestCode, ResponseCode
from pocketmq.proto.remoting.command import RemotingCommand
from pocketmq.proto.remoting.fastjson import loads

from ...integration.test_permissions import write_users
from .classic import Classic, consumer, pulled, queues, records, sent, serving

DENIED: Final = ResponseCode.NO_PERMISSION
USERS: Final[dict[str, Any]] = {
    "alice": {
        "secret": "alice-secret",
        "policies": [
            {"resource": "Topic:orders", "actions": "Pub,Sub"},
            {"resource": "Group:billing", "actions": "Sub"},
            {"resource": "Topic:DefaultCluster_REPLY_TOPIC", "actions": "Pub"},
        ],
    },
    "bob": {
        "secret": "bob-secret",
        "policies": [
            {"resource": "Topic:secret", "actions": "Pub,Sub"},
            {"resource": "Group:bobs", "actions": "Sub"},
            {"resource": "Group:billing", "actions": "Sub"},
        ],
    },
    "root": {"secret": "root-secret", "type": "Super"},
}


@asynccontextmanager
async def stage(
    folder: Path, *, name: str = "me@1", **settings: Any
) -> AsyncIterator[tuple[Broker, Classic, Classic]]:
    """Yield a broker with USERS, and the connections of alice and root."""
    async with (
        serving(folder, users=write_users(folder, USERS), **settings) as broker,
        await Classic.connect(broker, name) as alice,
        await Classic.connect(broker, "root@1") as root,
    ):
        yield broker, alice.sign_as("alice"), root.sign_as("root")


def replace(broker: Broker, **changes: Any) -> None:
    """Change users; None removes one."""
    named = {name: one for name, one in (USERS | changes).items() if one is not None}
    assert broker._asked_users is not None
    entries = read_users({"users": named}, "users.yaml")
    broker._asked_users.guard.replace(Users(entries.values(), lambda _, text: text))


def members(broker: Broker) -> int:
    assert broker._running is not None
    return len(broker._running.parts.classic.members)


def at(answer: RemotingCommand) -> int:
    """Return the log offset in the answer to a send."""
    assert answer.code == 0, answer
    return decode_offset_message_id(answer.fields["msgId"])[2]


async def test_every_handler_has_a_rule(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        assert broker._running is not None
        handlers = remoting_handlers(broker._running.parts, broker._config, lambda: 0)
        rules = broker_rules(broker.store, "DefaultCluster")
        assert handlers.keys() == rules.keys()


def subscribed(group: str, topic: str) -> bytes:
    body = {"clientID": "me@1", "producerDataSet": [], "consumerDataSet": [consumer(group, topic)]}
    return json.dumps(body).encode()


def checked(group: str, topic: str) -> bytes:
    return json.dumps(
        {"clientId": "me@1", "group": group, "subscriptionData": {"topic": topic, "subString": "*"}}
    ).encode()


def long_names(topic: str) -> dict[str, Any]:
    return {"producerGroup": "pg", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
            "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": ""}  # fmt: skip


def of_queue(group: str, topic: str) -> dict[str, Any]:
    return {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 0, "timestamp": 0}


def keyed(topic: str) -> dict[str, Any]:
    return {"topic": topic, "key": "k", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1 << 50}


IN_BATCH = b"\0\0\0\x17" + bytes(12) + b"\0\0\0\x01x" + b"\0\0"
#: Each request that names group and topic: its code, and fields and body made of them.
REQUESTS: Final[list[tuple[int, Callable[[str, str], dict[str, Any]], Callable[[str, str], bytes]]]] = [
    (RequestCode.SEND_MESSAGE, lambda _, topic: long_names(topic), lambda *_: b"x"),
    (RequestCode.SEND_MESSAGE_V2, lambda _, topic: sent(topic), lambda *_: b"x"),
    (RequestCode.SEND_BATCH_MESSAGE, lambda _, topic: sent(topic), lambda *_: IN_BATCH),
    (RequestCode.RECALL_MESSAGE, lambda _, topic: {"topic": topic, "recallHandle": "x"}, lambda *_: b""),
    (RequestCode.PULL_MESSAGE, lambda group, topic: pulled(topic, 0, 0, group), lambda *_: b""),
    (RequestCode.LITE_PULL_MESSAGE, lambda group, topic: pulled(topic, 0, 0, group), lambda *_: b""),
    (RequestCode.QUERY_CONSUMER_OFFSET, of_queue, lambda *_: b""),
    (RequestCode.UPDATE_CONSUMER_OFFSET, of_queue, lambda *_: b""),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, of_queue, lambda *_: b""),
    (RequestCode.GET_MAX_OFFSET, of_queue, lambda *_: b""),
    (RequestCode.GET_MIN_OFFSET, of_queue, lambda *_: b""),
    (RequestCode.GET_EARLIEST_MSG_STORETIME, of_queue, lambda *_: b""),
    (RequestCode.QUERY_MESSAGE, lambda _, topic: keyed(topic), lambda *_: b""),
    (RequestCode.HEART_BEAT, lambda *_: {}, subscribed),
    (RequestCode.CHECK_CLIENT_CONFIG, lambda *_: {}, checked),
    (RequestCode.LOCK_BATCH_MQ, lambda *_: {}, lambda group, topic: queues(group, "me@1", (topic, 0))),
    (RequestCode.UNLOCK_BATCH_MQ, lambda *_: {}, lambda group, topic: queues(group, "me@1", (topic, 0))),
    (RequestCode.UNREGISTER_CLIENT, lambda group, _: {"clientID": "x", "consumerGroup": group}, lambda *_: b""),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, lambda group, _: {"consumerGroup": group}, lambda *_: b""),
]  # fmt: skip
NAMES_NO_GROUP: Final = {10, 310, 320, 370, 29, 30, 31, 32, 12}
NAMES_NO_TOPIC: Final = {35, 38}
#: These address a message by its log offset, or name a client: each has a test below.
OTHERS: Final = {33, 36, 37, 324, 325}


async def test_each_request_needs_group_and_topic_that_it_names(tmp_path: Path) -> None:
    async with stage(tmp_path) as (broker, alice, root):
        for topic in ("orders", "secret"):
            assert (await root.send(topic, b"first")).code == 0
        assert (await root.beat(consumer("billing", "orders"))).code == 0
        assert {code for code, *_ in REQUESTS} | OTHERS == set(
            broker_rules(broker.store, "DefaultCluster")
        )
        for code, fields, body in REQUESTS:
            end, before = broker.store.max_log_offset, members(broker)
            for group, topic, is_denied in (
                ("billing", "secret", code not in NAMES_NO_TOPIC),
                ("others", "orders", code not in NAMES_NO_GROUP),
                ("billing", "%RETRY%others", code not in NAMES_NO_TOPIC),
                ("billing", "%DLQ%others", code not in NAMES_NO_TOPIC),
                ("billing", "SCHEDULE_TOPIC_XXXX", code not in NAMES_NO_TOPIC),
                ("billing", "RMQ_SYS_TRANS_HALF_TOPIC", code not in NAMES_NO_TOPIC),
                ("billing", "missing", code not in NAMES_NO_TOPIC),
            ):
                if not is_denied:
                    continue
                asked = fields(group, topic), body(group, topic)
                alice.begin(code, *asked, flag=2)
                answer = await alice.ask(code, *asked)
                assert answer.code == DENIED, (RequestCode(code), group, topic, answer)
                named = topic.removeprefix("%RETRY%").removeprefix("%DLQ%")
                assert named in answer.remark or "others" in answer.remark
                assert not answer.body
            assert (broker.store.max_log_offset, members(broker)) == (end, before), code
        for code, fields, body in REQUESTS:
            answer = await alice.ask(code, fields("billing", "orders"), body("billing", "orders"))
            assert answer.code != DENIED, (RequestCode(code), answer)


async def test_a_heartbeat_needs_each_of_its_groups_and_topics(tmp_path: Path) -> None:
    async with stage(tmp_path) as (broker, alice, _):
        for refused in (
            [consumer("billing", "orders"), consumer("others", "orders")],
            [consumer("billing", "orders", "secret")],
            [consumer("billing", "orders", "%RETRY%others")],
        ):
            assert (await alice.beat(*refused)).code == DENIED
            assert (await alice.beat(*refused, withoutSub=True)).code == DENIED
        assert members(broker) == 0
        assert broker._running is not None
        assert broker._running.parts.groups.find("others") is None
        good = await alice.beat(consumer("billing", "orders", "%RETRY%billing"), producers=("pg",))
        assert good.code == 0
        assert members(broker) == 1


async def test_retries_of_a_group_need_sub_on_the_group(tmp_path: Path) -> None:
    async with stage(tmp_path) as (broker, alice, _):
        assert (await alice.beat(consumer("billing", "orders"))).code == 0
        failed = {"UNIQ_KEY": "A", "RETRY_TOPIC": "secret"}
        more = {"j": 1, "l": 16}
        retried = await alice.send("%RETRY%billing", b"again", properties=failed, **more)
        assert retried.code == 0
        assert (await alice.pull("%RETRY%billing", group="billing")).code == 0
        dead = await alice.send("%RETRY%billing", b"dead", properties=failed, j=16, l=16)
        assert dead.code == 0
        assert (await alice.pull("%DLQ%billing", group="billing")).code == 0
        end = broker.store.max_log_offset
        assert (await alice.send("%RETRY%others", b"x", properties=failed, **more)).code == DENIED
        assert broker.store.max_log_offset == end


@pytest.mark.parametrize(
    "properties",
    [
        {"DELAY": "1", "REAL_TOPIC": "secret", "REAL_QID": "0"},
        {"TIMER_DELAY_MS": "50", "REAL_TOPIC": "secret", "REAL_QID": "0"},
    ],
)
async def test_properties_lead_a_delayed_message_nowhere_else(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    async with stage(tmp_path) as (_, alice, root):
        await root.send("secret", b"first")
        assert (
            await alice.send("orders", b"late", properties={"UNIQ_KEY": "A", **properties})
        ).code == 0
        body = b""
        for _ in range(100):
            body = (await root.pull("orders", group="root")).body
            if body:
                break
            await asyncio.sleep(0.05)
        assert [one.body for one in records(body)] == [b"late"]
        found = records((await root.pull("secret", group="root")).body)
        assert [one.body for one in found] == [b"first"]


HALF = {"UNIQ_KEY": "TX1", "TRAN_MSG": "true", "PGROUP": "pg", "REAL_TOPIC": "orders"}


def ending(offset: int, **more: Any) -> dict[str, Any]:
    return {
        "producerGroup": "pg", "tranStateTableOffset": 0, "commitLogOffset": offset, "commitOrRollback": 8,
        "fromTransactionCheck": "false", "msgId": "TX1", "transactionId": "TX1", **more,
    }  # fmt: skip


async def test_a_transaction_needs_pub_on_the_topic_of_its_half_message(tmp_path: Path) -> None:
    async with stage(tmp_path) as (broker, alice, root):
        half = at(await root.send("secret", b"tx", properties=HALF, f=4))
        own = at(
            await alice.send("orders", b"x", properties={"UNIQ_KEY": "TX1", "REAL_TOPIC": "secret"})
        )
        end = broker.store.max_log_offset
        for place in (half, own, 7, 1 << 40):
            answer = await alice.ask(RequestCode.END_TRANSACTION, ending(place, topic="orders"))
            assert answer.code == DENIED
            assert answer.remark == (
                f"User:alice has no permission to access the message at log offset {place} from 127.0.0.1."
            )
        # A message of one's own that claims to be a half message of orders does not help either.
        fake = at(
            await alice.send("orders", b"x", properties={"UNIQ_KEY": "TX1", "REAL_TOPIC": "orders"})
        )
        end = broker.store.max_log_offset
        answer = await alice.ask(RequestCode.END_TRANSACTION, ending(fake))
        assert answer.code not in (0, DENIED)
        assert "secret" not in answer.remark
        assert broker.store.max_log_offset == end
        assert broker._running is not None
        assert broker._running.parts.transactions.open_count == 1

        mine = await alice.send("orders", b"tx", properties=HALF | {"UNIQ_KEY": "TX2"}, f=4)
        good = ending(at(mine), transactionId="TX2", msgId="TX2")
        assert (await alice.ask(RequestCode.END_TRANSACTION, good)).code == 0


async def test_a_check_of_a_transaction_goes_to_a_producer_that_may_send_to_its_topic(
    tmp_path: Path,
) -> None:
    async with (
        stage(tmp_path, transaction_timeout_ms=50) as (broker, alice, root),
        await Classic.connect(broker, "bob@1") as bob,
    ):
        bob.sign_as("bob")
        assert (await alice.beat(producers=("pg",))).code == 0
        assert (await bob.beat(producers=("pg",))).code == 0
        at(await root.send("secret", b"tx", properties=HALF, f=4))
        asked = await bob.next_request(RequestCode.CHECK_TRANSACTION_STATE)
        assert decode_record(asked.body).topic == "secret"
        replace(broker, bob=None)
        at(await root.send("orders", b"tx2", properties=HALF | {"UNIQ_KEY": "TX2"}, f=4))
        asked = await alice.next_request(RequestCode.CHECK_TRANSACTION_STATE)
        assert decode_record(asked.body).topic == "orders"
        assert alice.received.empty()


async def test_a_message_at_an_offset_needs_its_own_topic(tmp_path: Path) -> None:
    """Whatever topic the request names; only a user who may read everything learns that there is none."""
    async with stage(tmp_path) as (_, alice, root):
        orders, secret = at(await root.send("orders", b"a")), at(await root.send("secret", b"b"))
        view = RequestCode.VIEW_MESSAGE_BY_ID
        answer = await alice.ask(view, {"offset": orders, "topic": "secret"})
        assert decode_record(answer.body).body == b"a"
        for place in (secret, secret + 1, 1 << 40):
            answer = await alice.ask(view, {"offset": place, "topic": "orders"})
            assert (answer.code, answer.body) == (DENIED, b"")
            assert answer.remark == (
                f"User:alice has no permission to access the message at log offset {place} from 127.0.0.1."
            )
        assert decode_record((await root.ask(view, {"offset": secret})).body).body == b"b"
        assert (await root.ask(view, {"offset": 1 << 40})).code == ResponseCode.SYSTEM_ERROR


async def test_a_body_that_looks_like_a_record_shows_nothing_of_the_next_message(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as (broker, alice, root):
        begin = at(await alice.send("orders", b"x" * 400))
        data = broker.store.read_at(begin)
        assert data is not None
        next_body = broker.store.max_log_offset + data.index(b"x" * 400)
        fake = Record(topic="orders", body=b"", queue_id=0, queue_offset=0, log_offset=next_body)
        plain = bytearray(encode_record(fake))
        reach = 200  # So many bytes of properties follow: those of this message, and the next one.
        plain[:4] = (len(plain) + reach).to_bytes(4)
        plain[-2:] = reach.to_bytes(2)
        placed = at(await alice.send("orders", bytes(plain)))
        await root.send("secret", b"hidden" * 100)
        assert placed + data.index(b"x" * 400) == next_body

        answer = await alice.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": next_body})
        assert (answer.code, answer.body) == (DENIED, b"")


async def test_to_send_a_message_back_needs_its_topic_and_the_group(tmp_path: Path) -> None:
    async with stage(tmp_path) as (broker, alice, root):
        orders, secret = at(await root.send("orders", b"a")), at(await root.send("secret", b"b"))
        assert (await alice.beat(consumer("billing", "orders"))).code == 0
        back, end = RequestCode.CONSUMER_SEND_MSG_BACK, broker.store.max_log_offset
        for group, place in (("billing", secret), ("others", orders), ("billing", 1 << 40)):
            fields = {"group": group, "offset": place, "delayLevel": 1, "originTopic": "orders"}
            answer = await alice.ask(back, fields)
            assert answer.code == DENIED
            assert "secret" not in answer.remark
        assert broker.store.max_log_offset == end
        fields = {"group": "billing", "offset": orders, "delayLevel": 1}
        assert (await alice.ask(back, fields)).code == 0


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2]
)
async def test_a_reply_needs_pub_on_the_topic_of_replies(tmp_path: Path, code: int) -> None:
    properties = {"REPLY_TO_CLIENT": "me@1", "CORRELATION_ID": "1"}
    async with (
        stage(tmp_path) as (broker, alice, _),
        await Classic.connect(broker, "bob@1") as bob,
    ):
        bob.sign_as("bob")
        await alice.beat(producers=("pg",))
        fields = sent("orders", properties=properties)
        if code == RequestCode.SEND_REPLY_MESSAGE:
            fields = long_names("secret") | {"properties": fields["i"]}
        assert (await bob.ask(code, fields, b"re")).code == DENIED
        assert (await alice.ask(code, fields, b"re")).code == 0
        pushed = await alice.next_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
        assert pushed.body == b"re"
        assert pushed.fields.keys() & {"AccessKey", "Signature"} == set()
        # To store a message in that topic needs what every system topic needs.
        assert (await alice.send("DefaultCluster_REPLY_TOPIC", b"x")).code == DENIED


async def test_another_user_cannot_take_the_client_id_of_a_connected_client(tmp_path: Path) -> None:
    async with (
        stage(tmp_path) as (broker, alice, _),
        await Classic.connect(broker, "me@1") as bob,
    ):
        bob.sign_as("bob")
        assert (await alice.beat(consumer("billing", "orders"))).code == 0
        answer = await bob.beat(consumer("billing"))
        assert answer.code == DENIED
        assert answer.remark.startswith(
            "client id 'me@1' is that of a connected client of another user"
        )
        assert (await alice.ask(RequestCode.LOCK_BATCH_MQ, {}, queues("billing", "me@1"))).code == 0
        await alice.close()
        while members(broker):  # noqa: ASYNC110 (the test has a time limit)
            await asyncio.sleep(0.01)
        assert (await bob.beat(consumer("billing"))).code == 0


@pytest.mark.parametrize(
    "alice", [None, {"secret": "another"}, {"secret": "alice-secret", "policies": []}]
)
async def test_a_client_that_lost_its_permission_is_disconnected(
    tmp_path: Path, alice: dict[str, Any] | None
) -> None:
    async with stage(tmp_path) as (broker, client, root):
        await root.send("orders", b"first")
        assert (await client.beat(consumer("billing", "orders"))).code == 0
        waiting = client.begin(
            RequestCode.PULL_MESSAGE, pulled("orders", 0, 1, "billing") | {"sysFlag": 6}
        )
        await root.send("orders", b"x", queue=1)
        replace(broker, alice=alice)
        assert members(broker) == 0
        await asyncio.wait_for(asyncio.shield(client._task), 5)  # The end of the connection.
        await root.send("orders", b"second")
        assert not waiting.done()
        async with await Classic.connect(broker) as again:
            again.sign_as("alice")
            assert (await again.beat(consumer("billing", "orders"))).code == DENIED


async def test_a_heartbeat_with_too_many_topics_leaves_nothing_behind(tmp_path: Path) -> None:
    async with stage(tmp_path) as (broker, _, root):
        topics = [f"t{number}" for number in range(SUBSCRIPTIONS_MAX + 1)]
        refused = await root.beat(consumer("g", *topics))
        assert "the limit is 1024" in refused.remark
        users = broker._asked_users
        assert users is not None
        (known,) = users.guard._open
        assert not known._needs  # type: ignore[attr-defined]


async def test_a_producer_whose_user_is_deleted_is_disconnected(tmp_path: Path) -> None:
    """Its heartbeat needs no permission, but replies would reach it."""
    async with stage(tmp_path) as (broker, alice, _):
        assert (await alice.beat(producers=("pg",))).code == 0
        replace(broker, bob=None)
        assert members(broker) == 1
        replace(broker, alice=None)
        assert members(broker) == 0


async def test_a_change_that_takes_nothing_away_disturbs_no_client(tmp_path: Path) -> None:
    async with stage(tmp_path) as (broker, alice, root):
        await root.send("orders", b"first")
        assert (await alice.beat(consumer("billing", "orders"))).code == 0
        waiting = alice.begin(
            RequestCode.PULL_MESSAGE, pulled("orders", 0, 1, "billing") | {"sysFlag": 6}
        )
        replace(broker, bob=None)
        assert members(broker) == 1
        await root.send("orders", b"second")
        assert [one.body for one in records((await waiting).body)] == [b"second"]
        listed = await alice.ask(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "billing"}
        )
        assert loads(listed.body) == {"consumerIdList": ["me@1"]}


async def test_denied_requests_are_counted(tmp_path: Path) -> None:
    async with stage(tmp_path) as (broker, alice, _):
        for _ in range(3):
            assert (await alice.send("secret", b"x")).code == DENIED
        alice.sign_as("alice", "wrong")
        assert (await alice.send("orders", b"x")).code == DENIED
        counted = {
            one.labels: one.value
            for one in broker._figures()
            if one.name == "pocketmq_broker_denied_calls_total"
        }
        assert counted == {(("error", "NotAuthenticated"),): 1, (("error", "NotAuthorized"),): 3}
