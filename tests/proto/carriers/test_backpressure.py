"""Backpressure: who does not read is not read from, and no queue grows for ever."""

from __future__ import annotations

import asyncio

from pocketmq.proto.errors import Overloaded
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import Limits

from .calling import EOF, encode, failure
from .echo import REPLY, RUN
from .serving import Serving


async def test_a_queue_that_nobody_reads_fails_the_stream_at_its_bound(serving: Serving) -> None:
    async with serving(Limits(queue_bytes=1_000, queue_bytes_max=1_000_000)) as (echo, caller):
        call = caller.channel.unary_stream("/test.Echo/Endless", encode, REPLY.FromString)(RUN())
        await echo.arrived.wait()
        for _ in range(200):  # More than any window holds.
            echo.streams[0].send(REPLY(store_host="x" * 100_000))
        assert echo.streams[0].queued_bytes == 0
        error = await failure(call)
    assert type(error) is Overloaded
    assert error.details["limit"] == "1000000"


async def test_a_pending_awaitable_holds_back_the_next_message(serving: Serving) -> None:
    async with serving() as (echo, caller):
        call = caller.talk()
        await echo.arrived.wait()
        receiver, free = echo.receivers[0], asyncio.Event()

        async def hold(message: pb.ProduceRun) -> None:
            await free.wait()

        receiver.hold = hold
        for number in (1, 2, 3):
            await call.write(RUN(run_id=number))
        await call.read()
        await caller.ask("Plain")  # Which comes behind them on the connection.
        assert receiver.heard == ["run 1"]
        free.set()
        assert (await call.read()).run_id == 2
        call.cancel()
        await receiver.closed.wait()


async def test_a_peer_that_does_not_read_is_not_read_from(serving: Serving) -> None:
    async with serving(Limits(queue_bytes=100_000)) as (echo, caller):
        call = caller.talk()

        async def write_all() -> None:
            for number in range(200):
                await call.write(RUN(run_id=number, queue=100_000))
            await call.done_writing()

        writing = asyncio.ensure_future(write_all())
        await echo.arrived.wait()
        stream, peak = echo.receivers[0].stream, 0
        got = []
        while (reply := await call.read()) is not EOF:
            got.append(reply.run_id)
            peak = max(peak, stream.queued_bytes)
        await writing
    assert got == list(range(200))
    assert peak <= 300_000
