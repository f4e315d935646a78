"""Tables read for stories: the main file, else its backup, else a note."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.trace.evidence import Filter
from pocketmq.tools.trace.sources import ProgressTables

_OFFSETS = '{"offsetTable":{"T@g":{0:%d},"T@b@broadcast":{1:4}}}'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path / "config"


def tables(config: Path) -> tuple[ProgressTables, list[str]]:
    notes: list[str] = []
    return ProgressTables(OsDisk(), str(config.parent), notes), notes


def test_the_offsets_come_with_those_of_the_backup(config: Path) -> None:
    (config / "consumerOffset.json").write_text(_OFFSETS % 7)
    (config / "consumerOffset.json.bak").write_text(_OFFSETS % 5)

    found, notes = tables(config)
    readings = found.readings()

    (reading,) = readings["T", 0]
    assert (reading.group, reading.committed, reading.earlier) == ("g", 7, 5)
    assert readings["T", 1][0].group == "b@broadcast"
    assert notes == []


def test_a_broken_table_gives_way_to_its_backup_and_is_noted(config: Path) -> None:
    (config / "consumerOffset.json").write_text('{"offsetTable":{"T@g"')
    (config / "consumerOffset.json.bak").write_text(_OFFSETS % 5)

    found, notes = tables(config)
    (reading,) = found.readings()["T", 0]

    assert (reading.committed, reading.earlier) == (5, None)
    assert notes[0].startswith("cannot read ")
    assert "consumerOffset.json: " in notes[0]
    assert (config / "consumerOffset.json").exists()


def test_a_store_without_offsets_has_no_group_that_committed(config: Path) -> None:
    found, notes = tables(config)

    assert found.readings() == {}
    assert found.filters() == {}
    assert found.delay_progress() is None
    assert found.timer_checkpoint() is None
    assert notes == ["no group has committed offsets yet: the store has no consumerOffset.json"]


@pytest.mark.parametrize("data", ["", "[", "[1]"])
def test_offsets_that_cannot_be_read_are_not_taken_for_none(config: Path, data: str) -> None:
    (config / "consumerOffset.json").write_text(data)

    found, notes = tables(config)

    assert found.readings() == {}
    assert notes[-1] == "cannot read consumerOffset.json: the offsets of groups are not known"


@pytest.mark.parametrize("bad", ["null", "5", "[1]"])
def test_an_entry_that_cannot_be_read_hides_no_other(config: Path, bad: str) -> None:
    (config / "consumerOffset.json").write_text(
        f'{{"offsetTable":{{"T@bad":{bad},"T@g":{{0:7}}}}}}'
    )

    found, notes = tables(config)
    (reading,) = found.readings()["T", 0]

    assert (reading.group, reading.committed) == ("g", 7)
    (note,) = notes
    assert "consumerOffset.json: the entry 'T@bad' is left out: " in note


@pytest.mark.parametrize(
    "name",
    [
        "consumerOffset.json",
        "consumerFilter.json",
        "subscriptionGroup.json",
        "consumerOrderInfo.json",
    ],
)
@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"offsetTable":7}',
        b"{" * 5000,
        b'{"table":{"T@g":{"x":{"o":[1],"popTime":1},1:7,2:{"o":["a"]},3:{"o":[1],"cm":"x"}},"U":3}}',
    ],
)
def test_nonsense_in_a_table_is_no_error(config: Path, name: str, content: bytes) -> None:
    (config / name).write_bytes(content)

    found, _ = tables(config)

    assert found.readings() == {}
    assert found.filters() == {}
    assert found.held_in_order() == {}


def test_filters_stand_in_two_tables(config: Path) -> None:
    (config / "subscriptionGroup.json").write_text(
        '{"subscriptionGroupTable":{"h":{"groupName":"h","subscriptionDataSet":'
        '[{"expression":"A || B","expressionType":"TAG","topic":"T"},{"expression":"*","topic":"U"}]}}}'
    )
    (config / "consumerFilter.json").write_text(
        '{"filterDataByTopic":{"T":{"groupFilterData":{"s":{"consumerGroup":"s","expression":"a > 1",'
        '"expressionType":"SQL92","topic":"T"}}}}}'
    )

    found, _ = tables(config)

    assert found.filters() == {
        ("T", "h"): Filter("TAG", "A || B"),
        ("T", "s"): Filter("SQL92", "a > 1"),
    }
