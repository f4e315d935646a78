"""Our own clients, name server and broker where there are users."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from pocketmq.broker.broker import Broker, Network
from pocketmq.client import AsyncAdmin, AsyncProducer, AsyncPullConsumer, Message
from pocketmq.nameserver import NameServer
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import (
    MessageNotFound,
    NotAuthenticated,
    NotAuthorized,
    PocketMQError,
    RouteNotFound,
)
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.tls import Trust
from pocketmq.store.disk import Disk
from pocketmq.store.os_disk import OsDisk

from ..authority import Authority
from ..served import broker_config, nameserver_config
from .served_set import served_set
from .test_failover import CLIENT, asked, message
from .whole_broker import store_config

USERS: dict[str, Any] = {
    "root": {"secret": "root-secret", "type": "Super"},
    "alice": {
        "secret": "alice-secret",
        "policies": [
            {"resource": "Topic:orders", "actions": "Pub,Sub"},
            {"resource": "Group:billing", "actions": "Sub"},
        ],
    },
}
ROOT: dict[str, Any] = {"user": "root", "secret": "root-secret"}
ALICE: dict[str, Any] = {"user": "alice", "secret": "alice-secret"}


@asynccontextmanager
async def cluster(
    folder: Path,
    users: dict[str, Any] | None = None,
    *,
    both: Mapping[str, Any] = MappingProxyType({}),
    of_broker: Mapping[str, Any] = MappingProxyType({}),
    network: Network | None = None,
    disk: Disk | None = None,
) -> AsyncIterator[str]:
    """Serve with USERS, if there are any, and further settings; yield the name server's address.

    NETWORK and DISK: the broker's, with a console for example.
    """
    path = folder / "users.yaml"
    path.touch(0o600)
    path.write_text(yaml.safe_dump({"users": users or {}}))
    settings = {**both, **({"users": str(path)} if users else {})}
    server = NameServer.build(nameserver_config(port=0, **settings), clock=SystemClock())
    await server.start()
    config = broker_config(port=0, nameservers=(server.address,), **settings, **of_broker)
    broker = Broker.build(
        config,
        store_config(folder),
        disk=disk or OsDisk(),
        clock=SystemClock(),
        network=network or Network(),
    )
    await broker.start()
    try:
        assert await broker.registered(20)
        yield server.address
    finally:
        try:
            await broker.stop()
        finally:
            await server.stop()


async def test_who_signs_may_do_what_the_policies_allow(tmp_path: Path) -> None:
    async with cluster(tmp_path, USERS) as address:
        async with AsyncAdmin(address, **ROOT) as admin:
            for topic in ("orders", "secret"):
                await admin.create_topic(topic, queues=1)
        async with AsyncProducer(address, **ALICE) as producer:
            receipt = await producer.send("orders", b"one")
            assert receipt.queue_offset == 0
            with pytest.raises(NotAuthorized, match="to access Topic:secret"):
                await producer.send("secret", b"two")
            assert (await producer.send("orders", b"three")).queue_offset == 1
        async with AsyncPullConsumer("billing", "orders", address, **ALICE) as consumer:
            found: list[Any] = []
            while len(found) < 2:
                found += [one.value for one in await consumer.poll(timeout_ms=5_000)]
            assert found == [b"one", b"three"]
        async with AsyncAdmin(address, **ALICE) as admin:
            with pytest.raises(NotAuthorized, match="to access Topic:other"):
                await admin.create_topic("other")


@pytest.mark.parametrize(
    "credentials", [{}, ALICE | {"secret": "wrong"}, ROOT | {"user": "mallory"}]
)
async def test_who_does_not_prove_who_it_is_hears_so_at_once(
    tmp_path: Path, credentials: dict[str, Any]
) -> None:
    async with cluster(tmp_path, USERS) as address:
        async with AsyncAdmin(address, **credentials) as admin:
            with pytest.raises(NotAuthenticated):
                await admin.create_topic("orders")
        async with AsyncProducer(address, **credentials) as producer:
            with pytest.raises(PocketMQError) as caught:
                await producer.send("orders", b"one")
    reasons = (
        "check signature failed.",
        "username cannot be null: this server has users. Give one with user=",
    )
    assert any(reason in caught.value.message for reason in reasons)


async def test_a_broker_signs_with_the_secret_that_its_users_have_now(tmp_path: Path) -> None:
    async with cluster(tmp_path, USERS) as address:
        changed = USERS | {"root": USERS["root"] | {"secret": "another"}}
        (tmp_path / "users.yaml").write_text(yaml.safe_dump({"users": changed}))
        async with asyncio.timeout(60), AsyncAdmin(address, user="root", secret="another") as admin:
            while True:
                try:  # Once the name server knows it, it has broken the registration off.
                    await admin.create_topic("later", queues=1)
                    break
                except (NotAuthenticated, RouteNotFound):
                    await asyncio.sleep(0.05)
        async with AsyncProducer(address, user="root", secret="another") as producer:
            assert (await producer.send("later", b"one")).queue_offset == 0


async def test_a_certificate_says_who_calls(tmp_path: Path) -> None:
    authority = Authority()
    files = {"ca": authority.pem}
    for name, addresses in (("alice.example", ()), ("server.example", ("127.0.0.1",))):
        shown = authority.certificate(name=name, addresses=addresses)
        files |= {f"{name}.pem": shown.chain, f"{name}.key": shown.key}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    ca = str(tmp_path / "ca")
    both = {
        "grpc": "builtin",
        "tls_cert": str(tmp_path / "server.example.pem"),
        "tls_key": str(tmp_path / "server.example.key"),
        "tls_ca": ca,
    }
    users = {**USERS, "alice": USERS["alice"] | {"certificates": ["alice.example"]}}
    mine: dict[str, Any] = {
        "tls_ca": ca,
        "tls_cert": str(tmp_path / "alice.example.pem"),
        "tls_key": str(tmp_path / "alice.example.key"),
    }
    peers = {"peers_tls": True, "peers_tls_ca": ca}
    async with cluster(tmp_path, users, both=both, of_broker=peers) as address:
        async with AsyncAdmin(address, **mine, **ROOT) as admin:
            await admin.create_topic("orders", queues=1)
        async with AsyncProducer(address, **mine) as producer:
            assert (await producer.send("orders", b"one")).queue_offset == 0
            with pytest.raises(NotAuthorized, match="User:alice has no permission"):
                await producer.send("secret", b"two")


async def test_credentials_are_found_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POCKETMQ_USER", "root")
    monkeypatch.setenv("POCKETMQ_SECRET", "root-secret")
    async with cluster(tmp_path, USERS) as address, AsyncAdmin(address) as admin:
        assert (await admin.create_topic("orders")).name == "orders"


async def test_a_server_without_users_says_once_that_credentials_count_for_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path) as address:
        for _ in range(2):
            async with AsyncProducer(address, **ALICE) as producer:
                await producer.send("orders", b"one")
    told = [record for record in caplog.messages if "count for nothing" in record]
    assert len(told) == 1
    assert "user=alice" in told[0]
    assert "secret" not in told[0]


async def test_what_a_follower_carries_to_its_master_is_asked_at_both(tmp_path: Path) -> None:
    path = tmp_path / "users.yaml"
    path.touch(0o600)
    policies = [{"resource": "Topic:bills", "actions": "Pub", "sources": "127.0.0.0/8"}]
    users = {**USERS, "alice": USERS["alice"] | {"policies": policies}, "bob": {"secret": "bob"}}
    path.write_text(yaml.safe_dump({"users": users}))
    guarded = {"users": str(path)}
    async with served_set(tmp_path, 2, broker=guarded, nameserver=guarded) as world:
        async with AsyncAdmin(world.name_server.address, **ROOT) as admin:
            await admin.create_topic("bills", queues=1)
        (master,) = world.masters
        follower = next(one for one in world.members.values() if one is not master)
        address = world.served(follower.id).address
        codes = []
        for who in (ALICE, {"user": "bob", "secret": "bob"}, ALICE | {"secret": "no"}, {}):
            async with Trust(tls=False, **who).dial()(address) as channel:
                sent = await asked(channel, "SendMessage", message(1), v2.SendMessageResponse)
                codes.append(sent.status.code)
    assert codes == [v2.OK, v2.UNAUTHORIZED, v2.UNAUTHORIZED, v2.UNAUTHORIZED]


async def test_a_deny_holds_where_messages_wait_in_system_topics(tmp_path: Path) -> None:
    policies = [
        {"resource": "Topic:*", "actions": "Sub,Get"},
        {"resource": "Group:*", "actions": "Sub,Get"},
        {"resource": "Topic:secret", "actions": "All", "decision": "Deny"},
    ]
    users = USERS | {"eve": {"secret": "eve-secret", "policies": policies}}
    waits = {"SCHEDULE_TOPIC_XXXX": 17, "rmq_sys_wheel_timer": 0, "RMQ_SYS_TRANS_HALF_TOPIC": 0}
    async with cluster(tmp_path, users) as address, AsyncAdmin(address, **ROOT) as root:
        await root.create_topic("secret", queues=1)
        async with (
            AsyncProducer(address, group="g", checker=lambda message: None, **ROOT) as producer,
            AsyncAdmin(address, user="eve", secret="eve-secret") as eve,
            producer.transaction(Message("secret", b"top secret")),
        ):
            await producer.send(Message("secret", b"top secret", delay_level=18))
            await producer.send(Message("secret", b"top secret", delay="2h"))
            for topic, queue in waits.items():
                (found,) = await root.lookup_offset(topic, queue, 0)
                assert found.body == b"top secret"
                (found,) = [await root.lookup_id(found.offset_message_id)]
                assert found.topic == topic
                for asked in (
                    eve.lookup_offset(topic, queue, 0),
                    eve.describe_topic(topic),
                    eve.lookup_id(found.offset_message_id, topic),
                ):
                    with pytest.raises(NotAuthorized):
                        await asked
                with pytest.raises(MessageNotFound):  # It looks into what eve may see.
                    await eve.lookup_id(found.offset_message_id)


async def test_who_may_read_topics_alone_finds_a_message_by_its_id_without_naming_one(
    tmp_path: Path,
) -> None:
    policies = [{"resource": "Topic:*", "actions": "Pub,Sub,Get"}]
    users = USERS | {"eve": {"secret": "eve-secret", "policies": policies}}
    async with cluster(tmp_path, users) as address, AsyncAdmin(address, **ROOT) as root:
        await root.create_topic("orders", queues=1)
        async with AsyncProducer(address, **ALICE) as producer:
            receipt = await producer.send("orders", b"one")
        async with AsyncAdmin(address, user="eve", secret="eve-secret") as eve:
            for message_id in (receipt.offset_message_id, receipt.message_id):
                for topic in (None, "orders"):
                    assert (await eve.lookup_id(message_id, topic)).body == b"one"
        async with AsyncAdmin(address, **ALICE) as alice:
            assert (await alice.lookup_id(receipt.offset_message_id, "orders")).body == b"one"


async def test_a_session_of_an_official_client_is_its_users(tmp_path: Path) -> None:
    """Another user's settings, goodbye and heartbeats under the same client id change nothing of it."""
    policies = [{"resource": "Topic:tx", "actions": "Pub"}]
    users = USERS | {
        "alice": USERS["alice"] | {"policies": policies},
        "eve": {"secret": "eve-secret"},
    }
    checked = {"transaction_timeout_ms": 1_000, "transaction_check_interval_ms": 1_000}
    async with cluster(tmp_path, users, of_broker=checked) as address:
        async with AsyncAdmin(address, **ROOT) as admin:
            await admin.create_topic("tx", queues=1, type="TRANSACTION")
            (broker,) = await admin.brokers()
        eve_has = {"user": "eve", "secret": "eve-secret"}
        async with (
            Trust(tls=False, **ALICE).dial()(broker.address) as mine,
            Trust(tls=False, **eve_has).dial()(broker.address) as hers,
        ):
            stream = telemetry(mine)
            await stream.write(settings("tx"))
            half = message(1)
            half.messages[0].topic.name = "tx"
            half.messages[0].system_properties.message_type = v2.TRANSACTION
            sent = await asked(mine, "SendMessage", half, v2.SendMessageResponse)
            assert sent.status.code == v2.OK
            other = telemetry(hers)
            await other.write(settings())
            assert (await other.read()).status.code == v2.OK
            bye = v2.NotifyClientTerminationRequest()
            await asked(hers, "NotifyClientTermination", bye, v2.NotifyClientTerminationResponse)
            refused = telemetry(hers)
            await refused.write(settings("tx"))
            assert (await refused.read()).status.code == v2.UNAUTHORIZED
            async with asyncio.timeout(60):
                while True:
                    command = await stream.read()
                    if command.HasField("recover_orphaned_transaction_command"):
                        break
            assert command.recover_orphaned_transaction_command.message.body == b"1"


def telemetry(channel: Any) -> Any:
    open_stream = channel.stream_stream(
        "/apache.rocketmq.v2.MessagingService/Telemetry",
        v2.TelemetryCommand.SerializeToString,
        v2.TelemetryCommand.FromString,
    )
    return open_stream(metadata=CLIENT)


def settings(*topics: str) -> v2.TelemetryCommand:
    named = [v2.Resource(name=topic) for topic in topics]
    return v2.TelemetryCommand(
        settings=v2.Settings(client_type=v2.PRODUCER, publishing=v2.Publishing(topics=named))
    )
