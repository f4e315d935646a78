"""The real disk and the overlay: what they write, refuse, and never write."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import numpy as np
import pytest

from pocketmq.proto.errors import DiskFailure, StoreFull, StoreLocked
from pocketmq.store import os_disk
from pocketmq.store.disk import Disk, DiskUsage
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.overlay_disk import OverlayDisk
from pocketmq.store.system import lock_is_held


@pytest.fixture(params=["real", "overlay"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return OsDisk() if request.param == "real" else OverlayDisk()


def fingerprint(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_view_shows_what_was_written_through_the_descriptor(disk: Disk, tmp_path: Path) -> None:
    mapping = disk.open_map(str(tmp_path / "f"), size=10_000, create=True)
    view = mapping.view

    mapping.write(5_000, b"hello")

    assert bytes(view[5_000:5_005]) == b"hello"
    assert mapping.read(4_999, 7) == b"\0hello\0"
    assert disk.size(str(tmp_path / "f")) == 10_000


def test_the_array_is_writable_and_shows_in_the_view(disk: Disk, tmp_path: Path) -> None:
    mapping = disk.open_map(str(tmp_path / "f"), size=10_000, create=True)
    mapping.reserve(0, 10_000)

    mapping.array[7] = 9

    assert mapping.view[7] == 9
    assert mapping.read(7, 1) == b"\x09"


def test_views_outlive_close_and_delete(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    mapping = disk.open_map(path, size=100, create=True)
    mapping.write(0, b"abc")
    view = mapping.view

    mapping.close()
    disk.delete(path)

    assert bytes(view[:3]) == b"abc"
    assert not disk.exists(path)


def test_a_short_file_is_grown_with_zeros(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")

    mapping = disk.open_map(str(tmp_path / "f"), size=100)

    assert bytes(mapping.view) == b"abc" + bytes(97)


def test_zeroing_leaves_the_rest_alone(disk: Disk, tmp_path: Path) -> None:
    mapping = disk.open_map(str(tmp_path / "f"), size=1 << 22, create=True)
    mapping.write(0, b"x" * 100_000)
    mapping.write(3_000_000, b"x" * 100_000)

    mapping.zero(50_000, 3_000_000)

    expected = np.zeros(1 << 22, np.uint8)
    expected[:50_000] = expected[3_050_000:3_100_000] = ord("x")
    assert np.array_equal(np.frombuffer(mapping.view, np.uint8), expected)


def test_zeroing_a_hole_allocates_nothing(tmp_path: Path) -> None:
    mapping = OsDisk().open_map(str(tmp_path / "f"), size=1 << 30, create=True)

    mapping.zero(0, 1 << 30)

    assert (tmp_path / "f").stat().st_blocks == 0


def test_data_end_is_behind_the_last_data(disk: Disk, tmp_path: Path) -> None:
    mapping = disk.open_map(str(tmp_path / "f"), size=1 << 22, create=True)
    mapping.write(10_000, b"x")

    assert 10_001 <= mapping.data_end(0, 1 << 22) <= 1 << 22
    assert mapping.data_end(1 << 21, 1 << 22) == 1 << 21


def test_a_missing_file_is_a_file_not_found_error(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "none")

    for action in (disk.read, disk.size, disk.open_map, disk.delete):
        with pytest.raises(FileNotFoundError):
            action(path)
    assert disk.list(path) == []


def test_replacing_keeps_the_old_content_as_backup(disk: Disk, tmp_path: Path) -> None:
    path, backup = str(tmp_path / "f"), str(tmp_path / "f.bak")

    disk.write_atomically(path, b"one", backup=backup)
    assert not disk.exists(backup)
    disk.write_atomically(path, b"two", backup=backup)

    assert (disk.read(path), disk.read(backup)) == (b"two", b"one")
    assert [entry.name for entry in disk.list(str(tmp_path))] == ["f", "f.bak"]


@pytest.mark.parametrize("has_backup", [False, True])
def test_a_file_is_on_disk_before_it_replaces_another_one(
    has_backup: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, backup = str(tmp_path / "file"), str(tmp_path / "file.bak")
    Path(path).write_bytes(b"old")
    done: list[str] = []
    replace = os.replace

    def renamed(source: str, target: str) -> None:
        done.append(f"rename to {Path(target).name}")
        replace(source, target)

    def synced(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        done.append("sync the folder" if is_folder else "sync the file")

    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(os_disk, "sync_file", synced)
    OsDisk().write_atomically(path, b"new", backup=backup if has_backup else None)

    renames = ["rename to file.bak", "rename to file"] if has_backup else ["rename to file"]
    assert done == ["sync the file", *renames, "sync the folder"]
    assert Path(path).read_bytes() == b"new"


def test_folders_come_and_go_with_what_is_in_them(disk: Disk, tmp_path: Path) -> None:
    folder = str(tmp_path / "a" / "b")
    disk.make_folders(folder)
    disk.write_file(f"{folder}/f", b"x")
    assert [entry.name for entry in disk.list(str(tmp_path / "a"))] == ["b"]

    disk.delete_folder(str(tmp_path / "a"))
    disk.delete_folder(str(tmp_path / "a"))
    assert not disk.exists(f"{folder}/f")
    assert not disk.is_folder(folder)

    disk.make_folders(folder)
    assert disk.list(folder) == []


def test_renaming_moves_the_content(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")

    disk.rename(str(tmp_path / "f"), str(tmp_path / "g"))

    assert disk.read(str(tmp_path / "g")) == b"abc"
    assert not disk.exists(str(tmp_path / "f"))


def test_the_overlay_never_writes_a_byte(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("kept", "deleted", "renamed", "cut", "d/inside"):
        (tmp_path / name).write_bytes(os.urandom(5_000))
    before = fingerprint(tmp_path)
    disk = OverlayDisk()

    mapping = disk.open_map(str(tmp_path / "kept"), size=9_000)
    mapping.write(0, b"x" * 9_000)
    mapping.array[3] = 1
    mapping.sync()
    disk.delete(str(tmp_path / "deleted"))
    disk.rename(str(tmp_path / "renamed"), str(tmp_path / "kept2"))
    disk.truncate(str(tmp_path / "cut"), 3)
    disk.delete_folder(str(tmp_path / "d"))
    disk.open_map(str(tmp_path / "new"), size=100, create=True).write(0, b"n")
    disk.write_atomically(str(tmp_path / "kept"), b"z", backup=str(tmp_path / "kept.bak"))
    disk.lock(str(tmp_path / "lock")).release()

    assert fingerprint(tmp_path) == before
    assert [entry.name for entry in disk.list(str(tmp_path))] == [
        "cut", "kept", "kept.bak", "kept2", "new",
    ]  # fmt: skip
    assert disk.size(str(tmp_path / "cut")) == 3


def test_a_file_that_vanished_reads_as_zeros_in_the_overlay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    mapping = OverlayDisk().open_map(str(tmp_path / "f"))

    (tmp_path / "f").unlink()

    assert bytes(mapping.view) == bytes(3)
    assert "disappeared" in caplog.text


def test_the_overlay_of_a_sparse_giant_costs_nothing() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "giant"
        path.touch()
        os.truncate(path, 1 << 34)
        mapping = OverlayDisk().open_map(str(path))

        mapping.zero(0, 1 << 34)
        mapping.write(1 << 33, b"x")

        assert mapping.view[1 << 33] == ord("x")
        # A file in memory gets the page that was looked at.
        assert 1 << 33 < mapping.data_end(0, 1 << 34) <= (1 << 33) + mmap.PAGESIZE


def test_the_store_lock_excludes_this_process_too(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    lock = OsDisk().lock(path)

    with pytest.raises(StoreLocked, match="is locked by another broker"):
        OsDisk().lock(path)

    Path(path).read_bytes()  # closing the file elsewhere does not drop the lock
    with pytest.raises(StoreLocked):
        OsDisk().lock(path)
    lock.release()
    OsDisk().lock(path).release()
    assert Path(path).read_bytes() == b"lock"


def test_a_lock_that_cannot_be_written_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who tries again once there is room gets it, in the same process too."""
    path = str(tmp_path / "lock")

    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StoreFull):
            OsDisk().lock(path)

    OsDisk().lock(path).release()


