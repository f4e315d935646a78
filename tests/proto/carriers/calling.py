"""The caller's side of the suite: gRPC over a channel of grpcio, whatever carrier answers."""

from __future__ import annotations

from typing import Any

import grpc.aio

from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.errors_wire import from_rpc_error
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .echo import REPLY, RUN

EOF = getattr(grpc.aio, "EOF")  # noqa: B009 (the stubs lack it)


class Caller:
    """The client's side: raw calls on a channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    async def ask(self, method: str, run: Any = None, **options: Any) -> pb.ProduceReply:
        """Call a unary METHOD; raise what `from_rpc_error` makes of a failure."""
        call = self.channel.unary_unary(f"/test.Echo/{method}", encode, REPLY.FromString)
        try:
            reply: pb.ProduceReply = await call(RUN() if run is None else run, **options)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return reply

    async def stream(self, method: str, run: Any) -> list[int]:
        """Call a streaming METHOD and return all run ids of the answers."""
        call = self.channel.unary_stream(f"/test.Echo/{method}", encode, REPLY.FromString)
        try:
            return [reply.run_id async for reply in call(run)]
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    def talk(self, **options: Any) -> Any:
        """Open the bidirectional stream."""
        return self.channel.stream_stream("/test.Echo/Echo", encode, REPLY.FromString)(**options)


def encode(message: Any) -> bytes:
    """Encode a message; bytes travel as they are."""
    return message if isinstance(message, bytes) else message.SerializeToString()


async def failure(call: Any) -> PocketMQError:
    """Return the error with which an open CALL ends."""
    try:
        while await call.read() is not EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError("the call ended well")
