"""`pocketmq export` writes the messages that Apache finds, by topic and day, and leaves nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("pyarrow")
from pyarrow import dataset, parquet

from pocketmq.proto.errors import ConfigError, CorruptRecord, DiskFailure
from pocketmq.proto.topics import is_system_topic
from pocketmq.tools import partitioned_files
from pocketmq.tools.export import export

from ...recorded import expected, recorded_store
from ..stores.dumps import described, of_messages


def run(*arguments: object) -> Result:
    return CliRunner().invoke(export, [str(one) for one in arguments], catch_exceptions=False)


def read(target: Path) -> list[dict[str, Any]]:
    """Return the rows below TARGET, by their places in the log."""
    rows = []
    for path in target.rglob("*.parquet"):
        topic = unquote(path.parent.parent.name.removeprefix("topic="))
        day = path.parent.name.removeprefix("day=")
        for row in parquet.ParquetFile(path).read().to_pylist():
            assert str(row["store_timestamp"].date()) == day
            rows.append({**row, "topic": topic})
    return sorted(rows, key=lambda row: int(row["log_offset"]))


@pytest.mark.parametrize("name", ["delays", "transactions", "consumption"])
def test_system_topics_are_left_out_unless_they_are_asked_for(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    topics = {record["topic"] for record in expected(name)["records"]}
    system = {topic for topic in topics if is_system_topic(topic)}

    assert run(store, "--output", tmp_path / "out").exit_code == 0
    found = {row["topic"] for row in read(tmp_path / "out")}
    assert system
    assert found == topics - system

    one = min(system)
    assert run(store, "--output", tmp_path / "one", "--topic", one).exit_code == 0
    assert {row["topic"] for row in read(tmp_path / "one")} == {one}


@pytest.mark.parametrize("name", ["basic", "encodings", "consumption", "unclean"])
def test_an_export_has_all_messages_of_apache(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")

    result = run(store, "--output", tmp_path / "out", "--json", "--system")

    wanted = described(expected(name)["records"])
    assert of_messages(read(tmp_path / "out")) == wanted
    document = json.loads(result.output)
    assert (document["rows"], document["bad_records"]) == (len(wanted), 0)
    assert document["files"] == len(list((tmp_path / "out").rglob("*.parquet")))
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_other_programs_read_topic_and_day_as_columns(tmp_path: Path) -> None:
    store = recorded_store("consumption", tmp_path / "store")
    run(store, "--output", tmp_path / "out", "--system")

    found = dataset.dataset(tmp_path / "out", format="parquet", partitioning="hive").to_table()

    topics = {record["topic"] for record in expected("consumption")["records"]}
    assert set(found.column("topic").to_pylist()) == topics


def test_a_range_of_time_and_topics(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    records = described(expected("rolled")["records"])
    times = sorted(record["stored_ms"] for record in records)
    begin, until = times[700], times[2_000]

    run(store, "--output", tmp_path / "out", "--since", begin, "--until", until, "--topic", "Fill1")

    wanted = [
        one for one in records if one["topic"] == "Fill1" and begin <= one["stored_ms"] < until
    ]
    assert of_messages(read(tmp_path / "out")) == wanted


def test_few_writers_and_little_memory_give_the_same_rows(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")

    with (
        patch.object(partitioned_files, "WRITERS_MAX", 2),
        patch.object(partitioned_files, "BUFFER_BYTES", 50_000),
        patch.object(partitioned_files, "ROW_GROUP_ROWS", 50),
    ):
        run(store, "--output", tmp_path / "out")

    assert of_messages(read(tmp_path / "out")) == described(expected("rolled")["records"])
    assert len(list((tmp_path / "out").rglob("*-00001.parquet"))) > 0


def test_chosen_columns_stand_in_the_files(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")

    run(store, "--output", tmp_path / "out", "--columns", "keys,body")

    (path, *_) = (tmp_path / "out").rglob("*.parquet")
    assert parquet.ParquetFile(path).schema_arrow.names == ["keys", "body", "store_timestamp"]


def test_damage_stops_the_export_or_is_counted(tmp_path: Path) -> None:
    store = recorded_store("damaged-flip-middle-clean", tmp_path / "store")

    with pytest.raises(CorruptRecord):
        run(store, "--output", tmp_path / "out", "--check-crc")
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    result = run(
        store, "--output", tmp_path / "skipped", "--check-crc", "--bad-records", "skip", "--json"
    )

    assert [path for path in left if path.suffix != ".parquet"] == []
    assert (json.loads(result.output)["rows"], json.loads(result.output)["bad_records"]) == (
        2_999,
        1,
    )


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()

    with pytest.raises(ConfigError, match="the folder is not empty"):
        run(store, "--output", tmp_path / "out")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")

    with (
        patch.object(Path, "mkdir", side_effect=PermissionError(13, "Permission denied")),
        pytest.raises(DiskFailure, match="cannot be written: Permission denied"),
    ):
        run(store, "--output", tmp_path / "out")


def test_an_unknown_column_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")

    with pytest.raises(ConfigError, match="no column 'offset'"):
        run(store, "--output", tmp_path / "out", "--columns", "offset")

    assert not (tmp_path / "out").exists()