OTHER_PROCESS = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, 0)
except OSError:
    sys.exit(7)
"""


@pytest.mark.processes
def test_the_store_lock_excludes_a_posix_lock_of_another_process(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    lock = OsDisk().lock(path)

    refused = subprocess.run([sys.executable, "-c", OTHER_PROCESS, path], check=False)
    lock.release()
    taken = subprocess.run([sys.executable, "-c", OTHER_PROCESS, path], check=False)

    assert (refused.returncode, taken.returncode) == (7, 0)


def test_usage_is_counted_as_apache_does() -> None:
    assert DiskUsage(used_bytes=75, usable_bytes=25).used_percent == 75
    assert DiskUsage(used_bytes=7501, usable_bytes=2499).used_percent == 76
    assert DiskUsage(used_bytes=0, usable_bytes=0).used_percent == 100


def test_a_closed_mapping_says_so(tmp_path: Path) -> None:
    mapping = OsDisk().open_map(str(tmp_path / "f"), size=10, create=True)
    mapping.close()

    with pytest.raises(DiskFailure, match="was closed"):
        mapping.write(0, b"x")
    mapping.sync()


def test_an_unwritable_path_is_a_disk_failure_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(DiskFailure, match="cannot create"):
        OsDisk().open_map(str(tmp_path / "file" / "below"), size=10, create=True)


ASKED: dict[str, Callable[[Disk, str], object]] = {
    "exists": lambda disk, path: disk.exists(path),
    "is_folder": lambda disk, path: disk.is_folder(path),
    "write_atomically": lambda disk, path: disk.write_atomically(path, b"new", backup=path + "~"),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
def test_a_device_that_cannot_say_is_not_one_without_the_file(
    ask: Callable[[Disk, str], object], disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "there")
    Path(path).write_bytes(b"old")
    if isinstance(disk, OverlayDisk) and ask is ASKED["write_atomically"]:
        pytest.skip("the overlay writes nothing")

    def fails(asked: object, *_: object, **__: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO), asked)

    with monkeypatch.context() as patched:
        for name in ("stat", "lstat"):
            patched.setattr(os, name, fails)
        with pytest.raises(DiskFailure, match="Input/output error"):
            ask(disk, path)
    assert Path(path).read_bytes() == b"old"


def test_a_file_in_the_place_of_a_folder_has_nothing_below_it(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    below = str(tmp_path / "file" / "below")

    assert not disk.exists(below)
    assert not disk.is_folder(below)
    assert disk.list(below) == []


def test_an_overlay_keeps_one_descriptor_a_mapped_file(tmp_path: Path) -> None:
    overlay = OverlayDisk()
    before = len(os.listdir("/proc/self/fd"))

    mappings = []
    for number in range(20):
        path = tmp_path / str(number)
        path.write_bytes(b"abc" + bytes(9_000))
        mappings.append(overlay.open_map(str(path)))
    views = [mapping.view for mapping in mappings]
    mappings[0].zero(0, 9_003)
    (tmp_path / "1").unlink()
    mappings[1].zero(0, 9_003)

    assert len(os.listdir("/proc/self/fd")) - before <= 20
    assert not any(views[0])
    assert not any(views[1])
    assert bytes(views[2][:3]) == b"abc"


def test_an_overlay_that_read_a_piece_shows_what_is_written_later(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abcdef")
    mapping = OverlayDisk().open_map(str(tmp_path / "f"))

    assert mapping.read(0, 6) == b"abcdef"
    assert mapping.read(2, 3) == b"cde"
    mapping.write(3, b"X")

    assert mapping.read(2, 3) == b"cXe"
    assert (tmp_path / "f").read_bytes() == b"abcdef"


def test_a_held_lock_is_seen_without_taking_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert not lock_is_held(path)
    lock = OsDisk().lock(path)

    assert lock_is_held(path)
    assert lock_is_held(path)  # asking took nothing and dropped nothing
    lock.release()
    assert not lock_is_held(path)
