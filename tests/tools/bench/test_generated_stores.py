"""Generated stores are what real ones are: both recoveries accept them and find every record, entry and key."""

from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.record import decode_record
from pocketmq.store.config import StoreConfig
from pocketmq.store.file_sizes import settings_of
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.overlay_disk import OverlayDisk
from pocketmq.tools.bench.generated_stores import GROUPS, lag_store, message_store, queue_store
from pocketmq.tools.bench.generated_traffic import Traffic
from pocketmq.tools.inspect.document import describe_apache

NOW_MS = 1_760_000_100_000
SMALL = Traffic(count=3_000, topics=2, queues=3, log_file_bytes=64 << 10)


def described(root: Path) -> dict[str, Any]:
    settings = settings_of(OsDisk(), str(root), {})
    return describe_apache(str(root), {}, settings, NOW_MS, lookups=False)


def ends_of_queues(found: dict[str, Any]) -> list[int]:
    return [q["maxOffset"] for q in found["queues"] if q["topic"].startswith("Bench")]


def test_apache_finds_every_record_and_every_entry(tmp_path: Path) -> None:
    found = described(message_store(tmp_path / "store", SMALL))

    records, queues = found["records"], found["queues"]
    assert found["accepted"]
    assert not found["broken"]
    assert len(records) == SMALL.count
    assert found["maxPhyOffset"] == SMALL.log_end
    assert all(record["crcOk"] for record in records)
    assert ends_of_queues(found) == [SMALL.count // 6] * 6
    assert not any(queue["unreachable"] or queue["holes"] for queue in queues)


def test_our_recovery_reads_every_record_and_finds_nothing_to_mend(tmp_path: Path) -> None:
    root = message_store(tmp_path / "store", SMALL)
    config = StoreConfig(path=str(root), log_file_size_bytes=SMALL.log_file_bytes)

    store = MessageStore.open(config, disk=OverlayDisk(), now_ms=lambda: NOW_MS)

    assert store.recovery.findings == []
    slices = store.read_queue("Bench001", 2, 100, 1, 1 << 20)
    record = decode_record(slices.records)
    assert (record.topic, record.queue_id, record.queue_offset) == ("Bench001", 2, 100)
    assert record.crc_ok
    assert record.properties["KEYS"] == f"K{6 * 100 + 5:010d}"


def test_groups_stand_at_different_places(tmp_path: Path) -> None:
    root = lag_store(tmp_path / "store", SMALL)

    config = described(root)["config"]

    offsets = config["consumerOffsets"]
    assert len(offsets) == GROUPS * SMALL.topics
    assert offsets["Bench000@group-0"]["1"] == 500
    assert offsets["Bench001@group-2"]["1"] == 500 - 500 * 2 // 7


@pytest.mark.parametrize("count", [1, 799, 3_000])
def test_records_lie_end_to_end_and_none_crosses_a_file(count: int) -> None:
    traffic = Traffic(count=count, log_file_bytes=8 << 10)

    starts, ends = traffic.starts, traffic.starts + traffic.sizes
    same_file = starts[1:] // traffic.log_file_bytes == starts[:-1] // traffic.log_file_bytes

    assert (starts // traffic.log_file_bytes == (ends + 7) // traffic.log_file_bytes).all()
    assert (starts[1:] == ends[:-1])[same_file].all()
    assert (starts[1:] % traffic.log_file_bytes == 0)[~same_file].all()
    file_ends = (starts[:-1] // traffic.log_file_bytes + 1) * traffic.log_file_bytes
    full = ends[:-1] + traffic.sizes[1:] + 8 > file_ends
    assert (full == ~same_file).all()


def test_a_store_of_queues_has_all_entries_and_the_records_of_its_last_file(tmp_path: Path) -> None:
    root = queue_store(tmp_path / "store", SMALL)

    sizes = [(entry.stat().st_blocks > 0) for entry in sorted((root / "commitlog").iterdir())]
    found = described(root)

    assert sizes == [False] * (len(sizes) - 1) + [True]
    assert found["accepted"]
    assert found["maxPhyOffset"] == SMALL.log_end
    assert ends_of_queues(found) == [500] * 6
