"""What honest peers do all day, as often as is asked, on one connection: none of it may have them cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import grpc.aio

from ..carriers.calling import Caller, encode
from ..carriers.echo import REPLY, RUN
from . import frames
from .calls import message, request_fields
from .frames import Type
from .peer import Peer
from .stage import LATER, PLAIN, Stage

#: Long polls of one consumer that are open at once.
POLLS: Final = 8
#: Calls a second that are cancelled at once, however fast the machine: fewer than a flood has (docs/http2.md).
CANCELLED_PER_SECOND: Final = 4_000


async def cancel_polls(stage: Stage, times: int) -> None:
    """Open a long poll, wait until the server has it, cancel; POLLS at once, TIMES in all."""
    async with Peer.open(stage.port) as peer:
        block = peer.block(request_fields("/test.Echo/Plain"), literal=True)
        body = message(LATER)
        done = 0
        while done < times:
            streams = [peer.stream() for _ in range(POLLS)]
            for stream in streams:
                peer.write(frames.headers(stream, block), frames.data(stream, body, end=True))
            await peer.flush()
            await stage.until_arrived(POLLS)
            stage.echo.calls.clear()
            peer.write(*(frames.reset(stream) for stream in streams))
            done += POLLS
        await _still_served(peer)


async def cancel_at_once(stage: Stage, times: int) -> None:
    """Ask and cancel one poll after the other, without an answer, with the client that people use."""
    now_s = asyncio.get_running_loop().time
    async with grpc.aio.insecure_channel(f"127.0.0.1:{stage.port}") as channel:
        poll = Caller(channel).channel.unary_unary("/test.Echo/Plain", encode, REPLY.FromString)
        await poll(PLAIN)
        began_s = now_s()
        for number in range(times):
            call = poll(LATER)
            await asyncio.sleep(0)  # Have it begin.
            call.cancel()
            stage.echo.calls.clear()
            if number % 100 == 0:
                await asyncio.sleep(began_s + number / CANCELLED_PER_SECOND - now_s())
        await poll(PLAIN)
    assert stage.carrier.connection_totals().accepted == 1


async def call_and_ping(stage: Stage, times: int, *, of_streams: bool = False) -> None:
    """Call, ping with every call, and open the window by what came; that of its stream as well, if OF_STREAMS."""
    async with Peer.open(stage.port, polite=False) as peer:
        for _ in range(times // 50):
            streams = [peer.call("/test.Echo/Plain", PLAIN) for _ in range(50)]
            for stream in streams:
                peer.write(frames.ping())
                answer = await peer.answer(stream)
                assert answer.status == "0", (answer, peer.frames[-1])
                peer.write(frames.window_update(0, len(answer.body)))
                if of_streams:
                    peer.write(frames.window_update(stream, len(answer.body)))
            stage.echo.calls.clear()
            peer.frames.clear()
        await _still_served(peer)


async def talk_in_small_messages(stage: Stage, times: int) -> None:
    """Send small messages on a stream, each in a frame of its own, and read their answers: a thousand a stream."""
    async with Peer.open(stage.port) as peer:
        run = message(RUN(run_id=1).SerializeToString())
        for _ in range(times // 1_000):
            stream = peer.begin(request_fields("/test.Echo/Echo"))
            for sent in range(100, 1_001, 100):
                peer.write(*(frames.data(stream, run) for _ in range(100)))
                await peer.until_true(partial(_has, peer, stream, sent * len(run)))
            peer.write(frames.data(stream, b"", end=True))
            assert (await peer.answer(stream)).status == "0"
        await _still_served(peer)


def _has(peer: Peer, stream: int, size: int) -> bool:
    """Are SIZE bytes of the answer on STREAM there?"""
    answer = peer.answers.get(stream)
    return answer is not None and len(answer.body) >= size


async def _still_served(peer: Peer) -> None:
    answer = await peer.answer(peer.call("/test.Echo/Plain", PLAIN))
    assert answer.status == "0", answer
    assert not any(frame.type == Type.GOAWAY for frame in peer.frames)


#: By name.
HABITS: Final[dict[str, Callable[[Stage, int], Awaitable[None]]]] = {
    "cancels polls that the server has": cancel_polls,
    "cancels polls at once": cancel_at_once,
    "calls and pings": call_and_ping,
    "opens both windows after each answer": partial(call_and_ping, of_streams=True),
    "talks in small messages": talk_in_small_messages,
}
