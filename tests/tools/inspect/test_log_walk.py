"""Walking a log as it lies, held against what Apache's own classes found in the recorded stores."""

import os
from pathlib import Path

import numpy as np
import pytest

from pocketmq.store import log_view
from pocketmq.store.log_view import Gap, LogStretch, LogWalk, next_sound

from ...recorded import expected, recorded_names, recorded_store
from ...runs import Hand, make_run, open_store
from .inspecting import files_of, unchanged

SOUND = [name for name in recorded_names() if not name.startswith("damaged-")]
FILE_SIZE = 65_536


def stretches(walk: LogWalk, begin: int = 0) -> list[LogStretch]:
    return [part for part in walk.walk(begin) if isinstance(part, LogStretch)]


def offsets(walk: LogWalk, begin: int = 0) -> list[int]:
    return [int(offset) for part in stretches(walk, begin) for offset in part.offsets]


@pytest.mark.parametrize("name", SOUND)
def test_every_record_is_found_where_it_is(name: str) -> None:
    walk = LogWalk(files_of(unchanged(name)))
    wanted = expected(name)

    assert offsets(walk, walk.begin) == [r["physicalOffset"] for r in wanted["records"]]
    assert walk.end == wanted["maxPhyOffset"]
    assert walk.begin == max(0, wanted["minPhyOffset"])


@pytest.mark.parametrize("name", SOUND)
def test_blanks_close_the_files(name: str) -> None:
    walk = LogWalk(files_of(unchanged(name)))

    gaps = [part for part in walk.walk(walk.begin) if isinstance(part, Gap)]

    assert [gap.start for gap in gaps] == [one["offset"] for one in expected(name)["blanks"]]
    assert {gap.kind for gap in gaps} <= {"blank"}


def test_a_walk_from_within_a_record_begins_at_the_next_one() -> None:
    walk = LogWalk(files_of(unchanged("rolled")))
    every = offsets(walk)

    for begin in (1, 496, 498, 70_000, 1_554_583):
        assert offsets(walk, begin) == [offset for offset in every if offset >= begin]


def test_a_range_ends_in_front_of_its_end() -> None:
    walk = LogWalk(files_of(unchanged("rolled")))

    found = [part.offsets for part in walk.walk(497, 1208) if isinstance(part, LogStretch)]

    assert np.concatenate(found).tolist() == [497, 927]


def test_a_missing_file_is_a_gap_between_records() -> None:
    walk = LogWalk(files_of(unchanged("damaged-missing-middle-log")))

    gaps = [part for part in walk.walk(0) if isinstance(part, Gap) and part.kind == "missing"]

    assert [(gap.start, gap.end) for gap in gaps] == [(786_432, 851_968)]
    assert walk.end == 1_555_014


def test_reading_goes_on_behind_damage(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    path = store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[497:501] = b"\xff\xff\xff\xff"
    path.write_bytes(data)

    walk = LogWalk(files_of(store))

    first = list(walk.walk(0, 2000))
    assert [type(part) for part in first] == [LogStretch, Gap, LogStretch]
    assert isinstance(first[1], Gap)
    assert (first[1].start, first[1].end, first[1].kind) == (497, 927, "damaged")
    assert "size -1" in first[1].why


def test_a_file_made_ahead_of_need_is_not_part_of_the_log(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    last = max((store / "commitlog").iterdir())
    ahead = store / "commitlog" / f"{int(last.name) + FILE_SIZE:020d}"
    ahead.write_bytes(bytes(FILE_SIZE))

    walk = LogWalk(files_of(store))

    assert walk.end == 1_555_014
    assert walk.used[-1].name == last.name


def test_the_end_of_a_large_file_is_found_without_walking_it(tmp_path: Path) -> None:
    small = recorded_store("basic", tmp_path / "store")
    path = small / "commitlog" / f"{0:020d}"
    end = LogWalk(files_of(small)).end
    with path.open("r+b") as file:
        file.seek(end)
        file.write(bytes(40 << 20))  # no hole: the zeros have to be looked at

    assert LogWalk(files_of(small)).end == end


def test_a_time_leads_to_the_first_record_stored_then() -> None:
    walk = LogWalk(files_of(unchanged("rolled")))
    records = expected("rolled")["records"]
    times = [record["storeTimestamp"] for record in records]

    for time_ms in (0, times[0], times[1500], times[1500] + 1, times[-1]):
        wanted = next(r["physicalOffset"] for r in records if r["storeTimestamp"] >= time_ms)
        assert walk.at_time(time_ms) == wanted
    assert walk.at_time(times[-1] + 1) == walk.end


def test_an_empty_folder_has_no_log(tmp_path: Path) -> None:
    walk = LogWalk(files_of(tmp_path))

    assert (walk.begin, walk.end, walk.used, walk.first()) == (0, 0, (), None)
    assert list(walk.walk(0)) == []


def data_bytes(file: Path) -> int:
    """Return the bytes of FILE outside its holes. In memory (tmpfs), reserved space that was read is no hole."""
    total = at = 0
    with file.open("rb") as opened:
        while at < file.stat().st_size:
            try:
                start = os.lseek(opened.fileno(), at, os.SEEK_DATA)
            except OSError:
                break  # The rest is a hole.
            at = os.lseek(opened.fileno(), start, os.SEEK_HOLE)
            total += at - start
    return total


def test_the_newest_records_are_found_past_the_holes_of_files_that_age_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, size = Hand(), 64 << 20
    store = open_store(tmp_path, now_ms=clock, log_file_size_bytes=size, log_roll_ms=300_000)
    offsets = []
    for _ in range(5):
        offsets += store.append(make_run("T", 0, [b"x", b"y"])).log_offsets.tolist()
        clock.now_ms += 300_000
        store.tick()
    store.close()
    searched: list[int] = []

    def counted(view: memoryview, start: int, at: int, end: int) -> int | None:
        searched.append(max(0, end - at))
        return next_sound(view, start, at, end)

    monkeypatch.setattr(log_view, "next_sound", counted)
    walk = LogWalk(files_of(tmp_path))

    assert (walk.begin, walk.end) == (0, 5 * size)
    assert [walk.last(count) for count in (1, 2, 10)] == [offsets[-1], offsets[-2], offsets[0]]
    if sum(map(data_bytes, (tmp_path / "commitlog").iterdir())) < size:
        assert sum(searched) < size
