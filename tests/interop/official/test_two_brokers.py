"""Two brokers behind one name server, and official clients that dial one: they see both, and outlast either's loss.

Clients are told of all brokers that have a topic. They send to, receive from, and acknowledge at each by themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pocketmq.client import AsyncAdmin

from ...served import ServerProcess
from .driver import ClientError, Driver, Message, dialling
from .programs import PROGRAMS
from .stage import AWAIT_S

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.timeout(300)]

LANGUAGES: Final = ["python", "java", "go", "node", "rust"]
#: Go's sends wait some 20 s each for a broker that is lost, until its next route: minutes for what is tried here.
LOSS_LANGUAGES: Final = ["python", "java", "node", "rust"]
COUNT: Final = 40


class Pair:
    """Brokers a and b behind one name server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = ServerProcess(None, "--port", "0", verb="nameserver")
        self.nameserver = self._server.nameserver
        self.brokers = {name: self._start(name, "0") for name in "ab"}
        self.addresses = {name: str(one.ready["broker"]) for name, one in self.brokers.items()}

    def _start(self, name: str, port: str) -> ServerProcess:
        return ServerProcess(
            self._folder / name,
            *("--port", port, "--nameserver", self.nameserver, "--name", name),
            verb="broker",
        )

    def kill(self, name: str) -> None:
        self.brokers[name].kill()

    def start(self, name: str) -> None:
        """Start a broker that was killed, where it was."""
        self.brokers[name] = self._start(name, self.addresses[name].rpartition(":")[2])

    def stop(self) -> None:
        for server in (*self.brokers.values(), self._server):
            server.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    found = Pair(tmp_path)
    try:
        yield found
    finally:
        found.stop()


async def stored(admin: AsyncAdmin, topic: str) -> dict[str, int]:
    """Return how many messages of TOPIC each broker has."""
    found = await admin.describe_topic(topic)
    counts: dict[str, int] = {}
    for queue in found.queues:
        broker = queue.queue.broker
        counts[broker] = counts.get(broker, 0) + queue.max_offset - queue.min_offset
    return counts


async def sent_at_last(driver: Driver, body: str) -> str:
    """Send BODY, again and again if it fails; return it."""
    end_s = time.monotonic() + 90
    while True:
        try:
            await driver("send", client="p", topic="orders", body=body)
        except ClientError:
            if time.monotonic() > end_s:
                raise
        else:
            return body


async def receive(driver: Driver, consumer: str, count: int, *, within_s: float = 60) -> list[str]:
    """Receive and acknowledge until there are COUNT messages; return their bodies."""
    bodies: list[str] = []
    end_s = time.monotonic() + within_s
    while len(bodies) < count and time.monotonic() < end_s:
        reply = await driver("receive", client=consumer, count=32, invisible_s=60)
        found: list[Message] = reply["messages"]
        for message in found:
            await driver("ack", client=consumer, number=message["number"])
        bodies += [message["body"] for message in found]
    return sorted(bodies)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_who_dials_one_broker_sends_to_and_receives_from_both(
    language: str, pair: Pair, tmp_path: Path
) -> None:
    async with (
        AsyncAdmin(pair.nameserver) as admin,
        dialling(language, pair.addresses["a"], tmp_path / "log") as driver,
    ):
        await admin.create_topic("orders", queues=2)
        await admin.create_group("simple")
        await admin.create_group("push")
        await driver("producer", name="p", topics=["orders"])
        bodies = sorted(f"{n:03d}" for n in range(COUNT))
        for body in bodies:
            await driver("send", client="p", topic="orders", body=body)
        counts = await stored(admin, "orders")

        await driver("simple", name="s", group="simple", topic="orders", await_s=AWAIT_S)
        received = await receive(driver, "s", COUNT)
        pushed = bodies
        if "push" not in PROGRAMS[language].lacks:
            await driver("push", name="c", group="push", topic="orders")
            pushed = sorted([(await driver.event("c"))["body"] for _ in range(COUNT)])

    assert sum(counts.values()) == COUNT
    assert min(counts["a"], counts["b"]) > 0, counts
    assert received == bodies
    assert pushed == bodies


