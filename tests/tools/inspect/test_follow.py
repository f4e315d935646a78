"""`inspect STORE log --follow`: new records of a live store, each once, and none before it is whole."""

import asyncio
import json
from pathlib import Path

import pytest

from pocketmq.proto.clock import VirtualClock
from pocketmq.store.log_view import LogWalk
from pocketmq.tools.inspect.output import Output
from pocketmq.tools.inspect.record_rows import (
    PATIENCE,
    POLL_MS,
    LogFollower,
    RecordFilter,
    follow_log,
)

from ...recorded import recorded_store
from ...runs import make_run, open_store
from . import damaging
from .inspecting import files_of, view


def follower(path: Path, wanted: RecordFilter | None = None) -> LogFollower:
    files = files_of(path)
    return LogFollower(files, LogWalk(files).records_end, wanted or RecordFilter())


def test_every_new_record_comes_once_over_many_files(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    followed = follower(tmp_path / "store")
    appended: list[int] = []
    seen: list[int] = []

    for number in range(60):
        run = store.append(
            make_run("Live", number % 3, [b"x" * (7 * number + 1)] * (number % 4 + 1))
        )
        appended += run.log_offsets.tolist()
        seen += [row["log_offset"] for row in followed.new_rows()]

    store.close()
    assert seen == appended
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) > 10
    assert list(followed.new_rows()) == []


def test_a_filter_holds_for_new_records_too(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    followed = follower(tmp_path / "store", RecordFilter(topic="Wanted"))

    store.append(make_run("Other", 0, [b"a"]))
    store.append(make_run("Wanted", 0, [b"b"]))
    store.append(make_run("Other", 0, [b"c"]))

    assert [row["topic"] for row in followed.new_rows()] == ["Wanted"]
    store.append(make_run("Wanted", 0, [b"d"]))
    assert [row["queue_offset"] for row in followed.new_rows()] == [1]
    store.close()


def test_a_record_that_is_half_written_is_waited_for(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    last = 1_554_582
    files = files_of(store)
    followed = LogFollower(files, last, RecordFilter())
    damaging.flip(store, last + 100)

    assert list(followed.new_rows()) == []

    damaging.flip(store, last + 100)
    assert [row["problem"] for row in followed.new_rows()] == [None]


def test_a_record_that_stays_wrong_is_shown_in_the_end(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    last = 1_554_582
    followed = LogFollower(files_of(store), last, RecordFilter())
    damaging.flip(store, last + 100)

    seen = [list(followed.new_rows()) for _ in range(PATIENCE + 2)]

    assert [len(rows) for rows in seen] == [0] * PATIENCE + [1, 0]
    assert seen[PATIENCE][0]["problem"] == "the body does not fit its CRC"


async def test_following_prints_as_time_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(tmp_path / "store")
    clock = VirtualClock()
    followed = LogFollower(files_of(tmp_path / "store"), 0, RecordFilter(), full=True)
    output = Output("jsonl", limit=3)
    following = asyncio.create_task(follow_log(followed, output, clock))

    for number in range(3):
        store.append(make_run("Live", 0, [b"%d" % number]))
        await clock.advance(POLL_MS)

    await following
    store.close()
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["queue_offset"], row["body"]) for row in told] == [(0, "0"), (1, "1"), (2, "2")]


def test_following_from_a_place_prints_what_is_there_first() -> None:
    from .inspecting import unchanged

    result = view(unchanged("rolled"), "log", "--follow", "--last", "2", "--limit", "2")

    first, second = result.stdout.splitlines()
    assert first == (
        "2026-11-21 02:07:57.075Z  1,554,254  Fill1/1@504  94 bytes"
        "  message_id=FD000000000000000000000000000002451F4E0E2F2A677454930BB6"
    )
    assert "Fill2/2@276" in second
