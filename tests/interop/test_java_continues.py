"""Apache's broker opens a store that ours left amid delays, recalls and transactions, and goes on from there.

Ours runs on a virtual clock hours ago, so that everything is due when the Java broker starts: together both deliver
each message once.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from pocketmq.broker.broker import Broker
from pocketmq.client import AsyncProducer, Message
from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.os_disk import OsDisk

from ..served import broker_config, nameserver_config
from .java_oracle import Document, dumps, require_java, verify_start

pytestmark = [pytest.mark.long, pytest.mark.java, pytest.mark.timeout(600)]

SMALL: Final = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000
TOPIC: Final = "Later"


async def left_amid(path: Path) -> set[str]:
    """Leave a store in which a third has fired, amid a second; return the keys of all that is to come in the end."""
    clock = VirtualClock(SystemClock().now_ms() - 3 * _HOUR_MS)
    system = SystemClock()
    names = NameServer.build(nameserver_config(port=0), clock=system)
    await names.start()
    config = broker_config(port=0, nameservers=(names.address,))
    store = ApacheSettings.of(SMALL).store_config(str(path))
    broker = Broker.build(config, store, disk=OsDisk(), clock=clock, wall=system)
    await broker.start()
    assert await broker.registered(5)
    start_ms = clock.now_ms()
    middle_ms = start_ms - start_ms % 1000 + 40 * _MINUTE_MS + 500
    wanted: set[str] = set()
    async with AsyncProducer(names.address) as producer:
        for number in range(120):
            key = f"timed-{number}"
            due_ms = start_ms + (number + 1) * _MINUTE_MS
            receipt = await producer.send(Message(TOPIC, b"later", key=key, deliver_at=due_ms))
            if number % 10 == 7:
                await producer.recall(receipt)
            else:
                wanted.add(key)
        for number in range(40):  # Around the moment of the stop, in one second.
            key = f"close-{number}"
            wanted.add(key)
            due_ms = middle_ms - 500 + number * 25
            await producer.send(Message(TOPIC, b"later", key=key, deliver_at=due_ms))
        for level in range(1, 19):
            key = f"level-{level}"
            wanted.add(key)
            await producer.send(Message(TOPIC, b"later", key=key, delay_level=level))
        await clock.advance(middle_ms - clock.now_ms())
    await broker.stop()
    await names.stop()
    return wanted


def delivered(document: Document) -> Counter[str]:
    """Return how often each message, told by its key, stands in its own topic."""
    return Counter(
        record["properties"]["KEYS"] for record in document["records"] if record["topic"] == TOPIC
    )


async def test_java_delivers_what_ours_left(tmp_path: Path) -> None:
    require_java()
    wanted = await left_amid(tmp_path / "ours")

    (ours,) = dumps([(tmp_path / "ours", SMALL)], tmp_path / "dump-ours")
    done = delivered(ours)
    assert 0 < len(done) < len(wanted)
    assert set(done.values()) == {1}
    verdict = verify_start(tmp_path / "ours", SMALL, keep=tmp_path / "java")
    assert verdict["healthy"], verdict["log"]
    (after,) = dumps([(tmp_path / "java", SMALL)], tmp_path / "dump-java")

    both = delivered(after)
    assert both.keys() == wanted
    assert set(both.values()) == {1}
