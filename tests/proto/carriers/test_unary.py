"""Unary calls: what answers them, when, and what a handler knows of its caller."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from pocketmq.proto.errors import PocketMQError

from .calling import encode
from .echo import REPLY, RUN
from .serving import Serving


@pytest.mark.parametrize("method", ["Plain", "Slow"])
async def test_a_unary_call_is_answered(method: str, serving: Serving) -> None:
    async with serving() as (_, caller):
        assert (await caller.ask(method, RUN(run_id=7))).run_id == 7


async def test_a_hundred_calls_at_once_are_each_answered_with_their_own(serving: Serving) -> None:
    async with serving() as (_, caller):
        replies = await asyncio.gather(*(caller.ask("Slow", RUN(run_id=n)) for n in range(100)))
    assert [reply.run_id for reply in replies] == list(range(100))


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_535, 65_536, 4_000_000])
async def test_requests_and_replies_of_any_size_travel_whole(size: int, serving: Serving) -> None:
    async with serving() as (echo, caller):
        text = "".join(chr(33 + at % 90) for at in range(size))
        reply = await caller.ask("Plain", RUN(topic="mirror", records=text.encode()))
        assert reply.store_host == text
        assert len(echo.calls) == 1


async def test_a_request_that_gzip_made_small_is_read(serving: Serving) -> None:
    async with serving() as (_, caller):
        run = RUN(topic="mirror", records=b"x" * 100_000)
        reply = await caller.ask("Plain", run, compression=grpc.Compression.Gzip)
        assert reply.store_host == "x" * 100_000


async def test_a_call_may_be_answered_later(serving: Serving) -> None:
    async with serving() as (echo, caller):
        asked = asyncio.ensure_future(caller.ask("Plain", RUN(topic="later")))
        await echo.arrived.wait()
        echo.calls[0].reply(REPLY(run_id=3))
        assert (await asked).run_id == 3


async def test_later_may_come_before_the_handler_returns(serving: Serving) -> None:
    async with serving() as (_, caller):
        assert (await caller.ask("Plain", RUN(topic="at once"))).run_id == -1


async def test_what_a_handler_adds_follows_its_answer(serving: Serving) -> None:
    async with serving() as (echo, caller):
        call = caller.channel.unary_unary("/test.Echo/Plain", encode, REPLY.FromString)(
            RUN(topic="later")
        )
        await echo.arrived.wait()
        echo.calls[0].add_trailing("x-durable", "memory")
        echo.calls[0].add_trailing("x-colour", "red")
        echo.calls[0].reply(REPLY(run_id=3))

        assert (await call).run_id == 3
        assert dict(await call.trailing_metadata()) == {"x-durable": "memory", "x-colour": "red"}


async def test_a_caller_that_goes_is_noticed_and_its_answer_dropped(serving: Serving) -> None:
    async with serving() as (echo, caller):
        asked = asyncio.ensure_future(caller.ask("Plain", RUN(topic="later")))
        await echo.arrived.wait()
        asked.cancel()
        await echo.cancelled.wait()
        assert echo.calls[0].cancelled
        echo.calls[0].reply(REPLY())
        assert (await caller.ask("Plain", RUN(run_id=1))).run_id == 1


async def test_a_deadline_that_passes_cancels_the_call(serving: Serving) -> None:
    async with serving() as (echo, caller):
        with pytest.raises(PocketMQError):
            await caller.ask("Plain", RUN(topic="later"), timeout=0.3)
        await echo.cancelled.wait()


async def test_the_context_tells_peer_metadata_and_deadline(serving: Serving) -> None:
    async with serving() as (_, caller):
        metadata = (("colour", "red"), ("colour-bin", b"\xff"))
        reply = await caller.ask("Plain", RUN(topic="context"), metadata=metadata, timeout=60)
        address, colour, deadline_ms = reply.store_host.split()
        assert address.startswith("127.0.0.1:")
        assert colour == "red"
        assert 50_000 < int(deadline_ms) < 61_000  # grpc rounds up

        reply = await caller.ask("Plain", RUN(topic="context"))
        assert reply.store_host.endswith(" None None")
