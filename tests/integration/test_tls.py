"""TLS at the ports of name servers and brokers: PocketMQ's own clients, commands, brokers and replicas speak it.

What they do not agree on is told at once: the deadlines here are longer than a test may take.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from pocketmq.broker.broker import Broker
from pocketmq.broker.ports.certificates import Certificates
from pocketmq.client import (
    Admin,
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
)
from pocketmq.nameserver import NameServer
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import ConfigError, ConnectionLost, TlsFailed
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import Certificate
from pocketmq.store.os_disk import OsDisk

from ..authority import Authority
from ..served import broker_config, nameserver_config
from .command import Shell
from .served_set import served_set
from .test_failover import asked, message
from .whole_broker import store_config

OURS, OTHERS = Authority("ours"), Authority("others")
HERE = ("127.0.0.1",)
#: Nobody waits for so long here.
_LONG_MS = 600_000


@dataclass
class Files:
    """What an operator has: the authorities' files, and those of one certificate."""

    folder: Path
    shown: Certificate = field(default_factory=lambda: OURS.certificate(addresses=HERE))

    def __post_init__(self) -> None:
        for name, content in (
            ("ours.pem", OURS.pem),
            ("others.pem", OTHERS.pem),
            ("chain.pem", self.shown.chain),
            ("key.pem", self.shown.key),
        ):
            (self.folder / name).write_bytes(content)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def server(self) -> dict[str, Any]:
        """Settings of a server that shows the certificate."""
        return {"tls_cert": self.path("chain.pem"), "tls_key": self.path("key.pem")}

    @property
    def peers(self) -> dict[str, Any]:
        """Settings of a broker that registers over TLS."""
        return {"peers_tls": True, "peers_tls_ca": self.path("ours.pem")}


@asynccontextmanager
async def cluster(
    files: Files, *, names: dict[str, Any], **settings: Any
) -> AsyncIterator[tuple[str, Broker]]:
    """Run a name server with NAMES and a broker with SETTINGS."""
    nameserver = NameServer.build(
        nameserver_config(**{"port": 0, "grpc": "builtin", **names}), clock=SystemClock()
    )
    await nameserver.start()
    config = broker_config(
        **{"port": 0, "grpc": "builtin", "nameservers": (nameserver.address,), **settings}
    )
    broker = Broker.build(config, store_config(files.folder), disk=OsDisk(), clock=SystemClock())
    await broker.start()
    try:
        yield nameserver.address, broker
    finally:
        await broker.stop()
        await nameserver.stop()


@asynccontextmanager
async def secure_cluster(files: Files) -> AsyncIterator[str]:
    """Run servers that take TLS alone."""
    only = {**files.server, "tls_only": True}
    async with cluster(files, names=only, **only, **files.peers) as (address, broker):
        assert await broker.registered(30)
        yield address


async def test_producers_consumers_and_admins_speak_it(tmp_path: Path) -> None:
    files = Files(tmp_path)
    ca = files.path("ours.pem")
    async with secure_cluster(files) as address:
        async with AsyncAdmin(address, tls=True, tls_ca=ca) as admin:
            await admin.create_topic("orders", queues=1)
        async with AsyncProducer(address, tls_ca=ca) as producer:
            await producer.send(Message("orders", b"asked"))
        async with AsyncPullConsumer("readers", ["orders"], address, tls_ca=ca) as reader:
            batch = await reader.poll(30_000)
        assert [one.body for one in batch] == [b"asked"]
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        async with AsyncPushConsumer(
            "hearers", ["orders"], lambda one: heard.put_nowait(one.body), address, tls_ca=ca
        ):
            assert await heard.get() == b"asked"


def blocking_work(address: str, ca: str) -> list[bytes]:
    """Send and read with the faces for threads; return what came."""
    with Admin(address, tls_ca=ca) as admin:
        admin.create_topic("orders", queues=1)
    with Producer(address, tls_ca=ca) as producer:
        producer.send("orders", b"asked")
    found: list[bytes] = []
    with PullConsumer("readers", ["orders"], address, tls_ca=ca) as reader:
        found += [one.body for one in reader.poll(30_000)]
    heard: Queue[bytes] = Queue()
    with PushConsumer("hearers", ["orders"], lambda one: heard.put(one.body), address, tls_ca=ca):
        found.append(heard.get(timeout=60))
    return found


async def test_the_faces_for_threads_speak_it(tmp_path: Path) -> None:
    files = Files(tmp_path)
    async with secure_cluster(files) as address:
        found = await asyncio.to_thread(blocking_work, address, files.path("ours.pem"))

    assert found == [b"asked", b"asked"]


