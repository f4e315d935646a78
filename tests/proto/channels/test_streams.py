"""Bidirectional streams over channels: order, ends, cancellation, backpressure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pocketmq.proto.errors import QueueNotFound
from pocketmq.proto.errors_wire import from_rpc_error
from pocketmq.proto.rpc.channel import Http2Channel
from pocketmq.proto.rpc.channels import EOF, CallFailed, ChannelClosed, StatusCode

from ..carriers.echo import RUN
from .conftest import Dialling
from .methods import echo, free_port, unary


async def test_messages_keep_their_order_and_the_end_follows_them(dialling: Dialling) -> None:
    async with dialling() as (service, channel):
        call = echo(channel)()
        for number in range(100):
            await call.write(RUN(run_id=number))
        await call.done_writing()

        assert [reply.run_id async for reply in call] == list(range(100))
        assert await call.read() is EOF
        assert await call.code() is StatusCode.OK
        assert call.done()

    assert service.receivers[0].heard[-2:] == ["end", "close"]


async def test_one_message_at_a_time_is_answered_at_once(dialling: Dialling) -> None:
    async with dialling() as (_, channel):
        call = echo(channel)()
        for number in range(20):
            await call.write(RUN(run_id=number))
            assert (await call.read()).run_id == number
        call.cancel()


async def test_what_may_leave_is_written_without_waiting(dialling: Dialling) -> None:
    async with dialling() as (_, channel):
        call = echo(channel)()
        assert not call.write_nowait(RUN(run_id=9)), "nobody is connected yet"
        await call.wait_for_connection()
        for number in range(5):
            assert call.write_nowait(RUN(run_id=number))
        await call.done_writing()

        assert [reply.run_id async for reply in call] == list(range(5))
        with pytest.raises(asyncio.InvalidStateError):
            call.write_nowait(RUN())


async def test_nothing_is_written_before_what_waits_for_a_window(dialling: Dialling) -> None:
    async with dialling() as (service, channel):
        call = echo(channel)()
        await call.wait_for_connection()
        await service.arrived.wait()
        go_on = asyncio.Event()
        service.receivers[0].hold = lambda _: go_on.wait()  # type: ignore[assignment,return-value]
        written = 0
        while call.write_nowait(RUN(run_id=written, records=bytes(1_000_000))):
            written += 1
            assert written < 32, "its window has an end"
        go_on.set()
        await call.write(RUN(run_id=written))

        for number in range(written + 1):
            assert (await call.read()).run_id == number
        call.cancel()


async def test_an_error_ends_the_stream_and_is_told_to_readers(dialling: Dialling) -> None:
    async with dialling() as (_, channel):
        call = echo(channel)()
        ended = asyncio.Event()
        call.add_done_callback(lambda _: ended.set())
        await call.write(RUN(run_id=1))
        assert (await call.read()).run_id == 1
        await call.write(RUN(topic="refuse"))
        with pytest.raises(CallFailed) as caught:
            await call.read()
        await ended.wait()
        with pytest.raises((asyncio.InvalidStateError, CallFailed)):
            await call.write(RUN())

        assert isinstance(from_rpc_error(caught.value), QueueNotFound)
        assert (await call.code()) is StatusCode.NOT_FOUND
        assert "no queue 9" in str(await call.details())


async def test_a_handler_that_refuses_ends_the_stream_without_an_answer(
    dialling: Dialling,
) -> None:
    async with dialling() as (_, channel):
        call = echo(channel)(metadata=(("colour", "refuse"),))
        with pytest.raises(CallFailed) as caught:
            await call.read()

    assert isinstance(from_rpc_error(caught.value), QueueNotFound)


async def test_cancellation_reaches_the_server_and_the_reader(dialling: Dialling) -> None:
    async with dialling() as (service, channel):
        call = echo(channel)()
        await call.write(RUN(run_id=1))
        await call.read()
        reading = asyncio.ensure_future(call.read())
        await asyncio.sleep(0)

        assert call.cancel()
        assert not call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await service.receivers[0].closed.wait()


async def test_a_stream_connects_before_anything_is_written(dialling: Dialling) -> None:
    async with dialling() as (service, channel):
        call = echo(channel)()
        await call.wait_for_connection()
        await service.arrived.wait()
        call.cancel()


async def test_a_stream_to_nobody_fails_for_whoever_waits() -> None:
    async with Http2Channel(f"127.0.0.1:{free_port()}") as channel:
        first, second = echo(channel)(), echo(channel)()
        with pytest.raises(CallFailed) as caught:
            await first.wait_for_connection()
        with pytest.raises((CallFailed, asyncio.InvalidStateError)):
            await second.write(RUN())
        with pytest.raises(CallFailed):
            await second.read()

    assert caught.value.code() is StatusCode.UNAVAILABLE


async def test_large_messages_flow_through_small_windows(dialling: Dialling) -> None:
    async with dialling() as (_, channel):
        call = echo(channel)()

        async def write() -> None:
            for number in range(30):
                await call.write(RUN(run_id=number, records=bytes(1_000_000), queue=500_000))
            await call.done_writing()

        writing = asyncio.ensure_future(write())
        replies = [(reply.run_id, len(reply.store_host)) async for reply in call]
        await writing

    assert replies == [(number, 500_000) for number in range(30)]


async def test_a_server_that_does_not_read_holds_the_writer_back(dialling: Dialling) -> None:
    async with dialling() as (service, channel):
        call = echo(channel)()
        await call.wait_for_connection()
        await service.arrived.wait()
        go_on = asyncio.Event()
        service.receivers[0].hold = lambda _: go_on.wait()  # type: ignore[assignment,return-value]
        written = 0

        async def write() -> None:
            nonlocal written
            for number in range(64):
                await call.write(RUN(run_id=number, records=bytes(1_000_000)))
                written += 1

        writing = asyncio.ensure_future(write())
        await call.read()
        before = -1
        while written != before:
            before = written
            await asyncio.sleep(0.05)
        assert written < 32
        go_on.set()
        for _ in range(63):
            await call.read()
        await writing
        call.cancel()


async def test_a_reader_that_does_not_read_holds_the_server_back(dialling: Dialling) -> None:
    async with dialling() as (service, channel):
        call = echo(channel)()

        async def write() -> None:
            for number in range(64):
                await call.write(RUN(run_id=number, queue=1_000_000))
            await call.done_writing()

        writing = asyncio.ensure_future(write())
        await service.arrived.wait()
        heard, before = service.receivers[0].heard, -1
        while len(heard) != before:
            before = len(heard)
            await asyncio.sleep(0.05)
        assert len(heard) < 48
        assert (await unary(channel)(RUN(run_id=9))).run_id == 9  # Others are not held up.
        assert [reply.run_id async for reply in call] == list(range(64))
        await writing


async def test_what_is_written_at_once_keeps_its_place_among_what_waits_for_a_window(
    dialling: Dialling,
) -> None:
    async with dialling() as (_, channel):
        call = echo(channel)()
        assert not call.write_nowait(RUN())  # Not before there is a connection.
        await call.wait_for_connection()
        at_once = 0

        async def write() -> None:
            nonlocal at_once
            for number in range(30):
                message = RUN(run_id=number, records=bytes(1_000_000))
                if call.write_nowait(message):
                    at_once += 1
                else:
                    await call.write(message)
            await call.done_writing()
            with pytest.raises(asyncio.InvalidStateError):
                call.write_nowait(RUN())

        writing = asyncio.ensure_future(write())
        assert [reply.run_id async for reply in call] == list(range(30))
        await writing

    assert 0 < at_once < 30


async def test_who_hears_messages_as_they_come_has_all_before_the_end_is_read(
    dialling: Dialling,
) -> None:
    async with dialling() as (_, channel):
        call = echo(channel)()
        heard: list[int] = []
        call.deliver_to(lambda reply: heard.append(reply.run_id))
        for number in range(100):
            await call.write(RUN(run_id=number))
        await call.done_writing()

        assert await call.read() is EOF
        assert heard == list(range(100))


async def test_what_comes_while_nobody_hears_is_read_before_more_is_heard(
    dialling: Dialling,
) -> None:
    async with dialling() as (_, channel):
        call = echo(channel)()
        came: list[int] = []

        def hear(reply: Any) -> None:
            came.append(reply.run_id)
            if reply.run_id % 10 == 9:
                call.deliver_to(None)

        call.deliver_to(hear)
        for number in range(100):
            await call.write(RUN(run_id=number))
        await call.done_writing()
        read = 0
        while (reply := await call.read()) is not EOF:
            came.append(reply.run_id)
            read += 1
            call.deliver_to(hear)

    assert came == list(range(100))
    assert read


async def test_who_hears_messages_reads_the_error_that_ends_them(dialling: Dialling) -> None:
    async with dialling() as (_, channel):
        call = echo(channel)()
        heard: list[int] = []
        call.deliver_to(lambda reply: heard.append(reply.run_id))
        await call.write(RUN(run_id=1))
        await call.write(RUN(topic="refuse"))
        with pytest.raises(CallFailed) as caught:
            await call.read()

    assert isinstance(from_rpc_error(caught.value), QueueNotFound)
    assert heard == [1]


def _nothing(data: bytes) -> None:
    raise ValueError(data)


async def test_what_cannot_be_decoded_ends_a_stream_that_is_heard(dialling: Dialling) -> None:
    async with dialling() as (_, channel):
        method = channel.stream_stream("/test.Echo/Echo", RUN.SerializeToString, _nothing)
        call = method()
        call.deliver_to(lambda _: None)
        await call.write(RUN(run_id=1))
        with pytest.raises(CallFailed, match="cannot be decoded"):
            await call.read()


async def test_closing_the_channel_ends_its_streams(dialling: Dialling) -> None:
    async with dialling() as (service, channel):
        call = echo(channel)()
        await call.write(RUN(run_id=1))
        await call.read()
        reading = asyncio.ensure_future(call.read())
        await asyncio.sleep(0)
        await channel.close()
        with pytest.raises((ChannelClosed, asyncio.CancelledError)):
            await reading
        await service.receivers[0].closed.wait()
        with pytest.raises(ChannelClosed):
            echo(channel)()
