from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import PocketMQError
from pocketmq.tools import cli
from pocketmq.tools.bench import scheduled_batches
from pocketmq.tools.bench.delay import Deliveries, percentiles
from pocketmq.tools.bench.pending_messages import disk_bytes, own_memory_bytes
from pocketmq.tools.bench.servers import record_bytes
from pocketmq.tools.server_process import rss_bytes

instants = st.lists(st.integers(10**12, 10**12 + 1_000), min_size=1, max_size=20)


@given(instants, st.data())
def test_every_wrong_delivery_is_counted(due: list[int], data: st.DataObject) -> None:
    due_ms = np.asarray(due, np.int64)
    times = data.draw(st.lists(st.integers(0, 3), min_size=len(due), max_size=len(due)))
    copies = [index for index, number in enumerate(times) for _ in range(number)]
    order = data.draw(st.permutations(copies))
    late = data.draw(st.integers(-2, 2))
    cut = data.draw(st.integers(0, len(order)))
    deliveries = Deliveries(len(due))

    for poll in (order[:cut], order[cut:]):
        deliveries.add(poll, [due[index] + late for index in poll], max(due) + 5)

    found = deliveries.account(due_ms)
    assert found["lost"] == times.count(0) == deliveries.missing
    assert found["doubled"] == sum(number > 1 for number in times)
    assert found["early"] == (sum(number > 0 for number in times) if late < 0 else 0)
    if copies:
        assert set(found["stored_late_ms"].values()) == {late}
        came = [5 + max(due) - at for at, number in zip(due, times, strict=True) if number]
        assert found["arrived_late_ms"]["max"] == max(came)


def test_only_the_first_copy_is_timed() -> None:
    deliveries = Deliveries(1)

    deliveries.add([0], [1_001], 1_002)
    deliveries.add([0, 0], [5_000, 6_000], 7_000)

    found = deliveries.account(np.asarray([1_000]))
    assert (found["stored_late_ms"]["max"], found["arrived_late_ms"]["max"]) == (1, 2)
    assert found["doubled"] == 1


def test_percentiles_of_nothing_are_none() -> None:
    assert percentiles([]) == {}
    assert percentiles(list(range(1_001)))["p99.9"] == pytest.approx(999)


def test_messages_are_told_apart_by_their_bodies() -> None:
    batch = scheduled_batches.timed_batch(70_000, [10**12, 10**12 + 1])

    assert [scheduled_batches.index_of(message.body) for message in batch] == [70_000, 70_001]
    assert [message.deliver_at_ms for message in batch] == [10**12, 10**12 + 1]
    assert {len(message.body) for message in batch} == {scheduled_batches.BODY_BYTES}
    assert (
        len(batch[0].property_string) + record_bytes(scheduled_batches.BODY_BYTES)
        == scheduled_batches.RECORD_BYTES
    )


async def test_a_receipt_with_another_time_fails_the_bench() -> None:
    receipts: asyncio.Future[list[object]] = asyncio.get_running_loop().create_future()
    receipts.set_result([type("Receipt", (), {"due_ms": 7})()])

    with pytest.raises(PocketMQError, match="due at 7"):
        await scheduled_batches._acknowledged(5, receipts)  # type: ignore[arg-type]


def test_disk_bytes_are_blocks_by_folder(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "a").write_bytes(b"x" * 5_000)
    with (tmp_path / "log" / "hole").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "mark").write_bytes(b"x")

    found = disk_bytes(tmp_path)

    assert list(found) == ["log", "mark"]
    assert 5_000 <= found["log"] < 1 << 20


def test_own_memory_is_part_of_the_resident() -> None:
    assert 1 << 20 < own_memory_bytes(os.getpid()) < rss_bytes(os.getpid())


def test_pending_belongs_to_delay(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", "wheel", "--pending", "5"]) == 2
    assert "--pending needs `bench delay`" in capsys.readouterr().err
