"""Offsets files read for Spark: one entry that cannot be read hides no other, and is reported."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: run `make dev`")

from pocketmq.proto.errors import CorruptState
from pocketmq.tools.spark.jobs.offset_files import rows_of_store
from pocketmq.tools.stores.locations import StoreLocation

GOOD = '"T@g":{0:5,1:6}'
FOUND = [("broker-x", "T", 0, "g", 5), ("broker-x", "T", 1, "g", 6)]
BAD = ["null", "5", "[1]", '{0:"x"}', "{-1:3}"]


def read(folder: Path, text: str, backup: str | None = None) -> list[tuple[object, ...]]:
    """Return the rows of a store in FOLDER whose offsets file is TEXT."""
    (folder / "config").mkdir()
    (folder / "config" / "consumerOffset.json").write_text(text)
    if backup is not None:
        (folder / "config" / "consumerOffset.json.bak").write_text(backup)
    batches = rows_of_store(StoreLocation(str(folder), str(folder), "broker-x"))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("bad", BAD)
def test_an_entry_that_cannot_be_read_hides_no_other_and_is_reported(
    bad: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path, f'{{"offsetTable":{{"Bad@G":{bad},{GOOD}}}}}')

    assert found == FOUND
    (record,) = caplog.records
    assert "table entry left out" in record.getMessage()
    assert "consumerOffset.json: the entry 'Bad@G' is left out: " in record.getMessage()


def test_a_backup_that_can_be_read_as_a_whole_is_taken_as_by_apache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = read(
            tmp_path, '{"offsetTable":{"Bad@G":null,"T@g":{0:9}}}', f'{{"offsetTable":{{{GOOD}}}}}'
        )

    assert found == FOUND
    assert caplog.records == []


@pytest.mark.parametrize("bad", BAD)
def test_a_file_without_one_entry_that_can_be_read_is_not_taken_for_empty(
    bad: str, tmp_path: Path
) -> None:
    with pytest.raises(CorruptState, match="hold no offsetTable that can be read"):
        read(tmp_path, f'{{"offsetTable":{{"Bad@G":{bad}}}}}')


def test_a_table_without_entries_has_no_rows(tmp_path: Path) -> None:
    assert read(tmp_path, '{"offsetTable":{}}') == []