async def test_commands_speak_it_by_options_and_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path)
    ca = files.path("ours.pem")
    async with secure_cluster(files) as address:
        shell = Shell(address)
        done = await asyncio.to_thread(shell, "topic", "create", "orders", "--tls", "--tls-ca", ca)
        assert done.code == 0, done
        refused = await asyncio.to_thread(shell, "send", "orders", "plain")
        assert refused.code == 5
        assert "accepts no plaintext" in refused.err, "an option counts for one command"
        probe = ("health", "--nameserver", address, "--tls-ca", ca)
        assert (await asyncio.to_thread(shell, *probe)).out == f"name server {address}: SERVING\n"
        plain = await asyncio.to_thread(shell, *probe[:3])
        assert plain.code == refused.code
        assert "accepts no plaintext" in plain.err

        monkeypatch.setenv("POCKETMQ_TLS", "1")
        monkeypatch.setenv("POCKETMQ_TLS_CA", ca)
        done = await asyncio.to_thread(shell, "send", "orders", "hello")
        assert done.code == 0, done
        assert '"orders"' in (await asyncio.to_thread(shell, "topic", "list", "--json")).out


# --- what is not agreed on


async def send(address: str, **tls: Any) -> None:
    async with AsyncProducer(
        address,
        route_timeout_ms=_LONG_MS,
        max_block_ms=_LONG_MS,
        delivery_timeout_ms=_LONG_MS,
        **tls,
    ) as producer:
        await producer.send(Message("orders", b"lost"))


async def poll(address: str, **tls: Any) -> None:
    async with AsyncPullConsumer(
        "readers", ["orders"], address, nameserver_timeout_ms=0, **tls
    ) as reader:
        await reader.poll(_LONG_MS)


async def hear(address: str, **tls: Any) -> None:
    async with AsyncPushConsumer(
        "readers", ["orders"], print, address, nameserver_timeout_ms=0, **tls
    ) as consumer:
        await consumer.wait()


async def administer(address: str, **tls: Any) -> None:
    async with AsyncAdmin(address, request_timeout_ms=_LONG_MS, **tls) as admin:
        await admin.topics()


Work = Callable[..., Coroutine[Any, Any, None]]
WORK: tuple[Work, ...] = (send, poll, hear, administer)


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
async def test_each_client_tells_at_once_what_is_not_agreed_on(tmp_path: Path, work: Work) -> None:
    files = Files(tmp_path)
    async with secure_cluster(files) as address:
        with pytest.raises(
            TlsFailed, match=rf"{address}: .* the server's certificate is not trusted"
        ):
            await work(address, tls_ca=files.path("others.pem"))
        with pytest.raises(TlsFailed, match=rf"{address}: .* accepts no plaintext at this port"):
            await work(address)


async def test_plaintext_ports_and_certificates_of_no_use_are_told_at_once(tmp_path: Path) -> None:
    ca = Files(tmp_path).path("ours.pem")
    for shown, reason in (
        (OURS.certificate(addresses=HERE, valid_days=-1), "certificate has expired"),
        (OURS.certificate(addresses=["127.0.0.2"]), "not valid for '127.0.0.1'"),
        (None, "the server speaks plaintext at this port"),
    ):
        served = {} if shown is None else Files(tmp_path, shown).server
        server = NameServer.build(
            nameserver_config(port=0, grpc="builtin", **served), clock=SystemClock()
        )
        await server.start()
        with pytest.raises(TlsFailed, match=reason):
            await send(server.address, tls_ca=ca)
        await server.stop()


async def test_a_broker_whose_certificate_is_not_believed_ends_a_send_at_once(
    tmp_path: Path,
) -> None:
    files, theirs = Files(tmp_path), tmp_path / "theirs"
    theirs.mkdir()
    strange = Files(theirs, OTHERS.certificate(addresses=HERE))
    names = {**files.server, "tls_only": True}
    async with cluster(files, names=names, **strange.server, **files.peers) as (address, broker):
        assert await broker.registered(30)
        with pytest.raises(TlsFailed, match=rf"{broker.address}: .* is not trusted"):
            await send(address, tls_ca=files.path("ours.pem"))


async def test_a_broker_that_cannot_register_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path)
    names = {**files.server, "tls_only": True}
    with caplog.at_level(logging.WARNING):
        async with cluster(files, names=names) as (address, broker):
            async with asyncio.timeout(60):
                while "registration failed" not in caplog.text:  # noqa: ASYNC110 (a log line, not an event)
                    await asyncio.sleep(0.01)
            assert not await broker.registered(0)

    assert f"registration failed nameserver={address} reason=" in caplog.text
    assert "the server accepts no plaintext at this port: connect with TLS" in caplog.text


