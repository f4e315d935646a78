"""Files that somebody deletes, replaces or cuts, while a store is served and between two starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pocketmq.proto.errors import DiskFailure, StoreError, StoreMismatch
from pocketmq.proto.record import Record, decode_record
from pocketmq.store.config import StoreConfig
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..runs import append_record

LOG_BYTES = 1 << 15
COUNT = 400


def config(path: Path) -> StoreConfig:
    return StoreConfig(
        path=str(path),
        log_file_size_bytes=LOG_BYTES,
        queue_file_size_bytes=20 * 100,
        index_slots=100,
        index_entries=150,
        timer_log_file_size_bytes=1 << 14,
    )


def opened(path: Path) -> MessageStore:
    return MessageStore.open(config(path), disk=OsDisk(), now_ms=lambda: 1_700_000_000_000)


def put(store: MessageStore, number: int) -> int:
    record = Record(
        topic="T", queue_id=0, body=b"%06d" % number * 30, properties={"KEYS": f"k{number}"}
    )
    return append_record(store, record).end_offset


def bodies(store: MessageStore) -> list[int]:
    """Return the numbers of the messages that a reader of the queue gets."""
    found = []
    at, end = store.queue_bounds("T", 0)
    while at < end:
        read = store.read_queue("T", 0, at, 32, 1 << 20)
        position = 0
        for size in read.sizes.tolist():
            body = decode_record(read.records, position).body
            position += size
            found.append(int(body[:6]))
            assert body == b"%06d" % found[-1] * 30
        at = read.next_offset
    return found


def by_key(store: MessageStore, number: int) -> bool:
    return any(store.read_at(at) is not None for at in store.lookup("T", f"k{number}"))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with several files of every kind, stopped cleanly."""
    path = tmp_path_factory.mktemp("template") / "store"
    store = opened(path)
    for number in range(COUNT):
        put(store, number)
    assert len(store.log.files.files) > 2
    assert store.index is not None
    assert len(store.index.files) > 2
    store.close()
    return path


