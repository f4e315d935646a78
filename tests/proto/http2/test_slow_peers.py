"""Peers that take their time: what was begun is whole in time, or is ended, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pocketmq.proto.rpc import Limits, server_link as shell
from pocketmq.proto.rpc.deadlines import Deadlines
from pocketmq.proto.rpc.keepalive import Keepalive
from pocketmq.proto.rpc.pages import HttpResponse, PageRequest

from ..carriers.echo import RUN
from . import frames
from .calls import message, request_fields
from .frames import PREFACE, Code, Setting, Type
from .peer import Peer
from .stage import PLAIN, staged, turns

#: Soon, where a default is many seconds.
SOON_MS = 100


@pytest.mark.parametrize(
    "sent", [b"", b"P", b"\x16", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n"]
)
async def test_who_does_not_say_what_it_wants_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "FIRST_BYTES_MS", SOON_MS)

    async def page(_: PageRequest) -> HttpResponse:
        raise AssertionError("the head was not whole")

    async with (
        staged(Limits(handshake_timeout_ms=SOON_MS), page=page) as stage,
        Peer.open(stage.port, greet=False) as peer,
    ):
        await peer.send(sent)
        assert await peer.ended() is None


_BLOCK = b"\x82\x86\x84"


@pytest.mark.parametrize(
    "sent",
    [
        PREFACE[:2],
        PREFACE[:-1],
        PREFACE + b"\x00",
        PREFACE + frames.settings() + frames.data(1, bytes(10))[:-1],
        PREFACE + frames.settings() + frames.headers(1, _BLOCK, whole=False),
        PREFACE
        + frames.settings()
        + frames.headers(1, _BLOCK, whole=False)
        + frames.continuation(1, _BLOCK),
    ],
    ids=["two bytes", "preface", "a frame's head", "a frame", "a block", "a longer block"],
)
async def test_what_is_half_sent_for_too_long_ends_the_connection(sent: bytes) -> None:
    async with (
        staged(half_sent_ms=SOON_MS) as stage,
        Peer.open(stage.port, greet=False) as peer,
    ):
        await peer.send(sent)
        end = await peer.ended()
        assert end is not None
        assert end.code in (Code.PROTOCOL_ERROR, Code.ENHANCE_YOUR_CALM)


async def test_what_waits_to_be_read_while_the_server_is_held_up_is_not_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shell, "CHECK_MS", SOON_MS)
    async with (
        staged(half_sent_ms=SOON_MS) as stage,
        Peer.open(stage.port, polite=False) as peer,
    ):
        whole = frames.data(peer.begin(request_fields("/test.Echo/Plain")), message(bytes(60_000)))
        await peer.send(whole[:100])
        await turns(lambda: all(c._check is not None for c in stage.carrier._open.values()))

        await peer.send(whole[100:])
        threading.Event().wait(4 * SOON_MS / 1000)  # Nothing of what serves runs meanwhile.

        await peer.round_trip()


def test_nobody_is_given_up_for_silence_who_was_not_asked() -> None:
    now_ms, said = 0, []
    deadlines = Deadlines(lambda _: None)
    limits = Limits(keepalive_ms=30_000, keepalive_timeout_ms=20_000)

    def held_up_until(time_ms: int) -> None:
        nonlocal now_ms
        now_ms = time_ms
        for action in deadlines.take_due(now_ms):
            action()

    keepalive = Keepalive(
        limits,
        deadlines,
        lambda: now_ms,
        lambda: said.append("ping"),
        lambda: said.append("given up"),
    )
    held_up_until(200_000)
    assert said == ["ping"]
    keepalive.note_data(200_001)
    held_up_until(220_100)
    assert said == ["ping"]

    held_up_until(300_000)
    held_up_until(320_100)

    assert said == ["ping", "ping", "given up"]


async def test_a_block_that_grows_byte_by_byte_is_not_whole_any_later() -> None:
    async with staged(half_sent_ms=SOON_MS) as stage, Peer.open(stage.port) as peer:
        await peer.send(frames.headers(peer.stream(), _BLOCK, whole=False))
        for _ in range(1_000):
            if not await peer.send(frames.continuation(1, b"\x40")) or peer.lost:
                break
            await asyncio.sleep(0.01)  # Its pace.
        end = await peer.ended()
        assert end is not None
        assert end.code in (Code.PROTOCOL_ERROR, Code.ENHANCE_YOUR_CALM)
        assert b"incomplete" in end.payload


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/test.Echo/Plain", "/test.Echo/Count", "/test.Echo/Echo"])
async def test_a_request_that_never_ends_costs_its_call_alone(path: str) -> None:
    async with staged(Limits(request_ms=SOON_MS)) as stage, Peer.open(stage.port) as peer:
        stream = peer.begin(request_fields(path))
        peer.write(frames.data(stream, message(PLAIN, length=1_000)))
        answer = await peer.answer(stream)
        assert answer.status == "4"  # DEADLINE_EXCEEDED
        assert "request_ms" in answer.status_text or "incomplete" in answer.status_text
        assert not stage.echo.calls
        answer = await peer.answer(peer.call("/test.Echo/Plain", PLAIN))
        assert answer.status == "0"


@pytest.mark.slow
async def test_a_talk_may_be_silent_for_ever_between_messages() -> None:
    async with staged(Limits(request_ms=1)) as stage, Peer.open(stage.port) as peer:
        stream = peer.begin(request_fields("/test.Echo/Echo"))
        peer.write(frames.data(stream, message(PLAIN)))
        slow = peer.begin(request_fields("/test.Echo/Plain"))
        assert (await peer.answer(slow)).status == "4"  # The check has come, to all of them.
        peer.write(frames.data(stream, message(PLAIN), end=True))
        answer = await peer.answer(stream)
        assert answer.status == "0"
        assert len(answer.messages) == 2


@pytest.mark.slow
async def test_answers_that_nobody_takes_are_broken_off() -> None:
    async with (
        staged(Limits(stalled_ms=SOON_MS)) as stage,
        Peer.open(stage.port, settings={Setting.INITIAL_WINDOW_SIZE: 0}) as peer,
    ):
        run = RUN(topic="mirror", records=b"x" * 1_000).SerializeToString()
        streams = [peer.call("/test.Echo/Plain", run) for _ in range(20)]
        for stream in streams:
            assert (await peer.answer(stream)).reset == Code.CANCEL
        peer.write(frames.settings({Setting.INITIAL_WINDOW_SIZE: 65_535}))
        assert (await peer.answer(peer.call("/test.Echo/Plain", run))).status == "0"


async def test_who_does_not_read_holds_up_nothing_but_itself() -> None:
    limits = Limits(keepalive_ms=2 * SOON_MS, keepalive_timeout_ms=SOON_MS)
    async with staged(limits) as stage, Peer.open(stage.port, polite=False) as peer:
        peer.write(frames.settings({Setting.INITIAL_WINDOW_SIZE: 2**31 - 1}))
        peer.write(frames.window_update(0, 2**31 - 1 - 65_535))
        await peer.round_trip()
        peer.reading.clear()
        body = message(RUN(topic="mirror", records=b"x" * 16_000).SerializeToString())
        for _ in range(1_000):
            peer.write(frames.data(peer.begin(request_fields("/test.Echo/Plain")), body, end=True))
        sending = asyncio.ensure_future(peer.flush())
        await stage.serves_others()
        await turns(lambda: stage.carrier.connections == 0)
        await sending


async def test_a_stop_ends_connections_that_linger_behind_their_end() -> None:
    async with staged() as stage, Peer.open(stage.port) as peer:
        await peer.send(frames.ping(b"7 bytes"))
        await peer.until(lambda f: f.type == Type.GOAWAY)
        await stage.serves_others()
        await stage.carrier.stop(0)
        assert stage.carrier.connections == 0
        await stage.carrier.start("127.0.0.1", stage.port)
