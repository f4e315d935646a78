"""Kill a real server with `kill -9` at random moments under load, and look for every acknowledged message afterwards.

    python -m tests.crash.kill_campaign --kills 200 --seed 1

One store lives through all rounds. A round starts the server (sometimes it is killed already then, amid its
recovery), reads back what the round before was acknowledged, sends from several tasks for a random while, and kills.
The files are small, so that logs, queues and indexes roll in every round. At the end the whole store is read: each
acknowledged message is at its offset, every message is one that was sent, byte for byte, and the queues are dense.
Some acknowledged messages are looked up by key in each round, so that the index is in it too.

Bodies are a function of a number (`body_of`), so nothing but numbers is kept. Moments are drawn from the seed; what the
machine does between them is its own, so a seed repeats the plan and not the instant.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from pocketmq.client import AsyncAdmin, AsyncProducer, AsyncPullConsumer, Message, Receipt
from pocketmq.proto.errors import PocketMQError

from ..served import ServerProcess

TOPIC: Final = "campaign"
QUEUES: Final = 4
RUN_MAX: Final = 200  # messages of one send
LOAD_MS_MAX: Final = 500
STARTUP_MS_MAX: Final = 900
LOOKUPS: Final = 5  # a round

#: Small files, so that every round crosses several of their ends.
CONFIG: Final = """\
store:
  log_file_size_bytes: 1048576
  queue_file_size_bytes: 20000
  index_slots: 1000
  index_entries: 4000
  message_size_max_bytes: 262144
