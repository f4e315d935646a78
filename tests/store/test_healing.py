"""Damage in the log of a replica: it is noted and not changed, and what another replica has takes its place."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from pocketmq.proto.errors import CorruptRecord
from pocketmq.store.message_store import MessageStore

from ..damage import flip, flip_stopped, log_offset_of
from ..runs import Hand, bodies_of, make_run, open_store, records_of
from .following import assert_equal, feed

BODIES = [b"message %d" % number * 5 for number in range(9)]
#: Where a record says how long it is, and where it stands.
SIZE_AT, LOG_OFFSET_AT = 0, 28
SIZE_MAX = 1 << 20


def pair(path: Path) -> tuple[MessageStore, MessageStore, Hand]:
    """Return a master with messages and a follower that has them."""
    clock = Hand()
    master = open_store(path / "master", now_ms=clock, replica=True)
    follower = open_store(path / "follower", now_ms=clock, replica=True)
    follower.follow()
    for body in BODIES:
        master.append(make_run("T", 0, [body], {"KEYS": "k", "TAGS": "t"}))
    feed(master, follower, random.Random(1))
    return master, follower, clock


def known(store: MessageStore) -> dict[int, int]:
    assert store.damages.known is not None
    return store.damages.known.places


def heal(store: MessageStore, other: MessageStore) -> None:
    """Heal STORE with what OTHER has, piece by piece."""
    for _ in range(50):
        if not known(store):
            return
        start, end = min(known(store).items())
        piece = other.piece_at(start, end - start)
        assert piece is not None
        store.heal(start, piece.data)
    raise AssertionError("the damage is not healed")


def test_a_damaged_body_is_left_as_it_is_and_then_becomes_what_another_replica_has(
    tmp_path: Path,
) -> None:
    master, follower, _ = pair(tmp_path)
    at = log_offset_of(master, 4)
    flip(master, at)
    before = Path(master.log.files.files[0].path).read_bytes()

    assert bodies_of(master, "T", 0) == BODIES[:4] + BODIES[5:]
    assert Path(master.log.files.files[0].path).read_bytes() == before
    assert list(known(master)) == [at]
    assert not (tmp_path / "master/pocketmq/broken").exists()
    with pytest.raises(CorruptRecord):
        master.piece_at(at, SIZE_MAX)

    heal(master, follower)

    assert bodies_of(master, "T", 0) == BODIES
    assert master.damages.known is not None
    assert master.damages.known.healed == 1
    master.close()
    follower.close()
    assert_equal(tmp_path / "follower", tmp_path / "master")


@pytest.mark.parametrize("at", [SIZE_AT, SIZE_AT + 3, LOG_OFFSET_AT + 7, 4])
def test_a_damaged_head_is_found_by_who_is_asked_for_the_record(at: int, tmp_path: Path) -> None:
    master, follower, _ = pair(tmp_path)
    begin, end = log_offset_of(master, 4), log_offset_of(master, 5)
    flip(master, begin, at)

    with pytest.raises(CorruptRecord):
        master.piece_at(begin, SIZE_MAX)
    assert list(known(master)) == [begin]
    assert at == SIZE_AT + 3 or known(master) == {begin: end}

    heal(master, follower)

    assert bodies_of(master, "T", 0) == BODIES
    master.close()
    follower.close()
    assert_equal(tmp_path / "follower", tmp_path / "master")


def test_several_records_are_healed_in_pieces_and_a_blank_too(tmp_path: Path) -> None:
    clock = Hand()
    master = open_store(tmp_path / "master", now_ms=clock, replica=True)
    follower = open_store(tmp_path / "follower", now_ms=clock, replica=True)
    follower.follow()
    for number in range(40):
        master.append(make_run("T", 0, [b"%d" % number * 150]))
    feed(master, follower, random.Random(1))
    first, second = master.log.files.files[:2]
    begin = log_offset_of(master, 1)
    first.mapping.write(begin, b"\xff" * (first.size - begin))

    with pytest.raises(CorruptRecord):
        master.piece_at(begin, SIZE_MAX)
    assert known(master) == {begin: second.start}
    heal(master, follower)

    assert bodies_of(master, "T", 0) == bodies_of(follower, "T", 0)
    assert first.mapping.read(0, first.size) == follower.log.files.files[0].mapping.read(
        0, first.size
    )


def test_the_scrubber_notes_what_it_finds(tmp_path: Path) -> None:
    master, _, clock = pair(tmp_path)
    first, second, third = (log_offset_of(master, number) for number in (2, 5, 6))
    flip(master, first)
    flip(master, second, SIZE_AT)
    for _ in range(3):
        clock.now_ms += 1_000
        master.tick(clock.now_ms)

    assert known(master)[first] == log_offset_of(master, 3)
    assert known(master)[second] == third


def test_what_is_known_outlasts_a_restart_and_is_forgotten_with_its_file(tmp_path: Path) -> None:
    master, follower, clock = pair(tmp_path)
    flip(follower, log_offset_of(master, 4))
    assert len(bodies_of(follower, "T", 0)) == 8
    places = dict(known(follower))
    follower.close()
    path = tmp_path / "follower/pocketmq/damaged.json"
    assert json.loads(path.read_text()) == {
        "version": 1,
        "damaged": [list(one) for one in places.items()],
    }

    follower = open_store(tmp_path / "follower", now_ms=clock, replica=True)
    assert known(follower) == places
    follower.follow()
    follower.truncate_to(min(places))
    follower = open_store(tmp_path / "follower", now_ms=clock, replica=True)
    follower.tick(clock.now_ms)
    assert known(follower) == {}
    assert json.loads(path.read_text())["damaged"] == []


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version":2}', '{"version":1,"damaged":[[5,1]]}', "[" * 99_999]
)
def test_a_file_of_places_that_cannot_be_is_not_believed(text: str, tmp_path: Path) -> None:
    master, _, clock = pair(tmp_path)
    master.close()
    (tmp_path / "master/pocketmq/damaged.json").write_text(text)

    master = open_store(tmp_path / "master", now_ms=clock, replica=True)

    assert known(master) == {}
    assert bodies_of(master, "T", 0) == BODIES


def test_a_follower_takes_and_notes_a_record_that_was_damaged_at_the_master(
    tmp_path: Path,
) -> None:
    master, follower, clock = pair(tmp_path)
    other = open_store(tmp_path / "other", now_ms=clock, replica=True)
    other.follow()
    at = log_offset_of(master, 4)
    flip(master, at)

    feed(master, other, random.Random(2))
    assert list(known(other)) == [at]
    assert other.queue_bounds("T", 0) == (0, 9)
    heal(other, follower)

    assert bodies_of(other, "T", 0) == BODIES


def test_a_record_that_is_awaited_is_not_passed_over(tmp_path: Path) -> None:
    master, follower, _ = pair(tmp_path)
    damage = master.damages.known
    assert damage is not None
    damage.has_healer = True
    at = log_offset_of(master, 4)
    flip(master, at)
    for choose in (None, lambda codes: codes == codes):
        seen = master.read_queue("T", 0, 0, 100, 1 << 20, choose)
        assert (len(seen), seen.next_offset, seen.lost) == (4, 4, 0)
        seen = master.read_queue("T", 0, 4, 100, 1 << 20, choose)
        assert (len(seen), seen.next_offset, seen.lost) == (0, 4, 0)
        seen = master.read_queue("T", 0, 5, 100, 1 << 20, choose)
        assert (len(seen), seen.next_offset, seen.lost) == (4, 9, 0)

    damage.give_up(at)
    seen = master.read_queue("T", 0, 0, 100, 1 << 20)
    assert (len(seen), seen.next_offset, seen.lost) == (8, 9, 1)
    heal(master, follower)
    assert bodies_of(master, "T", 0) == BODIES


def test_nothing_damaged_and_nothing_beyond_the_log_is_put_in_its_place(tmp_path: Path) -> None:
    master, follower, _ = pair(tmp_path)
    at = log_offset_of(master, 8)
    piece = master.piece_at(at, SIZE_MAX)
    assert piece is not None
    flip(follower, at)
    assert follower.read_at(at) is None
    for data in (
        b"",
        piece.data[:-1],
        piece.data + b"x",
        bytes((piece.data[0], *piece.data[1:99])),
    ):
        with pytest.raises(CorruptRecord):
            follower.heal(at, data)
    assert list(known(follower)) == [at]
    assert master.piece_at(master.max_log_offset, SIZE_MAX) is None
    assert master.piece_at(1 << 40, SIZE_MAX) is None


def test_a_store_alone_makes_damage_harmless_as_before(tmp_path: Path) -> None:
    master, _, clock = pair(tmp_path)
    at = log_offset_of(master, 4)
    master.close()
    flip_stopped(tmp_path / "master", at)

    alone = open_store(tmp_path / "master", now_ms=clock)

    assert alone.damages.known is None
    assert bodies_of(alone, "T", 0) == BODIES[:4] + BODIES[5:]
    assert (tmp_path / "master/pocketmq/broken" / f"log-{at:020d}").exists()


@pytest.mark.parametrize("at", [SIZE_AT, 88])
def test_a_kill_keeps_what_was_on_the_device_behind_damage(at: int, tmp_path: Path) -> None:
    master, follower, clock = pair(tmp_path)
    begin, end = log_offset_of(master, 4), log_offset_of(master, 5)
    for body in (b"later", b"latest"):
        clock.now_ms += 10
        master.append(make_run("T", 0, [body]))
    feed(master, follower, random.Random(1))
    follower.flush()
    clock.now_ms += 10_000
    follower.tick(clock.now_ms)
    follower.parts.checkpoint.write()
    flip(follower, begin, at)
    killed = Path(shutil.copytree(tmp_path / "follower", tmp_path / "killed"))
    (killed / "pocketmq/verified.json").unlink(missing_ok=True)
    (killed / "lock").unlink(missing_ok=True)

    follower = open_store(killed, now_ms=clock, replica=True)

    assert follower.max_log_offset == master.max_log_offset
    assert known(follower) == {begin: end}
    assert follower.queue_bounds("T", 0) == (0, 11)
    heal(follower, master)
    assert bodies_of(follower, "T", 0) == [*BODIES, b"later", b"latest"]
    assert records_of(follower, "T", 0) == records_of(master, "T", 0)


def test_a_power_cut_keeps_nothing_behind_what_was_not_on_the_device(tmp_path: Path) -> None:
    _, follower, clock = pair(tmp_path)
    begin = log_offset_of(follower, 4)
    flip(follower, begin)
    killed = Path(shutil.copytree(tmp_path / "follower", tmp_path / "killed"))
    (killed / "pocketmq/verified.json").unlink(missing_ok=True)

    follower = open_store(killed, now_ms=clock, replica=True)

    assert follower.max_log_offset == begin
    assert known(follower) == {}
