"""A Java master is followed under load while either side is killed, stopped, and its place taken: one log, all state.

What Apache's own code makes of both stores must be the same, and our broker then serves on ours.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest

from pocketmq.client import Admin, PullConsumer
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import PocketMQError
from pocketmq.store.config import StoreConfig, apply_apache_settings
from pocketmq.store.format.java_json import parse
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..free_ports import free_ports
from ..served import ServerProcess
from .java_broker import JavaBroker, Remote, closing_all, name_server
from .java_oracle import build_once, dumps, require_java

#: How often either side is killed.
KILLS: Final = int(os.environ.get("FOLLOW_KILLS", "1"))
#: What the tests take at most: a campaign of many kills more.
LIMIT_S: Final = 600 + 60 * (KILLS - 1)
pytestmark = [
    pytest.mark.long,
    pytest.mark.java,
    pytest.mark.timeout(LIMIT_S),
]

SMALL: Final = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
#: Parts of a description that one log must give twice.
ONE: Final = ("minPhyOffset", "maxPhyOffset", "records", "queues")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pocketmq.tools.cli", *words]


#: One of so many messages is delayed.
DELAYED: Final = 50
LOAD: Final = 150
#: How long anything may take on a machine that does much else: nothing waits longer than it has to.
PATIENCE_S: Final = 120


class Following:
    """`pocketmq follow` in a process of its own, which may be killed and started again."""

    def __init__(self, broker: JavaBroker, store: Path, log: Path) -> None:
        words = ["--apache", broker.ha_address, "--rpc", broker.address, "--until-stopped"]
        self._command = command("follow", *words, str(store))
        self._log = log
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as file:
            return subprocess.Popen(self._command, stdout=file, stderr=file)

    async def ended(self) -> int:
        return await asyncio.get_running_loop().run_in_executor(None, self.process.wait)

    async def kill_and_start(self) -> None:
        self.process.kill()
        await self.ended()
        self.process = self._started()

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()


async def load(address: str, sent: list[str], stop: asyncio.Event) -> None:
    """Send until STOP; note in SENT what was acknowledged."""
    number = 0
    remote: Remote | None = None
    try:
        while not stop.is_set():
            try:
                remote = remote or await Remote.of(address, tries=10 * PATIENCE_S)
                number += 1
                key = f"k{number}"
                later: dict[str, str] = {"DELAY": "1"} if number % DELAYED == 0 else {}
                body = b"%d " % number * (1 + number * 7919 % 400)
                await remote.send("Load", body, number % 4, KEYS=key, UNIQ_KEY=f"U{key}", **later)
                sent.append(key)
            except PocketMQError:
                if remote is not None:
                    remote.close()
                remote = None
    finally:
        if remote is not None:
            remote.close()


async def more(sent: list[str], count: int) -> None:
    """Return once COUNT more were acknowledged."""
    goal = len(sent) + count
    for _ in range(10 * PATIENCE_S):
        if len(sent) >= goal:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("nothing is acknowledged")


#: By the request that asks for it.
TABLES: Final = {43: "consumerOffset.json", 45: "delayOffset.json"}
GET_MAX_OFFSET: Final = 30


async def until_delivered(admin: Remote) -> None:
    """Return once the first level of delays holds nothing any more: all that was sent is where it is to be read."""
    at = end = -1
    for _ in range(10 * PATIENCE_S):
        answer = await admin.call(GET_MAX_OFFSET, topic="SCHEDULE_TOPIC_XXXX", queueId="0")
        end = int(answer.fields["offset"])
        table: Any = parse((await admin.call(45)).body.decode())
        at = int(
            table["offsetTable"].get(1, 0)
        )  # Java tells of a level once it has delivered of it.
        if at == end:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"of {end} delayed messages {at} were delivered")


async def until_equal(admin: Remote, store: Path, *codes: int) -> None:
    """Return once the offsets in STORE that CODES ask for are those that the master has."""
    files = [store / "config" / TABLES[code] for code in codes]
    mine: list[Any] = []
    theirs: list[Any] = []
    for _ in range(10 * PATIENCE_S):
        await asyncio.sleep(0.1)
        if not all(file.exists() for file in files):
            continue
        theirs = [parse((await admin.call(code)).body.decode()) for code in codes]
        mine = [parse(file.read_text()) for file in files]
        if all(
            one["offsetTable"] == two["offsetTable"] for one, two in zip(mine, theirs, strict=True)
        ):
            return
    raise AssertionError(f"{mine} is not {theirs}")


def our_config(store: Path) -> StoreConfig:
    return apply_apache_settings(StoreConfig(path=str(store)), SMALL)


async def test_a_java_master_is_followed_through_kills_and_its_place_taken(tmp_path: Path) -> None:
    require_java()
    build_once()
    names, port = free_ports(2)
    server = name_server(tmp_path / "names", names)
    java = JavaBroker(tmp_path / "java", port, names, **SMALL)
    ours, log = tmp_path / "ours", tmp_path / "follow.log"
    sent: list[str] = []
    stop = asyncio.Event()
    with closing_all([server, java]):
        await server.start()
        await java.start()
        admin = await Remote.of(java.address)
        await admin.topic("Load", 4)
        await admin.topic("Quiet", 3)
        await admin.group("readers", 7)
        now_ms = SystemClock().unix_ms()
        for number in range(5):  # Due in an hour.
            due = {"TIMER_DELIVER_MS": str(now_ms + 3_600_000), "UNIQ_KEY": f"T{number}"}
            await admin.send("Quiet", b"later", 0, **due)
        sending = asyncio.ensure_future(load(java.address, sent, stop))

        with closing(Following(java, ours, log)) as following:
            for _ in range(KILLS):
                await more(sent, LOAD)
                await following.kill_and_start()
                await more(sent, LOAD)
                await java.kill()
                await java.start()
            await more(sent, LOAD)
            admin.close()
            admin = await Remote.of(java.address)
            for queue in range(4):
                await admin.commit("readers", "Load", queue, 20 + queue)
            stop.set()
            await sending
            await until_delivered(admin)
            await until_equal(admin, ours, *TABLES)
            admin.close()
            stopping = asyncio.ensure_future(java.stop())
            assert await following.ended() == 0, log.read_text()
            await stopping
    check_taken_over(java.store, ours, len(sent), tmp_path / "dumps")
    check_served(ours, sent)


async def test_a_master_in_controller_mode_is_killed_and_its_place_taken(tmp_path: Path) -> None:
    """Epochs come over; what was on its way is taken from the store that is left: nothing acknowledged is missing."""
    require_java()
    build_once()
    names, port, controller = free_ports(3)
    server = name_server(tmp_path / "names", names, controller)
    mode = {"enableControllerMode": "true", "controllerAddr": f"127.0.0.1:{controller}"}
    java = JavaBroker(tmp_path / "java", port, names, **SMALL, **mode)
    ours = tmp_path / "ours"
    sent: list[str] = []
    stop = asyncio.Event()
    with closing_all([server, java]):
        await server.start()
        await java.start()
        admin = await elected(java.address)
        with closing(Following(java, ours, tmp_path / "follow.log")) as following:
            sending = asyncio.ensure_future(load(java.address, sent, stop))
            await more(sent, LOAD)
            await java.kill()
            await java.start()  # It is elected anew: another epoch begins.
            await more(sent, LOAD)
            admin.close()
            admin = await elected(java.address)
            await admin.commit("readers", "Load", 3, 23)
            await until_equal(admin, ours, 43)
            following.process.send_signal(signal.SIGTERM)
            assert await following.ended() == 0
            await more(sent, 20)
            await java.kill()
            stop.set()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            admin.close()
    epochs = "epochFileCheckpoint"
    assert (ours / epochs).read_text() == (java.store / epochs).read_text()
    assert int((ours / epochs).read_text().split()[0]) >= 2
    said = promote(ours, "--java-store", str(java.store))
    assert "bytes of the log were copied" in said
    with ServerProcess(ours) as broker:
        read_all(broker.nameserver, sent)


async def elected(address: str) -> Remote:
    """Return a connection to the broker at ADDRESS once it is master, with the topic and the group there."""
    for _ in range(5 * PATIENCE_S):
        remote = await Remote.of(address)
        try:
            await remote.topic("Load", 4)
            await remote.group("readers", 7)
            await remote.send("Load", b"first")
            return remote
        except PocketMQError:
            remote.close()
            await asyncio.sleep(0.2)
    raise AssertionError("nobody is master")


def promote(ours: Path, *words: str) -> str:
    """Promote OURS; return what was said."""
    run = [*command("promote", str(ours)), *words]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "name: broker-a" in done.stdout
    return done.stdout


def check_taken_over(java: Path, ours: Path, sent: int, folder: Path) -> None:
    """OURS is promoted, and to Apache's code the same as the store JAVA, which has more than SENT messages."""
    promote(ours)
    theirs, mine = dumps([(java, SMALL), (ours, SMALL)], folder)
    assert len(theirs["records"]) > sent >= 3 * LOAD
    for name in ONE:
        assert mine[name] == theirs[name], name
    for ours_, java_ in zip(mine["lookups"], theirs["lookups"], strict=True):
        # Java's index may lack keys after a kill.
        assert ours_["key"] == java_["key"]
        assert set(ours_["offsets"]) >= set(java_["offsets"])
        assert ours_["offsets"]
    for one in (mine, theirs):  # Neither has its file: what is shown is the time of the look.
        del one["config"]["topicQueueMapping"]
    assert mine["config"] == theirs["config"]
    assert mine["config"]["consumerOffsets"]["Load@readers"]["3"] == 23
    assert mine["config"]["delayOffsets"]["1"] >= 3


