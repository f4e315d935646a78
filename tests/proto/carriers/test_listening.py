"""Taking a port: it belongs to one server, and what cannot be had is named."""

from __future__ import annotations

import socket

import pytest

from pocketmq.proto.errors import ConfigError

from .serving import Make


async def test_two_servers_cannot_share_a_port(make: Make) -> None:
    first, second = make(), make()
    port = await first.start("127.0.0.1", 0)

    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: Address already in use; stop"):
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
