"""Apache's broker opens a store that ours left amid transactions: it checks the open ones, and no others.

And ours opens what that broker left, and goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from pocketmq.broker.broker import Broker
from pocketmq.client import AsyncProducer, Message
from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.proto.topics import HALF_TOPIC, OP_HALF_TOPIC
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.os_disk import OsDisk

from ..served import broker_config, nameserver_config
from .java_oracle import Document, dumps, require_java, verify_start

pytestmark = [pytest.mark.long, pytest.mark.java, pytest.mark.timeout(600)]

TOPIC: Final = "Transacted"
SMALL: Final = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
SOON: Final = SMALL | {"transactionCheckInterval": "1000", "transactionTimeOut": "1000"}
_AGO_MS: Final = 3_600_000


async def broker_at(path: Path, clock: VirtualClock) -> tuple[Broker, NameServer]:
    system = SystemClock()
    names = NameServer.build(nameserver_config(port=0), clock=system)
    await names.start()
    config = broker_config(port=0, nameservers=(names.address,))
    store = ApacheSettings.of(SMALL).store_config(str(path))
    broker = Broker.build(config, store, disk=OsDisk(), clock=clock, wall=system)
    await broker.start()
    assert await broker.registered(5)
    return broker, names


async def left_amid(path: Path) -> None:
    """Leave 8 transactions committed, 4 rolled back, and 8 open, of which 4 were checked twice and 4 are new."""
    clock = VirtualClock(SystemClock().now_ms() - _AGO_MS)
    broker, names = await broker_at(path, clock)
    async with AsyncProducer(names.address, group="G") as producer:
        for turn in range(2):
            for number in range(10):
                key = f"{('old', 'new')[turn]}-{number}"
                message = Message(TOPIC, b"body", key=key, tag="red")
                async with producer.transaction(message) as transaction:
                    if number in (1, 4, 5, 8):
                        transaction.leave_open()
                    elif number in (2, 7):
                        await transaction.rollback()
            if turn == 0:
                await clock.advance(6_000 + 30_000)
    await broker.stop()
    await names.stop()


OPEN: Final = {f"{turn}-{number}" for turn in ("old", "new") for number in (1, 4, 5, 8)}


def of_topic(document: Document, topic: str, behind: int = -1) -> list[Document]:
    return [
        record
        for record in document["records"]
        if record["topic"] == topic and record["physicalOffset"] > behind
    ]


def offsets(document: Document) -> tuple[int, int]:
    """Return how far the half and the op queue are done."""
    table = document["config"]["consumerOffsets"]
    half, op = (table[f"{topic}@CID_RMQ_SYS_TRANS"]["0"] for topic in (HALF_TOPIC, OP_HALF_TOPIC))
    return half, op


async def test_java_checks_what_ours_left_open_and_ours_goes_on(tmp_path: Path) -> None:
    require_java()
    await left_amid(tmp_path / "ours")

    (ours,) = dumps([(tmp_path / "ours", SMALL)], tmp_path / "dump-ours")
    assert ours["accepted"]
    committed = of_topic(ours, TOPIC)
    halves = {record["physicalOffset"]: record for record in of_topic(ours, HALF_TOPIC)}
    assert len(committed) == 8
    for record in committed:
        half = halves[record["preparedTransactionOffset"]]
        gone = {"REAL_TOPIC": TOPIC, "REAL_QID": str(record["queueId"])}
        # The number of the send stays with the half message: what is committed was not sent again.
        numbered = {"PRODUCER_SEQUENCE": half["properties"]["PRODUCER_SEQUENCE"]}
        assert record["properties"] | gone | numbered == half["properties"]
        assert record["sysFlag"] == 8
    end = ours["maxPhyOffset"]

    verdict = verify_start(tmp_path / "ours", SOON, keep=tmp_path / "java")
    assert verdict["healthy"], verdict["log"]
    (java,) = dumps([(tmp_path / "java", SMALL)], tmp_path / "dump-java")
    checked = of_topic(java, HALF_TOPIC, behind=end - 1)
    first_round = [record["properties"] for record in checked[: len(OPEN)]]
    assert {found["KEYS"] for found in first_round} == OPEN
    assert {found["KEYS"] for found in (record["properties"] for record in checked)} == OPEN
    for found in first_round:
        times = 3 if found["KEYS"].startswith("old") else 1
        assert found["TRANSACTION_CHECK_TIMES"] == str(times)
    assert of_topic(java, TOPIC) == committed

    clock = VirtualClock(SystemClock().now_ms())
    broker, names = await broker_at(tmp_path / "java", clock)
    running = broker._running
    assert running is not None
    open_halves = running.parts.transactions._halves.open
    keys = {half.transaction_id: half for half in open_halves}
    last = {record["properties"]["UNIQ_KEY"]: record for record in of_topic(java, HALF_TOPIC)}
    assert {last[unique]["properties"]["KEYS"] for unique in keys} == OPEN
    assert {unique: half.queue_offset for unique, half in keys.items()} == {
        unique: last[unique]["queueOffset"] for unique in keys
    }
    await broker.stop()
    await names.stop()


async def test_java_finds_nothing_to_check_where_all_is_resolved(tmp_path: Path) -> None:
    require_java()
    clock = VirtualClock(SystemClock().now_ms() - _AGO_MS)
    broker, names = await broker_at(tmp_path / "ours", clock)
    async with AsyncProducer(names.address, group="G") as producer:
        for number in range(20):
            async with producer.transaction(Message(TOPIC, b"body", key=f"{number}")):
                pass
    await broker.stop()
    await names.stop()

    verdict = verify_start(tmp_path / "ours", SOON, keep=tmp_path / "java")
    assert verdict["healthy"], verdict["log"]
    (java,) = dumps([(tmp_path / "java", SMALL)], tmp_path / "dump-java")
    assert len(of_topic(java, HALF_TOPIC)) == 20
    assert len(of_topic(java, TOPIC)) == 20
    half, op = offsets(java)
    assert half == 20
    assert op == len(of_topic(java, OP_HALF_TOPIC))
