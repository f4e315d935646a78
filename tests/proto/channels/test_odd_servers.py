"""Our own channel, and servers that are slow, silent, wrong, or none at all."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from typing import Any

import pytest

from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.errors_wire import from_rpc_error
from pocketmq.proto.rpc.channel import Http2Channel
from pocketmq.proto.rpc.channels import EOF, CallFailed, StatusCode
from pocketmq.proto.rpc.limits import ChannelLimits

from ..carriers.echo import RUN
from ..http2 import frames
from ..http2.frames import ACK, Code, Setting, Type
from .methods import echo, unary
from .scripted import HEAD, Visit, serving


async def good(visit: Visit) -> None:
    """Answer every call by the number of its stream."""
    await visit.greet()
    while True:
        asked = await visit.hear(Type.HEADERS)
        visit.say(visit.answer(asked.stream, asked.stream))


async def failure(channel: Http2Channel, timeout: float | None = 30.0) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        await unary(channel)(RUN(), timeout=timeout)
    return caught.value


async def both(channel: Http2Channel) -> list[Any]:
    """Ask twice at once and return what comes of it."""
    calls = (unary(channel)(RUN()) for _ in range(2))
    return list(await asyncio.gather(*calls, return_exceptions=True))


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x28", bytes(99)]
)
async def test_what_is_no_http2_is_not_reached_and_the_next_call_tries_anew(said: bytes) -> None:
    async def other(visit: Visit) -> None:
        visit.say(said)

    async with serving(other, good) as address, Http2Channel(address) as channel:
        failed = await failure(channel)
        reply = await unary(channel)(RUN())

    assert failed.code() is StatusCode.UNAVAILABLE
    assert "failed to connect" in failed.details()
    assert reply.run_id == 1


async def test_a_server_that_says_nothing_is_given_up() -> None:
    async with (
        serving(Visit.gone) as address,
        Http2Channel(address, ChannelLimits(connect_ms=50)) as channel,
    ):
        failed = await failure(channel, None)

    assert (failed.code(), failed.details()) == (
        StatusCode.UNAVAILABLE,
        "failed to connect: no answer within 50 ms",
    )


async def test_a_deadline_holds_while_nothing_is_connected() -> None:
    async with serving(Visit.gone) as address, Http2Channel(address) as channel:
        failed = await failure(channel, 0.02)

    assert failed.code() is StatusCode.DEADLINE_EXCEEDED


async def test_who_is_silent_amid_a_call_is_asked_and_given_up() -> None:
    async def silent(visit: Visit) -> None:
        await visit.greet()
        await visit.hear(Type.PING)
        await visit.gone()

    limits = ChannelLimits(keepalive_ms=20, keepalive_timeout_ms=20)
    async with serving(silent, good) as address, Http2Channel(address, limits) as channel:
        failed = await failure(channel, None)
        assert (await unary(channel)(RUN())).run_id == 1

    assert failed.code() is StatusCode.UNAVAILABLE
    assert "silent" in failed.details()


async def test_who_answers_that_it_is_there_may_take_its_time() -> None:
    async def slow(visit: Visit) -> None:
        await visit.greet()
        asked = await visit.hear(Type.HEADERS)
        for _ in range(3):
            ping = await visit.hear(Type.PING)
            visit.say(frames.ping(ping.payload, ack=True))
        visit.say(visit.answer(asked.stream, 5))
        await visit.gone()

    limits = ChannelLimits(keepalive_ms=20, keepalive_timeout_ms=20_000)
    async with serving(slow) as address, Http2Channel(address, limits) as channel:
        assert (await unary(channel)(RUN())).run_id == 5


async def test_calls_beyond_what_the_server_takes_at_once_wait_their_turn() -> None:
    async def narrow(visit: Visit) -> None:
        await visit.greet({Setting.MAX_CONCURRENT_STREAMS: 2})
        while True:
            one, two = await visit.hear(Type.HEADERS), await visit.hear(Type.HEADERS)
            visit.say(visit.answer(one.stream, one.stream), visit.answer(two.stream, two.stream))

    async with serving(narrow) as address, Http2Channel(address) as channel:
        replies = await asyncio.gather(*(unary(channel)(RUN()) for _ in range(10)))

    assert [reply.run_id for reply in replies] == [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]


async def test_more_calls_than_may_wait_are_refused() -> None:
    limits = ChannelLimits(waiting_max=3)
    async with serving(good) as address, Http2Channel(address, limits) as channel:
        found = await asyncio.gather(
            *(unary(channel)(RUN()) for _ in range(5)), return_exceptions=True
        )

    refused = [error for error in found if isinstance(error, CallFailed)]
    assert [error.code() for error in refused] == [StatusCode.RESOURCE_EXHAUSTED] * 2


async def test_calls_that_wait_go_elsewhere_after_a_farewell() -> None:
    async def leaving(visit: Visit) -> None:
        await visit.greet({Setting.MAX_CONCURRENT_STREAMS: 1})
        asked = await visit.hear(Type.HEADERS)
        visit.say(frames.frame(Type.GOAWAY, payload=struct.pack(">II", asked.stream, 0)))
        visit.say(visit.answer(asked.stream, 77))
        await visit.gone()

    async with serving(leaving, good) as address, Http2Channel(address) as channel:
        replies = await asyncio.gather(*(unary(channel)(RUN()) for _ in range(3)))

    assert [reply.run_id for reply in replies] == [77, 1, 3]


async def test_a_call_that_a_leaving_server_did_not_look_at_is_lost() -> None:
    async def leaving(visit: Visit) -> None:
        await visit.greet()
        await visit.hear(Type.HEADERS)
        visit.say(frames.frame(Type.GOAWAY, payload=struct.pack(">II", 0, 0)))
        await visit.gone()

    async with serving(leaving) as address, Http2Channel(address) as channel:
        assert (await failure(channel)).code() is StatusCode.UNAVAILABLE


async def test_a_server_that_leaves_each_connection_at_once_is_not_tried_for_ever() -> None:
    async def leaving(visit: Visit) -> None:
        await visit.greet()
        visit.say(frames.frame(Type.GOAWAY, payload=struct.pack(">II", 0, 0)))
        await visit.gone()

    async with serving(leaving) as address, Http2Channel(address) as channel:
        assert (await failure(channel, None)).code() is StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.REFUSED_STREAM, StatusCode.UNAVAILABLE),
        (Code.CANCEL, StatusCode.CANCELLED),
        (Code.ENHANCE_YOUR_CALM, StatusCode.RESOURCE_EXHAUSTED),
        (Code.PROTOCOL_ERROR, StatusCode.INTERNAL),
        (99, StatusCode.INTERNAL),
    ],
)
async def test_a_call_that_is_broken_off_has_the_status_of_its_code(
    code: int, status: StatusCode
) -> None:
    async def breaking(visit: Visit) -> None:
        await visit.greet()
        asked = await visit.hear(Type.HEADERS)
        visit.say(frames.reset(asked.stream, code))
        await visit.gone()

    async with serving(breaking) as address, Http2Channel(address) as channel:
        assert (await failure(channel)).code() is status


async def test_a_server_of_web_pages_is_told_from_one_of_calls() -> None:
    async def web(visit: Visit) -> None:
        await visit.greet()
        asked = await visit.hear(Type.HEADERS)
        fields = [(":status", "404"), ("content-type", "text/html")]
        visit.say(frames.headers(asked.stream, visit.block(fields)))
        visit.say(frames.data(asked.stream, b"<html>", end=True))
        await visit.gone()

    async with serving(web) as address, Http2Channel(address) as channel:
        failed = await failure(channel)

    assert failed.code() is StatusCode.UNIMPLEMENTED
    assert "HTTP 404, text/html" in failed.details()


async def test_what_is_cancelled_is_broken_off_on_the_wire() -> None:
    broken = asyncio.get_running_loop().create_future()

    async def patient(visit: Visit) -> None:
        await visit.greet()
        asked = await visit.hear(Type.HEADERS)
        reset = await visit.hear(Type.RST_STREAM)
        broken.set_result((reset.stream == asked.stream, reset.code))
        await visit.gone()

    async with serving(patient) as address, Http2Channel(address) as channel:
        # On a busy machine the connection takes most of a short deadline, and the call never reaches the server.
        assert (await failure(channel, 1.0)).code() is StatusCode.DEADLINE_EXCEEDED
        assert await broken == (True, Code.CANCEL)


async def test_a_message_that_is_too_large_is_refused_before_it_is_there() -> None:
    async def boasting(visit: Visit) -> None:
        await visit.greet()
        asked = await visit.hear(Type.HEADERS)
        visit.say(frames.headers(asked.stream, visit.block(HEAD)))
        visit.say(frames.data(asked.stream, struct.pack(">BI", 0, 1_001)))
        await visit.gone()

    limits = ChannelLimits(message_bytes_max=1_000)
    async with serving(boasting) as address, Http2Channel(address, limits) as channel:
        failed = await failure(channel)

    assert failed.code() is StatusCode.RESOURCE_EXHAUSTED
    assert "message larger than max" in failed.details()


async def test_settings_are_acknowledged() -> None:
    acknowledged = asyncio.Event()

    async def checking(visit: Visit) -> None:
        await visit.greet()
        while not (await visit.hear(Type.SETTINGS)).flags & ACK:
            pass
        acknowledged.set()
        asked = await visit.hear(Type.HEADERS)
        visit.say(visit.answer(asked.stream))
        await visit.gone()

    async with serving(checking) as address, Http2Channel(address) as channel:
        await unary(channel)(RUN())

    assert acknowledged.is_set()


@pytest.mark.parametrize("seed", range(12))
async def test_bytes_that_are_damaged_end_calls_and_nothing_else(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)

    async def damaging(visit: Visit) -> None:
        await visit.greet()
        first, second = await visit.hear(Type.HEADERS), await visit.hear(Type.HEADERS)
        sent = bytearray(visit.answer(first.stream) + visit.answer(second.stream))
        for _ in range(chance.randint(1, 5)):
            sent[chance.randrange(len(sent))] = chance.randrange(256)
        visit.say(bytes(sent))

    async def ask(channel: Http2Channel) -> None:
        try:
            await unary(channel)(RUN(), timeout=30.0)
        except CallFailed as failed:
            assert isinstance(from_rpc_error(failed), PocketMQError)

    async def talk(channel: Http2Channel) -> None:
        call = echo(channel)()
        try:
            while await call.read() is not EOF:
                await call.write(RUN())
        except (CallFailed, asyncio.InvalidStateError):
            pass

    with caplog.at_level(logging.WARNING):
        async with serving(damaging) as address, asyncio.timeout(60):
            for _ in range(30):
                async with Http2Channel(address) as channel:
                    await asyncio.gather(ask(channel), talk(channel))

    assert caplog.records == []


async def test_an_answer_counts_though_nonsense_follows_it() -> None:
    async def confused(visit: Visit) -> None:
        await visit.greet()
        one, two = await visit.hear(Type.HEADERS), await visit.hear(Type.HEADERS)
        visit.say(visit.answer(one.stream, 5), frames.data(two.stream + 2, b"nonsense"))
        await visit.gone()

    async with serving(confused) as address, Http2Channel(address) as channel:
        answered, lost = await both(channel)

    assert answered.run_id == 5
    assert isinstance(lost, CallFailed)
    assert lost.code() is StatusCode.UNAVAILABLE
    assert "violates HTTP/2: DATA on stream 5, which is idle" in lost.details()


async def test_an_answer_without_sense_costs_its_own_call() -> None:
    async def wrong(visit: Visit) -> None:
        await visit.greet()
        one, two = await visit.hear(Type.HEADERS), await visit.hear(Type.HEADERS)
        visit.say(frames.data(one.stream, b"no head"), visit.answer(two.stream, 6))
        await visit.gone()

    async with serving(wrong) as address, Http2Channel(address) as channel:
        lost, answered = await both(channel)

    assert answered.run_id == 6
    assert isinstance(lost, CallFailed)
    assert lost.code() is StatusCode.INTERNAL


@pytest.mark.parametrize("metadata", [("Loud", "x"), ("a", "two\nlines"), (":path", "/")])
async def test_metadata_that_cannot_be_said_is_refused(metadata: tuple[str, str]) -> None:
    async with serving(good) as address, Http2Channel(address) as channel:
        with pytest.raises(ValueError, match=r"name|value"):
            await unary(channel)(RUN(), metadata=(metadata,))
        assert (await unary(channel)(RUN())).run_id == 1


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:x", "nothing"])
async def test_an_address_that_is_none_is_a_loss(address: str) -> None:
    async with Http2Channel(address) as channel:
        assert (await failure(channel)).code() is StatusCode.UNAVAILABLE
