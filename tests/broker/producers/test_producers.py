"""The table of producers over stops, kills, torn logs, lost and damaged files, and other brokers."""

from __future__ import annotations

import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.producers import producers as module
from pocketmq.broker.producers.snapshots import decoded
from pocketmq.proto.errors import StoreFull, UnknownProducer
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.topics import SCHEDULE_TOPIC

from ...numbered import bodies, numbered_run
from ...runs import Device, bodies_of, make_run, open_store
from ..messages.sending import TOPIC, Rig


@asynccontextmanager
async def life(folder: Path, *, kill: bool = False, **settings: Any) -> AsyncIterator[Rig]:
    """Run sends over the store in FOLDER; stop cleanly at the end, or KILL."""
    rig = Rig(folder, threads=False, **settings)
    try:
        yield rig
    finally:
        if kill:
            rig.kill()
        else:
            await rig.stop()


async def repeated(rig: Rig, run: pb.ProduceRun) -> tuple[int, int]:
    """Send RUN; return how many of its records were stored before, and the first queue offset."""
    await rig.send(run)
    reply = rig.replies.pop()
    assert not reply.HasField("error"), reply
    return reply.repeated_count, reply.first_queue_offset


async def seven_runs(rig: Rig, size: int = 0) -> None:
    """Store runs 0–2, 3–5, … 18–20 in queue 0, with others between."""
    for first in range(0, 21, 3):
        await rig.send(numbered_run(bodies(first, 3, size), first))
        await rig.send(numbered_run(bodies(first, 1), first // 3, queue=1, producer_id=5))
    assert not any(reply.HasField("error") for reply in rig.replies)
    rig.replies.clear()


@pytest.mark.parametrize("kill", [True, False], ids=["kill", "clean stop"])
async def test_repeats_are_known_after_a_stop(tmp_path: Path, kill: bool) -> None:
    async with life(tmp_path, kill=kill) as rig:
        await seven_runs(rig)

    async with life(tmp_path) as rig:
        assert rig.store.recovery.clean is not kill
        assert await repeated(rig, numbered_run(bodies(18, 3), 18)) == (3, 18)
        assert await repeated(rig, numbered_run(bodies(0, 3), 0)) == (3, -1)
        assert await repeated(rig, numbered_run(bodies(20, 3), 20)) == (1, 20)
        assert await repeated(rig, numbered_run(bodies(23, 1), 23)) == (0, 23)
        assert await repeated(rig, numbered_run(bodies(6, 1), 6, queue=1, producer_id=5)) == (1, 6)
        assert bodies_of(rig.store, TOPIC, 0) == bodies(0, 24)
        assert rig.producers.unknown_before is None


async def test_a_clean_stop_leaves_nothing_to_read(tmp_path: Path) -> None:
    async with life(tmp_path) as rig:
        await seven_runs(rig)

    async with life(tmp_path) as rig:
        assert rig.producers.to_json() == {
            "sequences": 2,
            "crowded_out": 0,
            "scanned_bytes": 0,
            "unknown_before": None,
        }


async def test_after_a_kill_only_what_came_behind_the_snapshot_is_read(tmp_path: Path) -> None:
    async with life(tmp_path, kill=True) as rig:
        await seven_runs(rig)
        rig.producers.save()
        saved = rig.store.max_log_offset
        assert rig.store.flushed_offset >= saved, "what it tells of is on the device first"
        await rig.send(numbered_run(bodies(21, 3), 21))
        end = rig.store.max_log_offset

    async with life(tmp_path) as rig:
        assert rig.producers.to_json()["scanned_bytes"] == end - saved
        assert await repeated(rig, numbered_run(bodies(18, 6), 18)) == (6, 18)


async def test_a_snapshot_is_written_when_much_was_appended_or_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store" / "pocketmq" / "producers.json"
    async with life(tmp_path) as rig:
        rig.producers.tick()
        assert path.exists(), "the first one"
        first = path.read_bytes()
        await rig.send(numbered_run(bodies(0, 3), 0))
        rig.producers.tick()
        assert path.read_bytes() == first

        await rig.clock.advance(module.SAVE_INTERVAL_MS)
        rig.producers.tick()
        second = path.read_bytes()
        assert second != first

        await rig.clock.advance(module.SAVE_INTERVAL_MS)
        rig.producers.tick()
        assert path.read_bytes() == second, "nothing is new"

        monkeypatch.setattr(module, "SAVE_BYTES", 1_000)
        rig.store.append(make_run(TOPIC, 3, [b"x" * 1_000]))
        rig.producers.tick()
        assert path.read_bytes() != second, "less of the log is to be read"


async def test_delayed_runs_are_known_after_a_kill(tmp_path: Path) -> None:
    properties = [{}, {"DELAY": "2"}, {}, {"DELAY": "1"}]
    run = numbered_run(bodies(0, 4), 0, properties=properties, each=True)
    async with life(tmp_path, kill=True) as rig:
        await rig.send(run)
        first = rig.replies.pop()

    async with life(tmp_path) as rig:
        await rig.send(run)
        again = rig.replies.pop()
        assert again.repeated_count == 4
        assert list(again.log_offsets) == list(first.log_offsets)
        assert list(again.queue_offsets) == list(first.queue_offsets)
        assert list(again.due_ms) == list(first.due_ms)
        assert bodies_of(rig.store, SCHEDULE_TOPIC, 1) == [b"1"]


def log_files(folder: Path) -> list[Path]:
    return sorted((folder / "store" / "commitlog").iterdir())


def cut_log(folder: Path, wanted: bytes) -> None:
    """Zero the log from the record on in which WANTED stands last: a power cut lost it."""
    for path in reversed(log_files(folder)):
        data = bytearray(path.read_bytes())
        at = data.rfind(wanted)
        if at >= 0:
            begin = data.rfind(b"\xda\xa3\x20\xa7", 0, at) - 4
            data[begin:] = bytes(len(data) - begin)
            path.write_bytes(data)
            return
        path.write_bytes(bytes(len(data)))
    raise AssertionError("it is not in the log")


async def test_of_a_torn_run_the_rest_is_stored_behind_it(tmp_path: Path) -> None:
    async with life(tmp_path, kill=True) as rig:
        await rig.send(numbered_run(bodies(0, 2), 0))
        await rig.send(numbered_run([b"row 2", b"row 3", b"row 4", b"row 5"], 2))
    cut_log(tmp_path, b"row 4")

    async with life(tmp_path, kill=True) as rig:
        assert bodies_of(rig.store, TOPIC, 0) == [b"0", b"1", b"row 2", b"row 3"]
        again = numbered_run([b"row 2", b"row 3", b"row 4", b"row 5"], 2)
        assert await repeated(rig, again) == (2, 2)
        stored = [b"0", b"1", *(b"row %d" % row for row in range(2, 6))]
        assert bodies_of(rig.store, TOPIC, 0) == stored

    async with life(tmp_path) as rig:
        assert await repeated(rig, again) == (4, 2)
        assert await repeated(rig, numbered_run([b"6"], 6)) == (0, 6)


async def test_others_behind_a_torn_run_are_not_taken_for_it(tmp_path: Path) -> None:
    async with life(tmp_path, kill=True) as rig:
        await rig.send(numbered_run([b"row 0", b"row 1", b"row 2"], 0))
    cut_log(tmp_path, b"row 1")
    async with life(tmp_path, kill=True) as rig:
        await rig.clock.advance(1_000)
        rig.store.append(make_run(TOPIC, 0, [b"somebody else's"] * 2))

    async with life(tmp_path) as rig:
        await rig.clock.advance(1_000)
        assert await repeated(rig, numbered_run([b"row 0", b"row 1", b"row 2"], 0)) == (1, 0)
        assert sorted(set(bodies_of(rig.store, TOPIC, 0))) == [
            *(b"row %d" % row for row in range(3)),
            b"somebody else's",
        ]


async def test_what_a_power_cut_took_is_new_when_it_comes_again(tmp_path: Path) -> None:
    async with life(tmp_path, kill=True) as rig:
        await seven_runs(rig)
        await rig.send(numbered_run([b"lost"], 21))
    cut_log(tmp_path, b"lost")

    async with life(tmp_path) as rig:
        assert await repeated(rig, numbered_run([b"lost"], 21)) == (0, 21)
        assert await repeated(rig, numbered_run(bodies(18, 3), 18)) == (3, 18)


# --- the folder


def lose_folder(folder: Path) -> None:
    shutil.rmtree(folder / "store" / "pocketmq")


def damage_snapshot(folder: Path) -> None:
    path = folder / "store" / "pocketmq" / "producers.json"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("spoil", [lose_folder, damage_snapshot])
async def test_without_a_snapshot_the_log_tells_everything(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    async with life(tmp_path) as rig:
        await seven_runs(rig)
    spoil(tmp_path)

    async with life(tmp_path) as rig:
        assert rig.producers.unknown_before is None
        assert await repeated(rig, numbered_run(bodies(0, 3), 0)) == (3, -1)
        assert await repeated(rig, numbered_run(bodies(18, 3), 18)) == (3, 18)
        assert await repeated(rig, numbered_run(bodies(21, 3), 21)) == (0, 21)


async def test_without_a_snapshot_what_is_gone_from_the_log_is_unknown_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with life(tmp_path) as rig:
        await rig.send(numbered_run(bodies(0, 1), 0, queue=2, producer_id=9))
        await seven_runs(rig, size=200)
    lose_folder(tmp_path)
    log_files(tmp_path)[0].unlink()

    with caplog.at_level(logging.WARNING):
        async with life(tmp_path) as rig:
            begin = rig.store.min_log_offset
            assert rig.producers.unknown_before is not None
            assert rig.producers.unknown_before[0] == begin > 0
            assert rig.producers.to_json()["unknown_before"] is not None
            assert await repeated(rig, numbered_run(bodies(18, 3, 200), 18)) == (3, 18)
            assert await repeated(rig, numbered_run(bodies(21, 3), 21)) == (0, 21)
            old = await rig.refusal(numbered_run(bodies(0, 3, 200), 0))
            gone = await rig.refusal(numbered_run(bodies(1, 1), 1, queue=2, producer_id=9))

    assert isinstance(old, UnknownProducer)
    assert isinstance(gone, UnknownProducer)
    assert "duplicates of earlier batches cannot be detected" in caplog.text


async def test_without_a_snapshot_not_all_of_a_long_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCAN_BYTES", 5_000)
    async with life(tmp_path) as rig:
        await seven_runs(rig, size=300)
        end = rig.store.max_log_offset
        assert end > 9_000
    lose_folder(tmp_path)

    async with life(tmp_path) as rig:
        assert rig.producers.unknown_before is not None
        assert rig.producers.unknown_before[0] >= end - 5_000
        assert await repeated(rig, numbered_run(bodies(18, 3, 300), 18)) == (3, 18)
        assert isinstance(await rig.refusal(numbered_run(bodies(0, 3), 0)), UnknownProducer)


async def test_a_snapshot_is_written_by_the_thread_that_saves_as_of_when_it_was_taken(
    tmp_path: Path,
) -> None:
    async with life(tmp_path, kill=True) as rig:
        saver = Device()
        rig.producers._saver = saver
        await rig.send(numbered_run(bodies(0, 3), 0))
        end = rig.store.max_log_offset
        rig.producers.save()
        path = Path(rig.store.config.own_folder) / "producers.json"
        assert not path.exists()
        await rig.send(numbered_run(bodies(3, 3), 3))

        saver.do_next()

        snapshot = decoded(path.read_bytes())
        assert snapshot is not None
        assert snapshot.log_end == end
        assert [sequence.next for _, sequence in snapshot.sequences] == [3]
        rig.producers.save()
        assert len(saver.jobs) == 1


async def test_a_full_disk_only_makes_the_next_start_read_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with life(tmp_path, kill=True) as rig:
        await seven_runs(rig)
        full = StoreFull("no room")
        rig.disk.fail_create = lambda path: full if path.endswith("producers.json") else None
        rig.producers.save()

    assert "producers not saved reason=not synced: no room" in caplog.text
    async with life(tmp_path) as rig:
        assert rig.producers.to_json()["scanned_bytes"] == rig.store.max_log_offset
        assert await repeated(rig, numbered_run(bodies(18, 3), 18)) == (3, 18)


# --- another broker


async def test_what_another_broker_appends_is_no_producers(tmp_path: Path) -> None:
    async with life(tmp_path) as rig:
        await seven_runs(rig)
    other = open_store(tmp_path / "store")
    other.append(make_run(TOPIC, 0, [b"another's"] * 3))
    other.close()

    async with life(tmp_path) as rig:
        assert rig.producers.unknown_before is None
        assert await repeated(rig, numbered_run(bodies(18, 3), 18)) == (3, 18)
        assert await repeated(rig, numbered_run(bodies(21, 1), 21)) == (0, 24)


async def test_what_another_broker_cut_from_the_log_is_not_taken_for_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with life(tmp_path) as rig:
        await seven_runs(rig)
        await rig.send(numbered_run([b"lost"], 21))
    cut_log(tmp_path, b"lost")
    other = open_store(tmp_path / "store")
    other.append(make_run(TOPIC, 0, [b"another's"] * 9))
    other.close()

    with caplog.at_level(logging.WARNING):
        async with life(tmp_path) as rig:
            assert await repeated(rig, numbered_run([b"lost"], 21)) == (0, 30)
            assert bodies_of(rig.store, TOPIC, 0)[-1] == b"lost"

    assert "producers file is of another log" in caplog.text


# --- bounds


async def test_too_many_producers_are_forgotten_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with life(tmp_path, producers_max=2) as rig:
        for producer_id in range(1, 5):
            await rig.send(numbered_run(bodies(0, 1), 0, producer_id=producer_id))
        rig.producers.tick()

        assert len(rig.producers.sequences) == 2
        assert isinstance(
            await rig.refusal(numbered_run(bodies(1, 1), 1, producer_id=1)), UnknownProducer
        )
        assert await repeated(rig, numbered_run(bodies(0, 1), 0, producer_id=4)) == (1, 3)

    assert "producers forgotten early count=2" in caplog.text


async def test_an_idle_producer_is_forgotten(tmp_path: Path) -> None:
    async with life(tmp_path, producer_expiry_ms=60_000) as rig:
        await rig.send(numbered_run(bodies(0, 1), 0))
        await rig.clock.advance(60_000)
        rig.producers.tick()

        assert len(rig.producers.sequences) == 0


@pytest.mark.parametrize("kill", [True, False], ids=["kill", "clean stop"])
@pytest.mark.parametrize("step_ms", [-86_400_000, 86_400_000])
async def test_a_producer_is_as_idle_however_the_wall_clock_is_set(
    tmp_path: Path, step_ms: int, kill: bool
) -> None:
    async with life(tmp_path, kill=kill, producer_expiry_ms=60_000) as rig:
        await rig.send(numbered_run(bodies(0, 1), 0))
        rig.clock.step(step_ms)
        await rig.clock.advance(40_000)
        rig.producers.tick()
        assert len(rig.producers.sequences) == 1
        await rig.send(numbered_run(bodies(1, 1), 1))
        await rig.clock.advance(59_999)
        rig.producers.tick()
        assert len(rig.producers.sequences) == 1
        await rig.clock.advance(1)
        rig.producers.tick()
        assert len(rig.producers.sequences) == 0


async def test_a_clock_that_was_set_back_between_two_runs_keeps_a_producer_no_longer(
    tmp_path: Path,
) -> None:
    async with life(tmp_path, producer_expiry_ms=60_000) as rig:
        rig.clock.step(86_400_000)
        await rig.send(numbered_run(bodies(0, 1), 0))

    async with life(tmp_path, producer_expiry_ms=60_000) as rig:
        await rig.clock.advance(59_999)
        rig.producers.tick()
        assert len(rig.producers.sequences) == 1
        await rig.clock.advance(1)
        rig.producers.tick()
        assert len(rig.producers.sequences) == 0
