"""Cutting a log: a store that was cut anywhere, and goes on otherwise, is one that never had anything else."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.record_run import walk
from pocketmq.store.format.replica_files import EPOCHS_FILE, parse_epochs, render_epochs
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ..fakes import Crash, RecordingDisk
from ..runs import Hand, make_run, open_store, records_of
from ..timed import NOW, SECOND, messages, opened, put, waiting
from .following import assert_equal, feed, frames, send, take


def boundaries(store: MessageStore) -> list[int]:
    """Return where records and blanks begin, and the log's end."""
    found = [store.max_log_offset]
    for file in store.log.files.files:
        starts, end = walk(file.view[: file.position])
        found += [file.start + start for start in starts.tolist()]
        found += [file.start + end] if end < file.position else []
    return sorted(set(found))


def prefix(path: Path, of: MessageStore, end: int, clock: Hand) -> MessageStore:
    """Return a store at PATH with the records of another before END, which leads."""
    store = open_store(path, now_ms=clock, replica=True)
    store.follow()
    for data, at in frames(of, random.Random(1), 0):
        take(store, data[: max(0, end - at)], at)
        if at + len(data) >= end:
            break
    store.lead()
    return store


def replica(path: Path, clock: Hand, disk: RecordingDisk | None = None) -> MessageStore:
    return open_store(path, now_ms=clock, replica=True, disk=disk)


@pytest.mark.long
@pytest.mark.parametrize("how", ["stop", "kill", "not verified"])
def test_a_cut_at_any_record_and_another_continuation_is_that_continuation(
    how: str, tmp_path: Path
) -> None:
    rng, clock = random.Random(7), Hand()
    whole = replica(tmp_path / "whole", clock)
    send(whole, rng, clock, 30)
    places = [0, *rng.sample(boundaries(whole), 14), whole.max_log_offset]
    files = [file.start for file in whole.log.files.files]
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    whole.flush()
    for number, end in enumerate([*places, files[1], files[2]]):
        other = prefix(tmp_path / f"other{number}", whole, end, clock)
        send(other, random.Random(number), clock, 12)

        cut = tmp_path / f"cut{number}"
        shutil.copytree(tmp_path / "killed", cut)
        replica(cut, clock).close()
        if how == "not verified":
            (cut / "pocketmq" / "verified.json").unlink()
        store = replica(cut, clock)
        store.truncate_to(end)
        if how == "kill":
            (cut / "abort").write_text("")
        store = replica(cut, clock)
        assert store.max_log_offset in (end, *files), "a blank in front of END may have to be whole"
        assert not (cut / "pocketmq" / "log-cut").exists()
        for name in whole.queue_names():
            there = [one for one in records_of(whole, *name) if one.log_offset < end]
            assert records_of(store, *name) == there
        store.follow()
        feed(other, store, rng)
        for one in (store, other):
            one.close()
        assert_equal(cut, tmp_path / f"other{number}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_a_crash_while_it_is_cut_leaves_the_log_as_it_was_or_cut(seed: int, tmp_path: Path) -> None:
    rng, clock = random.Random(seed), Hand()
    whole = replica(tmp_path / "whole", clock)
    send(whole, rng, clock, 30)
    *places, last = boundaries(whole)
    end = rng.choice(places)
    other = prefix(tmp_path / "other", whole, end, clock)
    send(other, rng, clock, 12)
    whole.close()
    epochs = StateFile(OsDisk(), str(tmp_path / "whole"), EPOCHS_FILE, "")
    epochs.save(render_epochs([(1, 0), (2, end + 1)]))

    home = tmp_path / "whole"
    opened: list[MessageStore] = []
    for life in range(4):
        disk = RecordingDisk(str(home), seed + life)
        disk.crash_after = None if life == 3 else rng.randint(1, 60)
        with contextlib.suppress(Crash):
            store = replica(home, clock, disk)
            assert store.max_log_offset in (end, last)
            if store.max_log_offset != end:
                store.truncate_to(end)
                store = replica(home, clock, disk)
            opened.append(store)
        if life < 3:
            home = tmp_path / f"left by {life}"
            disk.rebuild(str(home))
    store = opened[-1]
    assert store.max_log_offset == end
    kept = StateFile(OsDisk(), str(home), EPOCHS_FILE, "").load(parse_epochs).value
    assert kept == ((1, 0),)
    store.follow()
    feed(other, store, rng)
    store.close()
    other.close()
    assert_equal(home, tmp_path / "other", crashed=True)


def test_a_log_is_cut_where_records_begin_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", replica=True)
    end = store.append(make_run("A", 0, [b"one", b"two"])).end_offset
    for offset in (-1, 1, end - 1, end + 1):
        with pytest.raises(InvalidArgument, match="no record begins there"):
            store.truncate_to(offset)
    assert store.append(make_run("A", 0, [b"three"])).first_queue_offset == 2


@pytest.mark.slow
def test_timed_messages_behind_the_cut_are_gone_and_those_handed_on_since_wait_again(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path / "store", replica=True)
    put(store, NOW, messages(5, NOW + SECOND, "early"))
    put(store, NOW, messages(5, NOW + 20 * SECOND, "kept"))
    before, end = waiting(store), store.max_log_offset
    put(store, NOW, messages(300, NOW + 20 * SECOND, "cut"))
    put(store, NOW, messages(3, NOW + 30 * SECOND, "cut too"))
    store.timers.delivered_up_to(NOW + 10 * SECOND)
    store.truncate_to(end)

    again = opened(tmp_path / "store", replica=True)

    assert waiting(again) == before
    put(again, NOW, messages(2, NOW + 20 * SECOND, "other"))
    assert len(waiting(again)[NOW + 20 * SECOND]) == 7
    again.close()
    assert waiting(opened(tmp_path / "store", replica=True)) != {}
