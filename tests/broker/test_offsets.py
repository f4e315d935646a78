"""What groups have finished, and the file that keeps it."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from pocketmq.broker.callbacks import Safe
from pocketmq.broker.offsets import Offsets
from pocketmq.proto.errors import DiskFailure, MasterFenced, PocketMQError, StoreError
from pocketmq.store.disk import Disk
from pocketmq.store.format.java_json import render_numbers
from pocketmq.store.format.state_tables import (
    ConsumerOffsets,
    parse_consumer_offsets,
    render_consumer_offsets,
)
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ..fakes import FaultyDisk
from ..recorded import recorded_store
from ..runs import Device, Hand


def offsets_at(path: Path, disk: Disk | None = None) -> Offsets:
    """Return the offsets that a broker on the store at PATH has."""
    return Offsets(StateFile(disk or OsDisk(), str(path), "consumerOffset.json"), Hand())


def file_of(path: Path) -> Path:
    return path / "config" / "consumerOffset.json"


def test_what_was_never_committed_is_none(tmp_path: Path) -> None:
    assert offsets_at(tmp_path).committed("T", "g", 0) is None


def test_offsets_are_there_after_a_save_and_a_restart(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    offsets.commit("T", "g", 0, 5)
    offsets.commit("T", "g", 3, 7)
    offsets.commit("T", "g", 0, 4)  # Going back is the group's own business.
    offsets.commit("U", "g", 0, 1)
    offsets.commit("T", "other", 0, 9)
    offsets.save()

    again = offsets_at(tmp_path)

    assert again.of_group("g") == [("T", 0, 4), ("T", 3, 7), ("U", 0, 1)]
    assert again.committed("T", "other", 0) == 9


def test_the_file_has_apaches_shape(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    offsets.commit("T", "g", 0, 5)
    offsets.save()

    text = file_of(tmp_path).read_text()

    assert '"T@g":{\n\t\t\t0:5\n\t\t}' in text
    assert parse_consumer_offsets(text).offsets == {"T@g": {0: 5}}


def test_nothing_is_written_when_nothing_was_committed(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    offsets.save()
    assert not file_of(tmp_path).exists()

    offsets.commit("T", "g", 0, 5)
    offsets.save()
    file_of(tmp_path).unlink()
    offsets.save()

    assert not file_of(tmp_path).exists()


def test_the_version_counts_every_500_commits(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    for number in range(1_499):
        offsets.commit("T", "g", 0, number)
    offsets.save()

    assert parse_consumer_offsets(file_of(tmp_path).read_text()).version.counter == 2


def test_a_save_that_fails_is_made_up_for(tmp_path: Path) -> None:
    disk = FaultyDisk()
    offsets = offsets_at(tmp_path, disk)
    offsets.commit("T", "g", 0, 5)
    disk.break_writes("consumerOffset")
    with pytest.raises(DiskFailure):
        offsets.save()
    disk.heal()

    offsets.save()

    assert offsets_at(tmp_path).committed("T", "g", 0) == 5


def test_topics_and_groups_are_forgotten_with_their_offsets(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    for topic, group in (("T", "g"), ("T", "h"), ("U", "g"), ("U", "h")):
        offsets.commit(topic, group, 0, 1)
        offsets.pulled(topic, group, 0, 1)

    offsets.forget_topic("T")
    offsets.forget_group("g")
    offsets.save()

    table = parse_consumer_offsets(file_of(tmp_path).read_text())
    assert list(table.offsets) == list(table.pull_offsets) == ["U@h"]


def test_a_topic_is_forgotten_with_the_offsets_in_its_lite_topics(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    for topic in ("%LMQ%$T$bob", "%LMQ%$TT$bob", "%LMQ%$U$T"):
        offsets.commit(topic, "g", 0, 1)

    offsets.forget_topic("T")

    assert [topic for topic, *_ in offsets.of_group("g")] == ["%LMQ%$TT$bob", "%LMQ%$U$T"]


def test_only_a_group_that_commits_is_noted_as_pulling(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    offsets.commit("T", "g", 0, 1)
    offsets.pulled("T", "g", 0, 3)
    offsets.pulled("T", "no such group", 0, 3)
    offsets.save()

    table = parse_consumer_offsets(file_of(tmp_path).read_text())
    assert table.pull_offsets == {"T@g": {0: 3}}


class TestSavingBehindTheLog:
    """Offsets may rely on copies in the log: these are on the device first."""

    def test_the_file_follows_when_the_log_is_synced(self, tmp_path: Path) -> None:
        offsets = offsets_at(tmp_path)
        synced: list[Safe] = []
        offsets.commit("T", "g", 0, 5)

        offsets.save_after_sync(synced.append)
        offsets.commit("T", "g", 0, 6)

        assert not file_of(tmp_path).exists()
        synced[0](None)
        assert offsets_at(tmp_path).committed("T", "g", 0) == 5
        offsets.save_after_sync(synced.append)
        synced[1](None)
        assert offsets_at(tmp_path).committed("T", "g", 0) == 6

    def test_a_save_at_a_stop_does_not_wait_and_is_not_undone(self, tmp_path: Path) -> None:
        offsets = offsets_at(tmp_path)
        synced: list[Safe] = []
        offsets.commit("T", "g", 0, 5)
        offsets.save_after_sync(synced.append)

        offsets.save()

        assert offsets_at(tmp_path).committed("T", "g", 0) == 5
        offsets.commit("T", "g", 0, 6)
        offsets.save()
        synced[0](None)
        assert offsets_at(tmp_path).committed("T", "g", 0) == 6

    def test_a_master_that_is_fenced_is_no_error_of_the_device(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        offsets = offsets_at(tmp_path)
        synced: list[Safe] = []
        offsets.commit("T", "g", 0, 5)
        offsets.save_after_sync(synced.append)

        synced[0](MasterFenced("replica 1 is master no more", epoch="2"))

        assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
        offsets.save()
        assert offsets_at(tmp_path).committed("T", "g", 0) == 5, "they stand in the table still"

    def test_a_sync_that_failed_is_tried_again(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        offsets = offsets_at(tmp_path)
        synced: list[Safe] = []
        offsets.commit("T", "g", 0, 5)
        offsets.save_after_sync(synced.append)

        synced[0](DiskFailure("cannot sync", path="log"))

        assert "offsets not saved reason=cannot sync" in caplog.text
        assert not file_of(tmp_path).exists()
        offsets.save_after_sync(synced.append)
        synced[1](None)
        assert offsets_at(tmp_path).committed("T", "g", 0) == 5


def test_a_file_of_apaches_broker_is_written_as_its_table_renders(tmp_path: Path) -> None:
    file = file_of(recorded_store("consumption", tmp_path / "store"))
    before = file.read_text()
    offsets = offsets_at(tmp_path / "store")
    key, queues = next(iter(parse_consumer_offsets(before).offsets.items()))
    topic, _, group = key.partition("@")
    queue, offset = next(iter(queues.items()))

    offsets.commit(topic, group, queue, offset)
    offsets.save()

    assert file.read_text() == render_consumer_offsets(parse_consumer_offsets(before))
    assert file.with_name(f"{file.name}.bak").read_text() == before


class Saving:
    """Seeded changes of offsets that a device saves when it is told to, on a disk that fails at times."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.path = path
        self.disk = FaultyDisk()
        self.saver = Device()
        self.offsets = offsets_at(path, self.disk)
        self.offsets.start(self.saver, lambda function: function())
        self.syncs: list[Safe] = []

    def change(self) -> None:
        topic, group = f"T{self.chance.randrange(4)}", f"g{self.chance.randrange(3)}"
        match self.chance.randrange(10):
            case 0:
                self.offsets.forget_topic(topic)
            case 1:
                self.offsets.forget_group(group)
            case 2:
                self.offsets.pulled(topic, group, 0, self.chance.randrange(99))
            case queue:
                self.offsets.commit(topic, group, queue, self.chance.randrange(99))

    def save(self) -> None:
        match self.chance.randrange(5):
            case 0:
                self.offsets.save_after_sync(self.syncs.append)
            case 1 if self.syncs:
                failure = DiskFailure("cannot sync", path="log")
                self.syncs.pop(0)(self.chance.choice([None, failure]))
            case 2:
                self.disk.break_writes("consumerOffset")
                assert self.saved() is not None
                self.disk.heal()
            case 3:
                assert self.saved() is None
                assert file_of(self.path).read_text() == self.whole()
            case _:
                self.saver.do_next()

    def saved(self) -> PocketMQError | None:
        """Commit something, and return what whoever waits for the save is told."""
        told: list[PocketMQError | None] = []
        self.offsets.commit("T0", "g0", 0, self.chance.randrange(99))
        self.offsets.when_saved(told.append)
        while self.saver.jobs:
            self.saver.do_next()
        (error,) = told
        return error

    def whole(self) -> str:
        """Return the text of the whole table."""
        offsets = self.offsets
        tables = offsets._offsets.entries, offsets._pull_offsets.entries
        return render_consumer_offsets(ConsumerOffsets(offsets._version, *tables))


