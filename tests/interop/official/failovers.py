"""Official clients that send and receive while replicas of real processes fail over: nothing acknowledged is lost.

    python -m tests.interop.official.failovers --language python --language java --failovers 10

Without --language all clients take part whose tools are installed. Each client knows all replicas as its access point;
the client of Node.js takes one address, and knows the first replica. Each sends one message after the other, and sends
a message again if that failed. Beside that it receives and acknowledges. After the last failover the receiver must have
every message that was acknowledged to the sender, and no message that was never sent.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pocketmq.client import AsyncAdmin
from pocketmq.proto.errors import TopicExists

from ...campaigns.history import History
from ...campaigns.replica_set import ReplicaSet
from ...zookeeper.servers import running
from .driver import ClientError, Driver
from .programs import PROGRAMS
from .stage import AWAIT_S

#: How many more messages are acknowledged to each sender between two failovers, and after the last.
_BETWEEN: Final = 10
#: How long they may take for that, and the receivers for the rest.
_PATIENCE_S: Final = 120.0
_SYNC_S: Final = 120.0


@dataclass
class Traffic:
    """What one client sent and received."""

    language: str
    sent: set[str] = field(default_factory=set)
    acknowledged: list[str] = field(default_factory=list)
    received: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    #: The longest time between two acknowledgements.
    gap_s: float = 0.0

    @property
    def missing(self) -> set[str]:
        """What was acknowledged and has not come."""
        return set(self.acknowledged) - self.received

    @property
    def foreign(self) -> set[str]:
        """What has come and was never sent."""
        return self.received - self.sent

    def __str__(self) -> str:
        return (
            f"{self.language}: {len(self.acknowledged)} acknowledged, {len(self.missing)} missing,"
            f" {len(self.foreign)} never sent, {len(self.failures)} calls failed,"
            f" nothing acknowledged for {self.gap_s:.1f} s at most"
        )


class _Client:
    """A sender and a receiver of one language, on a topic of their own."""

    def __init__(self, driver: Driver, topic: str) -> None:
        self._driver = driver
        self._topic = topic
        self.traffic = Traffic(driver.program.name)
        self._is_ending = False

    async def begin(self) -> None:
        await self._driver("producer", name=f"{self._topic}-p", topics=[self._topic])
        group = f"{self._topic}-g"
        await self._driver(
            "simple", name=f"{self._topic}-s", topic=self._topic, group=group, await_s=AWAIT_S
        )

    async def send(self) -> None:
        """Send until `end`; what failed is sent again."""
        loop, traffic = asyncio.get_running_loop(), self.traffic
        last_s, number = loop.time(), 0
        while not self._is_ending:
            body = f"{traffic.language} {number}"
            traffic.sent.add(body)
            try:
                await self._driver("send", client=f"{self._topic}-p", topic=self._topic, body=body)
            except ClientError as error:
                traffic.failures.append(f"send: {error}")
                await asyncio.sleep(0.1)
                continue
            traffic.acknowledged.append(body)
            traffic.gap_s, last_s = max(traffic.gap_s, loop.time() - last_s), loop.time()
            number += 1

    async def receive(self) -> None:
        while True:
            try:
                reply = await self._driver(
                    "receive", client=f"{self._topic}-s", count=32, invisible_s=20
                )
                for message in reply["messages"]:
                    self.traffic.received.add(message["body"])
                    await self._driver("ack", client=f"{self._topic}-s", number=message["number"])
            except ClientError as error:
                self.traffic.failures.append(f"receive: {error}")
                await asyncio.sleep(0.1)

    def end(self) -> None:
        self._is_ending = True


async def _until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not condition():  # noqa: ASYNC110 (what several processes have done, not an event)
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"within {_PATIENCE_S:.0f} s not: {what}") from None


async def failed_over(
    languages: Sequence[str],
    folder: Path,
    failovers: int,
    say: Callable[[str], None] = lambda line: None,
) -> list[Traffic]:
    """Kill the master FAILOVERS times under clients in LANGUAGES; return what each sent and received."""
    with running(folder / "zookeeper") as zookeeper:
        replicas = ReplicaSet(folder, zookeeper, History())
        tasks: list[asyncio.Task[None]] = []
        drivers: list[Driver] = []
        try:
            await replicas.start()
            addresses = [node.address for node in replicas.live.values()]
            clients: list[_Client] = []
            async with AsyncAdmin(replicas.nameserver) as admin:
                for name in languages:
                    with suppress(TopicExists):  # An election during the first answer.
                        await admin.create_topic(f"failing-{name}", queues=2)
                    program = PROGRAMS[name]
                    driver = await Driver.start(
                        program, program.access_point(addresses), folder / f"{name}.log"
                    )
                    drivers.append(driver)
                    clients.append(_Client(driver, f"failing-{name}"))
            for client in clients:
                await client.begin()
                tasks += [
                    asyncio.create_task(client.send()),
                    asyncio.create_task(client.receive()),
                ]
            for number in range(failovers + 1):
                await _go_on(clients)
                if number < failovers:
                    await _fail_over(replicas)
                    say(f"{number + 1}: epoch {replicas.epoch}")
            for client in clients:
                client.end()
            await _until(
                lambda: not any(client.traffic.missing for client in clients),
                f"all received: {[str(client.traffic) for client in clients]}",
            )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for driver in drivers:
                await driver.stop()
            await replicas.close()
    return [client.traffic for client in clients]


async def _go_on(clients: Sequence[_Client]) -> None:
    wanted = {client: len(client.traffic.acknowledged) + _BETWEEN for client in clients}
    await _until(
        lambda: all(len(one.traffic.acknowledged) >= count for one, count in wanted.items()),
        f"{_BETWEEN} more acknowledged: {[str(one.traffic) for one in clients]},"
        f" {[one.traffic.failures[-2:] for one in clients]}",
    )


async def _fail_over(replicas: ReplicaSet) -> None:
    """Kill the master, and have it back as a follower."""
    await replicas.all_in_sync(_SYNC_S)
    master, epoch = replicas.master, replicas.epoch
    assert master is not None, "all are in sync"
    await replicas.kill(master)
    await _until(lambda: replicas.epoch > epoch, "another master")
    await replicas.begin(master)


def main() -> int:
    """Play what the command line asks for; return how many clients miss messages, or got wrong ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--language", action="append", choices=PROGRAMS)
    parser.add_argument("--failovers", type=int, default=10)
    chosen = parser.parse_args()
    languages = chosen.language or [n for n, one in PROGRAMS.items() if not one.missing()]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for traffic in asyncio.run(
            failed_over(
                languages, Path(folder), chosen.failovers, lambda line: print(line, flush=True)
            )
        ):
            print(traffic)
            failed += bool(traffic.missing or traffic.foreign)
            for failure in sorted(set(traffic.failures))[:5]:
                print("  ", failure[:200])
    return failed


if __name__ == "__main__":
    sys.exit(main())
