"""Plays a case on one carrier and tells what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import copy
from typing import NamedTuple

from pocketmq.proto.rpc import Carrier

from .. import frames
from ..frames import Code
from ..peer import Peer
from .cases import Case
from .witness import Sight, WireObserver


class Outcome(NamedTuple):
    """What the caller got, and what the handler saw (None: it was not asked)."""

    http_status: str | None
    status: str | None
    messages: tuple[bytes, ...]
    reset: int | None
    lost: bool
    trailing: str | None
    sight: Sight | None

    @property
    def brief(self) -> str:
        """The outcome in a word or two."""
        if self.reset is not None:
            return f"reset {self.reset}"
        if self.lost:
            return "lost"
        if self.status is not None:
            return "good" if self.status == "0" else f"status {self.status}"
        return f"HTTP {self.http_status}"


class Bench:
    """A carrier that is served."""

    def __init__(self, carrier: Carrier, witness: WireObserver) -> None:
        self._carrier = carrier
        self._witness = witness
        self._port = 0
        self._count = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, carrier: Carrier, witness: WireObserver) -> AsyncIterator[Bench]:
        bench = cls(carrier, witness)
        bench._port = await carrier.start("127.0.0.1", 0)
        try:
            yield bench
        finally:
            await carrier.stop(0)

    async def play(self, case: Case) -> Outcome:
        """Send CASE on a connection of its own and return what came of it."""
        self._count += 1
        number = str(self._count)
        async with Peer.open(self._port) as peer:
            await peer.until_true(lambda: bool(peer.settings))
            stream = await self._send(peer, case, number)
            if case.cancel:
                await self._cancel(peer, stream, number)
            answer = await peer.answer(stream) if not case.cancel else None
            if case.cancel or case.method == "Later":
                await self._until_gone(number)
            sight = copy(self._witness.sights.get(number))
        if sight is not None and not case.cancel and case.method != "Later":
            sight.cancelled = False  # grpcio says so of calls that it fails itself, too.
        if case.is_too_late:
            sight = None  # It may have been asked, or not.
        if answer is None:
            return Outcome(None, None, (), None, False, None, sight)
        return Outcome(
            answer.http_status,
            answer.status,
            tuple(answer.messages),
            answer.reset if answer.reset != Code.NO_ERROR else None,
            answer.lost,
            answer.trailers.get("x-trailing"),
            sight,
        )

    async def _send(self, peer: Peer, case: Case, number: str) -> int:
        stream = peer.stream()
        block = peer.block(case.fields(number), literal=True)
        pieces = case.pieces if case.has_body else []
        ends = not case.trailers and not (case.cancel and case.method == "Talk")
        peer.write(
            frames.headers(
                stream, block[:16_000], whole=len(block) <= 16_000, end=not case.has_body
            )
        )
        for at in range(16_000, len(block), 16_000):
            piece = block[at : at + 16_000]
            peer.write(frames.continuation(stream, piece, whole=at + 16_000 >= len(block)))
        if case.has_body:
            for piece in pieces[:-1]:
                peer.write(frames.data(stream, piece))
            peer.write(frames.data(stream, pieces[-1] if pieces else b"", end=ends))
            if case.trailers:
                peer.write(
                    frames.headers(stream, peer.block(case.trailers, literal=True), end=True)
                )
        await peer.flush()
        return stream

    async def _cancel(self, peer: Peer, stream: int, number: str) -> None:
        await self._witness.arrived[number].wait()
        await peer.send(frames.reset(stream))

    async def _until_gone(self, number: str) -> None:
        if self._witness.arrived[number].is_set():
            await asyncio.wait_for(self._witness.gone[number].wait(), 30)
