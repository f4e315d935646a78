"""Kill a real server with `kill -9` while thousands of messages are scheduled; none may be lost.

    python -m tests.crash.timer_campaign --kills 100 --pending 10000 --seed 1

One store lives through all rounds. A round starts the server, sends until the wanted number of messages is pending
(timed ones, and ones of the delay levels 1 to 3), runs for a random while, and kills, at any moment of sends,
deliveries or the recovery of the round before. At the end everything is left to fall due, and every queue is read:
each acknowledged message is there, none came before it was due, and of those that came twice the first time was
within REPEAT_MS_MAX before a kill. (A message of a level has waited for its delay: where the machine's wall clock was
set back meanwhile, its times of storage lie nearer to each other by so much.)

Moments are drawn from the seed; what the machine does between them is its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from pocketmq.client import AsyncAdmin, AsyncProducer, AsyncPullConsumer, Message
from pocketmq.proto.clock import SystemClock, ahead_ms
from pocketmq.proto.errors import PocketMQError

from ..served import ServerProcess

TOPIC: Final = "campaign"
QUEUES: Final = 4
RUN_MAX: Final = 500  # messages of one send
ROUND_MS_MAX: Final = 1_500
#: Share of the rounds in which all of them wait when the clock of the kill starts; else it may come during sends.
ALL_WAITING: Final = 0.7
AHEAD_MS: Final = (500, 15_000)
LEVELS: Final = 3
#: What fired so long before a kill may fire again: the second whose progress was not saved, and what saving takes.
REPEAT_MS_MAX: Final = 3_000
#: How long the last messages may take once they are due, on a machine with other work.
LATE_MS_MAX: Final = 10_000

#: Small files, so that logs and queues roll in every round.
CONFIG: Final = """\
store:
  log_file_size_bytes: 4194304
  queue_file_size_bytes: 100000
  timer_log_file_size_bytes: 262144
  index_slots: 1000
  index_entries: 4000
