"""The note of what was delivered: found again after a kill, and believed only where it can be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pocketmq.broker.delay.progress import SIZE, DeliveredNote, SlotNote
from pocketmq.store.message_store import MessageStore

from ...runs import make_run, open_store

#: When the clock of these stores stands.
NOW = 1_700_000_000_000
NEAR, NEXT = NOW + 5_000, NOW + 6_000


def written(store: MessageStore) -> DeliveredNote:
    note = DeliveredNote(store)
    note.write_levels({1: 7, 3: 9})
    note.write_slots([(NEAR, SlotNote(104, 5_300, 52)), (NEXT, SlotNote(156, 6_001, 0))])
    return note


def killed(store: MessageStore) -> None:
    """Let go of the files of STORE as a kill does."""
    store._close_files()


def found(store: MessageStore) -> DeliveredNote:
    note = DeliveredNote(store)
    note.find()
    return note


def test_after_a_kill_everything_is_found_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(make_run("T", 0, [b"one"]))
    written(store)
    killed(store)

    store = open_store(tmp_path)
    note = found(store)

    assert note.levels == {1: 7, 2: 0, 3: 9}
    assert note.of_slot(NEAR) == SlotNote(104, 5_300, 52)
    assert note.of_slot(NEXT) == SlotNote(156, 6_001, 0)
    assert note.of_slot(NEXT + 1_000) is None
    killed(store)


def test_what_the_last_process_noted_stays_noted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    written(store)
    killed(store)
    store = open_store(tmp_path)
    found(store).write_slots([(NEXT, SlotNote(208, 6_500, 104))])
    killed(store)

    store = open_store(tmp_path)
    note = found(store)

    assert note.levels == {1: 7, 2: 0, 3: 9}
    assert note.of_slot(NEAR) == SlotNote(104, 5_300, 52)
    assert note.of_slot(NEXT) == SlotNote(208, 6_500, 104)
    killed(store)


def test_slots_that_are_over_are_left_out(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    note = written(store)
    store.timers.delivered_up_to(NEXT)

    note.write_slots([])

    assert note.of_slot(NEAR) is None
    assert note.of_slot(NEXT) is not None
    assert note.read_ms == NEXT
    store.close()


def _other_boot(data: bytearray) -> None:
    data[8] ^= 1


def _flipped(data: bytearray) -> None:
    data[60] ^= 1


def _cut(data: bytearray) -> None:
    del data[100:]


def _longer_log(data: bytearray) -> None:
    data[24:32] = (1 << 40).to_bytes(8, "big")


@pytest.mark.parametrize("change", [_other_boot, _flipped, _cut, _longer_log])
def test_what_cannot_be_believed_is_not(
    tmp_path: Path, change: Callable[[bytearray], None]
) -> None:
    store = open_store(tmp_path)
    written(store)
    killed(store)
    path = tmp_path / "pocketmq" / "delivered"
    data = bytearray(path.read_bytes())
    assert len(data) == SIZE
    change(data)
    path.write_bytes(data)

    store = open_store(tmp_path)
    note = found(store)

    assert note.levels == {}
    assert note.of_slot(NEAR) is None
    assert not path.exists()
    killed(store)


def test_after_a_clean_stop_of_whoever_it_was_nothing_is_believed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    written(store)
    store.close()  # Without `remove`: as another broker would leave it.

    store = open_store(tmp_path)

    assert found(store).levels == {}
    store.close()


def test_a_clean_stop_leaves_no_note(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    note = written(store)

    note.remove()

    assert not (tmp_path / "pocketmq" / "delivered").exists()
    store.close()