@pytest.mark.parametrize("language", LANGUAGES)
async def test_transactions_and_recalls_find_their_broker(
    language: str, pair: Pair, tmp_path: Path
) -> None:
    async with (
        AsyncAdmin(pair.nameserver) as admin,
        dialling(language, pair.addresses["a"], tmp_path / "log") as driver,
    ):
        await admin.create_topic("paid", queues=1, type="TRANSACTION")
        await admin.create_topic("later", queues=1, type="DELAY")
        await admin.create_group("g")
        await driver("producer", name="t", topics=["paid"], transactions=True)
        await driver("producer", name="d", topics=["later"])
        for number in range(8):
            outcome = "commit" if number % 4 < 2 else "rollback"  # Both outcomes at both.
            await driver("send", client="t", topic="paid", body=f"{number}", transaction=outcome)
        due_ms = int(time.time() * 1000) + 3_600_000
        delayed = [
            await driver("send", client="d", topic="later", body="x", deliver_at_ms=due_ms)
            for _ in range(8)
        ]
        waiting = {one.broker_name: one.delayed_waiting for one in await admin.brokers()}
        recalled = delayed
        if "recall" not in PROGRAMS[language].lacks:
            recalled = [
                await driver("recall", client="d", topic="later", handle=one["recall_handle"])
                for one in delayed
            ]
        await driver("simple", name="s", group="g", topic="paid", await_s=AWAIT_S)
        received = await receive(driver, "s", 4)
        counts = await stored(admin, "paid")

    assert received == ["0", "1", "4", "5"]
    assert min(counts.values()) > 0, counts
    assert [one["message_id"] for one in recalled] == [one["message_id"] for one in delayed]
    assert min(waiting.values()) > 0, waiting


async def consumed(driver: Driver, language: str, timeout_s: float = 10) -> list[str]:
    """Return the bodies that consumer c brings next: a push consumer, or a simple one where there is none."""
    if "push" not in PROGRAMS[language].lacks:
        return [(await driver.event("c", timeout_s))["body"]]
    try:
        return await receive(driver, "c", 1, within_s=timeout_s)
    except ClientError:  # It asked the broker that was lost, or was told of its end.
        return []


@pytest.mark.parametrize("killed", ["a", "b"])
@pytest.mark.parametrize("language", LOSS_LANGUAGES)
async def test_the_loss_of_either_broker_stops_nobody(
    language: str, killed: str, pair: Pair, tmp_path: Path
) -> None:
    async with (
        AsyncAdmin(pair.nameserver) as admin,
        dialling(language, pair.addresses["a"], tmp_path / "log") as driver,
    ):
        await admin.create_topic("orders", queues=2)
        await admin.create_group("push")
        await driver("producer", name="p", topics=["orders"])
        consumer = "simple" if "push" in PROGRAMS[language].lacks else "push"
        await driver(consumer, name="c", group="push", topic="orders", await_s=AWAIT_S)
        sent = {await sent_at_last(driver, f"before {n}") for n in range(COUNT)}
        pushed: set[str] = set()
        while not sent <= pushed:
            pushed.update(await consumed(driver, language))
        had = (await stored(admin, "orders"))[killed]
        pair.kill(killed)
        behind = {await sent_at_last(driver, f"without {n}") for n in range(COUNT)}
        while not behind <= pushed:
            pushed.update(await consumed(driver, language, 60))
        pair.start(killed)
        again: set[str] = set()
        end_s = time.monotonic() + 100
        while PROGRAMS[language].comes_back and (await stored(admin, "orders"))[killed] == had:
            assert time.monotonic() < end_s, f"nothing is sent to {killed} any more"
            again.add(await sent_at_last(driver, f"again {len(again)}"))
            await asyncio.sleep(0.1)
        while not again <= pushed:
            pushed.update(await consumed(driver, language, 60))

    assert had > 0
