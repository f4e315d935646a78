"""A whole broker at one port, by either carrier: callers with TLS and without, plain HTTP, our own clients."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from pocketmq.broker.broker import Broker
from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.ports.certificates import development_certificate
from pocketmq.client import AsyncAdmin, AsyncProducer, AsyncPullConsumer, Message
from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.carriers import GRPC_CHOICES
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.configuration import parse_sections
from pocketmq.proto.errors import ConfigError, ConnectionLost
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.os_disk import OsDisk

from ..free_ports import free_port
from ..proto.http2.calls import request_fields
from ..proto.http2.peer import Peer as RawPeer
from ..served import ServerProcess, broker_config, nameserver_config
from .whole_broker import Peer, broker, run_of, store_config

LOCAL = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture(params=GRPC_CHOICES)
def carrier(request: pytest.FixtureRequest) -> str:
    """What speaks HTTP/2, as settings say it."""
    found: str = request.param
    return found


def tls_channel(address: str, root: bytes) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(root), options=LOCAL)


def fetched_certificate(port: int) -> bytes:
    """Return the certificate that is shown at PORT: callers that trust any take it like this."""
    return ssl.get_server_certificate(("127.0.0.1", port)).encode()


def certificate_files(folder: Path) -> tuple[bytes, dict[str, Any]]:
    """Put a new certificate into FOLDER; return it, and the settings that name its files."""
    made = development_certificate([], datetime.now(UTC))
    chain, key = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(made.chain)
    key.write_bytes(made.key)
    return made.chain, {"tls_cert": str(chain), "tls_key": str(key)}


async def test_tls_and_plaintext_reach_one_port(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path), grpc="builtin") as (server, plain):
        assert not (tmp_path / "store/pocketmq/tls").exists()
        root = await asyncio.to_thread(fetched_certificate, server.port)
        async with tls_channel(f"localhost:{server.port}", root) as channel:
            secure = Peer(channel)
            await secure.create_topic()
            for peer, queue in ((plain, 0), (secure, 1)):
                await peer.produce(run_of([b"x" * 100_000], queue=queue))
                reply = await peer.fetch(queue=queue)
                assert len(reply.records) > 100_000
        assert (tmp_path / "store/pocketmq/tls/certificate.pem").read_bytes() == root


async def test_the_public_port_is_the_brokers_address(tmp_path: Path, carrier: str) -> None:
    async with broker(store_config(tmp_path), grpc=carrier) as (server, peer):
        assert server.address == f"127.0.0.1:{server.port}"
        status = await peer.ask("Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply)
        assert status.address == server.address
        async with grpc.aio.insecure_channel(server.address, options=LOCAL) as channel:
            await Peer(channel).create_topic()


async def test_without_tls_there_is_none(tmp_path: Path, carrier: str) -> None:
    async with broker(store_config(tmp_path), tls=False, grpc=carrier) as (server, peer):
        await peer.create_topic()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(fetched_certificate, server.port)


async def test_grpcio_takes_tls_instead_of_plaintext_where_a_certificate_is_named(
    tmp_path: Path,
) -> None:
    root, files = certificate_files(tmp_path)
    async with broker(store_config(tmp_path), grpc="grpcio", **files) as (server, plain):
        async with tls_channel(f"localhost:{server.port}", root) as channel:
            await Peer(channel).create_topic()
        with pytest.raises(ConnectionLost):
            await plain.create_topic()
    async with broker(store_config(tmp_path), grpc="grpcio") as (_, plain):
        await plain.produce(run_of([b"x"]))


def test_the_key_of_the_port_that_grpcio_had_besides_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"direct_port: no such key any more: .* remove it"):
        parse_sections("broker:\n  direct_port: 18081", {"broker": BrokerConfig})


@asynccontextmanager
async def cluster(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Broker, str]]:
    """Run a name server and a broker that registers there."""
    names = NameServer.build(nameserver_config(port=0), clock=SystemClock())
    await names.start()
    config = broker_config(nameservers=(names.address,), **{"port": 0, **settings})
    server = Broker.build(config, store_config(tmp_path), disk=OsDisk(), clock=SystemClock())
    await server.start()
    try:
        assert await server.registered(10)
        yield server, names.address
    finally:
        await server.stop()
        await names.stop()


@pytest.mark.parametrize("way", ["its own", "advertised"])
async def test_our_own_client_goes_to_the_address_that_it_is_told(
    tmp_path: Path, way: str, carrier: str
) -> None:
    port = free_port()
    settings = {} if way == "its own" else {"advertised_address": f"127.0.0.1:{port}"}
    async with cluster(tmp_path, port=port, grpc=carrier, **settings) as (_, nameserver):
        async with AsyncAdmin(nameserver) as admin:
            await admin.create_topic("orders")
        async with (
            AsyncProducer(nameserver) as producer,
            AsyncPullConsumer("billing", "orders", nameserver) as consumer,
        ):
            bodies = [b"%d" % number * 1_000 for number in range(500)]
            await producer.send_many([Message("orders", body) for body in bodies])
            received: list[bytes] = []
            while len(received) < len(bodies):
                received += [message.body for message in await consumer.poll(timeout_ms=10_000)]
            assert sorted(received) == sorted(bodies)


@pytest.mark.processes
async def test_a_server_shows_the_operators_certificate_and_the_new_one_after_a_hangup(
    tmp_path: Path, carrier: str
) -> None:
    first, files = certificate_files(tmp_path)
    config = tmp_path / "settings.yaml"
    config.write_text("broker:\n" + "".join(f"  {key}: {file}\n" for key, file in files.items()))
    with ServerProcess(tmp_path / "store", "--config", str(config), "--grpc", carrier) as server:
        port = int(server.ready["broker"].rpartition(":")[2])
        assert await asyncio.to_thread(fetched_certificate, port) == first
        second, _ = certificate_files(tmp_path)
        os.kill(server.pid, signal.SIGHUP)
        while (shown := await asyncio.to_thread(fetched_certificate, port)) == first:
            continue
        assert shown == second
        assert not (tmp_path / "store/pocketmq/tls").exists()


async def test_a_port_of_all_networks_takes_ipv4_and_ipv6(tmp_path: Path, carrier: str) -> None:
    port = free_port()
    settings = {"host": "0.0.0.0", "port": port, "advertised_address": f"127.0.0.1:{port}"}
    async with cluster(tmp_path, grpc=carrier, **settings):
        hosts = ["127.0.0.1", "[::1]"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]
        for host in hosts:
            async with grpc.aio.insecure_channel(f"{host}:{port}", options=LOCAL) as channel:
                await Peer(channel).ask("Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
async def test_metrics_are_shown_on_the_same_port(tmp_path: Path, secure: bool) -> None:
    async with broker(store_config(tmp_path), grpc="builtin") as (server, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"a", b"b"]))
        await peer.refusal(run_of([b"a"], queue=99))
        await peer.fetch()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=ssl._create_unverified_context() if secure else None
        )
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        page = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()

    assert page.startswith("HTTP/1.1 200 OK\r\n")
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[:1].islower())
    expected = {"sends": 1, "sent_messages": 2, "sends_failed": 1, "fetches": 1}
    for name, value in expected.items():
        assert float(lines[f"pocketmq_broker_{name}_total"]) == value, name
    assert float(lines["pocketmq_broker_connections"]) == 2
    assert float(lines["pocketmq_store_writable"]) == 1
    assert float(lines["pocketmq_store_appended_bytes_total"]) > 0
    assert float(lines["process_resident_memory_bytes"]) > 1 << 20


async def test_who_prefers_http2_over_tls_is_shown_metrics_in_it(tmp_path: Path) -> None:
    offers_http2 = ssl._create_unverified_context()
    offers_http2.set_alpn_protocols(["h2", "http/1.1"])
    asked = request_fields("/metrics", method="GET", scheme="https", te=None, content_type=None)
    async with (
        broker(store_config(tmp_path), grpc="builtin") as (server, _),
        RawPeer.open(server.port, tls=offers_http2) as scraper,
    ):
        page = await scraper.answer(scraper.begin(asked, end=True))
    assert page.http_status == "200"
    assert page.headers["content-type"].startswith("text/plain; version=")
    assert b"pocketmq_store_writable 1.0" in page.body
