"""A server whose methods are replaced while it serves: same port, same connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pocketmq.proto.carriers import Http2Carrier
from pocketmq.proto.gen import grpc_health_pb2 as pb
from pocketmq.proto.rpc import Call, MethodTable, Stream, bidi, service, unary
from pocketmq.proto.rpc.channel import Http2Channel
from pocketmq.proto.rpc.channels import EOF, CallFailed, StatusCode, StreamCall

NAME = "test.Words"


class Words:
    """Answers with STATUS, once its gate is open; streams answer each message until they are told to end."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.gate = asyncio.Event()
        self.gate.set()
        self.ends = True
        self.is_over = False

    def methods(self) -> MethodTable:
        types = pb.HealthCheckRequest, pb.HealthCheckResponse
        return service(NAME, {"Ask": unary(*types, self.ask), "Talk": bidi(*types, self.talk)})

    async def ask(self, request: pb.HealthCheckRequest, call: Call) -> pb.HealthCheckResponse:
        await self.gate.wait()
        return self.said

    @property
    def said(self) -> pb.HealthCheckResponse:
        return pb.HealthCheckResponse(status=self.status)  # type: ignore[arg-type]

    def talk(self, stream: Stream) -> Talk:
        return Talk(self, stream)


class Talk:
    """One stream."""

    def __init__(self, words: Words, stream: Stream) -> None:
        self._words = words
        self._stream = stream

    def on_message(self, message: pb.HealthCheckRequest) -> None:
        self._stream.send(self._words.said)

    def on_end(self) -> None:
        if self._words.ends:
            self._stream.finish()

    def on_close(self) -> None:
        self._words.is_over = True


@asynccontextmanager
async def served(words: Words) -> AsyncIterator[tuple[Http2Carrier, Http2Channel]]:
    carrier = Http2Carrier([words.methods()])
    port = await carrier.start()
    try:
        async with Http2Channel(f"127.0.0.1:{port}") as channel:
            yield carrier, channel
    finally:
        await carrier.stop(0)


async def ask(channel: Http2Channel) -> int:
    method = channel.unary_unary(
        f"/{NAME}/Ask", pb.HealthCheckRequest.SerializeToString, pb.HealthCheckResponse.FromString
    )
    reply: pb.HealthCheckResponse = await method(pb.HealthCheckRequest(), timeout=5.0)
    return reply.status


async def talk(channel: Http2Channel) -> StreamCall:
    call = channel.stream_stream(
        f"/{NAME}/Talk", pb.HealthCheckRequest.SerializeToString, pb.HealthCheckResponse.FromString
    )()
    await call.write(pb.HealthCheckRequest())
    await call.read()
    return call


async def test_calls_from_then_on_are_those_of_the_new_tables_over_the_same_connection() -> None:
    async with served(Words(1)) as (carrier, channel):
        assert await ask(channel) == 1

        await carrier.replace([Words(2).methods()], 1.0)

        assert await ask(channel) == 2
        assert carrier.connection_totals().accepted == 1


async def test_what_is_under_way_ends_as_it_began() -> None:
    words = Words(1)
    async with served(words) as (carrier, channel):
        words.gate.clear()
        asked = asyncio.create_task(ask(channel))
        talking = await talk(channel)
        replacing = asyncio.create_task(carrier.replace([Words(2).methods()], 5.0))
        assert await ask(channel) == 2, "new calls do not wait for old ones"
        assert await talking.read() is EOF
        assert not replacing.done()

        words.gate.set()

        assert await asked == 1
        await replacing


async def test_what_does_not_end_in_time_fails_and_new_calls_do_not() -> None:
    words, others = Words(1), Words(2)
    async with served(words) as (carrier, channel):
        words.gate.clear()
        words.ends = False
        asked = asyncio.create_task(ask(channel))
        talking = await talk(channel)
        others.gate.clear()
        replacing = asyncio.create_task(carrier.replace([others.methods()], 0.1))
        await asyncio.sleep(0.02)
        later = asyncio.create_task(ask(channel))
        await replacing

        for waiting in (asked, talking.read()):
            with pytest.raises(CallFailed) as failed:
                await waiting
            assert failed.value.code() is StatusCode.UNAVAILABLE
        assert words.is_over
        others.gate.set()
        assert await later == 2
