"""Mutated conversations, read by the HTTP/2 core and its calls without a socket: nothing raised, nothing left open."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import warnings
from collections.abc import Coroutine
from typing import Any

import pytest

from pocketmq.proto.rpc import Limits
from pocketmq.proto.rpc.connection import ServerConnection
from pocketmq.proto.rpc.conversation import ServerConversation
from pocketmq.proto.rpc.deadlines import Deadlines
from pocketmq.proto.rpc.limits import ConnectionLimits
from pocketmq.proto.rpc.served import Served

from .. import frames
from ..differential.witness import WireObserver
from ..frames import Code, Frame, Type
from .conversations import CONVERSATIONS, Client
from .mutations import mutated, reads

INPUTS = 600
_LIMITS = Limits(receive_bytes_max=10_000, queue_bytes=200, queue_bytes_max=5_000)


class Server:
    """A connection and its calls, on a clock that is told."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.deadlines = Deadlines(lambda due_ms: None)
        table = WireObserver().methods()
        self.tasks: set[asyncio.Task[None]] = set()
        self.served = Served([table], _LIMITS, self.deadlines, lambda: self.now_ms, self.spawn)
        self.connection = ServerConnection(ConnectionLimits(half_sent_ms=5_000), 0)
        self.conversation = ServerConversation(self.connection, self.served, "peer", lambda: None)
        self.written: list[Frame] = []
        self._unread = bytearray()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def read(self, data: bytes) -> None:
        """Take DATA, and write."""
        self.conversation.handle(self.connection.receive(data, self.now_ms), self.now_ms)
        self.write()

    def write(self) -> None:
        """Take what there is to write, which must be whole frames."""
        while data := self.connection.take():
            self._unread += data
            self.written += frames.cut(self._unread)
            assert not self._unread
            self.conversation.handle(self.connection.events(), self.now_ms)

    def pass_time(self, by_ms: int) -> None:
        """Have BY_MS pass."""
        self.now_ms += by_ms
        for action in self.deadlines.take_due(self.now_ms):
            action()
        self.conversation.check(self.now_ms)
        self.write()

    def lose(self) -> None:
        """Lose the connection, as its socket tells."""
        self.conversation.lost()


async def settle(server: Server) -> None:
    """Let tasks and callbacks run."""
    for _ in range(3):
        await asyncio.sleep(0)
    server.write()


@pytest.mark.long
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_mutated_conversation_raises_nothing_and_leaves_nothing(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    said = CONVERSATIONS[name]()
    ended = 0
    for seed in range(INPUTS):
        chooser = random.Random(f"{name} {seed}")
        server = Server()
        try:
            await converse(server, mutated(said, chooser), chooser)
        except Exception as error:
            raise AssertionError(f"seed {seed} of {name}") from error
        ended += server.connection.ended
        problems = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert problems == [], f"seed {seed} of {name}"
    assert INPUTS // 10 < ended < INPUTS


async def converse(server: Server, data: bytes, chooser: random.Random) -> None:
    """Have SERVER hear DATA, in reads and with pauses drawn by CHOOSER; then lose the connection."""
    for read in reads(data, chooser):
        server.read(read)
        if chooser.random() < 0.05:
            await settle(server)
        if chooser.random() < 0.02:
            server.pass_time(chooser.choice((1, 100, 2_000)))
    await settle(server)
    if server.connection.ended:
        check_end(server)
    else:
        server.pass_time(130_000)  # Longer than anything may take.
        await settle(server)
    server.lose()
    await settle(server)
    assert server.conversation.open_calls == 0
    assert server.served.half_sent == 0
    assert not server.tasks
    if server.connection.ended:
        assert server.connection.streams == server.connection.queued == 0


def check_end(server: Server) -> None:
    """Assert that the last frame says why, and that no call is left."""
    end = server.written[-1]
    assert (end.type, end.code != Code.NO_ERROR) == (Type.GOAWAY, True)
    assert sum(frame.type == Type.GOAWAY for frame in server.written) == 1
    assert server.conversation.open_calls == 0


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_the_conversations_themselves_are_served(name: str) -> None:
    server = Server()
    for frame in CONVERSATIONS[name]():
        server.read(frame)
        await settle(server)
    assert not server.connection.ended
    assert server.conversation.succeeded >= 3
    for _ in range(3):
        server.pass_time(130_000)  # Longer than anything may take.
    assert server.connection.streams == 0


@pytest.mark.slow
async def test_a_coroutine_that_is_reset_before_it_began_is_closed() -> None:
    server = Server()
    client = Client()
    client.say(frames.reset(client.call("Slow")))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        server.read(b"".join(client.frames))
        await settle(server)
        gc.collect()
    assert server.conversation.open_calls == 0
    assert [str(warning.message) for warning in caught] == []
