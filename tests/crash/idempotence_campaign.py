"""Lose acknowledgements, kill the broker with `kill -9` and start it again: each message is stored once, in order.

    python -m tests.crash.idempotence_campaign --kills 50 --seed 1

One producer lives through all of it, and sends to several queues, some messages for later. Between it and the broker
is a relay that breaks connections at random, mostly with answers on their way. Nothing may fail but what is left
when the time for delivery is over, and that is long. At the end the store is read: every queue has the messages that
were sent to it, in their order, each once, and the topic of those for later has each of them once.

Moments are drawn from the seed; what the machine does between them is its own, so a seed gives the same plan, but not
the same instant.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
import yaml

from pocketmq.client import AsyncAdmin, AsyncProducer, Message
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.topics import TIMER_TOPIC
from pocketmq.store.config import StoreConfig
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..free_ports import free_ports
from ..runs import bodies_of
from ..served import ServerProcess

TOPIC: Final = "campaign"
QUEUES: Final = 3
#: One in so many messages is for later.
LATER_ONE_IN: Final = 10
LATER: Final = "1s"
LIFE_MS_MAX: Final = 5_000
RUN_MAX: Final = 40

CONFIG: Final = """\
broker:
  advertised_address: 127.0.0.1:{relay}
store:
  log_file_size_bytes: 1048576
  queue_file_size_bytes: 20000
  index_slots: 1000
  index_entries: 4000
  message_size_max_bytes: 262144
