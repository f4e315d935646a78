"""Celery's transport and dramatiq's broker where the broker has users and TLS, and where it is a replica set."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pocketmq.proto.errors import NotAuthorized
from pocketmq.proto.tls import Trust

from ...authority import Authority
from ...integration.served_set import ServedSet, served_set
from ...served import ServerProcess

dramatiq = pytest.importorskip("dramatiq")
kombu = pytest.importorskip("kombu")
dramatiq_broker = pytest.importorskip("pocketmq.tools.frameworks.dramatiq_broker")
kombu_transport = pytest.importorskip("pocketmq.tools.frameworks.kombu_transport")

pytestmark = pytest.mark.processes

LONG_MS = 60_000
#: What a user of tasks needs: the queue is there, or may be made.
WORKER = [
    {"resource": "Topic:tasks*", "actions": ["Pub", "Sub", "Create", "Get"]},
    {"resource": "Group:tasks*", "actions": ["Sub", "Create", "Get"]},
]


class Secured(NamedTuple):
    """A broker at ADDRESS that speaks TLS alone, to users; CA signed its certificate."""

    address: str
    ca: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    users = {
        "root": {"secret": "s", "type": "Super"},
        "worker": {"secret": "w", "policies": WORKER},
        "guest": {"secret": "g"},
    }
    (folder / "users.yaml").touch(0o600)
    (folder / "users.yaml").write_text(json.dumps({"users": users}))
    authority = Authority()
    shown = authority.certificate(name="broker", addresses=["127.0.0.1"])
    for name, data in (("ca", authority.pem), ("cert", shown.chain), ("key", shown.key)):
        (folder / name).write_bytes(data)
    broker = {
        "users": str(folder / "users.yaml"),
        "tls_cert": str(folder / "cert"),
        "tls_key": str(folder / "key"),
        "tls_only": True,
    }
    (folder / "c.yaml").write_text(json.dumps({"broker": broker}))
    with ServerProcess(
        folder / "store", "--grpc", "builtin", "--config", str(folder / "c.yaml")
    ) as running:
        yield Secured(running.ready["broker"], str(folder / "ca"))


def run_of(broker: Any) -> list[int]:
    """Return which of three tasks a worker of dramatiq ran at BROKER."""
    ran: list[int] = []
    actor = dramatiq.actor(ran.append, broker=broker, actor_name="note", queue_name="own")
    for number in range(3):
        actor.send(number)
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
    worker.start()
    try:
        broker.join("own", timeout=LONG_MS)
        worker.join()
    finally:
        worker.stop()
        broker.close()
    return sorted(ran)


@pytest.mark.parametrize(("user", "secret"), [("root", "s"), ("worker", "w")])
def test_dramatiq_signs_its_calls_over_tls(secured: Secured, user: str, secret: str) -> None:
    trust = Trust(ca=secured.ca, user=user, secret=secret)
    made = dramatiq_broker.PocketmqBroker(secured.address, namespace=f"tasks-{user}", trust=trust)
    assert run_of(made) == [0, 1, 2]


@pytest.mark.parametrize(
    ("user", "secret", "words"),
    [("worker", "wrong", "signature"), ("guest", "g", "no permission"), ("", "", "username")],
)
def test_dramatiq_says_who_may_not(secured: Secured, user: str, secret: str, words: str) -> None:
    trust = Trust(ca=secured.ca, user=user, secret=secret)
    made = dramatiq_broker.PocketmqBroker(secured.address, namespace="tasks-none", trust=trust)
    actor = dramatiq.actor(print, broker=made, actor_name="note", queue_name="own")
    with pytest.raises(NotAuthorized, match=words):
        actor.send(1)
    made.close()


def exchanged(url: str, name: str, count: int, **settings: Any) -> list[int]:
    """Return what comes of COUNT messages that are published to queue NAME at URL."""
    found: list[int] = []
    queue = kombu.Queue(name, routing_key=name)

    def take(body: int, message: Any) -> None:
        found.append(body)
        message.ack()

    with kombu.Connection(url, **settings) as connection:
        producer = kombu.Producer(connection)
        for number in range(count):
            producer.publish(number, routing_key=name, declare=[queue])
        with kombu.Consumer(connection, [queue], callbacks=[take]):
            while len(found) < count:
                connection.drain_events(timeout=LONG_MS / 1000)
    return sorted(found)


@pytest.mark.parametrize(("user", "secret"), [("root", "s"), ("worker", "w")])
def test_celerys_transport_signs_its_calls_over_tls(
    secured: Secured, user: str, secret: str
) -> None:
    url = f"pocketmq://{user}:{secret}@{secured.address}"
    assert exchanged(url, f"tasks-kombu-{user}", 3, ssl={"ca_certs": secured.ca}) == [0, 1, 2]


def test_celerys_transport_says_who_may_not(secured: Secured) -> None:
    url = f"pocketmq://guest:g@{secured.address}"
    with pytest.raises(NotAuthorized):
        exchanged(url, "tasks-kombu-none", 1, ssl={"ca_certs": secured.ca})


# --- replica sets


class Sending:
    """Sends numbers by SEND, one after the other, in a thread, each until it is taken, until it is told to stop."""

    def __init__(self, send: Callable[[int], object]) -> None:
        self._send = send
        self.sent: list[int] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(0.005):
            with suppress(Exception):  # The master may be away: the same number again.
                self._send(len(self.sent))
                self.sent.append(len(self.sent))

    async def goes_on(self, count: int = 20) -> None:
        """Wait for COUNT more."""
        wanted = len(self.sent) + count
        async with asyncio.timeout(60):
            while len(self.sent) < wanted:  # noqa: ASYNC110 (of a thread)
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self._is_over.set()
        await asyncio.to_thread(self._thread.join)


async def through_failovers(
    world: ServedSet, send: Callable[[int], object], came: set[int]
) -> None:
    """Fail WORLD over twice while numbers are sent by SEND; return when all that were sent have CAME."""
    sending = Sending(send)
    for _ in range(2):
        await sending.goes_on()
        await world.fail_over()
    await sending.goes_on()
    await sending.stop()
    async with asyncio.timeout(120):
        while not came >= set(sending.sent):  # noqa: ASYNC110 (of a thread)
            await asyncio.sleep(0.05)


@pytest.mark.long
async def test_tasks_of_dramatiq_outlast_failovers(tmp_path: Path) -> None:
    async with served_set(tmp_path, min_in_sync=2) as world:
        (master,) = world.masters
        address = world.served(master.id).address
        broker = dramatiq_broker.PocketmqBroker(address, lease_s=10)
        ran: set[int] = set()
        actor = dramatiq.actor(ran.add, broker=broker, actor_name="note", queue_name="own")
        worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
        await asyncio.to_thread(worker.start)
        await through_failovers(world, actor.send, ran)
        await asyncio.to_thread(worker.stop)
        await asyncio.to_thread(broker.close)


@pytest.mark.long
async def test_messages_of_celerys_transport_outlast_failovers(tmp_path: Path) -> None:
    async with served_set(tmp_path, min_in_sync=2) as world:
        url = ";".join(f"pocketmq://{world.served(one).address}" for one in world.members)
        queue = kombu.Queue("own", routing_key="own")
        found: set[int] = set()
        is_over = threading.Event()

        def take(body: int, message: Any) -> None:
            found.add(body)
            message.ack()

        def consume() -> None:
            while not is_over.is_set():
                connection = kombu.Connection(url, transport_options={"visibility_timeout": 10})
                with suppress(Exception), connection as connected:  # As Celery's worker: again.
                    connected.ensure_connection(max_retries=3, interval_start=0.1)
                    with kombu.Consumer(connected, [queue], callbacks=[take]):
                        while not is_over.is_set():
                            with suppress(TimeoutError):
                                connected.drain_events(timeout=0.2)

        consuming = threading.Thread(target=consume)
        consuming.start()
        connection = kombu.Connection(url)
        retry = {"max_retries": 20, "interval_start": 0.05, "interval_max": 0.5}

        def send(number: int) -> None:
            kombu.Producer(connection).publish(
                number, routing_key="own", declare=[queue], retry=True, retry_policy=retry
            )

        await through_failovers(world, send, found)
        is_over.set()
        await asyncio.to_thread(consuming.join)
        await asyncio.to_thread(connection.release)