@pytest.fixture
def filled(template: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    path = tmp_path / "store"
    shutil.copytree(template, path)
    return path


def files_of(path: Path, folder: str) -> list[Path]:
    return sorted(one for one in (path / folder).rglob("*") if one.is_file())


def cut(root: Path, file: Path, size: int, *, clean: bool) -> None:
    """Cut FILE of the store in ROOT, which was stopped, as if it had been killed unless CLEAN."""
    os.truncate(file, size)
    if not clean:
        (root / "abort").write_text("1")


# --- while it is served


def gone(path: Path) -> None:
    shutil.rmtree(path)


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def made_anew(path: Path) -> None:
    shutil.rmtree(path)
    opened(path).close()


def log_replaced(path: Path) -> None:
    last = files_of(path, "commitlog")[-1]
    copy = last.with_name("copy")
    shutil.copy(last, copy)
    copy.rename(last)


def log_cut(path: Path) -> None:
    os.truncate(files_of(path, "commitlog")[-1], 100)


LOSSES: list[Callable[[Path], None]] = [gone, moved, made_anew, log_replaced, log_cut]


@pytest.mark.parametrize("lose", LOSSES)
def test_nothing_is_said_to_be_on_the_device_once_its_file_is_lost(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    path = tmp_path / "store"
    store = opened(path)
    put(store, 1)
    store.tick()
    lose(path)
    told: list[StoreError | None] = []
    store.request_sync(put(store, 2), told.append)
    assert isinstance(told[0], DiskFailure)
    with pytest.raises(DiskFailure, match="while it was in use: stop the broker"):
        put(store, 3)
    store.close()


@pytest.mark.parametrize("lose", LOSSES)
def test_an_idle_store_whose_file_is_lost_takes_nothing_after_a_tick(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    path = tmp_path / "store"
    store = opened(path)
    put(store, 1)
    store.tick()
    lose(path)
    store.tick()
    with pytest.raises(DiskFailure):
        put(store, 2)
    store.close()


def test_files_that_the_store_itself_deletes_and_makes_are_no_loss(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for number in range(COUNT):
        put(store, number)
        store.tick()
    store.log.files.delete_leading(2)
    store.delete_topic("T")
    store.tick()
    assert store.health.state == "open"
    store.close()


_USES = """
import os, shutil, sys
from pathlib import Path
root, template, folder = sys.argv[1:]
sys.path.insert(0, root)
from pocketmq.proto.errors import DiskFailure
from pocketmq.store.os_disk import OsMapping
from tests.store.test_lost_files import CUTS, bodies, by_key, files_of, opened, put
is_cut = OsMapping.is_cut
for case, (kind, moment, which) in enumerate(CUTS):
    path = Path(folder) / str(case)
    shutil.copytree(template, path)
    store = opened(path)
    uses = (
        lambda: bodies(store),
        lambda: [by_key(store, number) for number in range(500)],
        lambda: store.offset_by_time("T", 0, 1),
        lambda: [put(store, number) for number in range(500, 502)],
    )
    os.truncate(files_of(path, kind)[which], 10)
    OsMapping.is_cut = is_cut if moment == "before the look" else lambda mapping: False
    failed = 0
    for use in uses:
        try:
            use()
        except DiskFailure as error:
            assert "was cut to 10 of" in error.message, error.message
            failed += 1
    print(failed, flush=True)
"""
CUTS = [
    (folder, moment, which)
    for folder, moment in (
        ("commitlog", "before the look"),
        ("commitlog", "after the look"),
        ("consumequeue", "before the look"),
        ("consumequeue", "after the look"),
        ("index", "before the look"),
    )
    for which in (0, -1)
]


@pytest.mark.long
@pytest.mark.processes
def test_a_cut_file_costs_who_uses_it_and_not_the_process(template: Path, tmp_path: Path) -> None:
    """One process meets all CUTS in turn; where it dies, fewer lines than that are printed."""
    root = str(Path(__file__).parents[2])
    words = [sys.executable, "-c", _USES, root, str(template), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    failures = [int(line) for line in done.stdout.split()]
    met = dict(zip(CUTS, failures, strict=False))
    assert done.returncode == 0, (done.returncode, met, done.stderr)
    assert len(failures) == len(CUTS)
    assert all(failures), met


def test_what_the_device_cannot_read_costs_the_read(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(filled)
    log = files_of(filled, "commitlog")[0]
    inode = log.stat().st_ino
    pread = os.pread

    def failing(descriptor: int, size: int, at: int) -> bytes:
        if os.fstat(descriptor).st_ino == inode:
            raise OSError(5, "Input/output error")
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(DiskFailure, match=f"cannot read .* of {log}: Input/output error"):
        bodies(store)
    with pytest.raises(DiskFailure, match="Input/output error"):
        store.read_at(0)
    monkeypatch.undo()
    assert bodies(store) == list(range(COUNT))
    store.close()


@pytest.mark.parametrize("size", [0, 777, 1_999])
@pytest.mark.parametrize("which", [0, 3, 4, -2, -1])
def test_a_queue_file_that_is_cut_while_serving_is_made_again_after_a_clean_stop(
    filled: Path, which: int, size: int
) -> None:
    """Files 4 and later are new: the stop before knows no CRC of them."""
    store = opened(filled)
    for number in range(COUNT, COUNT + 250):
        put(store, number)
    os.truncate(files_of(filled, "consumequeue")[which], size)
    store.close()
    for _ in range(2):
        store = opened(filled)
        assert bodies(store) == list(range(COUNT + 250))
        store.close()


# --- between two starts


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("size", [0, 777, 1_999])
@pytest.mark.parametrize("which", [0, 2, -1])
def test_a_queue_file_that_was_cut_is_made_again(
    filled: Path, which: int, size: int, clean: bool
) -> None:
    cut(filled, files_of(filled, "consumequeue")[which], size, clean=clean)
    for _ in range(2):
        store = opened(filled)
        assert bodies(store) == list(range(COUNT))
        assert store.queue_bounds("T", 0) == (0, COUNT)
        store.close()


@pytest.mark.parametrize("has_own_folder", [True, False])
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_new_queue_files_without_lengths_are_made_again(
    filled: Path, kept: int, has_own_folder: bool
) -> None:
    """A power cut may leave their names alone: all but the first KEPT are empty."""
    for file in files_of(filled, "consumequeue")[kept:]:
        cut(filled, file, 0, clean=False)
    if not has_own_folder:
        shutil.rmtree(filled / "pocketmq")
    for _ in range(2):
        store = opened(filled)
        assert bodies(store) == list(range(COUNT))
        store.close()


def test_a_queue_goes_on_where_the_name_of_its_only_file_says(filled: Path) -> None:
    """The log has lost the newest messages of the queue, whose other files were deleted."""
    *others, last = files_of(filled, "consumequeue")
    for file in (*others, *files_of(filled, "commitlog"), *files_of(filled, "index")):
        file.unlink()
    cut(filled, last, 0, clean=False)
    store = opened(filled)
    assert store.queue_bounds("T", 0)[1] >= int(last.name) // 20
    store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("size", [0, 39, 500, 3_000])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_an_index_file_that_was_cut_is_made_again(
    filled: Path, which: int, size: int, clean: bool
) -> None:
    cut(filled, files_of(filled, "index")[which], size, clean=clean)
    store = opened(filled)
    assert [n for n in range(COUNT) if not by_key(store, n)] == []
    store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("size", [0, 5_000, 20_000, LOG_BYTES - 1])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_log_file_that_was_cut_opens_with_what_is_there(
    filled: Path, which: int, size: int, clean: bool
) -> None:
    store = opened(filled)
    file = store.log.files.files[which]
    ends = {}
    for number in range(COUNT):
        at = store.lookup("T", f"k{number}")[0]
        ends[number] = at + (store.log.record_size(at) or 0)
    store.close()
    cut(filled, Path(file.path), size, clean=clean)
    kept = [n for n, end in ends.items() if not file.start + size < end <= file.end]
    store = opened(filled)
    assert bodies(store) == kept
    assert put(store, COUNT) > 0
    assert bodies(store)[-1] == COUNT
    if 0 < size < LOG_BYTES - 1:
        text = " ".join(finding.text() for finding in store.recovery.findings)
        assert f"the file had been cut to {size:,} bytes" in text
    store.close()


def test_the_only_log_file_is_lengthened_where_we_served_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    for number in range(20):
        put(store, number)
    store.close()
    log = files_of(path, "commitlog")[0]
    os.truncate(log, 2_000)
    store = opened(path)
    assert bodies(store) == list(range(len(bodies(store))))
    assert 0 < len(bodies(store)) < 20
    store.close()
    assert log.stat().st_size == LOG_BYTES


def test_of_a_store_of_others_with_smaller_files_nothing_is_lengthened(filled: Path) -> None:
    """Then the settings are wrong, not the files."""
    shutil.rmtree(filled / "pocketmq")
    small = files_of(filled, "commitlog")[0]
    for other in files_of(filled, "commitlog")[1:]:
        other.unlink()
    os.truncate(small, LOG_BYTES // 2)
    with pytest.raises(StoreMismatch, match=r"truncate -s 32768 .*00000000000000000000"):
        opened(filled)
    assert small.stat().st_size == LOG_BYTES // 2
