"""The official Java client while one end is held up: time-outs fail calls, and nothing else may.

    python -m tests.interop.official.stalls

Threads send one message after the other, each call with a second's time. A client that is stopped for longer wakes to
calls whose time is over, and gives them up amid what it is sending. A broker that is stopped finds calls and
cancellations of seconds in one heap. Neither is a reason to break the connection, with all that is under way on it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pocketmq.client import AsyncAdmin

from .driver import Driver
from .programs import PROGRAMS
from .stage import Server

CLIENT: Final = "client"
BROKER: Final = "broker"
_REQUEST_TIMEOUT_S: Final = 1.0
#: Between two pauses; before the first and behind the last.
_BETWEEN_S: Final = 0.6
_AROUND_S: Final = 2.0
#: How a call fails whose time is over, by what stands in the text.
_TIME_OUTS: Final = ("TimeoutException", "DEADLINE_EXCEEDED")


@dataclass(frozen=True)
class Stall:
    """WHO is stopped for PAUSE_S, TIMES, while THREADS send."""

    who: str
    pause_s: float
    times: int
    threads: int

    @property
    def seconds(self) -> float:
        """How long threads send."""
        return 2 * _AROUND_S + self.times * (self.pause_s + _BETWEEN_S)

    def __str__(self) -> str:
        return f"{self.threads} threads, the {self.who} stopped {self.times} × {self.pause_s} s"


#: All that `make interop` plays.
STALLS: Final = [
    Stall(who, pause_s, times, threads)
    for who, pause_s, times in ((CLIENT, 1.4, 20), (BROKER, 2.5, 3))
    for threads in (64, 600)
]


@dataclass
class Outcome:
    """What became of the calls: how many were answered, and how many failed, by the text."""

    sent: int
    failures: dict[str, int]

    @property
    def broken(self) -> dict[str, int]:
        """Failures that are no time-outs."""
        return {
            text: count
            for text, count in self.failures.items()
            if not any(known in text for known in _TIME_OUTS)
        }


async def stalled(stall: Stall, folder: Path) -> Outcome:
    """Play STALL against a broker with its store in FOLDER."""
    server = await asyncio.to_thread(Server, folder)
    try:
        async with AsyncAdmin(server.nameserver) as admin:
            await admin.create_topic("stalls", queues=4)
        driver = await Driver.start(PROGRAMS["java"], server.address, folder / "java.log")
        try:
            return await _played(stall, driver, server.pid)
        finally:
            await driver.stop()
    finally:
        await asyncio.to_thread(server.stop)


async def _played(stall: Stall, driver: Driver, broker: int) -> Outcome:
    await driver(
        "producer",
        name="producer",
        topics=["stalls"],
        request_timeout_s=_REQUEST_TIMEOUT_S,
        attempts=1,
    )
    pressing = asyncio.create_task(
        driver(
            "press",
            timeout_s=stall.seconds + 60,
            client="producer",
            topic="stalls",
            body="x" * 128,
            threads=stall.threads,
            seconds=stall.seconds,
        )
    )
    await asyncio.sleep(_AROUND_S)
    pid = driver.pid if stall.who == CLIENT else broker
    for _ in range(stall.times):
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(stall.pause_s)
        finally:
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(_BETWEEN_S)
    return Outcome(**await pressing)


def main(say: Callable[[str], None] = print) -> int:
    """Play all; return how many had failures that were no time-outs."""
    missing = PROGRAMS["java"].missing()
    if missing:
        say(f"LEFT OUT: java needs {', '.join(missing)}")
        return 0
    failed = 0
    for stall in STALLS:
        with tempfile.TemporaryDirectory(prefix="stalls-") as folder:
            outcome = asyncio.run(stalled(stall, Path(folder)))
        failed += bool(outcome.broken)
        say(f"{'FAILED' if outcome.broken else 'ok':7}{stall}: {outcome}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
