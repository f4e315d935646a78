"""Stretches of the log that begin with no readable record and hold intact heads of records with torn bodies."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.proto.record import Record, decode_record
from pocketmq.store.message_store import MessageStore

from ..runs import bodies_of, make_run, open_store, records_of
from .test_recovery import forget_verified, overwrite, require_second_recovery_changes_nothing

HEAD_SIZE = 88


def smash(home: Path, record: Record) -> None:
    """Make the head of RECORD unreadable."""
    overwrite(home, record.log_offset, b"\xff" * 8)


def tear(home: Path, record: Record) -> None:
    """Change a byte of RECORD's body; its head and lengths stay."""
    overwrite(home, record.log_offset + HEAD_SIZE, bytes([record.body[0] ^ 1]))


def misread(home: Path, record: Record) -> None:
    """Change RECORD's length of the body: the rest of its head stays."""
    overwrite(home, record.log_offset + 84, b"\x7f\xff\xff\xff")


def torn(home: Path, *, before: int, behind: int, cut: int = 3) -> list[Record]:
    """Make a store whose log begins with an unreadable record of B and CUT torn ones of A/0; return these.

    BEFORE and BEHIND are sound records of A/0 in front of the stretch and behind it.
    """
    store = open_store(home)
    if before:
        store.append(make_run("A", 0, [b"before %d" % n for n in range(before)], {"KEYS": "sound"}))
    store.append(make_run("B", 0, [b"first of the stretch"]))
    store.append(make_run("A", 0, [b"torn %d" % n for n in range(cut)], {"KEYS": "torn"}))
    store.append(make_run("B", 0, [b"last"]))
    if behind:
        store.append(make_run("A", 0, [b"behind %d" % n for n in range(behind)], {"KEYS": "sound"}))
    stretch = records_of(store, "A", 0)[before : before + cut]
    head = records_of(store, "B", 0)[0]
    store.close()
    smash(home, head)
    for record in stretch:
        tear(home, record)
    forget_verified(home)
    return stretch


def require_only(store: MessageStore, stretch: list[Record], sound: list[bytes]) -> None:
    """A/0 gives SOUND and nothing else; nothing of STRETCH comes by any way of reading."""
    assert bodies_of(store, "A", 0) == sound
    low, high = store.queue_bounds("A", 0)
    for offset in range(low, high):
        found = store.read_queue("A", 0, offset, 1, 1)
        if len(found):
            assert decode_record(found.records).body in sound
    for record in stretch:
        assert store.read_at(record.log_offset) is None
        assert store.by_message_id(record.message_id) is None
    assert [o for o in store.lookup("A", "torn") if o in {r.log_offset for r in stretch}] == []


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("behind", [0, 2])
def test_torn_records_in_a_stretch_without_a_readable_beginning_are_never_read(
    before: int, behind: int, tmp_path: Path
) -> None:
    stretch = torn(tmp_path, before=before, behind=behind)

    store = open_store(tmp_path)

    sound = [b"before %d" % n for n in range(before)] + [b"behind %d" % n for n in range(behind)]
    require_only(store, stretch, sound)
    assert bodies_of(store, "B", 0) == [b"last"]
    store.close()
    require_second_recovery_changes_nothing(tmp_path)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("behind", [0, 2])
def test_numbers_of_records_in_a_damaged_stretch_are_not_given_again(
    before: int, behind: int, tmp_path: Path
) -> None:
    torn(tmp_path, before=before, behind=behind)

    store = open_store(tmp_path)

    appended = store.append(make_run("A", 0, [b"new"]))
    assert appended.first_queue_offset == before + 3 + behind
    assert bodies_of(store, "A", 0)[-1] == b"new"
    store.close()


def test_torn_records_behind_the_last_sound_one_of_a_file_are_never_read(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(make_run("B", 0, [b"b" * 1000]))
    store.append(make_run("A", 0, [b"torn %d" % n for n in range(8)], {"KEYS": "torn"}))
    while store.max_log_offset < 4096:
        store.append(make_run("A", 0, [b"more" * 100], {"KEYS": "torn"}))
    store.append(make_run("A", 0, [b"behind"]))
    records = records_of(store, "A", 0)
    stretch = [one for one in records if one.log_offset < 4096]
    sound = [one.body for one in records[len(stretch) :]]
    store.close()
    for record in stretch:
        tear(tmp_path, record)
    smash(tmp_path, stretch[0])
    last = stretch[-1].log_offset + stretch[-1].total_size
    overwrite(tmp_path, last, b"\xff" * (4096 - last))
    forget_verified(tmp_path)

    store = open_store(tmp_path)

    require_only(store, stretch, sound)
    assert sound[-1] == b"behind"
    store.close()
    require_second_recovery_changes_nothing(tmp_path)


def test_a_queue_is_readable_behind_a_record_whose_lengths_do_not_agree(tmp_path: Path) -> None:
    """Found while serving: nothing has recovered the log yet."""
    store = open_store(tmp_path)
    store.append(make_run("A", 0, [b"%d" % n for n in range(6)]))
    records = records_of(store, "A", 0)
    misread(tmp_path, records[2])

    assert bodies_of(store, "A", 0) == [b"%d" % n for n in range(6) if n != 2]
    store.close()


def test_a_torn_record_is_not_found_by_its_offset_message_id(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(make_run("A", 0, [b"one", b"two", b"three"]))
    second = records_of(store, "A", 0)[1]
    store.close()
    tear(tmp_path, second)
    forget_verified(tmp_path)

    store = open_store(tmp_path)

    assert store.by_message_id(second.message_id) is None
    store.close()
