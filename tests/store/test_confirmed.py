"""The confirm offset: nothing that stands behind it in the log is seen, in whatever way it is asked for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pocketmq.proto.errors import OffsetOutOfRange
from pocketmq.proto.record import decode_record
from pocketmq.proto.record_run import starts_of
from pocketmq.store.file_sizes import settings_of
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..recorded import recorded_store
from ..runs import Hand, make_run, open_store, records_of
from .following import send


def log_offsets(store: MessageStore) -> list[int]:
    """Return where all records of all queues stand that are seen."""
    return sorted(
        one.log_offset for name in store.queue_names() for one in records_of(store, *name)
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_what_is_seen_ends_at_the_confirm_offset(seed: int, tmp_path: Path) -> None:
    rng, clock = random.Random(seed), Hand()
    store = open_store(tmp_path / "store", now_ms=clock)
    send(store, rng, clock, 60)
    whole = {name: records_of(store, *name) for name in store.queue_names()}
    everything = log_offsets(store)
    for confirmed in [0, everything[0], *rng.sample(everything, 15), store.max_log_offset]:
        store.confirm(confirmed)
        assert store.confirmed_offset == confirmed
        seen = [one for one in everything if one < confirmed]
        assert log_offsets(store) == seen
        assert set(store.lookup("A", "all", max_results=5)) <= set(seen)
        assert [one for one in everything if store.read_at(one) is not None] == seen
        assert [one for one in everything if store.is_served(one)] == seen
        for name, records in whole.items():
            shown = [one for one in records if one.log_offset < confirmed]
            low, high = store.queue_bounds(*name)
            assert (low, high) == (0, len(shown))
            assert store.offset_by_time(*name, clock.now_ms + 1) == high
            assert store.unread_bytes(*name, 0, 10_000)[0] == sum(r.total_size for r in shown)
            chosen = store.read_queue(*name, 0, 1000, 1 << 20, lambda codes: codes == ord("t"))
            assert chosen.next_offset <= chosen.max_offset == high
    store.confirm(None)
    assert log_offsets(store) == everything
    assert store.confirmed_offset == store.max_log_offset


def test_the_end_is_found_however_much_is_not_confirmed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", queue_file_size_bytes=20 * 300)
    places = [int(store.append(make_run("A", 0, [b"x"])).log_offsets[0]) for _ in range(700)]
    for number in (0, 1, 2, 187, 188, 299, 300, 301, 443, 444, 445, 600, 699):
        store.confirm(places[number])
        assert store.queue_bounds("A", 0) == (0, number)


@pytest.mark.slow
def test_batches_are_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    path = recorded_store("encodings", tmp_path / "store")
    config = settings_of(OsDisk(), str(path), {}).store_config(str(path))
    store = MessageStore.open(config, disk=OsDisk(), now_ms=Hand(), read_only=True)
    batches = [name for name in store.queue_names() if store.queues.get_batch(*name)]
    assert batches
    for name in batches:
        whole = store.read_queue(*name, 0, 100, 1 << 20)
        places = [
            decode_record(whole.records, at).log_offset for at in starts_of(whole.sizes).tolist()
        ]
        end = store.queue_bounds(*name)[1]
        for number, place in enumerate(places):
            store.confirm(place)
            base = int(whole.queue_offsets[number])
            assert store.queue_bounds(*name) == (0, base)
            shown = store.read_queue(*name, 0, 100, 1 << 20)
            assert (len(shown), shown.next_offset) == (number, base)
            sizes = int(whole.sizes[:number].sum())
            assert store.unread_bytes(*name, 0, 100)[0] == sizes
        store.confirm(None)
        assert store.queue_bounds(*name)[1] == end


def test_an_offset_that_was_confirmed_elsewhere_waits(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    end = store.append(make_run("A", 0, [b"one"])).end_offset
    store.append(make_run("A", 0, [b"two", b"three"]))
    store.confirm(end)

    for offset in (1, 2, 3):
        found = store.read_queue("A", 0, offset, 10, 1000)
        assert (len(found), found.next_offset) == (0, offset)
    with pytest.raises(OffsetOutOfRange):
        store.read_queue("A", 0, 4, 10, 1000)


def test_whoever_asks_what_is_stored_is_told(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    store.append(make_run("A", 0, [b"one"]))
    store.confirm(0)

    assert store.read_at(0) is None
    assert store.read_at(0, confirmed=False) is not None
