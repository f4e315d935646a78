"""Runs with very many keys: the index is behind for some turns, and nobody who looks for a key can tell."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pocketmq.proto.errors import StoreFull
from pocketmq.store import deferred_indexing, dispatch
from pocketmq.store.message_store import MessageStore
from pocketmq.store.recovery.verified import Verified

from ..fakes import FaultyDisk
from ..runs import Hand, make_run, open_store

LETTERS = "abcdefghijklmnopqrstuvwxyz"
#: 10,000 keys a record, each a letter.
MANY = " ".join(LETTERS[n % 26] for n in range(10_000))
RECORDS = 30
_MINUTE_MS = 60_000


class Turns:
    """The owner's loop: what is to run in its thread, one function a turn."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, function: Callable[[], None]) -> None:
        self.waiting.append(function)

    def next(self) -> None:
        self.waiting.pop(0)()

    def all(self) -> int:
        count = 0
        while self.waiting:
            self.next()
            count += 1
        return count


def opened(path: Path, disk: FaultyDisk | None = None, now_ms: Hand | None = None) -> MessageStore:
    return open_store(
        path,
        disk=disk,
        now_ms=now_ms,
        log_file_size_bytes=4 << 20,
        index_slots=500,
        index_entries=500_000,
        scrub_bytes_per_s=0,
    )


def started(
    path: Path, disk: FaultyDisk | None = None, now_ms: Hand | None = None
) -> tuple[MessageStore, Turns]:
    store, turns = opened(path, disk, now_ms), Turns()
    store.start(turns)
    turns.all()
    return store, turns


def append_many(store: MessageStore, first: int = 0) -> None:
    properties = [{"UNIQ_KEY": f"U{first + n}", "KEYS": MANY, "TAGS": "t"} for n in range(RECORDS)]
    store.append(make_run("T", 0, [b"x"] * RECORDS, properties))


def index_of(path: Path) -> list[tuple[str, bytes]]:
    return [(file.name, file.read_bytes()) for file in sorted((path / "index").iterdir())]


def lagging(store: MessageStore) -> bool:
    return store.parts.dispatcher.index_lags


def test_keys_that_wait_make_the_same_index_byte_for_byte(tmp_path: Path) -> None:
    whole = opened(tmp_path / "whole")
    for first in (0, RECORDS):
        append_many(whole, first)
        whole.append(make_run("T", 1, [b"small"], {"UNIQ_KEY": f"S{first}", "KEYS": "k l"}))
    store, turns = started(tmp_path / "late")
    for first in (0, RECORDS):
        append_many(store, first)
        store.append(make_run("T", 1, [b"small"], {"UNIQ_KEY": f"S{first}", "KEYS": "k l"}))

    assert store.queue_bounds("T", 0) == (0, 2 * RECORDS)
    assert lagging(store)
    assert turns.all() > 2 * RECORDS * len(MANY) // (deferred_indexing.PIECE_BYTES + len(MANY))
    assert not lagging(store)

    store.close()
    whole.close()
    assert index_of(tmp_path / "late") == index_of(tmp_path / "whole")


def test_no_turn_enters_more_than_a_piece(tmp_path: Path) -> None:
    store, turns = started(tmp_path)
    index = store.index
    assert index is not None

    def entered() -> int:
        return sum(file.header.next_entry - 1 for file in index.files)

    append_many(store)
    assert entered() <= dispatch.INDEXED_AT_ONCE
    while turns.waiting:
        before = entered()
        turns.next()
        assert 0 < entered() - before <= deferred_indexing.PIECE_BYTES
    assert entered() == RECORDS * 10_002
    store.close()


def test_ordinary_runs_are_in_the_index_at_once(tmp_path: Path) -> None:
    store, turns = started(tmp_path)
    properties = [
        {"UNIQ_KEY": f"U{n}", "KEYS": f"order-{n} customer-{n % 7}"} for n in range(9_000)
    ]
    store.append(make_run("T", 0, [b"x"] * 9_000, properties))
    assert not lagging(store)
    assert turns.waiting == []
    store.close()


def test_who_looks_for_a_key_has_the_index_completed(tmp_path: Path) -> None:
    store, _ = started(tmp_path)
    append_many(store)
    last = store.append(make_run("T", 1, [b"last"], {"KEYS": "last"}))
    found = [data for data in store.looked_up("T", "last") if data is not None]
    assert [store.read_at(int(last.log_offsets[0]))] == found
    assert not lagging(store)

    append_many(store, RECORDS)
    assert len(store.lookup("T", "z")) == 64
    assert not lagging(store)
    store.close()