@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_changes_saves_and_failures_leaves_the_text_of_the_whole_table(
    seed: int, tmp_path: Path
) -> None:
    saving = Saving(tmp_path, seed)
    for _ in range(300):
        saving.change()
        if saving.chance.random() < 0.4:
            saving.save()


def test_whoever_waits_is_told_when_the_saver_has_written(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    saver = Device()
    offsets.start(saver, lambda function: function())
    told: list[PocketMQError | None] = []
    offsets.commit("T", "g", 0, 5)

    offsets.when_saved(told.append)
    offsets.commit("T", "g", 0, 6)
    offsets.when_saved(told.append)

    assert told == []
    assert not file_of(tmp_path).exists()
    saver.do_next()
    assert (told, offsets_at(tmp_path).committed("T", "g", 0)) == ([None], 5)
    saver.do_next()
    assert (told, offsets_at(tmp_path).committed("T", "g", 0)) == ([None, None], 6)
    offsets.when_saved(told.append)
    assert told == [None, None, None]


class HalfFlushedLog:
    """A log of which 50 bytes are on disk; a sync is asked for and ends in `sync`."""

    def __init__(self) -> None:
        self.flushed_offset = 50
        self.waiting: list[tuple[int, Safe]] = []

    def request_sync(self, end_offset: int, waiter: Safe) -> None:
        self.waiting.append((end_offset, waiter))

    def sync(self) -> None:
        for end, waiter in self.waiting:
            self.flushed_offset = max(self.flushed_offset, end)
            waiter(None)


def test_offsets_that_depend_on_the_log_are_saved_after_it(tmp_path: Path) -> None:
    log = HalfFlushedLog()
    file = StateFile(OsDisk(), str(tmp_path), "consumerOffset.json")
    offsets = Offsets(file, Hand(), log=log)
    told: list[PocketMQError | None] = []
    offsets.commit("T", "g", 0, 5)
    offsets.follow_log(70)

    offsets.when_saved(told.append)
    assert told == []
    assert not file_of(tmp_path).exists()
    with pytest.raises(StoreError, match="depend on the log before 70, of which only 50"):
        offsets.save()
    log.sync()

    assert told == [None]
    assert offsets_at(tmp_path).committed("T", "g", 0) == 5


def test_whoever_waits_for_a_save_that_fails_is_told_and_it_is_made_up_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk()
    offsets = offsets_at(tmp_path, disk)
    told: list[PocketMQError | None] = []
    offsets.commit("T", "g", 0, 5)
    disk.break_writes("consumerOffset")

    offsets.when_saved(told.append)

    assert isinstance(told[0], DiskFailure)
    assert "offsets not saved" in caplog.text
    disk.heal()
    offsets.when_saved(told.append)
    assert told[1:] == [None]
    assert offsets_at(tmp_path).committed("T", "g", 0) == 5


def test_a_save_renders_what_changed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[str] = []

    def render(key: str, numbers: Mapping[int, int], level: int) -> str:
        rendered.append(key)
        return render_numbers(key, numbers, level)

    monkeypatch.setattr("pocketmq.broker.offsets.render_numbers", render)
    offsets = offsets_at(tmp_path)
    for number in range(100):
        offsets.commit(f"T{number}", "g", 0, 5)
    offsets.save()
    assert len(rendered) == 100
    rendered.clear()

    offsets.commit("T7", "g", 1, 6)
    offsets.save()

    assert rendered == ["T7@g"]
    assert len(parse_consumer_offsets(file_of(tmp_path).read_text()).offsets) == 100