def check_served(store: Path, sent: list[str]) -> None:
    """STORE is a broker's own: its group goes on, its timers wait, and all of SENT is there."""
    opened = MessageStore.open(our_config(store), disk=OsDisk(), now_ms=SystemClock().unix_ms)
    assert opened.timers.pending == 5
    opened.close()
    with ServerProcess(store) as server:
        with Admin(server.nameserver) as admin:
            ends = {one.queue.number: one.max_offset for one in admin.describe_topic("Load").queues}
        left = sum(ends.values()) - sum(20 + queue for queue in range(4))
        with PullConsumer("readers", "Load", server.nameserver) as consumer:
            read = list(islice(consumer, left))
        found = read_all(server.nameserver, sent)
    assert min(one.queue_offset for one in read if one.queue == 3) == 23
    # What a level delivered shortly before its broker was killed, Java delivers again by itself.
    assert {found[key] for key in sent if int(key[1:]) % DELAYED} == {1}


def read_all(nameserver: str, sent: list[str]) -> Counter[str]:
    """Return how often each key is read from the topic's beginning to its end, with all of SENT there.

    Delayed messages were acknowledged before they are there to be read, and wait for their time still.
    """
    found: Counter[str] = Counter()
    end_s = time.monotonic() + PATIENCE_S
    with (
        Admin(nameserver) as admin,
        PullConsumer("all", "Load", nameserver, start="earliest") as consumer,
    ):
        while set(sent) - found.keys() or found.total() < stored(admin):
            found.update(one.key or "" for one in consumer.poll(timeout_ms=1_000))
            missing = sorted(set(sent) - found.keys())
            assert time.monotonic() < end_s, (
                f"{found.total()} of {stored(admin)} read; of {len(sent)} acknowledged {len(missing)}"
                f" are missing: {missing[:50]}, last {sent[-1]}"
            )
    return found


def stored(admin: Admin) -> int:
    return sum(one.max_offset for one in admin.describe_topic("Load").queues)
