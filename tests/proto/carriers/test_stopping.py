"""Stopping: what is open may end within the grace, and hears why it fails."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from pocketmq.proto.errors import ConnectionLost, ShuttingDown

from .calling import Caller, failure
from .echo import REPLY, RUN, EchoService
from .serving import Make


async def test_a_stop_lets_pending_work_finish_and_tells_why(make: Make) -> None:
    echo = EchoService()
    carrier = make([echo.methods()])
    port = await carrier.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        caller = Caller(channel)
        asked = asyncio.ensure_future(caller.ask("Plain", RUN(topic="later")))
        await echo.arrived.wait()
        call = caller.talk()
        await call.write(RUN(run_id=1))
        await call.read()

        stopping = asyncio.ensure_future(carrier.stop(grace_s=30))
        assert type(await failure(call)) is ShuttingDown
        await echo.receivers[0].closed.wait()
        assert echo.receivers[0].heard[-2:] == ["end", "close"]
        echo.calls[0].reply(REPLY(run_id=5))

        assert (await asked).run_id == 5
        await stopping


async def test_a_stop_fails_what_does_not_end_in_the_grace(make: Make) -> None:
    echo = EchoService()
    carrier = make([echo.methods()])
    port = await carrier.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        caller = Caller(channel)
        asked = asyncio.ensure_future(caller.ask("Plain", RUN(topic="later")))
        await echo.arrived.wait()
        await carrier.stop(grace_s=0.1)
        with pytest.raises(ShuttingDown):
            await asked
        echo.calls[0].reply(REPLY())

        with pytest.raises(ConnectionLost):
            await caller.ask("Plain")
