"""Generated stores are what real ones are: both recoveries accept them and find every record, entry and key."""

from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.record import decode_record
from pocketmq.store.config import StoreConfig
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.overlay_disk import OverlayDisk
from pocketmq.tools.bench.generated.stores import (
    GROUPS,
    HUGE_TOPIC,
    huge_store,
    lag_store,
    lookup_store,
    message_store,
    queue_store,
)
from pocketmq.tools.bench.generated.traffic import Traffic
from pocketmq.tools.inspect.document import describe_apache
from pocketmq.tools.inspect.sizes import settings_of

NOW_MS = 1_760_000_100_000
SMALL = Traffic(count=3_000, topics=2, queues=3, log_file_bytes=64 << 10)


def described(root: Path, *, lookups: bool = False) -> dict[str, Any]:
    settings = settings_of(OsDisk(), str(root), {})
    return describe_apache(str(root), {}, settings, NOW_MS, lookups=lookups)


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
    assert record.properties["KEYS"] == SMALL.key(6 * 100 + 5)


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


def test_a_full_index_file_finds_the_newest_records(tmp_path: Path) -> None:
    traffic = Traffic(count=600, topics=2, queues=3, log_file_bytes=64 << 10)
    root = lookup_store(tmp_path / "store", traffic, slots=100, entries=400)
    last = traffic.count - 1

    found = described(root, lookups=True)

    index_files = found["indexFiles"]
    assert index_files[0]["indexCount"] == 400
    lookups = found["lookups"]
    (hit,) = (
        lookup
        for lookup in lookups
        if lookup["key"] == traffic.key(last) and lookup["topic"] == "Bench001"
    )
    assert hit["offsets"] == [int(traffic.starts[last])]


def test_a_huge_store_is_nearly_all_holes(tmp_path: Path) -> None:
    root = huge_store(tmp_path / "store", 3 << 30)

    files = sorted((root / "commitlog").iterdir())
    records = [decode_record(OsDisk().read_at(str(file), 0, 4 << 20)) for file in files]

    assert sum(file.stat().st_size for file in files) >= 3 << 30
    assert sum(file.stat().st_blocks * 512 for file in files) < 32 << 20
    assert [record.log_offset for record in records] == [int(file.name) for file in files]
    assert {record.topic for record in records} == {HUGE_TOPIC}
    assert all(record.crc_ok for record in records)
