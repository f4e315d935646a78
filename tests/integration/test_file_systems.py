"""A server on a file system of its own that turns read-only, or is full: sends are refused, reading goes on.

The file system is an ext4 in a file, mounted here; where that is not permitted the tests skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pocketmq.client import Admin, Producer, PullConsumer
from pocketmq.proto.errors import DeliveryTimeout, DiskFailure

from ..served import ServerProcess
from ..waiting import wait_until

pytestmark = pytest.mark.processes

SIZE = 96 << 20
SETTINGS = """store:
  log_file_size_bytes: 4194304
  queue_file_size_bytes: 20000
  index_slots: 5000
  index_entries: 20000
"""
#: Retention looks at the room of the disk every ten seconds, and takes writes again.


class FileSystem:
    """An ext4 of SIZE bytes in a file of FOLDER, mounted at `home`. `turn_read_only` does what an error of it does."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "mounted"
        self._image = folder / "image"
        self.home.mkdir()
        with self._image.open("wb") as file:
            file.truncate(SIZE)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.home))

    def unmount(self) -> None:
        _run("umount", str(self.home))

    def turn_read_only(self) -> None:
        device = _run("findmnt", "-n", "-o", "SOURCE", str(self.home)).strip().rpartition("/")[2]
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")

    def check(self) -> None:
        """Do what has to be done behind an error before it is mounted again."""
        subprocess.run(["fsck.ext4", "-fy", str(self._image)], capture_output=True, check=False)

    def fill(self) -> Path:
        """Fill what is free; return the file that does."""
        filler = self.home / "filler"
        for size in (1 << 20, 1 << 12):
            with filler.open("ab", buffering=0) as file, ExitStack() as full:
                full.callback(file.flush)
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue
        return filler


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermissionError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@pytest.fixture
def file_system(tmp_path: Path) -> Iterator[FileSystem]:
    if os.geteuid() or not shutil.which("mkfs.ext4"):
        pytest.skip("mounting a file system needs root, and mkfs.ext4")
    try:
        made = FileSystem(tmp_path)
    except PermissionError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield made
    finally:
        made.unmount()


def serve(file_system: FileSystem, folder: Path) -> ServerProcess:
    config = folder / "config.yaml"
    config.write_text(SETTINGS)
    return ServerProcess(
        file_system.home / "store", "--config", str(config), log=folder / "server.log"
    )


def read(server: ServerProcess, group: str, count: int) -> set[bytes]:
    """Return the bodies of COUNT messages of T, or of those that come within half a minute."""
    bodies: set[bytes] = set()
    deadline = time.monotonic() + 30
    with PullConsumer(group, "T", server.nameserver) as consumer:
        while len(bodies) < count and time.monotonic() < deadline:
            bodies.update(message.body for message in consumer.poll(timeout_ms=1_000))
        consumer.commit()
    return bodies


@pytest.mark.long
def test_on_a_file_system_that_turns_read_only_sends_are_refused_and_reading_goes_on(
    file_system: FileSystem, tmp_path: Path
) -> None:
    sent = {b"%d" % number for number in range(50)}
    with (
        serve(file_system, tmp_path) as server,
        Admin(server.nameserver) as admin,
        Producer(server.nameserver, acks="disk", delivery_timeout_ms=10_000) as producer,
    ):
        admin.create_topic("T", queues=1)
        for body in sent:
            producer.send("T", body)
        assert read(server, "g", len(sent)) == sent
        file_system.turn_read_only()

        for _ in range(3):
            with pytest.raises(
                DiskFailure, match=r"Read-only file system: .*start the broker again"
            ):
                producer.send("T", b"refused")
        assert read(server, "a-new-group", len(sent)) == sent
        server.stop()
    assert "Traceback" not in (tmp_path / "server.log").read_text()
    file_system.unmount()
    file_system.check()
    file_system.mount()

    with serve(file_system, tmp_path) as server, Producer(server.nameserver) as producer:
        producer.send("T", b"taken again")
        assert read(server, "h", len(sent) + 1) == sent | {b"taken again"}
        assert server.stop() == 0


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True])
def test_on_a_full_file_system_sends_are_refused_reading_goes_on_and_room_is_used(
    killed: bool, file_system: FileSystem, tmp_path: Path
) -> None:
    sent = [b"%d" % number for number in range(50)]
    with (
        serve(file_system, tmp_path) as server,
        Admin(server.nameserver) as admin,
        Producer(server.nameserver, delivery_timeout_ms=1_500) as producer,
    ):
        admin.create_topic("T", queues=1)
        for body in sent:
            producer.send("T", body)
        filler = file_system.fill()

        for number in range(400):  # What was allocated already still takes some.
            body = b"%d" % number + bytes(40_000)
            try:
                producer.send("T", body)
            except DeliveryTimeout as error:
                assert "no space left" in str(error) or "% full" in str(error)
                break
            sent.append(body)
        else:
            pytest.fail("a full file system took 16 MB")
        # The newest may be in the log only, until there is room for its queue.
        assert read(server, "a-new-group", len(sent) - 1) >= set(sent[:-1])
        if killed:
            server.kill()
            filler.unlink()
        else:
            filler.unlink()
            wait_until(lambda: took(producer, b"taken again"))
            sent.append(b"taken again")
            assert server.stop() == 0
    assert "Traceback" not in (tmp_path / "server.log").read_text()

    with serve(file_system, tmp_path) as server:
        assert read(server, "h", len(sent)) == set(sent)
        assert server.stop() == 0


def took(producer: Producer, body: bytes) -> bool:
    try:
        producer.send("T", body)
    except DeliveryTimeout:
        return False
    return True
