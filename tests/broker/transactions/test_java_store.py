"""A store that Apache's broker left with open transactions goes on here: the same ones are open, and so they stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from pocketmq.store.config import StoreConfig, apply_apache_settings
from pocketmq.store.os_disk import OsDisk

from ...recorded import expected, recorded_store, settings
from .transacting import Hall

#: What Apache's broker was asked about last, again and again, in the order of the half queue.
OPEN = [f"late-{number}" for number in range(5)] + [f"trans-{n}" for n in (2, 7, 12, 17, 22)]


def hall(path: Path, **changes: int) -> Hall:
    config = apply_apache_settings(StoreConfig(path=str(path)), settings("transactions"))
    newest_ms = max(record["storeTimestamp"] for record in expected("transactions")["records"])
    made = Hall(config, OsDisk(), VirtualClock(newest_ms), **changes)
    made.start()
    return made


def keys(broker: Hall) -> list[str]:
    """Return the keys of the open messages, in the order of the half queue."""
    half_messages = {record.queue_offset: record for record in broker.records(HALF_TOPIC)}
    return [
        half_messages[offset].properties["KEYS"]
        for offset in sorted(half.queue_offset for half in broker.transactions._halves.open)
    ]


async def test_exactly_those_are_open_that_apaches_broker_would_check(tmp_path: Path) -> None:
    broker = hall(recorded_store("transactions", tmp_path / "store"))

    assert keys(broker) == OPEN
    times = [half.times for half in broker.transactions._halves.open]
    assert sorted(times) == [3] * 5 + [6] * 5
    broker.transactions._halves.open.check()
    await broker.stop()


async def test_they_are_checked_resolved_and_given_up_from_there(tmp_path: Path) -> None:
    path = recorded_store("transactions", tmp_path / "store")
    broker = hall(path, transaction_check_interval_ms=5_000, transaction_timeout_ms=3_000)
    stream, _ = broker.listen("PID_transactions")
    committed = len(broker.bodies("Transacted", 0))
    await broker.clock.advance(5_000)
    assert [check.times for check in stream.checks] == [4] * 5 + [7] * 5

    first, second = stream.checks[0], stream.checks[5]
    fields: dict[str, Any] = {"group": "PID_transactions", "topic": "Transacted"}
    await broker.end(first.transaction_id, pb.ROLLBACK, from_check=True, **fields)
    reply = await broker.end(
        second.transaction_id, half_log_offset=second.half_log_offset, from_check=True, **fields
    )
    assert (reply.queue, reply.queue_offset) == (0, committed)

    await broker.clock.advance(12 * 5_000)
    given_up = [record.properties["KEYS"] for record in broker.records(CHECK_MAX_TIME_TOPIC)]
    assert given_up == OPEN[6:] + OPEN[1:5]
    assert broker.transactions.open_count == 0
    assert len(stream.checks) == 10 + 4 * (15 - 4) + 4 * (15 - 7)
    await broker.stop()

    broker = hall(path)
    assert broker.transactions.open_count == 0
    await broker.stop()
