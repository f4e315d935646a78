"""A replica set of real processes, for tests of what a person does to one: kill, add, move, lose its ZooKeeper."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pocketmq.client import Message, Producer, PullConsumer
from pocketmq.tools.zookeeper_server import ZooKeeperServer, free_ports

from ...integration.command import Done, Shell
from ...served import ServerProcess
from ...zookeeper.servers import running, serving

SET = "orders"
TOPIC = "Lost"
IDS = (1, 2, 3)
#: How long a set may take for anything on a machine that does much else.
PATIENCE_S = 90


class Stage:
    """Three replicas, a name server, and a ZooKeeper that can lose its data."""

    def __init__(self, folder: Path, zookeeper: ZooKeeperServer, stack: ExitStack) -> None:
        self.folder = folder
        self._zookeeper = zookeeper
        self._ports = {one: tuple(free_ports(2)) for one in range(1, 5)}
        names = ServerProcess(None, "--port", "0", verb="nameserver")
        stack.callback(names.kill)
        self.nameserver = names.nameserver
        self._replicas: dict[int, ServerProcess] = {}
        stack.callback(self.kill_all)
        self.sent: list[bytes] = []

    def words(self, *ids: int) -> list[str]:
        """Return the replicas IDS as commands take them."""
        return [f"{one}=127.0.0.1:{self._ports[one][1]}" for one in ids]

    def cluster(self, *words: str) -> Done:
        return Shell("")("replicas", *words, "--zookeeper", self._zookeeper.address)

    def begin(self, *ids: int) -> None:
        """Start the replicas IDS."""
        with ThreadPoolExecutor(len(ids)) as threads:
            self._replicas |= zip(ids, threads.map(self._begin, ids), strict=True)

    def _begin(self, one: int) -> ServerProcess:
        port, replication = self._ports[one]
        return ServerProcess(
            self.folder / f"replica-{one}",
            *("--port", str(port), "--nameserver", self.nameserver),
            *("--replica-set", SET, "--replica-id", str(one), "--min-in-sync", "2"),
            *("--replication-listen", f"127.0.0.1:{replication}"),
            *("--zookeeper", self._zookeeper.address),
            verb="broker",
        )

    def stop(self, *ids: int) -> None:
        """Stop the replicas IDS as an administrator does."""
        for one in ids:
            self._replicas.pop(one).stop()

    def kill(self, *ids: int) -> None:
        """Kill the replicas IDS, one right after the other."""
        for one in ids:
            self._replicas.pop(one).kill()

    def kill_all(self) -> None:
        self.kill(*list(self._replicas))

    def lose_data(self) -> None:
        self._zookeeper.kill()
        shutil.rmtree(self.folder / "zookeeper" / "1" / "version-2")
        self._zookeeper.start()
        serving([self._zookeeper])

    def until(self, *in_sync: int, master: int = 0) -> int:
        """Wait until a master, or MASTER, has IN_SYNC in sync; return which one."""
        told: dict[str, Any] = {}
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            (told,) = self.cluster("status", SET, "--json").documents
            led = told["master"] == master if master else told.get("master")
            if led and told["in_sync"] == list(in_sync):
                return int(told["master"])
        raise AssertionError(told)

    def until_gone(self, *ids: int) -> None:
        """Wait until the sessions of IDS have ended."""
        told: dict[str, Any] = {}
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            (told,) = self.cluster("status", SET, "--json").documents
            if not any(one["live"] for one in told["replicas"] if one["replica"] in ids):
                return
        raise AssertionError(told)

    def epoch(self) -> int:
        (told,) = self.cluster("status", SET, "--json").documents
        return int(told["epoch"])

    def send(self, count: int) -> None:
        """Send messages, each acknowledged by all in sync; wait for a master as long as a producer does."""
        with Producer(self.nameserver, acks="replicas") as producer:
            for _ in range(count):
                body = b"%d" % len(self.sent)
                producer.send(Message(TOPIC, body, queue=0))
                self.sent.append(body)

    def read(self) -> list[bytes]:
        with PullConsumer("readers", nameservers=self.nameserver) as consumer:
            pulled = consumer.pull(TOPIC, 0, 0)
            return [message.body for message in pulled.messages]


@contextmanager
def led(tmp_path: Path) -> Iterator[Stage]:
    """A set of three that is led, with a topic and ten messages in it."""
    with running(tmp_path / "zookeeper") as (server,), ExitStack() as stack:
        stage = Stage(tmp_path, server, stack)
        assert stage.cluster("init", SET, *stage.words(*IDS)).code == 0
        stage.begin(*IDS)
        stage.until(*IDS)
        made = Shell(stage.nameserver)("topic", "create", TOPIC, "--queues", "1")
        assert made.code == 0, made
        stage.send(10)
        yield stage
