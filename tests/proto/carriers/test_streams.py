"""Streams, of the server alone and in both directions: order, ends, and who hears of them."""

from __future__ import annotations

import asyncio

import pytest

from pocketmq.proto.errors import QueueNotFound
from pocketmq.proto.rpc import Limits

from .calling import EOF, failure
from .echo import REPLY, RUN
from .serving import Serving


@pytest.mark.parametrize("method", ["Count", "CountSlowly"])
async def test_a_server_stream_keeps_the_order_and_ends(method: str, serving: Serving) -> None:
    async with serving(Limits(queue_bytes=50_000)) as (_, caller):
        assert await caller.stream(method, RUN(queue=20)) == list(range(20))


async def test_a_server_stream_notices_that_its_peer_goes(serving: Serving) -> None:
    async with serving() as (echo, caller):
        listening = asyncio.ensure_future(caller.stream("Endless", RUN()))
        await echo.arrived.wait()
        listening.cancel()
        await echo.cancelled.wait()
        echo.streams[0].send(REPLY())
        await echo.streams[0].drained()


async def test_a_talk_answers_every_message_and_ends_with_it(serving: Serving) -> None:
    async with serving() as (echo, caller):
        call = caller.talk()
        for number in range(50):
            await call.write(RUN(run_id=number))
        await call.done_writing()

        assert [reply.run_id async for reply in call] == list(range(50))
        await echo.receivers[0].closed.wait()
    assert echo.receivers[0].heard[-3:] == ["run 49", "end", "close"]
    assert not echo.receivers[0].stream.cancelled


async def test_a_talk_may_be_refused_at_once(serving: Serving) -> None:
    async with serving() as (echo, caller):
        call = caller.talk(metadata=(("colour", "refuse"),))
        assert type(await failure(call)) is QueueNotFound
    assert not echo.receivers


async def test_a_talk_that_is_broken_off_closes_its_receiver_once(serving: Serving) -> None:
    async with serving() as (echo, caller):
        call = caller.talk()
        await call.write(RUN(run_id=1))
        await call.read()
        call.cancel()
        await echo.receivers[0].closed.wait()
        receiver = echo.receivers[0]
        receiver.stream.send(REPLY())
        receiver.stream.finish()
    assert receiver.heard.count("close") == 1
    assert receiver.heard[-1] == "close"


async def test_the_server_may_end_a_talk_while_the_peer_still_writes(serving: Serving) -> None:
    async with serving() as (echo, caller):
        call = caller.talk()
        await call.write(RUN(run_id=1))
        await call.read()
        echo.receivers[0].stream.finish()
        assert await call.read() is EOF
        await echo.receivers[0].closed.wait()
    assert echo.receivers[0].heard == ["run 1", "close"]


async def test_a_connection_that_closes_ends_all_that_was_open_on_it(serving: Serving) -> None:
    async with serving() as (echo, caller):
        asked = asyncio.ensure_future(caller.ask("Plain", RUN(topic="later")))
        await echo.arrived.wait()
        call = caller.talk()
        await call.write(RUN(run_id=1))
        await call.read()
        await caller.channel.close(None)

        await echo.cancelled.wait()
        await echo.receivers[0].closed.wait()
        assert echo.calls[0].cancelled
        with pytest.raises(asyncio.CancelledError):
            await asked
    assert echo.receivers[0].heard.count("close") == 1


async def test_streams_that_end_in_any_way_leave_no_task_behind(serving: Serving) -> None:
    async with serving() as (echo, caller):
        await caller.ask("Plain")
        before = len(asyncio.all_tasks())
        calls = [caller.talk() for _ in range(30)]
        for call in calls:
            await call.write(RUN(run_id=1))
            await call.read()
        for call in calls[:10]:
            call.cancel()
        for call in calls[10:20]:
            await call.write(RUN(topic="bug"))
            await failure(call)
        for call in calls[20:]:
            await call.done_writing()
            assert await call.read() is EOF
        for receiver in echo.receivers:
            await receiver.closed.wait()
        assert await caller.stream("Count", RUN(queue=1)) == [0]
        assert len(asyncio.all_tasks()) <= before + 1