"""


class Relay:
    """Passes connections on to TARGET, and breaks them: each answer is the last that is heard with CHANCE."""

    def __init__(self, target: int, chance: float, rng: random.Random) -> None:
        self._target = target
        self._chance = chance
        self._random = rng
        self._server: asyncio.Server | None = None
        self.broken = 0

    async def start(self, port: int) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)

    async def stop(self) -> None:
        """Break nothing any more: what is open stays."""
        self._chance = 0.0
        if self._server is not None:
            self._server.close()

    def soothe(self) -> None:
        """From now on pass everything on."""
        self._chance = 0.0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        pumps = [
            asyncio.ensure_future(self._pump(reader, upstream[1], 0.0)),
            asyncio.ensure_future(self._pump(upstream[0], writer, self._chance)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for one in (writer, upstream[1]):
            one.transport.abort()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: float
    ) -> None:
        """Pass bytes on until one side ends; with CHANCE swallow some, and end."""
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if chance and self._chance and self._random.random() < chance:
                    self.broken += 1
                    return
                writer.write(data)
                await writer.drain()


@dataclass
class Outcome:
    """What was sent, by queue: the bodies in their order; what failed, what is wrong."""

    sent: dict[int, list[bytes]] = field(default_factory=lambda: {n: [] for n in range(QUEUES)})
    later: list[bytes] = field(default_factory=list)
    acknowledged: int = 0
    complaints: list[str] = field(default_factory=list)
    kills: int = 0
    broken: int = 0


class IdempotenceCampaign:
    """KILLS lives of a broker over one store in FOLDER, planned from SEED."""

    def __init__(
        self,
        folder: Path,
        *,
        kills: int,
        seed: int,
        chance: float = 0.03,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._folder = folder
        self._kills = kills
        self._random = random.Random(seed)
        self._say = say
        self._port, self._relay_port, self._nameserver_port = free_ports(3)
        self._relay = Relay(self._port, chance, self._random)
        self._config = folder / "campaign.yaml"
        self._config.write_text(CONFIG.format(relay=self._relay_port), encoding="utf-8")
        self._ending = False
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        """Do everything; what is wrong is in the outcome's complaints."""
        await self._relay.start(self._relay_port)
        server = await self._serve()
        try:
            async with AsyncAdmin(server.nameserver) as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)
            server = await self._send_and_kill(server)
            await asyncio.to_thread(server.stop)
            self._look()
        finally:
            server.kill()
            await self._relay.stop()
        self.outcome.broken = self._relay.broken
        return self.outcome

    async def _serve(self) -> ServerProcess:
        arguments = ["--config", str(self._config), "--port", str(self._port)]
        arguments += ["--nameserver-port", str(self._nameserver_port)]
        return await asyncio.to_thread(ServerProcess, self._folder / "store", *arguments)

    async def _send_and_kill(self, server: ServerProcess) -> ServerProcess:
        """Send all the time, kill SERVER again and again; return the last one."""
        producer = AsyncProducer(
            server.nameserver,
            acks="memory",
            delivery_timeout_ms=120_000,
            request_timeout_ms=3_000,
            compression=None,
        )
        async with producer:
            senders = [
                asyncio.ensure_future(self._send(producer, queue, self._random.randrange(1 << 32)))
                for queue in range(QUEUES)
            ]
            for _ in range(self._kills):
                await asyncio.sleep(self._random.uniform(0.5, LIFE_MS_MAX / 1000))
                await asyncio.to_thread(server.kill)
                server = await self._serve()
                self.outcome.kills += 1
                self._say(f"kill {self.outcome.kills}: {self.outcome.acknowledged} acknowledged")
            self._ending = True
            await asyncio.gather(*senders)
            self._relay.soothe()
        return server

    async def _send(self, producer: AsyncProducer, queue: int, seed: int) -> None:
        """Send batches to QUEUE until the end, several at a time."""
        chooser = random.Random(seed)
        under_way: list[asyncio.Future[None]] = []
        number = 0
        while not self._ending:
            count = chooser.choice((1, 1, RUN_MAX))
            messages = []
            for _ in range(count):
                body = b"%d/%d " % (queue, number) + chooser.randbytes(chooser.choice((0, 50, 900)))
                messages.append(self._message(body, queue, chooser))
                number += 1
            under_way.append(asyncio.ensure_future(self._acknowledged(producer, messages)))
            # The sends themselves happen in order: each begins before the next one is made.
            await asyncio.sleep(0)
            while len(under_way) >= 4:
                await under_way.pop(0)
        await asyncio.gather(*under_way)

    def _message(self, body: bytes, queue: int, chooser: random.Random) -> Message:
        if chooser.randrange(LATER_ONE_IN) == 0:
            self.outcome.later.append(body)
            return Message(TOPIC, body, queue=queue, delay=LATER)
        self.outcome.sent[queue].append(body)
        return Message(TOPIC, body, queue=queue)

    async def _acknowledged(self, producer: AsyncProducer, messages: list[Message]) -> None:
        try:
            await producer.send_many(messages)
            self.outcome.acknowledged += len(messages)
        except PocketMQError as error:
            self.outcome.complaints.append(f"{type(error).__name__}: {error.message}")

    # --- afterwards

    def _look(self) -> None:
        """Read every queue, and what waited."""
        sizes = yaml.safe_load(self._config.read_text(encoding="utf-8"))["store"]
        config = StoreConfig(path=str(self._folder / "store"), **sizes)
        now_ms = SystemClock().now_ms
        store = MessageStore.open(config, disk=OsDisk(), now_ms=now_ms, read_only=True)
        later = set(self.outcome.later)
        for queue, sent in self.outcome.sent.items():
            found = [body for body in bodies_of(store, TOPIC, queue) if body not in later]
            self._compare(f"queue {queue}", sent, found)
        waited = bodies_of(store, TIMER_TOPIC, 0)
        self._compare("what waited", sorted(self.outcome.later), sorted(waited))
        store.close()

    def _compare(self, what: str, sent: list[bytes], found: list[bytes]) -> None:
        """Complain if FOUND is not what was SENT."""
        if found == sent:
            return
        counts, wanted = Counter(found), set(sent)
        twice = [body[:20] for body, count in counts.items() if count > 1]
        missing = [body[:20] for body in sent if body not in counts]
        stray = [body[:20] for body in found if body not in wanted]
        self.outcome.complaints.append(
            f"{what}: {len(sent)} sent, {len(found)} found; twice {twice[:5]}, missing {missing[:5]},"
            f" never sent {stray[:5]}"
        )


def main() -> int:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    click.echo(f"seed {arguments.seed}, {arguments.kills} kills")
    with tempfile.TemporaryDirectory() as folder:
        campaign = IdempotenceCampaign(
            Path(folder), kills=arguments.kills, seed=arguments.seed, say=click.echo
        )
        outcome = asyncio.run(campaign.run())
    click.echo(
        json.dumps(
            {
                "seed": arguments.seed,
                "kills": outcome.kills,
                "connections_broken": outcome.broken,
                "acknowledged": outcome.acknowledged,
                "for_later": len(outcome.later),
                "complaints": outcome.complaints[:20],
            }
        )
    )
    return 1 if outcome.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
