"""The methods of an EchoService over a channel."""

from __future__ import annotations

import socket

from pocketmq.proto.rpc.channels import Channel, StreamMethod, UnaryMethod

from ..carriers.calling import encode
from ..carriers.echo import REPLY


def unary(channel: Channel, method: str = "Plain") -> UnaryMethod:
    """Return a unary METHOD."""
    return channel.unary_unary(f"/test.Echo/{method}", encode, REPLY.FromString)


def echo(channel: Channel) -> StreamMethod:
    """Return the bidirectional one."""
    return channel.stream_stream("/test.Echo/Echo", encode, REPLY.FromString)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
