"""`pocketmq connections`, and the service behind it, over whole servers on carriers that count and that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from pocketmq.broker.broker import Broker, Network
from pocketmq.client.administration.servers import AsyncServerConnections
from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.carrier_grpcio import GrpcioCarrier
from pocketmq.proto.carriers import Http2Carrier
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import ConfigError, Unsupported
from pocketmq.proto.errors_wire import from_rpc_error
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import Limits, MakeCarrier, MethodTable
from pocketmq.store.os_disk import OsDisk

from ..complaint import complaint
from ..proto.services.counting import Counting, figures
from ..served import broker_config, nameserver_config
from .command import Done, Shell
from .whole_broker import store_config

FOUND = (
    figures(7, peer="10.0.0.1:7", calls_begun=2),
    figures(8, peer="10.0.0.1:8", calls_begun=3_000, user_agent="\x1b[31mred", last_path=""),
)


class CountingCarrier(GrpcioCarrier, Counting):
    """Carries calls, and tells figures as one does that counts."""

    def __init__(self, tables: Iterable[MethodTable], *, limits: Limits) -> None:
        GrpcioCarrier.__init__(self, tables, limits=limits)
        Counting.__init__(self, *FOUND)


@asynccontextmanager
async def cluster(
    folder: Path, *, names: MakeCarrier = GrpcioCarrier, brokers: MakeCarrier = GrpcioCarrier
) -> AsyncIterator[tuple[NameServer, Broker]]:
    """Run a name server and a broker on the carriers that NAMES and BROKERS make."""
    name_server = NameServer.build(
        nameserver_config(port=0), clock=SystemClock(), make_carrier=names
    )
    await name_server.start()
    config = broker_config(port=0, name="broker-x", nameservers=(name_server.address,))
    broker = Broker.build(
        config,
        store_config(folder),
        disk=OsDisk(),
        clock=SystemClock(),
        network=Network(make_carrier=brokers),
    )
    try:
        await broker.start()
        assert await broker.registered(20)
        yield name_server, broker
    finally:
        await broker.stop()
        await name_server.stop(grace_s=0)


async def run(server: NameServer, *arguments: str) -> Done:
    """Run the command on a thread, while this loop serves."""
    return await asyncio.to_thread(Shell(server.address), "connections", *arguments)


async def test_a_server_on_grpcio_says_that_it_does_not_count(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (name_server, broker):
        for address in (name_server.address, broker.address):
            async with grpc.aio.insecure_channel(address) as channel:
                ask = channel.unary_unary(
                    "/pocketmq.v1.Connections/List",
                    pb.ConnectionListRequest.SerializeToString,
                    pb.ConnectionListReply.FromString,
                )
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await ask(pb.ConnectionListRequest())
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert isinstance(from_rpc_error(raised.value), Unsupported)

        done = await run(name_server)

    assert (done.code, done.out) == (1, "")
    assert complaint(done.err) == (
        "pocketmq: this server has no metrics of connections,"
        " because it runs with --grpc grpcio: use --grpc builtin"
    )


async def test_those_with_most_calls_come_first(tmp_path: Path) -> None:
    async with cluster(tmp_path, names=CountingCarrier, brokers=CountingCarrier) as servers:
        name_server, broker = servers
        shown = await run(name_server)
        told = await run(name_server, "--json")

    assert (shown.code, shown.err) == (0, "")
    titles = "peer        tls  open for  streams  calls  failed  read    written  queued  last call"
    tables = shown.out.split("\n\n")
    assert len(tables) == 2
    for table, who in zip(
        tables,
        (f"name server at {name_server.address}", f"broker broker-x at {broker.address}"),
        strict=True,
    ):
        head, columns, busy, quiet = table.strip().splitlines()
        assert head == (
            f"{who}: 2 open, 1,007 accepted, 4 refused; closed: 5 idle, 1,000 peer closed"
        )
        assert columns.startswith(titles)
        assert [" ".join(row.split()) for row in (busy, quiet)] == [
            "10.0.0.1:8 yes 1m 3 3000 7 1.2 kB 5.7 MB 12 B - ?[31mred",
            "10.0.0.1:7 no 1m 3 2 7 1.2 kB 5.7 MB 12 B Status, 0.2s ago grpc-go/1.61.0",
        ]
    assert [one["server"] for one in told.documents] == ["name server", "broker broker-x"]
    assert [one["id"] for one in told.documents[1]["connections"]] == [8, 7]
    assert told.documents[1]["totals"]["closed"] == {"peer closed": 1_000, "idle": 5}


async def test_one_that_does_not_count_keeps_nothing_from_the_others(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=CountingCarrier) as (name_server, _):
        shown = await run(name_server)
        told = await run(name_server, "--json")

    assert shown.code == 0
    assert shown.out.startswith(
        f"name server at {name_server.address}: this server has no metrics of connections"
    )
    assert "broker broker-x" in shown.out
    assert "--grpc builtin" in told.documents[0]["error"]
    assert told.documents[0]["totals"] is None
    assert told.documents[1]["error"] is None


async def test_one_server_can_be_asked_alone(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=CountingCarrier) as (name_server, broker):
        nowhere = Shell("127.0.0.1:1")
        done = await asyncio.to_thread(nowhere, "connections", "--broker", broker.address, "--json")
        (found,) = done.documents
        assert (done.code, found["server"], found["address"]) == (0, "server", broker.address)

        known = Shell(name_server.address)
        named = await asyncio.to_thread(known, "connections", "--broker", "broker-x", "--json")
        (found,) = named.documents
        assert (found["server"], found["address"]) == ("broker broker-x", broker.address)
        unknown = await asyncio.to_thread(known, "connections", "--broker", "nobody")
        assert (unknown.code, "broker 'nobody' is not registered" in unknown.err) == (3, True)

        async with AsyncServerConnections(name_server.address, broker.address) as servers:
            (one,) = await servers.all()
        assert one.connections == FOUND


async def test_all_pages_are_asked_for(tmp_path: Path) -> None:
    many = tuple(map(figures, range(1, 2_345)))

    def carrier(*arguments: Any, **named: Any) -> CountingCarrier:
        made = CountingCarrier(*arguments, **named)
        made.found = many
        return made

    async with (
        cluster(tmp_path, brokers=carrier) as (_, broker),
        AsyncServerConnections(address=broker.address) as servers,
    ):
        (one,) = await servers.all()

    assert one.connections == many


def test_an_address_that_is_none_is_wrong_usage() -> None:
    done = Shell("127.0.0.1:1")("connections", "--broker", "here:x")

    assert (done.code, done.out) == (2, "")
    assert "'here:x' is no host:port" in done.err
    with pytest.raises(ConfigError, match="address: 'here'"):
        AsyncServerConnections(address="here")


async def test_our_own_carrier_counts(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, names=Http2Carrier, brokers=Http2Carrier) as (name_server, broker),
        grpc.aio.insecure_channel(broker.address) as channel,
    ):
        ask = channel.unary_unary(
            "/pocketmq.v1.Broker/Status",
            pb.BrokerStatusRequest.SerializeToString,
            pb.BrokerStatusReply.FromString,
        )
        for _ in range(3):
            await ask(pb.BrokerStatusRequest())
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/pocketmq.v1.Broker/Dance", bytes, bytes)(b"")
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(*broker.address.split(":"))
            writer.write(b"\xff")  # The first byte of a remoting frame is 0.
            assert await reader.read() == b""
            writer.close()
        told = await run(name_server, "--json")

    found = {one["server"]: one for one in told.documents}
    (ours,) = [one for one in found["broker broker-x"]["connections"] if one["calls_begun"] == 4]
    assert (ours["calls_succeeded"], ours["calls_failed"], ours["streams_open"]) == (3, 1, 0)
    assert ours["user_agent"].startswith("grpc-python-asyncio/")
    assert ours["last_path"] == "/pocketmq.v1.Broker/Dance"
    assert ours["bytes_read"] > 100
    assert ours["bytes_written"] > 100
    totals = found["broker broker-x"]["totals"]
    assert totals["closed"]["neither HTTP nor TLS"] == 1
    assert totals["accepted"] == totals["open"] + sum(totals["closed"].values())
    registering = "/pocketmq.v1.NameServer/Register"
    (stream,) = [
        one for one in found["name server"]["connections"] if one["last_path"] == registering
    ]
    assert stream["streams_open"] == 1