"""


@dataclass
class Ledger:
    """What was acknowledged, by number: when it is due. And what was found."""

    next_number: int = 0
    due_ms: dict[int, int] = field(default_factory=dict)
    #: Those of a level.
    levelled: set[int] = field(default_factory=set)
    #: By how much the wall clock was ahead of the one that nobody sets.
    ahead_ms: set[int] = field(default_factory=set)
    kills_ms: list[int] = field(default_factory=list)
    repeated: int = 0
    latest_ms: int = 0
    complaints: list[str] = field(default_factory=list)

    def numbers(self, count: int) -> range:
        """Reserve COUNT numbers."""
        first, self.next_number = self.next_number, self.next_number + count
        return range(first, self.next_number)

    def pending(self, now_ms: int) -> int:
        """Return how many are not due yet."""
        return sum(due_ms > now_ms for due_ms in self.due_ms.values())


class TimerCampaign:
    """KILLS rounds over one store in FOLDER with PENDING messages waiting, planned from SEED."""

    def __init__(
        self,
        folder: Path,
        *,
        kills: int,
        pending: int,
        seed: int,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._folder = folder
        self._kills = kills
        self._pending = pending
        self._random = random.Random(seed)
        self._say = say
        self._clock = SystemClock()
        self._now_ms = self._clock.now_ms
        self._config = folder / "campaign.yaml"
        self._config.write_text(CONFIG, encoding="utf-8")
        self.ledger = Ledger()

    async def run(self) -> Ledger:
        """Do everything; what is wrong is in the ledger's complaints."""
        for index in range(self._kills):
            await self._round(index)
        await self._look_at_everything()
        return self.ledger

    async def _serve(self) -> ServerProcess:
        arguments = ("--config", str(self._config))
        return await asyncio.to_thread(ServerProcess, self._folder / "store", *arguments)

    async def _round(self, index: int) -> None:
        server = await self._serve()
        try:
            if index == 0:
                async with AsyncAdmin(server.nameserver) as admin:
                    await admin.create_topic(TOPIC, queues=QUEUES)
            producer = AsyncProducer(server.nameserver)
            await producer.start()
            sender = asyncio.create_task(self._top_up(producer))
            if index == 0 or self._random.random() < ALL_WAITING:
                await sender  # The kills begin with all of them waiting.
            await asyncio.sleep(self._random.uniform(0, ROUND_MS_MAX) / 1000)
        finally:
            self.ledger.kills_ms.append(self._now_ms())
            self.ledger.ahead_ms.add(ahead_ms(self._clock))
            server.kill()
        await producer.close(timeout_ms=0)
        await sender
        waiting = self.ledger.pending(self._now_ms())
        self._say(f"kill {index + 1}: {waiting} waiting, {len(self.ledger.due_ms)} in all")

    async def _top_up(self, producer: AsyncProducer) -> None:
        """Send until enough messages wait (some fall due meanwhile), or the server is gone."""
        enough = self._pending // 100
        while (missing := self._pending - self.ledger.pending(self._now_ms())) > enough:
            self.ledger.ahead_ms.add(ahead_ms(self._clock))
            numbers = self.ledger.numbers(min(missing, self._random.randint(1, RUN_MAX)))
            messages = [self._message(number) for number in numbers]
            try:
                receipts = await producer.send_many(messages)
            except PocketMQError:
                return  # The server was killed: of this send nothing is known, so nothing is claimed.
            for number, receipt in zip(numbers, receipts, strict=True):
                self.ledger.due_ms[number] = receipt.due_ms

    def _message(self, number: int) -> Message:
        body = b"%d" % number
        if self._random.random() < 0.2:
            self.ledger.levelled.add(number)
            return Message(TOPIC, body, delay_level=self._random.randint(1, LEVELS))
        due_ms = self._now_ms() + self._random.randint(*AHEAD_MS)
        return Message(TOPIC, body, deliver_at=due_ms)

    async def _look_at_everything(self) -> None:
        """Let everything fall due, read all queues, and compare."""
        server = await self._serve()
        try:
            last_ms = max(self.ledger.due_ms.values()) + LATE_MS_MAX
            delivered: dict[int, list[int]] = {}
            async with AsyncPullConsumer("campaign", nameservers=server.nameserver) as consumer:
                offsets = [0] * QUEUES
                # Messages that were stored, but not acknowledged before a kill, are delivered, too: do not count.
                while not self.ledger.due_ms.keys() <= delivered.keys():
                    begun_ms, before = self._now_ms(), list(offsets)
                    self.ledger.ahead_ms.add(ahead_ms(self._clock))
                    for queue in range(QUEUES):
                        offsets[queue] = await self._read(
                            consumer, queue, offsets[queue], delivered
                        )
                    if begun_ms >= last_ms and offsets == before:
                        break  # Only a whole look that found nothing more shows that something is missing.
        finally:
            server.stop()
        self._compare(delivered)

    async def _read(
        self,
        consumer: AsyncPullConsumer,
        queue: int,
        offset: int,
        delivered: dict[int, list[int]],
    ) -> int:
        """Enter what QUEUE holds from OFFSET on: number and store time; return where it ends."""
        while True:
            pulled = await consumer.pull(TOPIC, queue, offset, wait_ms=100)
            if not pulled.messages:
                return offset
            for message in pulled.messages:
                stored_ms = message.store_timestamp_ms
                delivered.setdefault(int(message.body), []).append(stored_ms)
            offset = pulled.messages[-1].queue_offset + 1

    def _compare(self, delivered: dict[int, list[int]]) -> None:
        ledger = self.ledger
        set_ms = max(ledger.ahead_ms) - min(ledger.ahead_ms)
        for number, due_ms in ledger.due_ms.items():
            times = sorted(delivered.get(number, ()))
            if not times:
                ledger.complaints.append(f"message {number}, due {due_ms}, is lost")
                continue
            if times[0] < due_ms - (set_ms if number in ledger.levelled else 0):
                ledger.complaints.append(f"message {number} came {due_ms - times[0]} ms early")
            ledger.latest_ms = max(ledger.latest_ms, times[0] - due_ms)
            for first_ms in times[:-1]:
                ledger.repeated += 1
                if not any(0 <= kill - first_ms <= REPEAT_MS_MAX for kill in ledger.kills_ms):
                    ledger.complaints.append(
                        f"message {number} came again, but no kill followed {first_ms} soon"
                    )


def main() -> int:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--pending", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)  # That sends are lost to a kill is no news here.
    click.echo(f"seed {arguments.seed}, {arguments.kills} kills, {arguments.pending} pending")
    with tempfile.TemporaryDirectory() as folder:
        campaign = TimerCampaign(
            Path(folder),
            kills=arguments.kills,
            pending=arguments.pending,
            seed=arguments.seed,
            say=click.echo,
        )
        ledger = asyncio.run(campaign.run())
    result = {
        "seed": arguments.seed,
        "kills": len(ledger.kills_ms),
        "acknowledged": len(ledger.due_ms),
        "repeated": ledger.repeated,
        "latest_ms": ledger.latest_ms,
        "wall_clock_set_ms": max(ledger.ahead_ms) - min(ledger.ahead_ms),
        "complaints": ledger.complaints[:20],
        "complained": len(ledger.complaints),
    }
    click.echo(json.dumps(result))
    return 1 if ledger.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
