"""Stores behind pyarrow.fs: the same files, read-only, in ranges, listed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from pyarrow import fs

from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import DiskFailure
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.overlay_disk import OverlayDisk
from pocketmq.tools.stores import RecoveryName, filesystem_disk, locations
from pocketmq.tools.stores.cold_store import open_cold
from pocketmq.tools.stores.filesystem_disk import FileSystemDisk
from pocketmq.tools.stores.locations import locate

from ...recorded import recorded_store, settings


class CountingFiles:
    """A local folder as a file system that counts questions and the bytes that are read of each file."""

    def __init__(self, root: Path) -> None:
        self._inner = fs.SubTreeFileSystem(str(root), fs.LocalFileSystem())
        self.questions = 0
        self.bytes_read: dict[str, int] = {}

    def get_file_info(self, asked: Any) -> Any:
        self.questions += 1
        return self._inner.get_file_info(asked)

    def open_input_file(self, path: str) -> CountingFile:
        return CountingFile(self, path, self._inner.open_input_file(path))


class CountingFile:
    def __init__(self, files: CountingFiles, path: str, file: Any) -> None:
        self._files = files
        self._path = path
        self._file = file

    def __enter__(self) -> CountingFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read_at(self, size: int, at: int) -> bytes:
        data: bytes = self._file.read_at(size, at)
        self._files.bytes_read[self._path] = self._files.bytes_read.get(self._path, 0) + len(data)
        return data


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountingFiles:
    """Serve TMP_PATH as the bucket behind counted://."""
    files = CountingFiles(tmp_path)

    def opened(url: str) -> tuple[Any, str]:
        return files, url.removeprefix("counted://").partition("?")[0]

    monkeypatch.setattr(filesystem_disk, "open_url", opened)
    monkeypatch.setattr(locations, "open_url", opened)
    return files


def test_every_file_is_listed_and_read_as_it_is(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    real = OsDisk()

    disk = FileSystemDisk(fs.LocalFileSystem(), str(store))

    folders = [str(store)]
    while folders:
        folder = folders.pop()
        assert disk.list(folder) == real.list(folder)
        for entry in disk.list(folder):
            path = f"{folder}/{entry.name}"
            assert disk.exists(path)
            assert disk.is_folder(path) == entry.is_folder
            if entry.is_folder:
                folders.append(path)
                continue
            assert disk.read(path) == real.read(path)
            assert disk.modified_ms(path) == real.modified_ms(path)


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    disk = FileSystemDisk(fs.LocalFileSystem(), str(tmp_path / "nowhere"))

    assert not disk.exists(str(tmp_path / "nowhere/x"))
    assert disk.list(str(tmp_path / "nowhere")) == []
    with pytest.raises(FileNotFoundError):
        disk.read(str(tmp_path / "nowhere/x"))


def test_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    path = str(tmp_path / "f")
    disk = FileSystemDisk(fs.LocalFileSystem(), str(tmp_path))
    mapping = disk.open_map(path)

    for attempt in (
        lambda: disk.write_file(path, b"x"),
        lambda: disk.write_atomically(path, b"x"),
        lambda: disk.delete(path),
        lambda: disk.delete_folder(str(tmp_path)),
        lambda: disk.rename(path, path + "2"),
        lambda: disk.truncate(path, 1),
        lambda: disk.make_folders(path + "/x"),
        lambda: disk.open_map(path, size=10),
        lambda: mapping.write(0, b"x"),
        lambda: mapping.zero(0, 1),
    ):
        with pytest.raises(DiskFailure, match="only read"):
            attempt()
    assert bytes(mapping.view) == mapping.array.tobytes() == b"abc"


def test_ranges_are_read_as_ranges(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(range(256)) * 4096)
    files = CountingFiles(tmp_path)
    disk = FileSystemDisk(files, "/", leading_slash=False)

    assert disk.read_at("/big", 256, 4) == b"\0\1\2\3"
    assert disk.open_map("/big").read((1 << 20) - 2, 9) == b"\xfe\xff"
    assert files.bytes_read == {"big": 6}


def test_an_overlay_reads_ranges_until_the_whole_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"abc" + bytes(1 << 20))
    files = CountingFiles(tmp_path)
    overlay = OverlayDisk(FileSystemDisk(files, "/", leading_slash=False), on_this_machine=False)
    mapping = overlay.open_map("/big")

    assert mapping.read(1, 2) == b"bc"
    assert files.bytes_read == {"big": 2}
    mapping.write(0, b"X")

    assert bytes(mapping.view[:4]) == b"Xbc\0"
    assert mapping.read(0, 3) == b"Xbc"
    assert (tmp_path / "big").read_bytes()[:3] == b"abc"


@pytest.mark.parametrize("recovery", ["apache", "pocketmq"])
@pytest.mark.parametrize(
    "name",
    [
        "rolled",
        "unclean",
        "damaged-flip-recent",
        pytest.param("consumption", marks=pytest.mark.long),
    ],
)
def test_a_far_store_is_recovered_like_a_near_one(
    name: str, recovery: RecoveryName, tmp_path: Path, bucket: CountingFiles
) -> None:
    store = recorded_store(name, tmp_path / "bucket/broker-1/store")
    now_ms = SystemClock().now_ms()
    (near,) = locate([str(store)])

    (far,) = locate(["counted://bucket/broker-*/store?region=x"])

    assert far.url == "counted://bucket/broker-1/store?region=x"
    assert far.broker_name == near.broker_name == "broker-a"
    stores = [
        open_cold(one, now_ms=now_ms, given=settings(name), recovery=recovery)
        for one in (near, far)
    ]
    assert stores[0].queues() == stores[1].queues()
    assert stores[0].log_end == stores[1].log_end
    assert list(stores[0].committed_offsets()) == list(stores[1].committed_offsets())


def test_a_far_store_is_listed_once(tmp_path: Path, bucket: CountingFiles) -> None:
    recorded_store("rolled", tmp_path / "store")
    (far,) = locate(["counted://store"])
    asked = bucket.questions

    open_cold(far, now_ms=SystemClock().now_ms(), given=settings("rolled"))

    assert bucket.questions - asked == 2


def test_only_what_recovery_walks_is_fetched_whole(tmp_path: Path, bucket: CountingFiles) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    (far,) = locate(["counted://store"])

    open_cold(far, now_ms=SystemClock().now_ms(), given=settings("rolled"), index=False)

    logs = sorted((store / "commitlog").iterdir())
    fetched = {
        path: size
        for path, size in bucket.bytes_read.items()
        if path.startswith(("store/commitlog/", "store/index/"))
    }
    assert fetched.pop(f"store/commitlog/{logs[-1].name}") == 65_536
    # Where the walk begins is looked up in the heads of files; of an index file only its header is read.
    assert all(size <= 65_536 for size in fetched.values())
    assert {size for path, size in fetched.items() if "index" in path} == {40}
