"""What goes wrong while delay levels deliver: a store that is full, records that cannot be read, bugs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.delay.levels import RETRY_MS, Level
from pocketmq.proto.errors import PocketMQError, StoreFull
from pocketmq.proto.record import SYS_FLAG_AT, SYS_ROLLBACK
from pocketmq.proto.run import Run
from pocketmq.proto.topics import SCHEDULE_TOPIC
from pocketmq.store.consume_queue import ConsumeQueue
from pocketmq.store.log_writer import Appended

from ...fakes import FaultyDisk
from ...runs import records_of
from .leveling import START_MS, Leveling


async def test_what_the_store_cannot_take_is_tried_again_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk()
    rig = Leveling(tmp_path / "s", disk=disk)
    rig.start()
    rig.send(1, b"a", b"b")
    rig.send(1, b"c", queue=1)
    await rig.clock.advance(500)
    rig.send(1, b"d")
    disk.run_full("commitlog")
    await rig.clock.advance(5_000)
    assert rig.arrived == []
    assert caplog.text.count("delivery of delay levels failed") == 1
    disk.heal()

    await rig.clock.advance(RETRY_MS)

    now = START_MS + 5_500 + RETRY_MS
    assert sorted(rig.arrived[:3]) == [(now, 0, b"a"), (now, 0, b"b"), (now, 1, b"c")]
    assert rig.arrived[3:] == [(now, 0, b"d")]
    await rig.stop()


async def test_a_part_that_was_taken_is_not_delivered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    rig.send(1, b"a")
    rig.send(1, b"b", queue=1)
    append_many = rig.store.append_many

    def only_the_first(runs: Sequence[Run]) -> list[Appended | PocketMQError]:
        return [append_many(runs[:1])[0], StoreFull("no room")]

    with monkeypatch.context() as patched:
        patched.setattr(rig.store, "append_many", only_the_first)
        await rig.clock.advance(1_000)
    assert rig.bodies == [b"a"]

    await rig.clock.advance(RETRY_MS)

    assert rig.bodies == [b"a", b"b"]
    await rig.stop()


async def test_a_record_that_cannot_be_read_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    rig.send(1, b"a", b"bad", b"c")
    bad = records_of(rig.store, SCHEDULE_TOPIC, 0)[1]
    file = rig.store.log.files.files[0]
    file.mapping.write(bad.log_offset + SYS_FLAG_AT, SYS_ROLLBACK.to_bytes(4, "big"))

    with caplog.at_level(logging.WARNING):
        await rig.clock.advance(1_000)

    assert rig.bodies == [b"a", b"c"]
    assert "queue entries without their records" in caplog.text
    assert rig.levels.waiting == 0
    await rig.stop()


async def test_a_bug_does_not_stop_the_levels_for_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    rig.send(1, b"a")

    def broken(runs: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(rig.store, "append_many", broken)
        await rig.clock.advance(1_000)
    assert "a bug" in caplog.text
    await rig.clock.advance(10_000)

    assert rig.bodies == [b"a"]
    await rig.stop()


async def test_entries_that_cannot_be_read_for_a_moment_are_delivered_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()

    def unmapped(queue: object, first: int, count: int) -> None:
        raise StoreFull("no memory for a map")

    with monkeypatch.context() as patched:
        patched.setattr(ConsumeQueue, "entries", unmapped)
        rig.send(1, b"a")
        await rig.clock.advance(500)
    await rig.clock.advance(500)
    assert rig.bodies == [b"a"]
    assert caplog.text.count("delivery of delay levels failed") == 1
    assert "Traceback" not in caplog.text
    await rig.stop()


async def test_where_the_next_entries_cannot_be_read_what_was_delivered_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Leveling(tmp_path / "s")
    rig.start()
    for level in (1, 2):
        rig.send(level, b"%d" % level)
    await rig.clock.advance(4_000)
    rig.send(1, b"with level 2")
    read = Level.read

    def unmapped(level: Level, *others: Any) -> None:
        if not tried:
            tried.append(level.number)
            level.unread = True
            raise StoreFull("no memory for a map")
        read(level, *others)

    tried: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(Level, "read", unmapped)
        await rig.clock.advance(1_000 + RETRY_MS)

    assert tried
    assert sorted(rig.bodies) == [b"1", b"2", b"with level 2"]
    await rig.stop()
