"""What only the grpcio carrier does: it may stand behind a relay."""

from __future__ import annotations

from typing import Any

import grpc.aio

from pocketmq.proto.carrier_grpcio import GrpcioCarrier

from .echo import REPLY, RUN, EchoService


async def test_a_carrier_behind_a_relay_tells_whose_call_it_is() -> None:
    echo = EchoService()
    carrier = GrpcioCarrier([echo.methods()], caller=lambda peer: f"caller of {peer}")
    port = await carrier.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        channel: Any = opened
        unary = channel.unary_unary("/test.Echo/Plain", RUN.SerializeToString, REPLY.FromString)
        reply = await unary(RUN(topic="context"))
        assert reply.store_host.startswith("caller of 127.0.0.1:")
        stream = channel.stream_stream("/test.Echo/Echo", RUN.SerializeToString, REPLY.FromString)()
        await stream.write(RUN(run_id=1))
        await stream.read()
        assert echo.receivers[0].stream.peer.startswith("caller of 127.0.0.1:")
    await carrier.stop(0.1)
