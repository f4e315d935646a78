"""From the records of a log come the queue and index entries that Apache makes of them."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pocketmq.proto.java_hash import java_hash
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import SYS_COMMIT, SYS_PREPARED, SYS_ROLLBACK, Record, encode_record
from pocketmq.proto.record_run import parse_run, walk
from pocketmq.proto.run import Run
from pocketmq.store import dispatch, message_index
from pocketmq.store.config import StoreConfig, apply_apache_settings
from pocketmq.store.consume_queue import Placed
from pocketmq.store.consume_queues import ConsumeQueues
from pocketmq.store.dispatch import Dispatcher
from pocketmq.store.index_file import IndexFile
from pocketmq.store.message_index import MessageIndex
from pocketmq.store.os_disk import OsDisk

from ..recorded import recorded_store, settings

NOW_MS = 1_790_000_000_000


class Derived:
    """Queues and an index that a dispatcher fills."""

    def __init__(self, config: StoreConfig, *, batch_topics: frozenset[str] = frozenset()) -> None:
        disk = OsDisk()
        self.queues = ConsumeQueues(disk, config, batch_topics)
        self.index = MessageIndex.load(
            disk, config.index_folder, slots=config.index_slots, entries=config.index_entries
        )
        self.dispatcher = Dispatcher(
            self.queues, self.index, lambda: NOW_MS, config.delay_levels_ms
        )

    def put(self, data: bytes) -> Placed:
        starts, _ = walk(data)
        return self.dispatcher.dispatch(data, parse_run(data, starts))


def small(tmp_path: Path) -> StoreConfig:
    return StoreConfig(
        path=str(tmp_path / "derived"),
        queue_file_size_bytes=200,
        batch_queue_file_size_bytes=460,
        index_slots=50,
        index_entries=200,
    )


def message(row: int, topic: str = "T", **fields: object) -> bytes:
    properties = fields.pop("properties", {})
    assert isinstance(properties, dict)
    given: dict[str, object] = {
        "log_offset": row * 1000,
        "store_timestamp_ms": NOW_MS + row,
        **fields,
    }
    record = Record(topic=topic, body=b"x", **given)  # type: ignore[arg-type]
    return encode_record(record, property_string=encode_properties(properties))


def files_under(folder: Path) -> dict[str, bytes]:
    """Return every file that holds anything, by its path; without the zeros at its end."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            mapping = OsDisk().open_map(str(path), writable=False)
            data = mapping.read(0, mapping.data_end(0, mapping.size)).rstrip(b"\0")
            mapping.close()
            if data:
                found[os.path.relpath(path, folder)] = data
    return found


def batch_topics(store: Path) -> frozenset[str]:
    folder = store / "batchconsumequeue"
    return frozenset(os.listdir(folder) if folder.exists() else [])


