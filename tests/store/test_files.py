"""The row of mapped files: what it loads, refuses, grows, cuts and deletes; and a model of it."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pocketmq.proto.errors import StoreFull, StoreMismatch
from pocketmq.store.files import MappedFiles, equal_file_size
from pocketmq.store.os_disk import OsDisk

from ..fakes import FaultyDisk

SIZE = 100


def row(tmp_path: Path) -> MappedFiles:
    return MappedFiles.load(OsDisk(), str(tmp_path / "row"), SIZE)


def names(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "row"))


def read_all(files: MappedFiles) -> bytes:
    return b"".join(bytes(file.view[: file.position]) for file in files.files)


def test_files_are_named_by_offset_and_full_length_from_the_start(tmp_path: Path) -> None:
    files = row(tmp_path)

    files.append(b"x" * 150)

    assert names(tmp_path) == ["00000000000000000000", "00000000000000000100"]
    assert {os.path.getsize(tmp_path / "row" / name) for name in names(tmp_path)} == {SIZE}
    assert files.max_offset == 150


def test_a_loaded_row_counts_as_full_until_it_is_truncated(tmp_path: Path) -> None:
    row(tmp_path).append(b"x" * 150)

    files = row(tmp_path)

    assert files.max_offset == 200
    files.truncate(150)
    assert files.max_offset == 150
    assert read_all(files) == b"x" * 150


def test_folders_in_the_row_are_skipped(tmp_path: Path) -> None:
    row(tmp_path).append(b"x")
    (tmp_path / "row" / "folder").mkdir()

    assert len(row(tmp_path).files) == 1


def test_an_empty_last_file_is_deleted(tmp_path: Path) -> None:
    row(tmp_path).append(b"x")
    (tmp_path / "row" / "00000000000000000100").touch()

    files = row(tmp_path)

    assert [file.start for file in files.files] == [0]
    assert names(tmp_path) == ["00000000000000000000"]


def test_a_file_of_another_length_is_refused_by_name_and_length(tmp_path: Path) -> None:
    row(tmp_path).append(b"x" * 150)
    os.truncate(tmp_path / "row" / "00000000000000000000", 77)

    with pytest.raises(StoreMismatch, match=r"0{20} is 77 bytes long, .* configured with 100"):
        row(tmp_path)


@pytest.mark.parametrize("name", ["notes.txt", "9" * 23, "٣", "-5"])
def test_a_foreign_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    row(tmp_path).append(b"x")
    (tmp_path / "row" / name).write_bytes(bytes(SIZE))

    with pytest.raises(StoreMismatch, match=f"{re.escape(name)} is not a"):
        row(tmp_path)


@pytest.mark.parametrize(
    "name", ["notes.txt", ".nfs0001", "7", "0" * 20 + ".tmp", "9" * 20, "٣" * 20]
)
def test_an_empty_file_that_is_not_of_the_row_is_refused_and_not_deleted(
    name: str, tmp_path: Path
) -> None:
    row(tmp_path).append(b"x")
    (tmp_path / "row" / "00000000000000000100").touch()
    (tmp_path / "row" / name).touch()
    before = names(tmp_path)

    with pytest.raises(StoreMismatch, match=f"{re.escape(name)}|100 is 0 bytes"):
        row(tmp_path)

    assert names(tmp_path) == before


def test_a_hole_in_the_row_belongs_to_no_file(tmp_path: Path) -> None:
    row(tmp_path).append(b"x" * 300)
    os.unlink(tmp_path / "row" / "00000000000000000100")

    files = row(tmp_path)

    assert files.file_at(150) is None
    assert files.read(150, 1) is None
    assert files.read(250, 2) == b"xx"


def test_a_slice_never_leaves_its_file_or_the_used_part(tmp_path: Path) -> None:
    files = row(tmp_path)
    files.append(b"x" * 150)

    assert files.read(90, 20) is None
    assert files.read(140, 11) is None
    assert files.read(140, 10) == b"x" * 10


def test_truncation_zeroes_what_was_behind_it(tmp_path: Path) -> None:
    files = row(tmp_path)
    files.append(b"x" * 150)

    files.truncate(120)

    assert (tmp_path / "row" / "00000000000000000100").read_bytes() == b"x" * 20 + bytes(80)


def test_truncation_without_zeroing_leaves_the_bytes(tmp_path: Path) -> None:
    files = row(tmp_path)
    files.append(b"x" * 150)

    files.truncate(120, zero=False)

    assert (tmp_path / "row" / "00000000000000000100").read_bytes() == b"x" * 50 + bytes(50)


def test_truncation_at_a_file_begin_keeps_that_file_empty(tmp_path: Path) -> None:
    files = row(tmp_path)
    files.append(b"x" * 250)

    assert files.truncate(100) == 1

    assert [file.start for file in files.files] == [0, 100]
    assert files.max_offset == 100


def test_truncation_before_the_first_file_deletes_all(tmp_path: Path) -> None:
    files = row(tmp_path)
    files.append(b"x" * 250)
    files.delete_leading(1)

    files.truncate(50)

    assert names(tmp_path) == []


def test_the_preallocated_file_is_used_by_the_next_roll(tmp_path: Path) -> None:
    files = row(tmp_path)
    files.append(b"x" * 10)
    files.preallocate()
    assert len(names(tmp_path)) == 2
    assert len(files.files) == 1

    files.append(b"y" * 100)

    assert len(names(tmp_path)) == 2
    assert read_all(files) == b"x" * 10 + b"y" * 100


def test_an_unused_preallocated_file_can_be_discarded(tmp_path: Path) -> None:
    files = row(tmp_path)
    files.append(b"x" * 10)
    files.preallocate()

    files.discard_spare()

    assert names(tmp_path) == ["00000000000000000000"]


def test_a_row_may_start_in_the_middle(tmp_path: Path) -> None:
    files = row(tmp_path)

    files.start_at(260)
    files.append(b"x" * 10)

    assert names(tmp_path) == ["00000000000000000200"]
    assert (files.min_offset, files.max_offset) == (200, 270)


def test_leading_files_go_but_never_the_last(tmp_path: Path) -> None:
    files = row(tmp_path)
    files.append(b"x" * 250)

    assert files.delete_leading(7) == 2

    assert names(tmp_path) == ["00000000000000000200"]
    assert files.min_offset == 200


def test_what_a_failed_write_left_is_wiped(tmp_path: Path) -> None:
    disk = FaultyDisk()
    files = MappedFiles.load(disk, str(tmp_path / "row"), SIZE)
    files.append(b"x" * 10)
    disk.torn_write = 5
    disk.run_full("row")

    with pytest.raises(StoreFull, match="no space left"):
        files.append(b"y" * 20)

    disk.heal()
    assert files.max_offset == 10
    assert (tmp_path / "row" / "00000000000000000000").read_bytes() == b"x" * 10 + bytes(90)


def test_dirty_parts_are_offered_once(tmp_path: Path) -> None:
    files = row(tmp_path)
    files.append(b"x" * 150)

    assert len(files.take_dirty()) >= 4  # the folder, its new parent's name, two files
    assert files.take_dirty() == []

    files.append(b"x")
    assert len(files.take_dirty()) == 1


def test_the_length_of_files_tells_their_size(tmp_path: Path) -> None:
    disk = OsDisk()
    folder = str(tmp_path / "row")
    assert equal_file_size(disk, folder) is None

    row(tmp_path).append(b"x" * 150)
    (tmp_path / "row" / "00000000000000000200").touch()
    assert equal_file_size(disk, folder) == SIZE

    os.truncate(tmp_path / "row" / "00000000000000000000", 77)
    assert equal_file_size(disk, folder) is None


class Model(RuleBasedStateMachine):
    """The row against one byte string that knows where it begins."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = ""
        self.begin = 0
        self.content = b""

    @initialize()
    def open(self) -> None:
        self.home = tempfile.TemporaryDirectory()
        self.folder = os.path.join(self.home.name, "row")
        self.files = MappedFiles.load(OsDisk(), self.folder, SIZE)

    @rule(data=st.binary(max_size=250))
    def append(self, data: bytes) -> None:
        assert self.files.append(data) == self.begin + len(self.content)
        self.content += data

    @rule()
    def preallocate(self) -> None:
        self.files.preallocate()

    @rule()
    def roll(self) -> None:
        self.content += bytes(self.files.last.room) if self.files.last else b""
        self.files.roll()

    @rule(back=st.integers(0, 300))
    def truncate(self, back: int) -> None:
        end = max(self.begin, self.begin + len(self.content) - back)
        self.files.truncate(end)
        self.files.discard_spare()
        self.content = self.content[: end - self.begin]

    @rule(count=st.integers(0, 3))
    def delete_leading(self, count: int) -> None:
        gone = self.files.delete_leading(count)
        self.begin += gone * SIZE
        self.content = self.content[gone * SIZE :]

    @rule()
    def reopen(self) -> None:
        end = self.files.max_offset
        self.files.close()
        self.files = MappedFiles.load(OsDisk(), self.folder, SIZE)
        self.files.truncate(end)

    @invariant()
    def agrees(self) -> None:
        if self.folder and self.files.files:
            assert self.files.min_offset == self.begin
            assert self.files.max_offset == self.begin + len(self.content)
            assert read_all(self.files) == self.content
            last = self.files.files[-1]
            assert not any(last.view[last.position :])
            assert all(file.position == SIZE for file in self.files.files[:-1])

    def teardown(self) -> None:
        if self.folder:
            self.home.cleanup()


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
