"""Errors: refusals, bugs and bad input, and what the caller hears of each."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from pocketmq.proto.errors import (
    InvalidArgument,
    MessageTooLarge,
    PocketMQError,
    QueueNotFound,
    Unsupported,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import Limits

from .calling import failure
from .echo import RUN
from .serving import Serving


@pytest.mark.parametrize("method", ["Plain", "Slow"])
async def test_a_refusal_arrives_as_the_class_that_was_raised(
    method: str, serving: Serving
) -> None:
    async with serving() as (_, caller):
        with pytest.raises(QueueNotFound, match="no queue 9") as raised:
            await caller.ask(method, RUN(topic="refuse"))
    assert raised.value.details == {"queue": "9"}


async def test_a_call_may_be_failed_later(serving: Serving) -> None:
    async with serving() as (echo, caller):
        asked = asyncio.ensure_future(caller.ask("Plain", RUN(topic="later")))
        await echo.arrived.wait()
        echo.calls[0].fail(QueueNotFound("gone"))
        with pytest.raises(QueueNotFound, match="gone"):
            await asked


@pytest.mark.parametrize("topic", ["bug", "nothing"])
async def test_a_bug_costs_its_call_and_tells_nothing(
    topic: str, caplog: pytest.LogCaptureFixture, serving: Serving
) -> None:
    async with serving() as (_, caller):
        with (
            caplog.at_level(logging.ERROR),
            pytest.raises(PocketMQError, match=r"^internal error in /test\.Echo/Plain$"),
        ):
            await caller.ask("Plain", RUN(topic=topic))
        assert (await caller.ask("Plain", RUN(run_id=1))).run_id == 1
    assert "Traceback" in caplog.text
    assert "/test.Echo/Plain" in caplog.text


async def test_bytes_that_do_not_decode_are_refused_with_method_and_type(serving: Serving) -> None:
    async with serving() as (echo, caller):
        with pytest.raises(InvalidArgument, match=r"/test.Echo/Plain .* pocketmq.v1.ProduceRun"):
            await caller.ask("Plain", b"\xff\xff\xff")
        assert not echo.calls


async def test_an_unknown_method_is_not_served(serving: Serving) -> None:
    async with serving() as (_, caller):
        with pytest.raises(Unsupported):
            await caller.ask("Dance")


async def test_a_request_beyond_the_bound_is_refused_and_the_connection_lives(
    serving: Serving,
) -> None:
    async with serving(Limits(receive_bytes_max=10_000)) as (_, caller):
        with pytest.raises(MessageTooLarge, match="10000"):
            await caller.ask("Plain", RUN(records=bytes(20_000)))
        assert (await caller.ask("Plain", RUN(run_id=1))).run_id == 1


@pytest.mark.parametrize("topic", ["refuse", "fail"])
async def test_a_server_stream_fails_with_its_error(topic: str, serving: Serving) -> None:
    async with serving() as (_, caller):
        with pytest.raises(QueueNotFound):
            await caller.stream("Count", RUN(queue=3, topic=topic))


async def test_a_bug_in_a_server_stream_costs_that_stream(serving: Serving) -> None:
    async with serving() as (_, caller):
        with pytest.raises(PocketMQError, match=r"internal error in /test\.Echo/CountSlowly"):
            await caller.stream("CountSlowly", RUN(queue=3, topic="bug"))
        with pytest.raises(InvalidArgument, match=r"pocketmq\.v1\.ProduceRun"):
            await caller.stream("Count", b"\xff")


@pytest.mark.parametrize(
    ("message", "raised"),
    [
        (RUN(topic="refuse"), QueueNotFound),
        (RUN(topic="bug"), PocketMQError),
        (b"\xff\xff", InvalidArgument),
    ],
    ids=["refusal", "bug", "garbage"],
)
async def test_a_bad_message_fails_the_talk_after_the_earlier_answers(
    message: Any, raised: type[PocketMQError], serving: Serving
) -> None:
    async with serving() as (echo, caller):
        call = caller.talk()
        await call.write(RUN(run_id=1))
        await call.write(message)

        assert (await call.read()).run_id == 1
        assert type(await failure(call)) is raised
        await echo.receivers[0].closed.wait()
    assert echo.receivers[0].heard.count("close") == 1


async def test_a_handler_that_awaits_what_was_cancelled_is_a_bug_and_not_silence(
    serving: Serving,
) -> None:
    async with serving() as (echo, caller):
        with pytest.raises(PocketMQError, match="internal error"):
            await caller.ask("Slow", RUN(topic="cancelled"))
        with pytest.raises(PocketMQError, match="internal error"):
            await caller.stream("CountSlowly", RUN(queue=3, topic="cancelled"))

        async def hold(message: pb.ProduceRun) -> None:
            raise asyncio.CancelledError

        call = caller.talk()
        await echo.arrived.wait()
        echo.receivers[0].hold = hold
        await call.write(RUN(run_id=1))
        assert "internal error" in (await failure(call)).message
