"""Unary calls over channels: answers, errors, deadlines, sizes."""

from __future__ import annotations

import asyncio

import pytest

from pocketmq.proto.errors import (
    ConnectionLost,
    MessageTooLarge,
    QueueNotFound,
    RequestTimeout,
    Unsupported,
)
from pocketmq.proto.errors_wire import from_rpc_error
from pocketmq.proto.rpc.channel import Http2Channel
from pocketmq.proto.rpc.channels import CallFailed, ChannelClosed, StatusCode

from ...waiting import until
from ..carriers.echo import RUN
from .conftest import Dialling
from .methods import free_port, unary


async def test_a_question_is_answered(dialling: Dialling) -> None:
    async with dialling() as (_, channel):
        replies = await asyncio.gather(*(unary(channel)(RUN(run_id=n)) for n in range(200)))

    assert [reply.run_id for reply in replies] == list(range(200))


async def test_an_error_keeps_its_class_and_details(dialling: Dialling) -> None:
    async with dialling() as (_, channel):
        with pytest.raises(CallFailed) as caught:
            await unary(channel)(RUN(topic="refuse"))

    error = from_rpc_error(caught.value)
    assert isinstance(error, QueueNotFound)
    assert (error.message, error.details) == ("no queue 9", {"queue": "9"})
    assert caught.value.code() is StatusCode.NOT_FOUND


async def test_a_method_that_is_not_there_is_named(dialling: Dialling) -> None:
    async with dialling() as (_, channel):
        with pytest.raises(CallFailed) as caught:
            await unary(channel, "Nothing")(RUN())

    assert isinstance(from_rpc_error(caught.value), Unsupported)


async def test_a_deadline_ends_the_call_on_both_sides(dialling: Dialling) -> None:
    async with dialling() as (echo, channel):
        assert (await unary(channel)(RUN(run_id=6))).run_id == 6
        echo.arrived.clear()
        # On a slow machine a short one is over before the server hears of the call.
        for timeout in (0.05, 1, 20):
            with pytest.raises(CallFailed) as caught:
                await unary(channel)(RUN(topic="later"), timeout=timeout)
            if echo.arrived.is_set():
                break
        await echo.cancelled.wait()

        assert (await unary(channel)(RUN(run_id=7))).run_id == 7

    assert isinstance(from_rpc_error(caught.value), RequestTimeout)


async def test_the_server_knows_deadline_and_metadata(dialling: Dialling) -> None:
    async with dialling() as (_, channel):
        reply = await unary(channel)(
            RUN(topic="context"), timeout=30.0, metadata=(("colour", "blue"), ("x-bin", b"\0"))
        )

    _, colour, deadline_ms = reply.store_host.split()
    assert colour == "blue"
    assert 20_000 < int(deadline_ms) < 31_000  # grpcio rounds


async def test_who_is_cancelled_cancels_its_call(dialling: Dialling) -> None:
    async with dialling() as (echo, channel):
        asking = asyncio.ensure_future(unary(channel)(RUN(topic="later")))
        await echo.arrived.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await echo.cancelled.wait()


async def test_large_messages_go_both_ways(dialling: Dialling) -> None:
    body = b"x" * 3_500_000

    async with dialling() as (_, channel):
        reply = await unary(channel)(RUN(topic="mirror", records=body))

    assert reply.store_host == body.decode()


async def test_what_is_larger_than_the_limit_is_not_sent(dialling: Dialling) -> None:
    async with dialling() as (_, channel):
        with pytest.raises(CallFailed) as caught:
            await unary(channel)(bytes(64 * 1024 * 1024 + 1))

    assert isinstance(from_rpc_error(caught.value), MessageTooLarge)


async def test_nobody_listening_is_a_clear_sentence() -> None:
    async with Http2Channel(f"127.0.0.1:{free_port()}") as channel:
        with pytest.raises(CallFailed, match=r"(?i)connection refused") as caught:
            await unary(channel)(RUN())

    assert caught.value.code() is StatusCode.UNAVAILABLE
    assert isinstance(from_rpc_error(caught.value), ConnectionLost)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 70])
async def test_a_name_without_address_is_a_loss(host: str) -> None:
    async with Http2Channel(f"{host}:80") as channel:
        with pytest.raises(CallFailed) as caught:
            await unary(channel)(RUN(), timeout=20.0)

    assert caught.value.code() is StatusCode.UNAVAILABLE


async def test_a_closed_channel_says_so(dialling: Dialling) -> None:
    async with dialling() as (_, channel):
        await unary(channel)(RUN())
        await channel.close()
        with pytest.raises(ChannelClosed):
            await unary(channel)(RUN())


@pytest.mark.slow
async def test_who_cancels_all_day_keeps_its_connection(dialling: Dialling) -> None:
    async with dialling() as (echo, channel):
        before = (await unary(channel)(RUN(topic="context"))).store_host.split()[0]
        for _ in range(40):
            waiting = [asyncio.ensure_future(unary(channel)(RUN(topic="later"))) for _ in range(50)]
            echo.arrived.clear()
            await echo.arrived.wait()
            for call in waiting:
                call.cancel()
            await asyncio.wait(waiting)

        after = (await unary(channel)(RUN(topic="context"))).store_host.split()[0]
        assert after == before
        await until(lambda: all(call.cancelled for call in echo.calls[1:-1]))
