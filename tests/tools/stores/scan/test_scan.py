"""Scans of recorded stores give what Apache finds in them, whichever way they read, and go on behind damage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.errors import ConfigError, CorruptRecord, OffsetOutOfRange
from pocketmq.tools.stores.locations import locate
from pocketmq.tools.stores.scan.bad_records import BadRecords
from pocketmq.tools.stores.scan.conditions import Conditions, Span
from pocketmq.tools.stores.scan.scan import Scan, ScanOptions

from ....recorded import by_size, expected, recorded_names, recorded_store, settings, was_killed
from ..dumps import described, of_messages

Row = dict[str, Any]
SOUND = [name for name in recorded_names() if not name.startswith("damaged-")]
DAMAGED = [name for name in recorded_names() if name.startswith("damaged-")]
#: Recovery makes new queues and index files for these.
CLEAN = [name for name in SOUND if not was_killed(name)]


def scanned(store: Path | str, conditions: Conditions | None = None, **options: Any) -> list[Row]:
    """Return the rows of a scan of STORE."""
    scan = Scan(ScanOptions(**options), conditions)
    bad = BadRecords(scan.options.bad_records)
    tasks = scan.plan(locate([str(store)]))
    batches = (batch for task in tasks for batch in scan.read(task, bad))
    return [row for batch in batches for row in batch.to_pylist()]


def by_place(rows: list[Row]) -> list[Row]:
    return sorted(of_messages(rows), key=lambda row: row["log_offset"])


@pytest.mark.parametrize("name", by_size(SOUND))
@pytest.mark.parametrize("split_bytes", [20_000, 64 << 20])
def test_messages_are_those_of_apache(name: str, split_bytes: int, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")

    rows = scanned(store, split_bytes=split_bytes)

    assert of_messages(rows) == described(expected(name)["records"])
    assert {row["broker"] for row in rows} == {"broker-a"}


@pytest.mark.parametrize("name", by_size(SOUND))
def test_messages_of_a_topic_are_the_same_through_its_queues(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    topics = frozenset(record["topic"] for record in expected(name)["records"])
    options: dict[str, Any] = {"fail_on_data_loss": False, "split_bytes": 100_000}

    through_log = scanned(store, Conditions(topics=topics), through="log", **options)
    through_queues = scanned(store, Conditions(topics=topics), **options)

    assert by_place(through_queues) == by_place(through_log)


@pytest.mark.parametrize("name", by_size(CLEAN))
def test_queue_entries_are_those_of_apache(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")

    rows = scanned(store, dataset="consumequeue", split_bytes=500)

    found: dict[tuple[str, int], list[list[int]]] = {}
    for row in rows:
        entry = [row["queue_offset"], row["log_offset"], row["size"], row["tags_code"]]
        found.setdefault((row["topic"], row["queue"]), []).append(entry)
    wanted = {
        (queue["topic"], queue["queueId"]): [entry[:4] for entry in queue["entries"]]
        for queue in expected(name)["queues"]
        if queue["entries"]
    }
    assert found == wanted


@pytest.mark.parametrize("name", by_size(CLEAN))
def test_index_entries_are_as_many_as_apache_counts(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")

    rows = scanned(store, dataset="index", settings=settings(name), split_bytes=5_000)

    counts = {file["name"]: file["indexCount"] - 1 for file in expected(name)["indexFiles"]}
    assert Counter(row["file"] for row in rows) == counts


@pytest.mark.parametrize("name", recorded_names())
def test_files_are_those_that_are_there(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")

    rows = scanned(store, dataset="files")

    sizes = {str(Path(row["path"]).relative_to(store)): row["size_bytes"] for row in rows}
    assert sizes == expected(name)["filesBefore"]
    assert all((row["used_bytes"] or 0) <= row["size_bytes"] for row in rows)


@pytest.mark.parametrize("name", by_size(DAMAGED))
def test_a_damaged_store_is_read_to_its_end(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    options: dict[str, Any] = {
        "bad_records": "skip",
        "fail_on_data_loss": False,
        "settings": settings(name),
    }

    rows = scanned(store, **options)

    apaches = {row["log_offset"]: row for row in described(expected(name).get("records", []))}
    ours = {row["log_offset"]: row for row in of_messages(rows)}
    if name == "damaged-stale-tail":  # Apache takes records that say they stand elsewhere.
        apaches = {at: row for at, row in apaches.items() if at < 1_555_014}
    assert {at: ours[at] for at in apaches} == apaches
    for dataset in ("consumequeue", "index"):
        scanned(store, dataset=dataset, **options)


def test_a_missing_log_file_is_an_error_unless_data_may_be_lost(tmp_path: Path) -> None:
    store = recorded_store("damaged-missing-middle-log", tmp_path / "store")

    with pytest.raises(OffsetOutOfRange, match="bytes 786,432 to 851,968 are missing"):
        scanned(store)

    assert len(scanned(store, fail_on_data_loss=False)) == 2_879


def test_a_file_that_vanishes_after_planning_is_an_error_unless_data_may_be_lost(
    tmp_path: Path,
) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    strict, loose = Scan(ScanOptions()), Scan(ScanOptions(fail_on_data_loss=False))
    (task,) = strict.plan(locate([str(store)]))
    (store / "commitlog" / f"{65_536:020d}").unlink()

    with pytest.raises(OffsetOutOfRange, match="was deleted before it was read"):
        list(strict.read(task, BadRecords("fail")))
    rows = sum(batch.num_rows for batch in loose.read(task, BadRecords("fail")))

    assert 2_800 < rows < 3_000


def test_bad_records_fail_or_are_counted_or_are_rows(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    file = store / "commitlog" / f"{131_072:020d}"
    data = bytearray(file.read_bytes())
    data[4] ^= 0xFF
    file.write_bytes(data)

    with pytest.raises(CorruptRecord, match=r"are not a valid record .*badRecords=skip"):
        scanned(store)
    skipped = scanned(store, bad_records="skip")
    shown = scanned(store, bad_records="rows")

    assert len(skipped) == 2_999
    (bad,) = [row for row in shown if row["bad_record"] is not None]
    assert bad["log_offset"] == 131_072
    assert bad["topic"] is None
    assert len(shown) == 3_000


def test_a_wrong_body_is_bad_where_the_crc_is_checked(tmp_path: Path) -> None:
    store = recorded_store("damaged-flip-middle-clean", tmp_path / "store")

    assert len(scanned(store)) == 3_000
    assert len(scanned(store, check_crc=True, bad_records="skip")) == 2_999
    shown = scanned(store, check_crc=True, bad_records="rows")
    assert [row["log_offset"] for row in shown if row["bad_record"] is not None] == [819_308]


def test_conditions_leave_out_what_does_not_meet_them(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    rows = scanned(store)
    times = sorted(row["store_timestamp"] for row in rows)
    low, high = (round(times[at].timestamp() * 1000) for at in (1_000, 2_000))

    def after(ms: int) -> datetime:
        return datetime.fromtimestamp(ms / 1000, UTC)

    cases: list[tuple[Conditions, Callable[[Row], bool]]] = [
        (Conditions(queue_ids=frozenset({1, 3})), lambda row: row["queue"] in (1, 3)),
        (
            Conditions(log_offsets=Span(100_000, 900_001)),
            lambda row: 100_000 <= row["log_offset"] <= 900_001,
        ),
        (Conditions(queue_offsets=Span(50, 70)), lambda row: 50 <= row["queue_offset"] <= 70),
        (
            Conditions(store_ms=Span(low, high)),
            lambda row: after(low) <= row["store_timestamp"] <= after(high),
        ),
        (
            Conditions(
                topics=frozenset({"Fill0", "Fill2"}),
                queue_ids=frozenset({0, 1}),
                queue_offsets=Span(10, 20),
            ),
            lambda row: (
                row["topic"] in ("Fill0", "Fill2")
                and row["queue"] < 2
                and 10 <= row["queue_offset"] <= 20
            ),
        ),
        (
            Conditions(topics=frozenset({"Fill0"}), store_ms=Span(low, high)),
            lambda row: (
                row["topic"] == "Fill0" and after(low) <= row["store_timestamp"] <= after(high)
            ),
        ),
        (Conditions(topics=frozenset({"NoSuch"})), lambda _: False),
        (Conditions(queue_offsets=Span(5, 4)), lambda _: False),
    ]
    for conditions, meets in cases:
        wanted = [row for row in rows if meets(row)]
        assert by_place(scanned(store, conditions)) == of_messages(wanted), conditions


def test_a_range_of_queue_offsets_reads_few_bytes(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    scan = Scan(
        ScanOptions(),
        Conditions(
            topics=frozenset({"Fill0"}), queue_ids=frozenset({0}), queue_offsets=Span(300, 319)
        ),
    )

    (task,) = scan.plan(locate([str(store)]))

    assert sum(part.size for part in task.parts) == 20 * 20


def test_columns_come_in_the_order_in_which_they_are_wanted(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")

    row = scanned(store, columns=("tags", "queue"))[0]

    assert list(row) == ["tags", "queue"]
    with pytest.raises(ConfigError, match="dataset index has no column 'body'"):
        scanned(store, dataset="index", columns=("body",))


def test_an_index_of_another_size_is_bad(tmp_path: Path) -> None:
    store = recorded_store("damaged-short-index", tmp_path / "store")

    with pytest.raises(CorruptRecord, match="maxHashSlotNum=500"):
        scanned(store, dataset="index", settings=settings("rolled"))


@pytest.mark.parametrize("name", ["rolled", "encodings", "unclean"])
def test_a_store_behind_a_url_has_the_same_rows(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    records = described(expected(name)["records"])
    topics = frozenset(record["topic"] for record in records)
    url = f"file://{store}"

    assert of_messages(scanned(url)) == records
    assert by_place(scanned(url, Conditions(topics=topics))) == records
    for dataset in ("consumequeue", "index"):
        options: dict[str, Any] = {"dataset": dataset, "settings": settings(name)}
        assert scanned(url, **options) == scanned(store, **options)
