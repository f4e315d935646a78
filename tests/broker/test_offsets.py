"""What groups have finished, and the file that keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.broker.offsets import Offsets, Safe
from pocketmq.proto.errors import DiskFailure
from pocketmq.store.disk import Disk
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile
from pocketmq.store.state_tables import parse_consumer_offsets

from ..fakes import FaultyDisk
from ..runs import Hand


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

        offsets.save_behind(synced.append)
        offsets.commit("T", "g", 0, 6)

        assert not file_of(tmp_path).exists()
        synced[0](None)
        assert offsets_at(tmp_path).committed("T", "g", 0) == 5
        offsets.save_behind(synced.append)
        synced[1](None)
        assert offsets_at(tmp_path).committed("T", "g", 0) == 6

    def test_a_save_at_a_stop_does_not_wait_and_is_not_undone(self, tmp_path: Path) -> None:
        offsets = offsets_at(tmp_path)
        synced: list[Safe] = []
        offsets.commit("T", "g", 0, 5)
        offsets.save_behind(synced.append)

        offsets.save()

        assert offsets_at(tmp_path).committed("T", "g", 0) == 5
        offsets.commit("T", "g", 0, 6)
        offsets.save()
        synced[0](None)
        assert offsets_at(tmp_path).committed("T", "g", 0) == 6

    def test_a_sync_that_failed_is_tried_again(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        offsets = offsets_at(tmp_path)
        synced: list[Safe] = []
        offsets.commit("T", "g", 0, 5)
        offsets.save_behind(synced.append)

        synced[0](DiskFailure("cannot sync", path="log"))

        assert "offsets not saved reason=cannot sync" in caplog.text
        assert not file_of(tmp_path).exists()
        offsets.save_behind(synced.append)
        synced[1](None)
        assert offsets_at(tmp_path).committed("T", "g", 0) == 5