@pytest.mark.slow
def test_a_kill_with_keys_that_wait_loses_none(tmp_path: Path) -> None:
    clock = Hand()
    store, turns = started(tmp_path / "store", now_ms=clock)
    store.append(make_run("T", 0, [b"first"], {"KEYS": "first"}))
    for step_ms in (0, _MINUTE_MS, 1_000):
        clock.now_ms += step_ms
        store.tick(clock.now_ms)
        store.flush()
        turns.all()
    append_many(store)
    turns.next()
    store.append(make_run("T", 1, [b"last"], {"KEYS": "last"}))
    assert lagging(store)
    for copy in ("known", "whole"):
        shutil.copytree(tmp_path / "store", tmp_path / copy)
    (tmp_path / "whole/pocketmq/verified.json").unlink(missing_ok=True)
    store.close()

    for copy in ("known", "whole"):
        recovered = opened(tmp_path / copy, now_ms=clock)
        assert not recovered.recovery.clean
        for n in range(RECORDS):
            assert len(recovered.lookup("T", f"U{n}")) == 1
        for letter in LETTERS:
            letters = [data for data in recovered.looked_up("T", letter) if data is not None]
            assert len(letters) == RECORDS
        assert len(recovered.lookup("T", "last")) == len(recovered.lookup("T", "first")) == 1
        recovered.close()


def test_nothing_says_that_the_index_has_what_waits(tmp_path: Path) -> None:
    clock = Hand()
    store, turns = started(tmp_path, now_ms=clock)
    store.append(make_run("T", 0, [b"first"]))

    def minute() -> Verified | None:
        for step_ms in (0, _MINUTE_MS, 1_000, 1_000):
            clock.now_ms += step_ms
            store.tick(clock.now_ms)
            store._background.log_flusher.stop()
            store._background._rest_flusher.stop()
            waiting, turns.waiting = turns.waiting, []
            for function in waiting:
                if function != in_turn:
                    function()
                else:
                    turns.waiting.append(function)
            store._background.log_flusher.start()
            store._background._rest_flusher.start()
        return Verified.load(store.disk, store.config.own_folder)

    late = store.parts.dispatcher._deferred
    assert late is not None
    in_turn = late._in_turn
    before = minute()
    offset = store.parts.checkpoint.values.queues_log_offset
    append_many(store)

    during = minute()

    assert lagging(store)
    assert before is not None
    assert during == before
    assert store.parts.checkpoint.values.queues_log_offset == offset

    while lagging(store):
        turns.next()
    after = minute()

    assert after is not None
    assert after.log_end == store.max_log_offset
    assert store.parts.checkpoint.values.queues_log_offset > offset
    store.close()


def test_a_stop_enters_what_waits(tmp_path: Path) -> None:
    store, _ = started(tmp_path)
    append_many(store)
    assert lagging(store)
    store.close()

    again = opened(tmp_path)
    assert again.recovery.scanned_records == 0
    assert [len(again.lookup("T", f"U{n}")) for n in range(RECORDS)] == [1] * RECORDS
    again.close()


def test_a_full_disk_has_keys_wait_until_there_is_room(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store, turns = started(tmp_path, disk)
    append_many(store)
    disk.run_full("/index/")

    turns.all()
    assert lagging(store)
    with pytest.raises(StoreFull):
        next(store.looked_up("T", "a"))
    assert store.health.failure is None

    disk.heal()
    store.tick()
    turns.all()
    assert not lagging(store)
    assert [len(store.lookup("T", f"U{n}")) for n in range(RECORDS)] == [1] * RECORDS
    store.close()


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_indexing, "WAITING_BYTES_MAX", 1 << 20)
    store, _ = started(tmp_path)
    late = store.parts.dispatcher._deferred
    assert late is not None
    for round_ in range(8):
        append_many(store, round_ * RECORDS)
        assert late._bytes < (2 << 20)
    store.close()


def test_one_message_with_very_many_keys_has_them_all(tmp_path: Path) -> None:
    store, _ = started(tmp_path)
    store.append(make_run("T", 0, [b"x"], {"KEYS": "first"}))
    (at,) = store.append(make_run("T", 0, [b"x"], {"UNIQ_KEY": "U", "KEYS": MANY})).log_offsets
    for key in ("U", *LETTERS):
        found = [data for data in store.looked_up("T", key) if data is not None]
        assert found == [store.read_at(int(at))]
    store.close()
