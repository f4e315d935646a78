"""Our own clients, name server and broker where there are users."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from pocketmq.broker.broker import Broker
from pocketmq.client import AsyncAdmin, AsyncProducer, AsyncPullConsumer
from pocketmq.nameserver import NameServer
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import NotAuthenticated, NotAuthorized, PocketMQError
from pocketmq.store.os_disk import OsDisk

from ..served import broker_config, nameserver_config
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
async def cluster(folder: Path, users: dict[str, Any] | None = None) -> AsyncIterator[str]:
    """Serve with USERS, if there are any; yield the name server's address."""
    path = folder / "users.yaml"
    path.touch(0o600)
    path.write_text(yaml.safe_dump({"users": users or {}}))
    settings = {"users": str(path)} if users else {}
    server = NameServer.build(nameserver_config(port=0, **settings), clock=SystemClock())
    await server.start()
    config = broker_config(port=0, nameservers=(server.address,), **settings)
    broker = Broker.build(config, store_config(folder), disk=OsDisk(), clock=SystemClock())
    await broker.start()
    try:
        assert await broker.registered(20)
        yield server.address
    finally:
        await broker.stop()
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
    reasons = "check signature failed.", "username cannot be null."
    assert any(reason in caught.value.message for reason in reasons)


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