"""


def body_of(number: int) -> bytes:
    """Return the body of message NUMBER: its number, and up to 20 KB that only it has."""
    chooser = random.Random(number)
    size = chooser.choice((10, 100, 100, 1000, 1000, 20_000))
    return b"%012d " % number + chooser.randbytes(size)


def number_of(body: bytes) -> int:
    return int(body[:12])


@dataclass
class Ledger:
    """What was sent and what was acknowledged."""

    next_number: int = 0
    #: (queue, queue offset) to number.
    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)
    #: The acknowledgements of the latest round.
    fresh: dict[tuple[int, int], int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def numbers(self, count: int) -> range:
        """Reserve COUNT numbers."""
        first, self.next_number = self.next_number, self.next_number + count
        return range(first, self.next_number)

    def note(self, receipt: Receipt, number: int) -> None:
        """Enter an acknowledgement; two messages at one offset are a complaint."""
        where = (receipt.queue, receipt.queue_offset)
        known = self.acknowledged.setdefault(where, number)
        if known != number:
            self.complaints.append(
                f"messages {known} and {number} were both acknowledged at {where}"
            )
        self.fresh[where] = number


class Campaign:
    """KILLS rounds over one store in FOLDER, planned from SEED."""

    def __init__(
        self,
        folder: Path,
        *,
        kills: int,
        seed: int,
        settings: str = CONFIG,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._folder = folder
        self._kills = kills
        self._random = random.Random(seed)
        self._say = say
        self._config = folder / "campaign.yaml"
        self._config.write_text(settings, encoding="utf-8")
        self.ledger = Ledger()
        self.killed_in_start = 0
        self.recoveries: list[object] = []

    async def run(self) -> Ledger:
        """Do everything; what is wrong is in the ledger's complaints."""
        for index in range(self._kills):
            if index and self._random.random() < 0.15:
                await self._kill_in_start()
            else:
                await self._round(index)
            if self.ledger.complaints:
                return self.ledger
        await self._look_at_everything()
        return self.ledger

    async def _kill_in_start(self) -> None:
        """Start the server and kill it at a random moment of its start, which is mostly recovery."""
        command = [sys.executable, "-m", "pocketmq.tools.cli", "serve"]
        command += ["--store", str(self._folder / "store"), "--config", str(self._config)]
        command += ["--port", "0", "--nameserver-port", "0"]
        with (self._folder / "start.log").open("ab") as log:
            process = await asyncio.to_thread(
                subprocess.Popen, command, stdout=subprocess.DEVNULL, stderr=log
            )
        await asyncio.sleep(self._random.uniform(0, STARTUP_MS_MAX) / 1000)
        process.kill()
        process.wait()
        self.killed_in_start += 1

    async def _serve(self) -> ServerProcess:
        arguments = ("--config", str(self._config))
        server = await asyncio.to_thread(ServerProcess, self._folder / "store", *arguments)
        self.recoveries.append(server.ready.get("recovery"))
        return server

    async def _round(self, index: int) -> None:
        server = await self._serve()
        try:
            if index == 0:
                async with AsyncAdmin(server.nameserver) as admin:
                    await admin.create_topic(TOPIC, queues=QUEUES)
            await self._look_at(server, self.ledger.fresh)
            self.ledger.fresh = {}
            await self._load_and_kill(server)
        finally:
            server.kill()
        self._say(
            f"kill {index + 1}: {len(self.ledger.fresh)} acknowledged,"
            f" {len(self.ledger.acknowledged)} in all"
        )

    async def _load_and_kill(self, server: ServerProcess) -> None:
        """Send from several tasks, kill the server meanwhile, and keep what was acknowledged."""
        load_ms = self._random.uniform(0, LOAD_MS_MAX)
        memory = AsyncProducer(server.nameserver, acks="memory")
        disk = AsyncProducer(server.nameserver, acks="disk")
        await memory.start()
        await disk.start()
        plans = [
            (memory, 1, self._random.randrange(2**32)),
            (memory, RUN_MAX, self._random.randrange(2**32)),
            (disk, 1, self._random.randrange(2**32)),
            (disk, 20, self._random.randrange(2**32)),
        ]
        senders = [asyncio.create_task(self._send(*plan)) for plan in plans]
        await asyncio.sleep(load_ms / 1000)
        server.kill()
        await memory.close(timeout_ms=0)
        await disk.close(timeout_ms=0)
        await asyncio.gather(*senders)

    async def _send(self, producer: AsyncProducer, count_max: int, seed: int) -> None:
        """Send batches of up to COUNT_MAX, each when the one before is acknowledged, until PRODUCER fails."""
        chooser = random.Random(seed)
        while True:
            numbers = self.ledger.numbers(chooser.randint(1, count_max))
            queue = chooser.randrange(QUEUES)
            messages = [
                Message(TOPIC, body_of(number), key=f"key-{number}", queue=queue)
                for number in numbers
            ]
            try:
                if len(messages) == 1:
                    self.ledger.note(await producer.send(messages[0]), numbers[0])
                else:
                    receipts = await producer.send_many(messages)
                    for receipt, number in zip(receipts, numbers, strict=True):
                        self.ledger.note(receipt, number)
            except PocketMQError:
                return  # The server was killed: of this send nothing is known, so nothing is claimed.

    async def _look_at(self, server: ServerProcess, wanted: dict[tuple[int, int], int]) -> None:
        """Complain about each of WANTED that does not lie where it was acknowledged."""
        if not wanted:
            return
        async with AsyncPullConsumer("campaign", nameservers=server.nameserver) as consumer:
            for queue in range(QUEUES):
                offsets = [offset for number, offset in wanted if number == queue]
                if offsets:
                    await self._read(consumer, queue, min(offsets), max(offsets) + 1, wanted)
        chosen = self._random.sample(sorted(wanted.items()), min(LOOKUPS, len(wanted)))
        async with AsyncAdmin(server.nameserver) as admin:
            for (queue, offset), number in chosen:
                found = await admin.lookup(TOPIC, key=f"key-{number}")
                if not any((m.queue, m.queue_offset) == (queue, offset) for m in found):
                    self.ledger.complaints.append(
                        f"key-{number} does not lead to offset {offset} of queue {queue}"
                    )

    async def _read(
        self,
        consumer: AsyncPullConsumer,
        queue: int,
        begin: int,
        end: int,
        wanted: dict[tuple[int, int], int],
    ) -> None:
        """Read offsets BEGIN to END of QUEUE: dense, each message one that was sent, WANTED where they belong."""
        offset = begin
        while offset < end:
            pulled = await consumer.pull(TOPIC, queue, offset)
            if not pulled.messages:
                self.ledger.complaints.append(
                    f"queue {queue} ends at {pulled.max_offset}; {end} was acknowledged"
                )
                return
            for message in pulled.messages:
                self._check(queue, offset, message.queue_offset, message.body, wanted)
                offset += 1

    def _check(
        self,
        queue: int,
        offset: int,
        queue_offset: int,
        body: bytes,
        wanted: dict[tuple[int, int], int],
    ) -> None:
        where = f"offset {offset} of queue {queue}"
        number = number_of(body)
        expected = wanted.get((queue, offset), number)
        if queue_offset != offset:
            self.ledger.complaints.append(f"{where}: the message says that it is {queue_offset}")
        elif body != body_of(number):
            self.ledger.complaints.append(f"{where}: the body of message {number} is damaged")
        elif number != expected:
            self.ledger.complaints.append(
                f"{where}: message {expected} was acknowledged, {number} is there"
            )

    async def _look_at_everything(self) -> None:
        """Read the whole store at the end, after one more recovery, and stop the server cleanly."""
        server = await self._serve()
        try:
            await self._look_at(server, self.ledger.acknowledged)
        finally:
            server.stop()


def main() -> int:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--default-sizes", action="store_true", help="files as large as a broker's")
    arguments = parser.parse_args()
    settings = "store:\n" if arguments.default_sizes else CONFIG
    logging.basicConfig(level=logging.ERROR)  # That sends are lost to a kill is no news here.
    click.echo(f"seed {arguments.seed}, {arguments.kills} kills")
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(
            Path(folder),
            kills=arguments.kills,
            seed=arguments.seed,
            settings=settings,
            say=click.echo,
        )
        ledger = asyncio.run(campaign.run())
    click.echo(
        json.dumps(
            {
                "seed": arguments.seed,
                "kills": arguments.kills,
                "killed_in_start": campaign.killed_in_start,
                "acknowledged": len(ledger.acknowledged),
                "sent": ledger.next_number,
                "complaints": ledger.complaints[:20],
            }
        )
    )
    return 1 if ledger.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
