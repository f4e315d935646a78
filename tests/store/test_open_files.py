"""Files that close while they are not in use: few descriptors serve many queues, before and after a kill."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketmq.proto.errors import StoreFull
from pocketmq.store.open_files import FileLimits, OpenFiles
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.overlay_disk import OverlayDisk

from ..runs import bodies_of, make_run, open_store

DESCRIPTORS = 128
QUEUES = 1_024
SENDS = 1_300

#: Sends one message to each of SENDS queues of topics of 1,024, with few descriptors, and dies or stops.
SENDER = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
from pathlib import Path
from tests.runs import make_run, open_store
store = open_store(Path(sys.argv[1]), log_file_size_bytes=1 << 20)
begin, end = int(sys.argv[2]), int(sys.argv[3])
for number in range(begin, end):
    run = make_run(f"topic{{number // {QUEUES}}}", number % {QUEUES}, [b"%d" % number])
    if number % 2:
        store.append(run)
    else:
        (done,) = store.append_many([run])
        assert not isinstance(done, Exception), done
    if number % 500 == 0:
        store.tick()
if sys.argv[4] == "kill":
    os.kill(os.getpid(), 9)
for number in range(end):
    store.read_queue(f"topic{{number // {QUEUES}}}", number % {QUEUES}, 0, 1, 1 << 20)
store.close()
"""
ROOT = str(Path(__file__).parents[2])


def child(path: Path, begin: int, end: int, ending: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SENDER, str(path), str(begin), str(end), ending],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.long
@pytest.mark.processes
def test_far_more_queues_than_descriptors_are_written_killed_recovered_and_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"

    killed = child(path, 0, SENDS, "kill")
    assert killed.returncode == -9, killed.stderr
    stopped = child(path, SENDS, SENDS + 100, "stop")
    assert stopped.returncode == 0, stopped.stderr

    store = open_store(path, log_file_size_bytes=1 << 20)
    assert len(store.queue_names()) == SENDS + 100
    for number in (0, 1, QUEUES, SENDS - 1, SENDS, SENDS + 99):
        topic, queue = f"topic{number // QUEUES}", number % QUEUES
        assert bodies_of(store, topic, queue) == [b"%d" % number]
    store.close()


def test_a_mapping_that_was_let_go_reads_writes_and_syncs_again(tmp_path: Path) -> None:
    files = OpenFiles(2)
    disk = OsDisk(files)
    mappings = [disk.open_map(str(tmp_path / str(n)), size=100, create=True) for n in range(10)]
    held = mappings[0].view

    for number, mapping in enumerate(mappings):
        mapping.write(0, b"%d" % number)
        assert mapping.view[0] == ord("0") + number
    assert len(files) <= 2
    assert files.closed >= 8

    for mapping in mappings:
        mapping.sync()
    assert [mapping.read(0, 1) for mapping in mappings] == [b"%d" % n for n in range(10)]
    assert held[0] == ord("0")
    mappings[0].write(0, b"x")
    assert held[0] == ord("x")  # what is held of it is still the file


def test_a_file_in_use_stays_open_before_one_that_is_not(tmp_path: Path) -> None:
    files = OpenFiles(3)
    disk = OsDisk(files)
    busy = disk.open_map(str(tmp_path / "busy"), size=100, create=True)
    busy.view[0]
    before = descriptor_of(str(tmp_path / "busy"))

    for number in range(20):
        disk.open_map(str(tmp_path / str(number)), size=100, create=True)
        busy.write(0, b"%d" % number)

    assert descriptor_of(str(tmp_path / "busy")) == before


def descriptor_of(path: str) -> list[str]:
    """Return the descriptors of this process that are of the file PATH."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == path:
                found.append(name)
        except FileNotFoundError:
            continue
    return sorted(found)


def test_an_array_that_was_handed_out_is_never_let_go(tmp_path: Path) -> None:
    files = OpenFiles(1)
    disk = OsDisk(files)
    mapping = disk.open_map(str(tmp_path / "f"), size=100, create=True)
    mapping.reserve(0, 100)
    array = mapping.array

    for number in range(5):
        disk.open_map(str(tmp_path / str(number)), size=100, create=True)
    array[0] = 7

    assert mapping.array is array
    assert mapping.view[0] == 7


def test_a_deleted_file_is_not_made_again_by_a_late_sync(tmp_path: Path) -> None:
    files = OpenFiles(1)
    disk = OsDisk(files)
    path = str(tmp_path / "f")
    mapping = disk.open_map(path, size=100, create=True)
    disk.open_map(str(tmp_path / "other"), size=100, create=True)

    mapping.close()
    disk.delete(path)
    mapping.sync()

    assert not disk.exists(path)


def test_a_file_that_somebody_else_removed_is_no_success_of_a_sync(tmp_path: Path) -> None:
    files = OpenFiles(1)
    disk = OsDisk(files)
    mapping = disk.open_map(str(tmp_path / "f"), size=100, create=True)
    mapping.write(0, b"x")
    disk.open_map(str(tmp_path / "other"), size=100, create=True)
    os.unlink(tmp_path / "f")

    with pytest.raises(FileNotFoundError):
        mapping.sync()


def test_an_overlay_lets_unchanged_files_go_and_keeps_changes(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / str(number)).write_bytes(b"abc" + bytes(9_000))
    files = OpenFiles(2)
    overlay = OverlayDisk(files=files)
    mappings = [overlay.open_map(str(tmp_path / str(number))) for number in range(6)]
    mappings[0].write(0, b"X")

    for mapping in mappings:
        assert mapping.view[1] == ord("b")

    assert files.closed >= 3
    assert bytes(mappings[0].view[:3]) == b"Xbc"
    assert [bytes(mapping.view[:3]) for mapping in mappings[1:]] == [b"abc"] * 5


@pytest.fixture
def few_descriptors() -> Iterator[list[int]]:
    """Descriptors that take all that the process may have; the test may close some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 60, hard))
    taken: list[int] = []
    try:
        yield taken
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def take_all(taken: list[int]) -> None:
    while True:
        try:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            assert error.errno == errno.EMFILE
            return


def test_without_a_descriptor_a_call_fails_alone_and_writes_go_on_once_there_is_one(
    tmp_path: Path, few_descriptors: list[int]
) -> None:
    files = OpenFiles(100)
    store = open_store(tmp_path / "store", disk=OsDisk(files), log_file_size_bytes=1 << 20)
    for queue in range(10):
        store.append(make_run("orders", queue, [b"before"]))
    take_all(few_descriptors)

    store.append(make_run("orders", 10, [b"others close"]))  # There were files to close.
    store.flush()
    while files.make_room():
        pass
    take_all(few_descriptors)
    with pytest.raises(StoreFull, match="Too many open files"):
        store.append(make_run("orders", 11, [b"refused"]))
    assert store.health.state == "open"

    while few_descriptors:
        os.close(few_descriptors.pop())
    store.append(make_run("orders", 11, [b"after"]))
    assert bodies_of(store, "orders", 10) == [b"others close"]
    assert bodies_of(store, "orders", 11)[-1] == b"after"
    store.close()


def test_descriptors_and_maps_are_shared_out_so_that_neither_runs_out() -> None:
    for descriptors in (64, 128, 1_024, 4_096, 20_000, 65_536, 1 << 20):
        for maps in (65_530, 1 << 20):
            limits = FileLimits(descriptors=descriptors, maps=maps)
            assert limits.files >= 16
            assert limits.files < maps
            assert 2 * limits.files <= descriptors // 2
