"""State files: which copy is believed, and that none is ever lost."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pocketmq.proto.errors import CorruptState, DiskFailure, StoreError
from pocketmq.store.format.state_tables import (
    DelayOffsets,
    parse_delay_offsets,
    render_delay_offsets,
)
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ..fakes import FaultyDisk
from ..runs import Device

FIRST = render_delay_offsets(DelayOffsets(offsets={1: 10}))
SECOND = render_delay_offsets(DelayOffsets(offsets={1: 20}))


def state_file(root: Path) -> StateFile:
    return StateFile(OsDisk(), str(root), "delayOffset.json")


def write(root: Path, main: str | None, backup: str | None) -> None:
    (root / "config").mkdir()
    for name, text in (("delayOffset.json", main), ("delayOffset.json.bak", backup)):
        if text is not None:
            (root / "config" / name).write_text(text)


def test_nothing_there_is_no_value(tmp_path: Path) -> None:
    loaded = state_file(tmp_path).load(parse_delay_offsets)

    assert (loaded.value, loaded.origin, loaded.problem) == (None, "nothing", None)


def test_saving_keeps_the_old_file_as_backup(tmp_path: Path) -> None:
    file = state_file(tmp_path)

    file.save(FIRST)
    file.save(SECOND)

    assert (tmp_path / "config" / "delayOffset.json").read_text() == SECOND
    assert (tmp_path / "config" / "delayOffset.json.bak").read_text() == FIRST
    assert sorted(p.name for p in (tmp_path / "config").iterdir()) == [
        "delayOffset.json",
        "delayOffset.json.bak",
    ]


def test_a_file_is_saved_soon_by_the_thread_and_the_owner_is_called_back(tmp_path: Path) -> None:
    file, saver, disk = state_file(tmp_path), Device(), FaultyDisk()
    file.disk = disk
    calls: list[Callable[[], None]] = []
    results: list[StoreError | None] = []
    file.start(saver, calls.append)

    file.save_soon(lambda: [FIRST], results.append)
    assert not (tmp_path / "config").exists()
    saver.do_next()
    assert (tmp_path / "config" / "delayOffset.json").read_text() == FIRST
    assert results == []
    calls.pop()()
    assert results == [None]

    disk.break_writes("delayOffset")
    file.save_soon(lambda: [SECOND], results.append)
    saver.do_next()
    calls.pop()()
    assert isinstance(results[1], DiskFailure)


def test_without_a_thread_a_file_is_saved_at_once(tmp_path: Path) -> None:
    results: list[StoreError | None] = []

    state_file(tmp_path).save_soon(lambda: [FIRST], results.append)

    assert results == [None]
    assert (tmp_path / "config" / "delayOffset.json").read_text() == FIRST


@pytest.mark.parametrize("main", ["", None], ids=["empty", "missing"])
def test_the_backup_serves_for_an_empty_or_missing_file(main: str | None, tmp_path: Path) -> None:
    write(tmp_path, main, FIRST)

    loaded = state_file(tmp_path).load(parse_delay_offsets)

    assert loaded.value == DelayOffsets(offsets={1: 10})
    assert (loaded.origin, loaded.problem) == ("backup", None)


def test_a_file_cut_short_is_set_aside_and_the_backup_serves(tmp_path: Path) -> None:
    write(tmp_path, SECOND[:20], FIRST)

    loaded = state_file(tmp_path).load(parse_delay_offsets)

    assert loaded.value == DelayOffsets(offsets={1: 10})
    assert loaded.problem is not None
    assert "pocketmq/broken/delayOffset.json.1" in loaded.problem
    assert (tmp_path / "pocketmq/broken/delayOffset.json.1").read_text() == SECOND[:20]
    assert not (tmp_path / "config/delayOffset.json").exists()


def test_a_damaged_file_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, SECOND[:20], FIRST)

    assert state_file(tmp_path).load_value(parse_delay_offsets) == DelayOffsets(offsets={1: 10})
    assert "state file was damaged file=delayOffset.json" in caplog.text


def test_files_set_aside_do_not_replace_each_other(tmp_path: Path) -> None:
    write(tmp_path, "{", FIRST)
    file = state_file(tmp_path)
    file.load(parse_delay_offsets)
    (tmp_path / "config/delayOffset.json").write_text("[")

    file.load(parse_delay_offsets)

    broken = tmp_path / "pocketmq/broken"
    assert sorted(p.read_text() for p in broken.iterdir()) == ["[", "{"]


@pytest.mark.parametrize(
    ("main", "backup"),
    [("{", "{"), (None, "{"), ("{", None), ("", "{"), ("{", "")],
    ids=["both broken", "no file", "no backup", "empty file", "empty backup"],
)
def test_no_readable_copy_is_an_error_that_touches_nothing(
    main: str | None, backup: str | None, tmp_path: Path
) -> None:
    write(tmp_path, main, backup)

    with pytest.raises(CorruptState, match=r"delayOffset\.json.*delayOffset\.json\.bak.*repair"):
        state_file(tmp_path).load(parse_delay_offsets)

    kept = {p.name: p.read_text() for p in (tmp_path / "config").iterdir()}
    wanted = {"delayOffset.json": main, "delayOffset.json.bak": backup}
    assert kept == {name: text for name, text in wanted.items() if text is not None}


def test_saving_over_an_empty_file_keeps_the_backup(tmp_path: Path) -> None:
    write(tmp_path, "", FIRST)
    file = state_file(tmp_path)
    file.load(parse_delay_offsets)

    file.save(SECOND)

    assert (tmp_path / "config/delayOffset.json.bak").read_text() == FIRST
    assert (tmp_path / "config/delayOffset.json").read_text() == SECOND


def test_text_that_is_not_utf8_is_set_aside(tmp_path: Path) -> None:
    write(tmp_path, None, FIRST)
    (tmp_path / "config/delayOffset.json").write_bytes(b'{"a":"\xff"}')

    assert state_file(tmp_path).load(parse_delay_offsets).origin == "backup"


def test_two_threads_may_save_one_file(tmp_path: Path) -> None:
    file = StateFile(OsDisk(), str(tmp_path), "timermetrics")

    def save(text: str) -> None:
        for _ in range(100):
            file.save(text)

    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(save, text) for text in ('{"a":1}', '{"b":2}')]

    assert [one.exception() for one in done] == [None, None]
    assert file.load(json.loads).value in ({"a": 1}, {"b": 2})


@pytest.mark.parametrize("main", [f"\ufeff{FIRST}", "{"])
def test_a_byte_order_mark_is_no_damage(main: str, tmp_path: Path) -> None:
    write(tmp_path, main, f"\ufeff{FIRST}")

    loaded = state_file(tmp_path).load(parse_delay_offsets)

    assert loaded.value == DelayOffsets(offsets={1: 10})
    assert (loaded.problem is None) == (main != "{")
