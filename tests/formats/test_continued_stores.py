"""A store that a Java broker left amid delays and transactions goes on here as it went on there.

`fixtures/continued.json` tells what Apache RocketMQ 5.5.0 itself appended when it opened a copy and served it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import pytest

from pocketmq.broker.broker import Broker
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.record import Record, decompress_body
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..recorded import FIXTURES, expected, recorded_store, settings
from ..runs import records_of
from ..served import broker_config

pytestmark = pytest.mark.long

#: When the Java broker served its copies.
_JAVA_MS: Final = 1_795_268_190_000
_RUN_DEPENDENT: Final = "TIMER_DEQUEUE_MS"

Row = dict[str, Any]


def continued(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FIXTURES / "continued.json").read_text("utf-8"))
    found: dict[str, Any] = document[name]
    return found


def row_of(record: Record) -> Row:
    properties = {key: text for key, text in record.properties.items() if key != _RUN_DEPENDENT}
    body = decompress_body(record.body, record.sys_flag)
    return {
        "topic": record.topic,
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "sys_flag": record.sys_flag,
        "flag": record.flag,
        "born_ms": record.born_timestamp_ms,
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_transaction_offset,
        "body_sha256": hashlib.sha256(body).hexdigest(),
        "properties": properties,
    }


def appended(store: MessageStore, before: int) -> list[Row]:
    """Return the records behind log offset BEFORE, in order of the log."""
    found = [
        record
        for topic, queue in store.queue_names()
        for record in records_of(store, topic, queue)
        if record.log_offset >= before
    ]
    return [row_of(record) for record in sorted(found, key=lambda record: record.log_offset)]


def by_queue(rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["topic"], row["queue"]), []).append(row)
    return found


async def go_on(path: Path, name: str, *, until_ms: int, **changes: Any) -> tuple[Broker, int]:
    """Start a broker on a copy of NAME at the time of its last record, let time pass; return it and that log end."""
    recorded_store(name, path)
    newest_ms = max(record["storeTimestamp"] for record in expected(name)["records"])
    clock = VirtualClock(newest_ms)
    config = broker_config(port=0, nameservers=(), **changes)
    store = ApacheSettings.of(settings(name)).store_config(str(path))
    broker = Broker.build(config, store, disk=OsDisk(), clock=clock)
    await broker.start()
    before = expected(name)["maxPhyOffset"]
    await clock.advance(until_ms - clock.now_ms())
    return broker, before


@pytest.mark.timeout(120)
async def test_delayed_messages_of_a_java_broker_are_delivered_as_it_does(tmp_path: Path) -> None:
    golden = continued("delays")
    broker, before = await go_on(tmp_path / "store", "delays", until_ms=_JAVA_MS + 3_000)
    rows = appended(broker.store, before)
    await broker.stop()

    assert by_queue(rows) == by_queue(golden["appended"])
    saved = json.loads(
        (tmp_path / "store/config/delayOffset.json")
        .read_text()
        .replace("\t", "")
        .replace("\n", "")
        .partition('"offsetTable":')[2]
        .removesuffix("}")
        .replace("{", '{"')
        .replace(":", '":')
        .replace(",", ',"')
    )
    assert saved == golden["delay_offsets"]


@pytest.mark.timeout(120)
async def test_delayed_messages_come_at_their_own_instant(tmp_path: Path) -> None:
    """Java's broker was down when they fell due; on time they come in order of their instants."""
    broker, before = await go_on(tmp_path / "store", "delays", until_ms=_JAVA_MS + 3_000)
    found = [
        record
        for topic in ("Delayed", "Timed")
        for queue in range(2)
        for record in records_of(broker.store, topic, queue)
        if record.log_offset >= before
    ]
    await broker.stop()

    late = {
        record.properties["KEYS"]: record.store_timestamp_ms - due
        for record in found
        if (due := int(record.properties.get("TIMER_DELIVER_MS", 0)))
    }
    assert late == {"hour-0": 0, "hour-1": 0, "hour-2": 0}
    levels_ms = {"5": 60_000, "9": 300_000, "14": 600_000, "18": 7_200_000}
    waited = [record for record in found if "DELAY" in record.properties]
    stored = {
        (record["properties"]["KEYS"]): record["storeTimestamp"]
        for record in expected("delays")["records"]
        if record["topic"] == "SCHEDULE_TOPIC_XXXX"
    }
    assert len(waited) == 15
    for record in waited:
        delay_ms = record.store_timestamp_ms - stored[record.properties["KEYS"]]
        assert delay_ms == levels_ms[record.properties["DELAY"]]


@pytest.mark.timeout(120)
async def test_open_transactions_of_a_java_broker_are_checked_as_it_does(tmp_path: Path) -> None:
    golden = continued("transactions")["appended"]
    broker, before = await go_on(
        tmp_path / "store",
        "transactions",
        until_ms=_JAVA_MS,
        transaction_timeout_ms=3_000,
        transaction_check_interval_ms=1_000,
        transaction_checks_max=15,
    )
    rows = appended(broker.store, before)
    await broker.stop()

    halves = [row for row in rows if row["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"]
    assert halves[: len(golden)] == golden
    discarded = [row for row in rows if row["topic"] == "TRANS_CHECK_MAX_TIME_TOPIC"]
    assert len(discarded) == 10
