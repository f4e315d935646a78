"""A Java slave follows our broker under load, through kills of either side, and then takes its place.

Apache's own code must find in the slave's store what it finds in ours.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from pocketmq.client import AsyncAdmin, AsyncProducer, Message
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.remoting.codes import RequestCode
from pocketmq.store.format.java_json import parse

from ..free_ports import free_ports
from ..served import ServerProcess
from .java_broker import JavaBroker, Remote, closing_all
from .java_oracle import build_once, dumps, require_java
from .test_java_followed import KILLS, LIMIT_S, ONE, PATIENCE_S, SMALL

pytestmark = [
    pytest.mark.long,
    pytest.mark.java,
    pytest.mark.timeout(LIMIT_S),
]

LOAD: Final = 200
#: A slave asks for the tables a minute after its start, first: for campaigns.
LONG: Final = KILLS > 1
CONFIG: Final = """
broker: {java_slaves: true, java_slaves_port: %d, flush_waiting_max: 1000}
store:
  log_file_size_bytes: 1048576
  queue_file_size_bytes: 20000
  index_slots: 500
  index_entries: 2000
"""


class Ours:
    """Our broker in a process of its own, on the ports that it had before."""

    def __init__(self, folder: Path, java_slaves_port: int) -> None:
        self.store = folder / "ours"
        (folder / "ours.yaml").write_text(CONFIG % java_slaves_port)
        self._words = ["--config", str(folder / "ours.yaml")]
        self.server = self._started()

    def _started(self) -> ServerProcess:
        return ServerProcess(self.store, *self._words)

    def close(self) -> None:
        """End it, whatever it does."""
        if self.server.is_running:
            self.server.kill()

    def kill(self) -> None:
        """Kill it, and start it again."""
        self.server.kill()
        self.server = self._started()


async def send(ours: Ours, count: int) -> None:
    async with AsyncProducer(ours.server.nameserver) as producer:
        for number in range(count):
            body = b"%d " % number * (1 + number * 7919 % 400)
            level = 1 if number % 50 == 0 else 0
            await producer.send(Message("Load", body, key=f"k{number}", delay_level=level))


async def slave_at(address: str, end: int) -> None:
    """Return once the slave at ADDRESS has the log up to END."""
    found = -1
    for _ in range(10 * PATIENCE_S):
        try:
            remote = await Remote.of(address, tries=1)
        except AssertionError:
            await asyncio.sleep(0.1)
            continue
        try:
            told: Any = parse(
                (await remote.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body.decode()
            )
            found = int(told["table"]["commitLogMaxOffset"])
        except PocketMQError:
            pass
        finally:
            remote.close()
        if found >= end:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"the slave is at {found}, not at {end}")


async def log_end(ours: Ours) -> int:
    """Return where our log ends, once no message waits for its time: nothing is appended any more."""
    waiting = -1
    async with AsyncAdmin(ours.server.nameserver) as admin:
        for _ in range(10 * PATIENCE_S):
            (broker,) = await admin.brokers()
            waiting = broker.delayed_waiting
            if waiting == 0:
                return broker.max_log_offset
            await asyncio.sleep(0.1)
    raise AssertionError(f"{waiting} delayed messages wait")


async def test_a_java_slave_follows_through_kills_and_takes_over(tmp_path: Path) -> None:
    require_java()
    build_once()
    apache, port = free_ports(2)
    ours = Ours(tmp_path, apache)
    slave = {"brokerRole": "SLAVE", "brokerId": "1"}
    java = JavaBroker(tmp_path / "java", port, apache, **SMALL, **slave)
    with closing_all([java]), closing(ours):
        async with AsyncAdmin(ours.server.nameserver) as admin:
            await admin.create_topic("Load", queues=4)
            await admin.create_group("readers", retry_max_times=7)
        await java.start()
        await send(ours, LOAD)
        await slave_at(java.address, await log_end(ours))
        await java.kill()
        await send(ours, LOAD)
        ours.kill()
        await java.start()
        await send(ours, LOAD)
        await slave_at(java.address, await log_end(ours))
        if LONG:
            names = ("topics.json", "subscriptionGroup.json")
            files = [java.store / "config" / name for name in names]
            await holding(files, b'"Load"', b'"readers"')
        ours.server.stop()
        await java.kill()
    theirs, mine = dumps([(java.store, SMALL), (ours.store, SMALL)], tmp_path / "dumps")
    assert len(mine["records"]) > 3 * LOAD
    for name in ONE:
        assert theirs[name] == mine[name], name
    for name, key in (("topics", "Load"), ("subscriptionGroups", "readers")) if LONG else ():
        assert theirs["config"][name][key] == mine["config"][name][key]


async def holding(files: list[Path], *words: bytes) -> None:
    """Return once each of FILES, in their order, has the one of WORDS."""
    for _ in range(900):
        if all(
            file.exists() and word in file.read_bytes()
            for file, word in zip(files, words, strict=True)
        ):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"no {words} in {files}")
