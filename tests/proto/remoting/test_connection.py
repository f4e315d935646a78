"""Limits of one connection: few bytes of requests ask for many bytes of answers, and the peer does not read."""

from __future__ import annotations

import asyncio

from pocketmq.proto.clock import SystemClock
from pocketmq.proto.remoting.command import RemotingCommand, encode
from pocketmq.proto.remoting.requests import RemotingRequest
from pocketmq.proto.remoting.server import RemotingProtocol

_MIB = 1 << 20
_ANSWER = bytes(_MIB)


class Link:
    """A connection whose peer reads only when `read` is called."""

    peer = "127.0.0.1:1"
    local_address = "127.0.0.1", 2
    is_secure = False
    certificate_names = ()

    def __init__(self) -> None:
        self.unsent = self.written = 0
        self.aborted = ""

    def write(self, data: bytes) -> None:
        self.unsent += len(data)
        self.written += len(data)

    def read(self) -> None:
        self.unsent = 0

    def finish(self, reason: str) -> None:
        raise AssertionError(reason)

    def abort(self, reason: str) -> None:
        self.aborted = reason
        self.unsent = 0


class Large:
    """A service with large answers: code 1 gets one at once, and code 2 when `answer_all` is called."""

    def __init__(self, bytes_max: int) -> None:
        self.protocol = RemotingProtocol(
            {1: self._now, 2: self._later}, bytes_max=bytes_max, now_ms=SystemClock().now_ms
        )
        self.asked = self.cancelled = 0
        self.waiting: list[RemotingRequest] = []

    def _now(self, request: RemotingRequest) -> None:
        self.asked += 1
        request.answer(_ANSWER)

    def _later(self, request: RemotingRequest) -> None:
        self.waiting.append(request)
        request.on_cancel(self._cancel)

    def _cancel(self) -> None:
        self.cancelled += 1

    def answer_all(self) -> None:
        for request in self.waiting:
            request.answer(_ANSWER)


async def test_requests_wait_while_the_peer_does_not_read() -> None:
    service, link = Large(64 * _MIB), Link()
    connection = service.protocol.open(link)
    connection.receive(encode(RemotingCommand(code=1)) * 20)

    assert service.asked <= 5
    assert link.unsent < 6 * _MIB
    assert service.protocol.requests.held > 0
    assert service.protocol.answers.held == link.unsent
    while service.asked < 20:
        link.read()
        await asyncio.sleep(0.01)
    assert not link.aborted
    assert link.written > 20 * _MIB
    link.read()
    connection.receive(b"")
    assert service.protocol.requests.held == service.protocol.answers.held == 0


async def test_many_answers_in_one_turn_keep_to_the_limit() -> None:
    service, link = Large(8 * _MIB), Link()
    connection = service.protocol.open(link)
    connection.receive(encode(RemotingCommand(code=2)) * 40)
    service.answer_all()

    assert link.aborted == "not reading"
    assert link.written < 10 * _MIB
    assert service.cancelled == 40 - link.written // _MIB
    connection.lost()
    assert service.protocol.answers.held == 0
