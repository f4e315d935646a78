"""Taking a port: it belongs to one server, and what cannot be had is named."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.proto.rpc import Limits
from pocketmq.proto.rpc.frames import PREFACE
from pocketmq.proto.rpc.listening import connections_fitting

from ..http2.peer import Peer
from ..http2.stage import staged
from .serving import Make


async def test_two_servers_cannot_share_a_port(make: Make) -> None:
    first, second = make(), make()
    port = await first.start("127.0.0.1", 0)

    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: Address already in use. Stop"):
        await second.start("127.0.0.1", port)

    await first.stop(0)
    assert await second.start("127.0.0.1", port) == port
    await second.stop(0)


async def test_a_port_of_a_plain_socket_is_refused_too(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="Address already in use"):
            await make().start("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port"),
    [("no-such-host.invalid", 1), ("203.0.113.1", 0), ("127.0.0.1", 70_000)],
    ids=["unknown host", "foreign address", "impossible port"],
)
async def test_an_address_that_cannot_be_listened_on_is_named(
    host: str, port: int, make: Make
) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {host}:{port}: "):
        await make().start(host, port)


async def test_a_connection_without_a_descriptor_is_told_why_and_the_next_with_one_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with staged(Limits()) as stage, Peer.open(stage.port) as before:
        await before.round_trip()
        clients = [
            socket.socket() for _ in range(5)
        ]  # They need descriptors, too: this is their process.
        with no_descriptors():
            for client in clients:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", stage.port))
                client.send(PREFACE)
            said = [await asyncio.wait_for(read_all(client), 10) for client in clients]
            await before.round_trip()

        assert all(b"can open no more files" in answer for answer in said)
        async with Peer.open(stage.port) as after:
            await after.round_trip()
    told = [record for record in caplog.records if "descriptors_left=0" in record.getMessage()]
    assert 1 <= len(told) <= 3  # of 5: 1, 2, 4
    assert not [record for record in caplog.records if record.exc_info]


async def read_all(client: socket.socket) -> bytes:
    found = b""
    with client:
        while data := await asyncio.get_running_loop().sock_recv(client, 4_096):
            found += data
    return found


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Take every descriptor that this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, hard))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_leave_half_of_the_descriptors_to_files() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)

    assert connections_fitting(10) == 10
    assert connections_fitting(1 << 30) == soft // 2 - 64
