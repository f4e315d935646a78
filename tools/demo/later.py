"""The part of the demo about later: scheduled messages and retries, on a broker with a virtual clock.

The flights of one day are sent early in the morning, each to be delivered when it is scheduled to leave; then a day
passes at once. Then a consumer fails sixteen times, until the broker gives the message up.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...client import (
    AsyncAdmin,
    AsyncClockAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    Message,
    ReceivedMessage,
)
from ...proto.time_text import format_duration
from ..server_process import ServerProcess
from .flights import UNKNOWN, Flight
from .progress import Board

TOPIC: Final = "departures"
GROUP: Final = "gate"
DAY_MS: Final = 86_400_000
_MINUTE_MS: Final = 60_000
RETRIES: Final = 16

#: A busy machine is slow, and a broker may recover for a while: what is awaited gets minutes, and does not need them.
PATIENCE_MS: Final = 120_000
DELIVERY_MS: Final = 600_000


class LaterDemo:
    """Runs the part over a new store in the folder STORE, with the flights of the first day among ROWS."""

    def __init__(self, board: Board, store: Path, rows: Sequence[Flight]) -> None:
        self._board = board
        self._store = store
        self._day = _first_day(rows)

    def run(self) -> None:
        """Run all steps; `_board` has the results."""
        self._board.heading("Start a broker with a virtual clock")
        with ServerProcess(self._store, "--clock", "virtual") as server:
            self._board.say(f"process {server.pid}: pocketmq serve --clock virtual")
            asyncio.run(self._steps(server.nameserver))

    async def _steps(self, nameserver: str) -> None:
        async with AsyncClockAdmin(nameserver) as clocks:
            await self._depart(nameserver, clocks)
            await self._fail(nameserver, clocks)

    async def _depart(self, nameserver: str, clocks: AsyncClockAdmin) -> None:
        """Send the flights ahead of their time, let a day pass, and see when each was delivered."""
        board, day = self._board, self._day
        board.heading(
            f"Send the {len(day)} flights of one day, each to be delivered when it leaves"
        )
        async with AsyncAdmin(nameserver, request_timeout_ms=PATIENCE_MS) as admin:
            await admin.create_topic(TOPIC, queues=1)
        midnight_ms = (await clocks.now())[0].now_ms + _MINUTE_MS
        due_ms = [midnight_ms + _MINUTE_MS * minute for minute, _ in day]
        messages = [
            Message(TOPIC, flight.body, keys=flight.keys, tag=flight.tag, deliver_at=due)
            for due, (_, flight) in zip(due_ms, day, strict=True)
        ]
        async with AsyncProducer(nameserver, delivery_timeout_ms=DELIVERY_MS) as producer:
            await producer.send_many(messages)
        async with AsyncPullConsumer("tower", TOPIC, nameserver, start="earliest") as consumer:
            early = await consumer.poll(timeout_ms=200)
            with board.bar("pocketmq clock advance", len(day)) as bar:
                await clocks.advance(_MINUTE_MS + DAY_MS)
                found = await _all(consumer, len(day))
                bar.add(len(found))
        board.check("none was delivered before the clock was moved", not early)
        expected = sorted(zip(due_ms, messages, strict=True), key=lambda pair: pair[0])
        board.check(
            f"a day later all {len(found)} are there, in the order of their departure",
            [message.body for message in found] == [message.body for _, message in expected],
        )
        board.check(
            "each was delivered in its very millisecond",
            [message.store_timestamp_ms for message in found] == [due for due, _ in expected],
        )

    async def _fail(self, nameserver: str, clocks: AsyncClockAdmin) -> None:
        """Send a message back until the broker gives it up, and look at the dead letter."""
        board = self._board
        board.heading("Fail to handle one of them, again and again")
        began_ms, began = (await clocks.now())[0].now_ms, time.perf_counter()
        reason = "the gate is closed"
        async with AsyncPullConsumer(GROUP, TOPIC, nameserver, start="earliest") as consumer:
            (message,) = await consumer.poll(max_messages=1, timeout_ms=PATIENCE_MS)
            flight = message.keys[0]
            sent = await consumer.send_back(message, reason=reason)
            while not sent.dead:
                await clocks.advance(sent.due_ms - (await clocks.now())[0].now_ms)
                message = await _retried(consumer)
                sent = await consumer.send_back(message, reason=reason)
        took_ms = (await clocks.now())[0].now_ms - began_ms
        board.say(
            f"{message.reconsume_times} retries over {format_duration(took_ms)}"
            f" in {time.perf_counter() - began:.1f} s"
        )
        board.check(
            f"{RETRIES} retries, then the dead-letter queue", message.reconsume_times == RETRIES
        )
        async with AsyncAdmin(nameserver, request_timeout_ms=PATIENCE_MS) as admin:
            letters = await admin.dead_letters(GROUP)
        for letter in letters:
            board.say(f"dead: {flight} of {letter.origin_topic}: {letter.reason}")
        board.check(
            "its dead letter says where it came from, and why",
            [(letter.origin_topic, letter.reason) for letter in letters] == [(TOPIC, reason)],
        )


def _first_day(rows: Sequence[Flight]) -> list[tuple[int, Flight]]:
    """Return the flights of the first row's day, each with the minute of the day at which it is to leave."""
    found: list[tuple[int, Flight]] = []
    day = None
    for flight in rows:
        fields = json.loads(flight.body)
        day = day or (fields["month"], fields["day"])
        if (fields["month"], fields["day"]) != day:
            break
        scheduled = fields["sched_dep_time"]
        if scheduled != UNKNOWN:
            hours, minutes = divmod(int(scheduled), 100)
            found.append((60 * hours + minutes, flight))
    return found


async def _all(consumer: AsyncPullConsumer, count: int) -> list[ReceivedMessage]:
    """Return COUNT messages, or fewer if no more come."""
    found: list[ReceivedMessage] = []
    while len(found) < count and (messages := await consumer.poll(timeout_ms=PATIENCE_MS)):
        found += messages
    return found


async def _retried(consumer: AsyncPullConsumer) -> ReceivedMessage:
    """Return the next message that comes for another time; what comes first is passed over."""
    while messages := await consumer.poll(max_messages=1, timeout_ms=PATIENCE_MS):
        if messages[0].reconsume_times:
            return messages[0]
    raise AssertionError("a failed message was not redelivered")
