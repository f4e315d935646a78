"""Links and copies of files: a linked file is never written to."""

import os
from pathlib import Path

import numpy as np
import pytest

from pocketmq.store.file_copies import copy_file, has_other_names, link_or_copy, make_own
from pocketmq.store.files import MappedFile
from pocketmq.store.os_disk import OsDisk

SIZE = 3 << 20


@pytest.fixture
def linked(tmp_path: Path) -> tuple[Path, Path]:
    """A file with data at its beginning and its end, and another name of it."""
    first, second = tmp_path / "00000000000000000000", tmp_path / "other"
    with open(first, "wb") as file:
        file.write(b"begin")
        file.truncate(SIZE)
        file.seek(SIZE - 3)
        file.write(b"end")
    assert link_or_copy(str(first), str(second))
    return first, second


def test_a_copy_keeps_length_bytes_and_holes(linked: tuple[Path, Path], tmp_path: Path) -> None:
    copy_file(str(linked[0]), str(tmp_path / "copy"))

    assert (tmp_path / "copy").read_bytes() == linked[0].read_bytes()
    assert os.stat(tmp_path / "copy").st_blocks * 512 < SIZE // 2


def test_a_partial_copy_reads_as_zeros_behind_the_part(
    linked: tuple[Path, Path], tmp_path: Path
) -> None:
    copy_file(str(linked[0]), str(tmp_path / "copy"), 3)

    assert (tmp_path / "copy").read_bytes() == b"beg".ljust(SIZE, b"\0")


def test_a_file_with_one_name_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")

    assert not make_own(str(tmp_path / "file"))
    assert not has_other_names(str(tmp_path / "none"))


def test_making_a_file_ones_own_keeps_bytes_and_time(linked: tuple[Path, Path]) -> None:
    first, second = linked
    (first.parent / f"{first.name}.own").write_bytes(b"left behind")
    os.utime(first, ns=(5_000_000_000, 6_000_000_000))

    assert make_own(str(first))

    assert not os.path.samefile(first, second)
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_mtime_ns == 6_000_000_000
    assert not (first.parent / f"{first.name}.own").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda disk, path: disk.open_map(path).write(0, b"BEGIN"),
        lambda disk, path: disk.open_map(path).zero(0, SIZE),
        lambda disk, path: disk.open_map(path).array.__setitem__(0, 7),
        lambda disk, path: disk.open_map(path).reserve(0, SIZE),
        lambda disk, path: disk.open_map(path, size=SIZE + 1),
        lambda disk, path: disk.truncate(path, 10),
        lambda disk, path: disk.write_file(path, b"new"),
        lambda disk, path: disk.write_atomically(path, b"new", backup=f"{path}.bak"),
        lambda disk, path: disk.delete(path),
    ],
)
def test_no_change_reaches_the_other_name(change, linked: tuple[Path, Path]) -> None:  # type: ignore[no-untyped-def]
    first, second = linked
    before = second.read_bytes()

    change(OsDisk(), str(first))

    assert second.read_bytes() == before
    assert not first.exists() or not os.path.samefile(first, second)


def test_a_mapped_file_shows_what_was_written_to_its_copy(linked: tuple[Path, Path]) -> None:
    first, second = linked
    file = MappedFile(OsDisk(), str(first), 0, SIZE, create=False)
    assert bytes(file.data[:5]) == b"begin"
    old = file.view

    file.put(0, b"BEGIN")

    assert bytes(file.data[:5]) == b"BEGIN"
    assert bytes(file.view[:5]) == b"BEGIN"
    assert bytes(old[:5]) == b"begin"
    file.mapping.sync()
    assert first.read_bytes()[:5] == b"BEGIN"
    assert second.read_bytes()[:5] == b"begin"
    assert np.array_equal(file.data[-3:], np.frombuffer(b"end", np.uint8))
