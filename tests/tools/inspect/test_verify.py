"""`inspect STORE verify`: sound stores are sound, and each kind of damage is told by its name, place and number."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketmq.tools.inspect.verify_command import verify

from ...recorded import expected, recorded_names, recorded_store
from ...runs import make_run, open_store
from . import damaging
from .inspecting import document, unchanged, view

SOUND = [name for name in recorded_names() if not name.startswith("damaged-")]


def counts(store: Path) -> dict[str, int]:
    """Return how much of each kind is wrong."""
    return {
        one["kind"]: one["count"] for one in document(store, "verify")["findings"] if one["wrong"]
    }


@pytest.fixture
def rolled(tmp_path: Path) -> Path:
    """A sound store of small files that a test may damage."""
    return recorded_store("rolled", tmp_path / "store")


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_store_is_sound(name: str) -> None:
    result = view(unchanged(name), "verify")
    found = document(unchanged(name), "verify")

    wanted = expected(name)
    assert result.exit_code == 0
    assert result.stdout.endswith("nothing is wrong\n")
    assert not found["wrong"]
    assert found["records"] == len(wanted["records"])
    if not name.startswith("unclean"):
        assert found["findings"] == []
        readable = sum(len(q["entries"]) - len(q["unreachable"]) for q in wanted["queues"])
        assert found["entries"] == readable


def test_what_was_not_dispatched_yet_is_not_wrong() -> None:
    found = document(unchanged("unclean"), "verify")

    assert {one["kind"] for one in found["findings"]} == {"not_dispatched", "key_not_indexed"}


def break_crc(store: Path) -> None:
    damaging.flip(store, 497 + 100)


def break_head(store: Path) -> None:
    damaging.log_bytes(store, 497, b"\0\0\0\1")


def move_record(store: Path) -> None:
    damaging.log_bytes(store, 497 + 28, (5).to_bytes(8, "big"))


def lose_log_file(store: Path) -> None:
    (store / "commitlog" / f"{12 * damaging.FILE_SIZE:020d}").unlink()


def lose_queue_file(store: Path) -> None:
    (store / "consumequeue/Fill0/0" / f"{10_000:020d}").unlink()


def lose_queue(store: Path) -> None:
    for path in (store / "consumequeue/Fill2/3").iterdir():
        path.unlink()
    (store / "consumequeue/Fill2/3").rmdir()


def point_nowhere(store: Path) -> None:
    offset, size, code = damaging.entry(store, "Fill0", 0, 7)
    damaging.write_entry(store, "Fill0", 0, 7, (offset + 3, size, code))


def point_behind(store: Path) -> None:
    damaging.write_entry(store, "Fill0", 0, 7, (9_999_999, 300, 0))


def swap_entries(store: Path) -> None:
    one, other = (damaging.entry(store, "Fill0", 0, number) for number in (7, 9))
    damaging.write_entry(store, "Fill0", 0, 7, other)
    damaging.write_entry(store, "Fill0", 0, 9, one)


def change_size(store: Path) -> None:
    offset, size, code = damaging.entry(store, "Fill0", 0, 7)
    damaging.write_entry(store, "Fill0", 0, 7, (offset, size + 1, code))


def change_tags(store: Path) -> None:
    offset, size, code = damaging.entry(store, "Fill0", 0, 7)
    damaging.write_entry(store, "Fill0", 0, 7, (offset, size, code + 1))


def move_index_entry(store: Path) -> None:
    damaging.index_entry(store, 1, 100, 4, (500_001).to_bytes(8, "big"))


def rename_key(store: Path) -> None:
    path = sorted((store / "index").iterdir())[0]
    at = 40 + 4 * 500 + 20 * 1
    old = int.from_bytes(path.read_bytes()[at : at + 4], "big")
    damaging.index_entry(
        store, 0, 1, 0, (old + 500 if old < 1 << 30 else old - 500).to_bytes(4, "big")
    )


def break_index_link(store: Path) -> None:
    damaging.index_entry(store, 0, 1999, 16, (3).to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (break_crc, {"crc_wrong": 1}),
        (
            break_head,
            {"log_damaged": 1, "entry_without_record": 1, "index_without_record": 4},
        ),
        (move_record, {"displaced": 1, "entry_without_record": 1, "index_without_record": 4}),
        (
            lose_log_file,
            {"log_file_missing": 1, "entry_file_missing": 121, "index_without_record": 300},
        ),
        (lose_queue_file, {"record_without_entry": 100, "queue_file_missing": 1}),
        (lose_queue, {"record_without_entry": 267}),
        (point_nowhere, {"record_without_entry": 1, "entry_without_record": 1}),
        (point_behind, {"record_without_entry": 1, "entry_beyond_end": 1}),
        (swap_entries, {"record_without_entry": 2, "entry_of_another": 2}),
        (change_size, {"entry_size_wrong": 1}),
        (change_tags, {"tags_code_wrong": 1}),
        (move_index_entry, {"index_damaged": 1}),
        (rename_key, {"index_without_key": 1}),
        (break_index_link, {"index_damaged": 1}),
    ],
)
def test_damage_is_told_by_its_kind(
    damage: Callable[[Path], None], wanted: dict[str, int], rolled: Path
) -> None:
    damage(rolled)

    result = view(rolled, "verify")

    assert result.exit_code == 1
    assert counts(rolled) == wanted


def test_places_are_named(rolled: Path) -> None:
    break_crc(rolled)
    change_tags(rolled)

    told = view(rolled, "verify").stdout

    assert "records whose body does not fit its CRC: 1\n    log offset 497, queue 0 @1\n" in told
    assert "queue entries with a wrong tags code: 1\n    Fill0/0 @7: log offset " in told


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("damaged-flip-recent", {"crc_wrong"}),
        ("damaged-garbage-index", {"index_damaged"}),
        ("damaged-short-index", {"index_damaged"}),
        ("damaged-long-queue", {"entry_beyond_end"}),
        ("damaged-missing-last-queue-file", {"record_without_entry"}),
        (
            "damaged-missing-middle-log",
            {"log_file_missing", "entry_file_missing", "index_without_record"},
        ),
        ("damaged-no-queues", {"record_without_entry"}),
        ("damaged-no-queues-unclean", {"record_without_entry"}),
        ("damaged-torn-tail", {"entry_beyond_end", "index_without_record"}),
        ("damaged-broken-json", set()),
        ("damaged-no-config", set()),
    ],
)
def test_recorded_damage_is_told(name: str, kinds: set[str]) -> None:
    assert set(counts(unchanged(name))) == kinds
    assert view(unchanged(name), "verify").exit_code == (1 if kinds else 0)


def covered(record: dict[str, Any], rng: random.Random) -> int:
    """Return a log offset inside RECORD at which any change contradicts something."""
    start, body = record["physicalOffset"], record["rawBodyLength"]
    topic_at = 88 + body
    places = [rng.randrange(0, 16), rng.randrange(20, 36), 84 + rng.randrange(4)]
    places += [
        88 + rng.randrange(body),
        topic_at,
        topic_at + 1 + rng.randrange(len(record["topic"])),
    ]
    return int(start) + rng.choice(places)


@pytest.mark.parametrize("seed", range(25))
def test_a_changed_byte_of_the_log_is_never_missed(seed: int, rolled: Path) -> None:
    rng = random.Random(seed)
    place = covered(rng.choice(expected("rolled")["records"]), rng)

    damaging.flip(rolled, place)

    assert document(rolled, "verify")["wrong"], place


def test_progress_counts_the_whole_log() -> None:
    from pocketmq.tools.inspect.verification import Verification

    from .inspecting import files_of

    verification = Verification(files_of(unchanged("rolled")))

    steps = list(verification.run())

    assert steps == sorted(steps)
    assert steps[-1] == verification.total_bytes == 1_555_014
    assert len(steps) > 20
    assert verify.name == "verify"


def test_a_store_that_is_being_written_is_sound(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    try:
        for number in range(30):
            tags = {"TAGS": f"tag{number % 3}", "KEYS": f"a{number} b"}
            store.append(make_run("Live", number % 2, [b"%d" % number] * 7, tags))

            found = document(tmp_path / "store", "verify")

            assert not found["wrong"], found
            assert found["records"] == found["entries"] == 7 * (number + 1)
            assert found["findings"] == []
    finally:
        store.close()
