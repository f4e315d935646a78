"""What systems other than Linux lack is made up for: here its functions are taken away."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.errors import DiskFailure, StoreLocked
from pocketmq.store import system
from pocketmq.store.file_copies import copy_file
from pocketmq.store.os_disk import OsDisk

#: F_FULLFSYNC of macOS.
FULL = 51


class Syncs:
    """What was asked of the device, in order; FAILING: how F_FULLFSYNC ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.failing: int | None = None
        monkeypatch.setattr(system, "_FULL_SYNC", FULL)
        monkeypatch.setattr(fcntl, "fcntl", self._fcntl)
        monkeypatch.setattr(os, "fsync", lambda fd: self.asked.append("fsync"))
        monkeypatch.delattr(os, "fdatasync")

    def _fcntl(self, fd: int, command: int, argument: Any = 0) -> int:
        assert command == FULL
        self.asked.append("full")
        if self.failing is not None:
            raise OSError(self.failing, os.strerror(self.failing))
        return 0


def test_what_is_to_be_on_the_device_is_synced_fully(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk()
    syncs = Syncs(monkeypatch)
    mapping = disk.open_map(str(tmp_path / "log"), size=4096, create=True)
    mapping.write(0, b"kept")
    mapping.sync()
    disk.sync_folder(str(tmp_path))
    disk.write_atomically(str(tmp_path / "state"), b"kept")
    mapping.close()

    assert syncs.asked == ["full"] * 4  # The file, the folder, the state and its folder.


def test_a_file_system_without_full_syncs_has_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = OsDisk().open_map(str(tmp_path / "log"), size=4096, create=True)
    syncs = Syncs(monkeypatch)
    syncs.failing = errno.ENOTSUP
    mapping.sync()
    assert syncs.asked == ["full", "fsync"]
    syncs.failing = errno.EIO
    with pytest.raises(DiskFailure, match="cannot sync"):
        mapping.sync()
    mapping.close()


def test_room_is_taken_by_zeros_and_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    path = tmp_path / "index"
    mapping = OsDisk().open_map(str(path), size=8 << 20, create=True)
    mapping.write(1 << 20, b"kept")
    before = path.stat().st_blocks

    mapping.reserve(0, 4 << 20)

    assert (path.stat().st_blocks - before) * 512 >= 3 << 20
    assert mapping.read(1 << 20, 4) == b"kept"
    assert not any(mapping.read(0, 1 << 20))
    assert path.stat().st_size == 8 << 20
    mapping.close()


def test_copies_are_read_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "copy_file_range")
    monkeypatch.delattr(os, "SEEK_DATA")
    source = tmp_path / "source"
    content = os.urandom(100_000) + bytes(100_000)
    source.write_bytes(content)

    copy_file(str(source), str(tmp_path / "target"), 150_000)

    assert (tmp_path / "target").read_bytes() == content


@pytest.mark.processes
def test_a_lock_of_the_process_excludes_a_second_opening_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "_OFD_SET", None)
    monkeypatch.setattr(system, "_OFD_GET", None)
    path = str(tmp_path / "lock")
    held = OsDisk().lock(path)
    with pytest.raises(StoreLocked):
        OsDisk().lock(path)
    assert system.lock_is_held(path)
    assert is_held_for_others(path), "neither trying nor asking has let it go"

    held.release()

    assert not system.lock_is_held(path)
    OsDisk().lock(path).release()


def is_held_for_others(path: str) -> bool:
    """Ask in a process of its own, which POSIX locks tell apart."""
    child = os.fork()
    if child == 0:
        system._held.clear()
        os._exit(1 if system.lock_is_held(path) else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
