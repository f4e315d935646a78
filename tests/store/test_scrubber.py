"""The scrubber: damage is found before anybody reads it, at the pace that was set, and what was verified is noted."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.messages.filters import TagChoice
from pocketmq.proto.record_run import LEAST_SIZE
from pocketmq.proto.topics import SCHEDULE_TOPIC
from pocketmq.store.format.state_tables import TopicConfig, TopicTable, render_topics
from pocketmq.store.message_store import MessageStore
from pocketmq.store.scrub_notes import ScrubNotes
from pocketmq.store.scrubber import PIECE_BYTES, ROUND_MS

from ..damage import BODY_AT, flip, log_offset_of
from ..runs import Hand, bodies_of, make_run, open_store

COUNT = 60


def filled(path: Path, clock: Hand, **settings: Any) -> MessageStore:
    """Return a store of several log files."""
    store = open_store(path, now_ms=clock, **settings)
    for number in range(COUNT):
        store.append(make_run("T", 0, [b"body %04d" % number], {"KEYS": f"k{number}"}))
        store.append(make_run("U", number % 3, [b"another %d" % number]))
    assert len(store.log.files.files) > 2
    return store


def ticked(store: MessageStore, clock: Hand, seconds: int) -> None:
    for _ in range(seconds):
        clock.now_ms += 1_000
        store.scrubber.tick(clock.now_ms)


def noted(path: Path) -> dict[str, Any]:
    files: dict[str, Any] = json.loads((path / "pocketmq/scrubbed.json").read_text())["files"]
    return files


def test_every_file_is_noted_with_when_and_how_far(tmp_path: Path) -> None:
    clock = Hand()
    store = filled(tmp_path, clock)
    begin_ms = clock.now_ms

    ticked(store, clock, 60)

    notes = noted(tmp_path)
    assert list(notes) == [file.name for file in store.log.files.files]
    assert [row["size_bytes"] for row in notes.values()] == [
        file.position for file in store.log.files.files
    ]
    assert all(begin_ms < row["verified_ms"] <= clock.now_ms for row in notes.values())
    assert all(row["damaged"] == 0 for row in notes.values())
    assert store.damages.count == 0
    store.close()


@pytest.mark.parametrize("number", [0, 30, COUNT - 1])
def test_a_changed_body_is_set_aside_before_it_is_read(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Hand()
    store = filled(tmp_path, clock)
    at = log_offset_of(store, number)
    flip(store, at)

    ticked(store, clock, 60)

    assert store.damages.count == 1
    assert (tmp_path / "pocketmq/broken" / f"log-{at:020d}").exists()
    [told] = [one.args for one in caplog.records if "damaged record found" in one.message]
    assert isinstance(told, dict)
    assert told["queue_offset"] == number
    assert sum(row["damaged"] for row in noted(tmp_path).values()) == 1
    assert store.read_queue("T", 0, number, 1, 1 << 20, check_crcs=False).lost == 1
    store.close()


def test_a_changed_queue_entry_is_made_again(tmp_path: Path) -> None:
    clock = Hand()
    store = filled(tmp_path, clock)
    queue = store.queues.get("T", 0)
    assert queue is not None
    place = queue.files.file_at(30 * 20)
    assert place is not None
    right = log_offset_of(store, 30)
    place.put(30 * 20 - place.start, (right ^ 64).to_bytes(8, "big"))
    assert log_offset_of(store, 30) != right

    ticked(store, clock, 60)

    assert log_offset_of(store, 30) == right
    store.close()


@pytest.mark.parametrize("bit", [0, 30, 31, 32, 63])
def test_a_changed_tags_code_is_made_again_before_a_filter_goes_by_it(
    tmp_path: Path, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Hand()
    store = open_store(tmp_path, now_ms=clock)
    for number in range(COUNT):
        store.append(make_run("T", 0, [b"%d" % number], {"TAGS": f"t{number % 2}"}))
    queue = store.queues.get("T", 0)
    assert queue is not None
    place = queue.files.file_at(30 * 20)
    assert place is not None
    at = 30 * 20 + 12 - place.start
    place.put(at, (int.from_bytes(place.mapping.read(at, 8)) ^ (1 << bit)).to_bytes(8))
    wanted = TagChoice(("t0",)).candidates
    seen = store.read_queue("T", 0, 30, 1, 1 << 20, wanted)
    # Filters look closer where a code is none.
    assert seen.queue_offsets.tolist() == ([32] if bit < 31 else [30])

    ticked(store, clock, 60)

    seen = store.read_queue("T", 0, 30, 1, 1 << 20, wanted)
    assert seen.queue_offsets.tolist() == [30]
    assert store.lost_entries.count == 1
    assert "queue entry contradicted the log, repaired" in caplog.text
    store.close()


def test_times_in_entries_of_delay_levels_are_left_alone(tmp_path: Path) -> None:
    clock = Hand()
    store = open_store(tmp_path, now_ms=clock)
    for _ in range(COUNT):
        store.append(make_run(SCHEDULE_TOPIC, 2, [b"later"], {"DELAY": "3"}))
    queue = store.queues.get(SCHEDULE_TOPIC, 2)
    assert queue is not None
    times = queue.entries(0, COUNT)[2].tolist()

    ticked(store, clock, 60)

    assert queue.entries(0, COUNT)[2].tolist() == times
    assert store.lost_entries.count == 0
    store.close()


def test_batch_entries_that_contradict_the_log_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Hand()
    store = open_store(tmp_path, now_ms=clock)
    for number in range(COUNT):
        batch = {"INNER_BASE": str(number), "INNER_NUM": "1"}
        store.append(make_run("Batched", 0, [b"%d" % number], batch if number != 7 else {}))
    store.close()
    shutil.rmtree(tmp_path / "consumequeue/Batched")
    (tmp_path / "pocketmq/verified.json").unlink()
    topic = TopicConfig(name="Batched", attributes={"queue.type": "BatchCQ"})
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config/topics.json").write_text(
        render_topics(TopicTable(topics={"Batched": topic}))
    )
    store = open_store(tmp_path, now_ms=clock)
    queue = store.queues.get_batch("Batched", 0)
    assert queue is not None
    file = queue.files.files[0]
    ticked(store, clock, 60)
    assert "contradict the log" not in caplog.text

    file.put(20 * queue.entry_size, bytes(6) + b"\xff\xff")
    clock.now_ms += ROUND_MS
    ticked(store, clock, 60)

    [told] = [one.args for one in caplog.records if "contradict the log" in one.message]
    assert isinstance(told, dict)
    assert told["queue_offset"] == 21  # The seventh has no entry.
    store.close()


def test_a_queue_that_cannot_be_read_is_told_and_the_others_are_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Hand()
    store = filled(tmp_path, clock)
    for file in (tmp_path / "consumequeue/T/0").iterdir():
        os.truncate(file, 10)
    other = store.queues.get("U", 1)
    assert other is not None
    other.files.files[0].put(12, b"\x01")  # the tags code of its first message

    ticked(store, clock, 60)

    assert list(noted(tmp_path)) == [file.name for file in store.log.files.files]
    assert "queue entries not compared with the log" in caplog.text
    assert "was cut to 10 of" in caplog.text
    assert not other.entries(0, 1)[2].any()


def test_what_is_no_record_is_told_and_the_rest_is_verified(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Hand()
    store = filled(tmp_path, clock)
    flip(store, log_offset_of(store, 10), 4)  # its magic
    flip(store, log_offset_of(store, 12), BODY_AT)

    ticked(store, clock, 60)

    [told] = [one.args for one in caplog.records if "no record can be read" in one.message]
    assert isinstance(told, dict)
    assert told["log_offset"] == log_offset_of(store, 10)
    size_bytes = told["size_bytes"]
    assert isinstance(size_bytes, int)
    assert size_bytes >= LEAST_SIZE
    assert store.damages.count == 1
    assert sum(row["damaged"] for row in noted(tmp_path).values()) == 2
    assert len(noted(tmp_path)) == len(store.log.files.files)
    store.close()


def test_a_device_that_cannot_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Hand()
    store = filled(tmp_path, clock)
    mapping = store.log.files.files[1].mapping

    read = type(mapping).read

    def failing(self: Any, at: int, size: int) -> bytes:
        if self is mapping:
            raise OSError(5, "Input/output error")
        return bytes(read(self, at, size))

    monkeypatch.setattr(type(mapping), "read", failing)
    ticked(store, clock, 60)

    assert "read error" in caplog.text
    assert [row["damaged"] for row in noted(tmp_path).values()][:3] == [0, 1, 0]
    monkeypatch.undo()
    store.close()


def test_it_keeps_to_its_pace(tmp_path: Path) -> None:
    clock = Hand()
    store = open_store(
        tmp_path, now_ms=clock, log_file_size_bytes=4 << 20, scrub_bytes_per_s=100_000
    )
    for _ in range(30):
        store.append(make_run("T", 0, [b"x" * 100_000]))
    ticked(store, clock, 1)

    for _ in range(100):
        clock.now_ms += 10
        store.scrubber.tick(clock.now_ms)
    assert 0 < store.scrubber.read_bytes <= 100_000 + PIECE_BYTES

    ticked(store, clock, 20)
    assert 1_900_000 <= store.scrubber.read_bytes <= 2_200_000 + PIECE_BYTES
    store.close()


def test_zero_is_off(tmp_path: Path) -> None:
    clock = Hand()
    store = filled(tmp_path, clock, scrub_bytes_per_s=0)

    ticked(store, clock, 60)

    assert store.scrubber.read_bytes == 0
    assert not (tmp_path / "pocketmq/scrubbed.json").exists()
    store.close()


def test_each_file_is_verified_once_a_day_also_over_restarts(tmp_path: Path) -> None:
    clock = Hand()
    store = filled(tmp_path, clock)
    ticked(store, clock, 60)
    done = store.scrubber.read_bytes
    ticked(store, clock, 60)
    assert store.scrubber.read_bytes == done
    store.close()

    again = open_store(tmp_path, now_ms=clock)
    ticked(again, clock, 60)
    assert again.scrubber.read_bytes == 0
    clock.now_ms += ROUND_MS
    ticked(again, clock, 60)
    assert again.scrubber.read_bytes == done
    again.close()


def test_a_clock_that_is_set_back_costs_another_reading_and_nothing_else(tmp_path: Path) -> None:
    clock = Hand()
    store = filled(tmp_path, clock)
    ticked(store, clock, 60)
    done = store.scrubber.read_bytes

    clock.now_ms -= 3 * ROUND_MS
    ticked(store, clock, 60)

    assert store.scrubber.read_bytes == 2 * done
    store.close()


def test_files_that_are_gone_are_forgotten_and_notes_that_cannot_be_read_are_none(
    tmp_path: Path,
) -> None:
    clock = Hand()
    store = filled(tmp_path, clock)
    ticked(store, clock, 60)
    store.log.files.delete_leading(1)
    clock.now_ms += ROUND_MS
    ticked(store, clock, 60)
    assert list(noted(tmp_path)) == [file.name for file in store.log.files.files]

    for text in ("", "[]", '{"version": 1}', '{"version": 1, "files": {"a": {"x": 1}}}'):
        (tmp_path / "pocketmq/scrubbed.json").write_text(text)
        assert ScrubNotes.load(store.disk, str(tmp_path / "pocketmq")) == ScrubNotes()
    store.close()


def test_it_reads_on_a_thread_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Hand()
    store = filled(tmp_path, clock)
    flip(store, log_offset_of(store, 30))
    landed: list[Any] = []
    arrived = threading.Event()

    def call_owner(call: Any) -> None:
        landed.append((threading.current_thread().name, call))
        arrived.set()

    store.scrubber.start(call_owner)
    for _ in range(50):
        clock.now_ms += 1_000
        store.scrubber.tick(clock.now_ms)
        if store.scrubber._busy:
            assert arrived.wait(10)
        arrived.clear()
        while landed:
            name, call = landed.pop(0)
            assert name == "pocketmq-scrub"
            call()
    assert store.damages.count == 1
    assert bodies_of(store, "T", 0)[30] == b"body 0031"
    store.close()


def test_a_store_opened_for_reading_is_not_scrubbed(tmp_path: Path) -> None:
    clock = Hand()
    filled(tmp_path, clock).close()
    store = MessageStore.open(
        open_store(tmp_path / "other").config,
        disk=filled(tmp_path / "third", clock).disk,
        now_ms=clock,
        read_only=True,
    )

    ticked(store, clock, 10)

    assert store.scrubber.read_bytes == 0
