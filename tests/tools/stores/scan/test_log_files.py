"""Files of a row: their order, what is missing between them, and where they are zero."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from pocketmq.proto.errors import OffsetOutOfRange
from pocketmq.store import OsDisk, listing
from pocketmq.store.listing import (
    RowFile,
    missing_between,
    queue_folders,
    require_joined,
    row_files,
    zeros_from,
)


def make(folder: Path, name: str, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"x" * size)


def test_files_are_those_that_are_named_by_an_offset(tmp_path: Path) -> None:
    for name, size in [("00000000000000000100", 100), ("00000000000000000000", 100), ("a.tmp", 9)]:
        make(tmp_path, name, size)
    make(tmp_path, "00000000000000000200", 0)

    found = row_files(OsDisk(), str(tmp_path))

    assert [(file.start, file.end) for file in found] == [(0, 100), (100, 200)]


def test_a_file_that_was_made_while_its_folder_was_listed_is_found(tmp_path: Path) -> None:
    for base in (0, 100, 200):
        make(tmp_path, f"{base:020d}", 100)
    whole = OsDisk().list(str(tmp_path))

    with patch.object(OsDisk, "list", side_effect=[[whole[0], whole[2]], whole]):
        found = row_files(OsDisk(), str(tmp_path))

    assert [file.start for file in found] == [0, 100, 200]


def test_a_file_that_stays_away_is_missing(tmp_path: Path) -> None:
    for base in (0, 200, 400):
        make(tmp_path, f"{base:020d}", 100)

    found = row_files(OsDisk(), str(tmp_path))

    assert list(missing_between(found)) == [(100, 200), (300, 400)]


def test_a_gap_between_files_is_told() -> None:
    files = [RowFile("a", 0, 100), RowFile("b", 100, 100), RowFile("c", 300, 100)]

    assert list(missing_between(files)) == [(200, 300)]
    with pytest.raises(OffsetOutOfRange, match="log: bytes 200 to 300 are missing"):
        require_joined(files, "log")


def test_queues_are_folders_with_numbers(tmp_path: Path) -> None:
    make(tmp_path / "T" / "0", "0", 1)
    make(tmp_path / "T" / "old", "0", 1)
    make(tmp_path / "note", "0", 1)

    assert list(queue_folders(OsDisk(), str(tmp_path))) == [("T", 0, str(tmp_path / "T" / "0"))]


@pytest.mark.parametrize("used", [0, 1, 4_095, 4_096, 40_000, 65_536])
def test_zeros_are_found_with_and_without_holes(tmp_path: Path, used: int) -> None:
    path = tmp_path / "0"
    path.write_bytes(b"x" * used + bytes(65_536 - used))
    file = RowFile(str(path), 1_000, 65_536)

    with patch.object(listing, "_PROBE_BYTES", 4_096):
        found = zeros_from(OsDisk(), file)

    assert 1_000 + used <= found <= 1_000 + used + 4_096