@pytest.mark.parametrize(
    "name", ["basic", "rolled", "encodings", "prop-crc", "delays", "transactions", "consumption"]
)
def test_the_records_of_a_java_broker_give_its_queue_files(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    config = apply_apache_settings(
        StoreConfig(path=str(tmp_path / "derived"), index_slots=500, index_entries=5000),
        {key: value for key, value in settings(name).items() if "ize" in key},
    )
    derived = Derived(config, batch_topics=batch_topics(store))

    for path in sorted((store / "commitlog").iterdir()):
        derived.put(OsDisk().read_at(str(path), 0, 1 << 20))

    for folder in ("consumequeue", "batchconsumequeue"):
        theirs, ours = files_under(store / folder), files_under(tmp_path / "derived" / folder)
        assert ours.keys() == theirs.keys()
        assert [path for path in ours if ours[path] != theirs[path]] == []


@pytest.mark.parametrize("name", ["rolled", "encodings"])
def test_dispatching_again_changes_nothing(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    config = apply_apache_settings(
        StoreConfig(path=str(tmp_path / "derived"), index_slots=500, index_entries=2000),
        {key: value for key, value in settings(name).items() if "ize" in key},
    )
    derived = Derived(config, batch_topics=batch_topics(store))
    logs = [
        OsDisk().read_at(str(path), 0, 1 << 20) for path in sorted((store / "commitlog").iterdir())
    ]
    for data in logs:
        derived.put(data)
    before = files_under(tmp_path / "derived")

    again = [derived.put(data) for data in logs]

    assert sum(placed.added + placed.misplaced for placed in again) == 0
    assert files_under(tmp_path / "derived") == before


def test_a_run_of_one_queue_gives_what_mixed_records_give(tmp_path: Path) -> None:
    data = b"".join(
        message(row, queue_offset=row, properties={"TAGS": f"t{row}", "KEYS": f"a{row} b"})
        for row in range(25)
    )
    starts, _ = walk(data)
    columns = parse_run(data, starts)
    told, mixed = Derived(small(tmp_path / "told")), Derived(small(tmp_path / "mixed"))

    for part in (slice(0, 7), slice(7, 25)):
        told.dispatcher.enter([Run(topic="T", queue=0, records=data, columns=columns.take(part))])
    mixed.dispatcher.dispatch(data, columns)

    ours, theirs = files_under(tmp_path / "told"), files_under(tmp_path / "mixed")
    assert ours == theirs
    queue = told.queues.get("T", 0)
    assert queue is not None
    assert queue.max_offset == 25
    _, _, codes = queue.entries(20, 5)
    assert codes.tolist() == [java_hash(f"t{row}") for row in range(20, 25)]


def test_many_records_are_worked_off_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"".join(
        message(row, "AB"[row % 2], queue_offset=row // 2, properties={"KEYS": f"a{row} b"})
        for row in range(25)
    )
    whole, sliced = Derived(small(tmp_path / "whole")), Derived(small(tmp_path / "sliced"))
    whole.put(data)

    monkeypatch.setattr(dispatch, "ROWS_MAX", 4)

    assert sliced.put(data) == Placed(added=25)
    assert files_under(tmp_path / "whole") == files_under(tmp_path / "sliced")


def test_many_keys_are_worked_off_in_slices_that_leave_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = " ".join(f"{n % 30}" for n in range(120))
    data = b"".join(message(row, properties={"KEYS": words, "TAGS": f"{row}"}) for row in range(40))
    big = replace(small(tmp_path), index_entries=9_000)
    whole, sliced = (Derived(replace(big, path=str(tmp_path / n))) for n in ("whole", "sliced"))
    whole.put(data)
    put_run, put = MessageIndex.put_run, IndexFile.put
    keys_of_runs: list[int] = []
    keys_of_puts: list[int] = []

    def count_run(*given: Any, **more: Any) -> int:
        keys_of_runs.append(put_run(*given, **more))
        return keys_of_runs[-1]

    def count_put(file: IndexFile, hashes: NDArray[np.int32], *more: Any) -> None:
        keys_of_puts.append(len(hashes))
        put(file, hashes, *more)

    monkeypatch.setattr(dispatch, "PROPERTIES_MAX", 1000)
    monkeypatch.setattr(message_index, "PUT_MAX", 25)
    monkeypatch.setattr(MessageIndex, "put_run", count_run)
    monkeypatch.setattr(IndexFile, "put", count_put)
    sliced.put(data)

    assert keys_of_runs == [3 * 121] * 13 + [121], "records of 1,000 bytes of properties at a time"
    assert max(keys_of_puts) == 25
    assert sum(keys_of_puts) == 40 * 121
    assert files_under(tmp_path / "whole") == files_under(tmp_path / "sliced")


def test_interleaved_records_go_to_their_queues_in_order(tmp_path: Path) -> None:
    derived = Derived(small(tmp_path))
    places = [("A", 0), ("B", 1), ("A", 1), ("Ü", 0), ("A", 0), ("B", 1), ("A", 0), ("Ü", 0)]
    counts: dict[tuple[str, int], list[int]] = {}
    data = b""
    for row, (topic, queue) in enumerate(places):
        known = counts.setdefault((topic, queue), [])
        data += message(row, topic, queue_id=queue, queue_offset=len(known))
        known.append(row * 1000)

    assert derived.put(data) == Placed(added=8)

    assert derived.queues.names() == sorted(counts)
    for (topic, queue), offsets in counts.items():
        found = derived.queues.get(topic, queue)
        assert found is not None
        assert found.entries(0, 100)[0].tolist() == offsets


def test_topics_of_one_hash_are_kept_apart(tmp_path: Path) -> None:
    assert java_hash("Aa") == java_hash("BB")
    derived = Derived(small(tmp_path))

    derived.put(
        b"".join(
            message(row, topic, queue_offset=row // 2)
            for row, topic in enumerate(["Aa", "BB", "Aa", "BB"])
        )
    )

    first, second = derived.queues.get("Aa", 0), derived.queues.get("BB", 0)
    assert first is not None
    assert second is not None
    assert first.entries(0, 9)[0].tolist() == [0, 2000]
    assert second.entries(0, 9)[0].tolist() == [1000, 3000]


def test_prepared_and_rolled_back_records_get_no_queue_entry(tmp_path: Path) -> None:
    derived = Derived(small(tmp_path))
    flags = [0, SYS_PREPARED, SYS_COMMIT, SYS_ROLLBACK]

    derived.put(
        b"".join(
            message(row, sys_flag=flag, queue_offset=row // 2, properties={"KEYS": "k"})
            for row, flag in enumerate(flags)
        )
    )

    queue = derived.queues.get("T", 0)
    assert queue is not None
    assert queue.entries(0, 9)[0].tolist() == [0, 2000]
    assert derived.index.find("T", "k", limit=64) == [0, 1000, 2000]


@pytest.mark.parametrize(
    ("level", "delay_ms"),
    [("1", 1_000), ("18", 7_200_000), ("99", 7_200_000), ("0", None), ("-3", None), ("x", None)],
)
def test_a_scheduled_message_has_its_delivery_time_for_a_tags_code(
    level: str, delay_ms: int | None, tmp_path: Path
) -> None:
    derived = Derived(small(tmp_path))

    derived.put(
        message(0, "SCHEDULE_TOPIC_XXXX", queue_id=3, properties={"DELAY": level, "TAGS": "TagA"})
        + message(1, "T", properties={"DELAY": level, "TAGS": "TagA"})
    )

    scheduled, plain = derived.queues.get("SCHEDULE_TOPIC_XXXX", 3), derived.queues.get("T", 0)
    assert scheduled is not None
    assert plain is not None
    expected = java_hash("TagA") if delay_ms is None else NOW_MS + delay_ms
    assert scheduled.entries(0, 1)[2].tolist() == [expected]
    assert plain.entries(0, 1)[2].tolist() == [java_hash("TagA")]


@pytest.mark.parametrize(("level", "delay_ms"), [("1", 2_000), ("2", 90_000), ("3", 90_000)])
def test_a_store_may_have_its_own_delay_levels(level: str, delay_ms: int, tmp_path: Path) -> None:
    derived = Derived(replace(small(tmp_path), delay_levels="2s 90s"))

    derived.put(message(0, "SCHEDULE_TOPIC_XXXX", queue_id=1, properties={"DELAY": level}))

    scheduled = derived.queues.get("SCHEDULE_TOPIC_XXXX", 1)
    assert scheduled is not None
    assert scheduled.entries(0, 1)[2].tolist() == [NOW_MS + delay_ms]


def test_only_inner_batches_get_an_entry_in_a_batch_queue(tmp_path: Path) -> None:
    derived = Derived(small(tmp_path), batch_topics=frozenset({"Batched"}))

    placed = derived.put(
        message(0, "Batched", properties={"INNER_BASE": "0", "INNER_NUM": "3"})
        + message(1, "Batched", queue_offset=3)
        + message(2, "Batched", properties={"INNER_BASE": "3", "INNER_NUM": "2", "TAGS": "t"})
    )

    assert placed == Placed(added=2, misplaced=1)
    queue = derived.queues.get_batch("Batched", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (0, 5)
    offsets, _, codes, bases, counts = queue.entries(0, 9)
    assert offsets.tolist() == [0, 2000]
    assert codes.tolist() == [0, java_hash("t")]
    assert (bases.tolist(), counts.tolist()) == ([0, 3], [3, 2])


@pytest.mark.parametrize("topic", ["../outside", "a/b", "..", "x" * 300])
def test_a_topic_that_only_damage_can_name_makes_no_folder(topic: str, tmp_path: Path) -> None:
    derived = Derived(small(tmp_path))

    assert derived.put(message(0, topic) + message(1, "T")) == Placed(added=1, misplaced=1)

    assert os.listdir(tmp_path / "derived" / "consumequeue") == ["T"]


@pytest.mark.parametrize(
    ("properties", "flag", "keyed"),
    [
        ({}, 0, False),
        ({"OTHER": "x"}, 0, False),
        ({"KEYS": "k"}, 0, True),
        ({"KEYS": "  "}, 0, False),
        ({"TAGS": "t"}, SYS_PREPARED, True),
        ({"UNIQ_KEY": "u"}, SYS_ROLLBACK, False),
    ],
)
def test_records_with_keys_are_told_from_those_without(
    properties: dict[str, str], flag: int, keyed: bool, tmp_path: Path
) -> None:
    data = message(0) + message(1, properties=properties, sys_flag=flag)
    starts, _ = walk(data)

    found = Derived(small(tmp_path)).dispatcher.has_keys(data, parse_run(data, starts))

    assert found is keyed


def test_nothing_is_dispatched_for_no_records(tmp_path: Path) -> None:
    derived = Derived(small(tmp_path))

    assert derived.dispatcher.dispatch(b"", parse_run(b"", np.empty(0, np.int64))) == Placed()
    assert not (tmp_path / "derived").exists()
