"""The remoting protocol of a name server: routes as Apache writes them, TLS on the same port, bad peers."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pocketmq.nameserver import NameServer
from pocketmq.nameserver.remoting import RULES, RemotingRoutes
from pocketmq.nameserver.route_table import BrokerState, Role, RouteTable, TopicQueues
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import Unsupported
from pocketmq.proto.remoting.client import RemotingClient, open_tcp, read_command
from pocketmq.proto.remoting.codes import RequestCode, ResponseCode
from pocketmq.proto.remoting.command import REQUEST_MAX, RemotingCommand, encode
from pocketmq.proto.remoting.fastjson import loads

from ..authority import Authority
from ..broker.remoting.classic import signed
from ..integration.test_permissions import write_users
from ..proto.remoting.recorded_frames import frames
from ..served import nameserver_config, need_own

ROUTE, CLUSTER = RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[str, RouteTable]]:
    need_own("grpcio serves gRPC only")
    server = NameServer.build(nameserver_config(port=0, **settings), clock=VirtualClock())
    await server.start()
    try:
        yield server.address, server._table
    finally:
        await server.stop(grace_s=0)


def register(table: RouteTable, **changes: Any) -> None:
    topics = {"orders": TopicQueues(2, 2, 6), "TBW102": TopicQueues(8, 8, 7)}
    known = {"cluster": "DefaultCluster", "name": "broker-a", "id": 0, "address": "127.0.0.1:25911",
             "data_version": 1, "topics": topics}  # fmt: skip
    state = BrokerState(**{**known, **changes})
    table.register(state, hash((state.name, state.id)), 0)


async def asked(address: str, command: RemotingCommand) -> RemotingCommand:
    reader, writer = await open_tcp(address, 5)
    writer.write(encode(command))
    answer = await asyncio.wait_for(read_command(reader, REQUEST_MAX), 5)
    writer.close()
    assert answer is not None
    return answer


async def test_routes_and_clusters_have_the_bytes_of_apaches() -> None:
    recorded = {
        (one.request_code, one.body)
        for one in frames()
        if not one.is_request and one.recording == "frames55" and one.request_code == ROUTE
    }
    async with serving() as (address, table):
        register(table)
        for topic in ("orders", "TBW102"):
            answer = await asked(address, RemotingCommand(code=ROUTE, fields={"topic": topic}))
            assert (ROUTE, answer.body) in recorded

        answer = await asked(address, RemotingCommand(code=CLUSTER, opaque=7))
        assert (answer.code, answer.opaque, answer.is_answer) == (0, 7, True)
        assert answer.body in {one.body for one in frames() if one.request_code == CLUSTER}


async def test_old_clients_get_numbers_as_keys_unless_they_ask_for_standard_json() -> None:
    async with serving() as (address, table):
        register(table)
        command = RemotingCommand(code=ROUTE, fields={"topic": "orders"}, version=399)
        old = (await asked(address, command)).body
        fields = {"topic": "orders", "acceptStandardJsonOnly": "true"}
        new = (await asked(address, RemotingCommand(code=ROUTE, fields=fields, version=399))).body

        assert b'"brokerAddrs":{0:"127.0.0.1:25911"}' in old
        assert json.loads(new) == json.loads(old.replace(b"{0:", b'{"0":'))


@pytest.mark.parametrize("topic", ["missing", "", "no good\n", "x" * 300])
async def test_an_unknown_topic_has_no_route(topic: str) -> None:
    async with serving() as (address, table):
        register(table)
        answer = await asked(address, RemotingCommand(code=ROUTE, fields={"topic": topic}))

        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert answer.remark.startswith("No topic route info in name server for the topic: ")


async def test_topics_are_listed_by_cluster_too() -> None:
    async with serving() as (address, table):
        register(table)
        register(table, name="b", cluster="other", topics={"rare": TopicQueues(1, 1, 6)})
        async with await RemotingClient.connect(address) as client:
            every = await client.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            some = await client.call(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "other"})

        assert loads(every.body) == {"topicList": ["TBW102", "orders", "rare"]}
        assert loads(some.body) == {"topicList": ["rare"]}


async def test_followers_are_not_in_routes() -> None:
    async with serving() as (address, table):
        register(table, id=1, role=Role.MASTER, epoch=1)
        register(table, id=2, role=Role.FOLLOWER, epoch=1, address="127.0.0.1:2")
        body = (await asked(address, RemotingCommand(code=ROUTE, fields={"topic": "orders"}))).body

        assert [one["brokerAddrs"] for one in json.loads(body)["brokerDatas"]] == [
            {"0": "127.0.0.1:25911"}
        ]


async def test_an_unknown_code_and_a_missing_field_are_answered() -> None:
    async with serving() as (address, _), await RemotingClient.connect(address) as client:
        with pytest.raises(Unsupported, match="code 3:  request type 9999 not supported"):
            await client.call(9999)
        with pytest.raises(Unsupported, match="code 1: the field topic is missing"):
            await client.call(ROUTE)


async def test_a_request_without_answer_gets_none() -> None:
    async with serving() as (address, table):
        register(table)
        reader, writer = await open_tcp(address, 5)
        for opaque, flag in ((1, 2), (2, 1), (3, 0)):
            command = RemotingCommand(code=CLUSTER, opaque=opaque, flag=flag)
            writer.write(encode(command))
        answer = await read_command(reader, REQUEST_MAX)

        assert answer is not None
        assert answer.opaque == 3
        writer.close()


@pytest.mark.parametrize("is_json", [True, False])
async def test_tls_and_plaintext_share_the_port(tmp_path: Path, is_json: bool) -> None:
    shown = Authority().certificate(addresses=["127.0.0.1"])
    (tmp_path / "chain.pem").write_bytes(shown.chain)
    (tmp_path / "key.pem").write_bytes(shown.key)
    files = {"tls_cert": str(tmp_path / "chain.pem"), "tls_key": str(tmp_path / "key.pem")}
    async with serving(**files) as (address, table):
        register(table)
        context = ssl.create_default_context(cadata=shown.authorities.decode())
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        command = RemotingCommand(code=ROUTE, fields={"topic": "orders"}, is_json=is_json)
        for _ in range(2):
            writer.write(encode(command))
            answer = await asyncio.wait_for(read_command(reader, REQUEST_MAX), 5)
            assert answer is not None
            assert answer.is_json == is_json
            assert b"127.0.0.1:25911" in answer.body
        writer.close()
        assert (await asked(address, command)).code == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\3abc",
        b"\1\0\0\1" + b"x" * 99,
        b"\0\0\0\x08\0\0\0\4nope",
        b"\0\0\0\4\5\0\0\0",
        b"\0\0\0\x0a\0\0\0\x06[1, 2]",
    ],
)
async def test_an_invalid_frame_ends_its_own_connection_only(data: bytes) -> None:
    async with serving() as (address, table):
        register(table)
        other = await RemotingClient.connect(address)
        reader, writer = await open_tcp(address, 5)
        writer.write(data)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(1), 5)
        writer.close()

        assert (await other.call(CLUSTER)).code == 0
        other.close()


async def test_a_frame_that_never_ends_is_bounded_and_forgotten() -> None:
    async with serving() as (address, table):
        register(table)
        _, writer = await open_tcp(address, 5)
        writer.write((REQUEST_MAX - 1).to_bytes(4) + b"x" * 100_000)
        await writer.drain()
        writer.close()
        assert (await asked(address, RemotingCommand(code=CLUSTER))).code == 0


USERS = {
    "alice": {
        "secret": "alice-secret",
        "policies": [
            {"resource": "Topic:orders", "actions": "Pub"},
            {"resource": "Group:billing", "actions": "Sub"},
        ],
    },
    "lister": {
        "secret": "lister-secret",
        "policies": [
            {"resource": "Topic:*", "actions": "List"},
            {"resource": "Topic:secret", "actions": "All", "decision": "Deny"},
        ],
    },
    "root": {"secret": "root-secret", "type": "Super"},
}


@asynccontextmanager
async def with_users(folder: Path) -> AsyncIterator[tuple[str, RouteTable]]:
    """Serve with USERS; the broker has the topics orders and secret, and a retry topic."""
    async with serving(users=write_users(folder, USERS)) as (address, table):
        topics = {name: TopicQueues(1, 1, 6) for name in TOPICS}
        register(table, topics=topics)
        yield address, table


TOPICS = ("%RETRY%billing", "%RETRY%other", "TBW102", "orders", "secret")


def by(user: str, code: int, secret: str = "", **fields: str) -> RemotingCommand:
    """Return a request of USER."""
    return RemotingCommand(code=code, fields=signed(user, secret or f"{user}-secret", fields))


async def test_a_server_with_users_refuses_requests_that_are_not_signed(tmp_path: Path) -> None:
    async with with_users(tmp_path) as (address, _):
        for code in (ROUTE, CLUSTER, *LISTS, 9999):
            for request in (
                RemotingCommand(code=code, fields={"topic": "orders"}),
                by("alice", code, "wrong", topic="orders"),
            ):
                answer = await asked(address, request)
                assert answer.code == ResponseCode.NO_PERMISSION
                assert not answer.body


LISTS = (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_TOPICS_BY_CLUSTER)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("orders", 0),
        ("secret", ResponseCode.NO_PERMISSION),
        ("missing", ResponseCode.NO_PERMISSION),
        ("%RETRY%billing", 0),
        ("%RETRY%other", ResponseCode.NO_PERMISSION),
        ("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION),
        # A producer of a new topic asks for these brokers: any user may know them.
        ("TBW102", 0),
    ],
)
async def test_routes_are_for_those_who_may_see_the_topic(
    tmp_path: Path, topic: str, code: int
) -> None:
    async with with_users(tmp_path) as (address, _):
        answer = await asked(address, by("alice", ROUTE, topic=topic))
        assert (answer.code, bool(answer.body)) == (code, code == 0)
        assert (await asked(address, by("root", ROUTE, topic=topic))).code in (0, 17)


async def test_lists_have_the_topics_that_the_user_may_list(tmp_path: Path) -> None:
    async with with_users(tmp_path) as (address, _):
        for code in LISTS:
            cluster = {"cluster": "DefaultCluster"}
            assert (await asked(address, by("alice", code, **cluster))).code == 16
            some = await asked(address, by("lister", code, **cluster))
            assert loads(some.body) == {"topicList": ["orders"]}
            every = await asked(address, by("root", code, **cluster))
            assert loads(every.body) == {"topicList": list(TOPICS)}
        assert (await asked(address, by("alice", CLUSTER))).code == 0


def test_every_handler_has_a_rule() -> None:
    assert RemotingRoutes(RouteTable(nameserver_config())).handlers().keys() == RULES.keys()


async def test_remoting_can_be_switched_off() -> None:
    async with serving(remoting=False) as (address, _):
        reader, writer = await open_tcp(address, 5)
        writer.write(encode(RemotingCommand(code=CLUSTER)))
        assert await asyncio.wait_for(reader.read(1), 5) == b""
        writer.close()