async def test_who_shows_no_certificate_of_the_authority_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path)
    ca = files.path("ours.pem")
    mine: dict[str, dict[str, Any]] = {}
    for name, made in (
        ("strange", OTHERS.certificate()),
        ("expired", OURS.certificate(valid_days=-1)),
        ("good", OURS.certificate(name="billing")),
    ):
        (tmp_path / name).mkdir()
        kept = Files(tmp_path / name, made)
        mine[name] = {"tls_cert": kept.path("chain.pem"), "tls_key": kept.path("key.pem")}
    wanted = {**files.server, "tls_ca": ca}
    async with cluster(files, names=wanted, **wanted, **files.peers) as (address, broker):
        assert await broker.registered(30)
        async with AsyncAdmin(address, tls_ca=ca, **mine["good"]) as admin:
            await admin.create_topic("orders", queues=1)
        await send(address, tls_ca=ca, **mine["good"])
        for shown, reason in (
            ({}, "the server requires a client certificate"),
            (mine["strange"], "does not trust the client certificate"),
            (mine["expired"], "the client certificate has expired"),
        ):
            with pytest.raises(TlsFailed, match=reason):
                await administer(address, tls_ca=ca, **shown)
        with pytest.raises(TlsFailed, match="accepts no plaintext"):
            await administer(address)

    assert "client refused at the handshake peer=127.0.0.1:" in caplog.text
    assert "reason=peer did not return a certificate: it must show" in caplog.text


def test_authorities_that_cannot_be_used_keep_servers_from_starting(tmp_path: Path) -> None:
    files = Files(tmp_path)
    wrong = {**files.server, "tls_ca": files.path("key.pem")}
    with pytest.raises(ConfigError, match=r"nameserver\.tls_ca: .*key\.pem cannot be used"):
        NameServer.build(nameserver_config(port=0, **wrong), clock=SystemClock())
    shown = Certificates(broker_config(**wrong), OsDisk(), str(tmp_path), SystemClock())
    with pytest.raises(ConfigError, match=r"broker\.tls_ca: .*key\.pem cannot be used"):
        shown.load()


def test_files_that_cannot_be_used_are_told_where_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path)
    with pytest.raises(ConfigError, match=r"tls_ca: nowhere\.pem cannot be used: no such file"):
        Producer("127.0.0.1:1", tls_ca="nowhere.pem")
    with pytest.raises(ConfigError, match=r"tls_ca: .*key\.pem cannot be used"):
        PullConsumer("readers", ["orders"], "127.0.0.1:1", tls_ca=files.path("key.pem"))
    with pytest.raises(ConfigError, match=r"tls_key is empty"):
        Admin("127.0.0.1:1", tls_cert=files.path("chain.pem"))
    monkeypatch.setenv("POCKETMQ_TLS", "maybe")
    with pytest.raises(ConfigError, match=r"\$POCKETMQ_TLS is 'maybe': write 1"):
        Admin("127.0.0.1:1")
    monkeypatch.setenv("POCKETMQ_TLS", "0")
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        Admin("127.0.0.1:1", tls_ca="nowhere.pem")  # What a program names counts.
    monkeypatch.setenv("POCKETMQ_CA", files.path("ours.pem"))
    with pytest.raises(ConfigError, match=r"\$POCKETMQ_CA was renamed: set \$POCKETMQ_TLS_CA"):
        Admin("127.0.0.1:1")


# --- among servers


async def test_replicas_carry_calls_to_their_master_over_tls(tmp_path: Path) -> None:
    files = Files(tmp_path)
    only = {**files.server, "tls_only": True}
    ca = files.path("ours.pem")
    async with served_set(
        tmp_path,
        2,
        broker={"tls": True, **only, **files.peers},
        nameserver={**only, "grpc": "builtin"},
    ) as world:
        address = world.name_server.address
        async with AsyncAdmin(address, tls_ca=ca) as admin:
            await admin.create_topic("bills", queues=1)
        (master,) = world.masters
        follower = next(one for one in world.members.values() if one is not master)
        dial = broker_config(**files.peers).peers.dial()
        async with dial(world.served(follower.id).address) as channel:
            sent = await asked(channel, "SendMessage", message(1), v2.SendMessageResponse)
        assert sent.status.code == v2.OK


async def test_a_port_of_grpcio_is_spoken_to_and_told_from_one_in_plaintext(tmp_path: Path) -> None:
    files = Files(tmp_path)
    ca = files.path("ours.pem")
    names = {**files.server, "grpc": "grpcio"}
    async with cluster(files, names=names, grpc="grpcio", **files.server, **files.peers) as (
        address,
        broker,
    ):
        assert await broker.registered(30)
        async with AsyncAdmin(address, tls_ca=ca) as admin:
            await admin.create_topic("orders", queues=1)
        with pytest.raises(ConnectionLost, match="without an answer: does it accept only TLS"):
            await administer(address)
    async with cluster(files, names={"grpc": "grpcio"}, grpc="grpcio") as (address, broker):
        with pytest.raises(TlsFailed, match="speaks plaintext at this port"):
            await administer(address, tls_ca=ca)
