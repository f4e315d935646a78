"""Honest clients whose every connection has to be made anew every few seconds, under load, with long polls open.

Each language sends in bursts, with pauses in which receives wait for nothing; two receives of a simple consumer are
open at any time, and a push consumer's. No call may fail in the application's hands, unless the client is known for it,
and each message comes to the simple consumer once: an answer that got lost with its connection would come again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from pocketmq.client.administration.servers import AsyncServerConnections

from ... import served
from .driver import ClientError, Message
from .stage import CONFIG, Server, Stage

#: How old a connection may grow, and how long what is open on it may last: longer than a receive of a simple consumer.
AGE_MS: Final = 2_000
GRACE_MS: Final = 9_000
_BURST_MAX: Final = 40
_PAUSE_S: Final = 4.0
_RECEIVES: Final = 2
#: A client that tells of each broken connection is asked again.
_TRIES: Final = 3
_LOOK_S: Final = 1.0
#: What was sent last, and what comes again after all, is there by then.
_LATE_S: Final = 75.0


def ageing_server(folder: Path) -> Server:
    """Return a broker whose connections grow old soon."""
    ages = f"  connection_age_ms: {AGE_MS}\n  connection_age_grace_ms: {GRACE_MS}\n"
    return Server(folder, CONFIG + ages)


async def aged(
    stages: Sequence[Stage], server: Server, seconds: float
) -> dict[str, BaseException | None]:
    """Have all STAGES work with SERVER for SECONDS; return what became of each language."""
    workers = [_Worker(stage, Random(number)) for number, stage in enumerate(stages)]

    async def whole(worker: _Worker) -> None:
        await worker.begin()
        await worker.work(seconds)
        worker.check()

    ended = await asyncio.gather(*map(whole, workers), return_exceptions=True)
    old = await _ended_for_age(server)
    assert old is None or old > seconds * 1000 / (AGE_MS + GRACE_MS), f"only {old} connections aged"
    return {stage.program.name: failure for stage, failure in zip(stages, ended, strict=True)}


async def _ended_for_age(server: Server) -> int | None:
    """Return how many connections SERVER ended because they were old; None: it does not count them."""
    if served.chosen() != "builtin":
        return None
    async with AsyncServerConnections(address=server.address) as servers:
        (found,) = await servers.all()
    assert found.totals is not None, found.error
    return found.totals.closed.get("old", 0)


class _Worker:
    """A producer, a simple and a push consumer of one language, and what they had to do with each other."""

    def __init__(self, stage: Stage, random: Random) -> None:
        self.stage = stage
        self._random = random
        self._sent: set[str] = set()
        self._acknowledged: Counter[str] = Counter()
        self._pushed: Counter[str] = Counter()
        self._errors: list[str] = []
        self._all_sent = asyncio.Event()

    async def begin(self) -> None:
        """Connect, and have messages come."""
        stage = self.stage
        self._topic = await stage.topic()
        self._producer = await stage.producer(self._topic)
        self._consumer = await stage.simple(self._topic)
        self._push = None
        if "push" not in stage.program.lacks:
            self._push = await stage.push(self._topic)

    async def work(self, seconds: float) -> None:
        """Send for SECONDS, and receive until all has come."""
        receiving = [asyncio.create_task(self._receive()) for _ in range(_RECEIVES)]
        if self._push is not None:
            receiving.append(asyncio.create_task(self._listen(self._push)))
        await self._send(asyncio.get_running_loop().time() + seconds)
        self._all_sent.set()
        _, late = await asyncio.wait(receiving, timeout=_LATE_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*receiving, return_exceptions=True)

    async def _send(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            burst = range(self._random.randint(1, _BURST_MAX))
            await asyncio.gather(*[self._send_one() for _ in burst])
            await asyncio.sleep(self._random.uniform(0, _PAUSE_S))

    async def _send_one(self) -> None:
        try:
            self._sent.add(await self.stage.send(self._producer, self._topic, "x", size=1_000))
        except ClientError as error:
            self._errors.append(f"send: {error}")

    async def _receive(self) -> None:
        while not (self._all_sent.is_set() and self._sent <= self._acknowledged.keys()):
            try:
                messages = await self.stage.receive(self._consumer)
            except ClientError as error:
                self._errors.append(f"receive: {error}")
            else:
                await asyncio.gather(*map(self._acknowledge, messages))

    async def _acknowledge(self, message: Message) -> None:
        for _ in range(_TRIES):
            try:
                await self.stage.ack(self._consumer, [message])
            except ClientError as error:
                self._errors.append(f"acknowledge: {error}")
            else:
                self._acknowledged[message["id"]] += 1
                break

    async def _listen(self, consumer: str) -> None:
        while not (self._all_sent.is_set() and self._sent <= self._pushed.keys()):
            with contextlib.suppress(AssertionError):  # Nothing came for a while.
                message = await self.stage.driver.event(consumer, _LOOK_S)
                self._pushed[message["id"]] += 1

    def check(self) -> None:
        """Raise AssertionError with all that went wrong."""
        wrong = []
        if self._errors and self.stage.program.goes_on_elsewhere:
            wrong.append(f"{len(self._errors)} calls failed, as {self._errors[0]}")
        counted = [("acknowledged", self._acknowledged)]
        if self._push is not None:
            counted.append(("pushed", self._pushed))
        for what, counter in counted:
            missing, strange = self._sent - counter.keys(), counter.keys() - self._sent
            if missing or strange:
                wrong.append(
                    f"{what}: {len(missing)} of {len(self._sent)} missing, {len(strange)} never sent"
                )
        twice = sum(count > 1 for count in self._acknowledged.values())
        if twice:
            wrong.append(f"{twice} of {len(self._sent)} came twice")
        assert not wrong, "; ".join(wrong)
