"""Offsets of groups in two files: a Java broker with enableLmq writes lmqConsumerOffset.json instead of the other."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pocketmq.proto.errors import CorruptState
from pocketmq.store.format.java_json import parse
from pocketmq.store.format.state_tables import (
    ConsumerOffsets,
    DataVersion,
    parse_consumer_offsets,
    render_consumer_offsets,
)
from pocketmq.store.offsets_file import LMQ_OFFSETS_FILE, OFFSETS_FILE, OffsetsFile, offsets_file
from pocketmq.store.os_disk import OsDisk

from ..recorded import unpacked

NOW_S = 1_700_000_000


def write(
    root: Path, name: str, offset: int, *, version: tuple[int, int] = (0, 0), age_s: int = 0
) -> None:
    """Write the file NAME of a store, of VERSION (time and counter), whose one group stands at OFFSET."""
    table = ConsumerOffsets(DataVersion(version[1], 0, version[0]), {"T@G": {0: offset}})
    path = root / "config" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(render_consumer_offsets(table))
    os.utime(path, (NOW_S - age_s, NOW_S - age_s))


def stands_at(root: Path) -> int:
    loaded = OffsetsFile(OsDisk(), str(root)).load(parse_consumer_offsets)
    assert loaded.value is not None
    return loaded.value.offsets["T@G"][0]


@pytest.mark.parametrize(
    ("plain", "lmq", "expected"),
    [
        ({}, None, 1),
        (None, {}, 2),
        ({"age_s": 3_600}, {}, 2),
        ({}, {"age_s": 3_600}, 1),
        # Out of use for an hour, though its broker had counted more changes.
        ({"age_s": 3_600, "version": (9, 9)}, {"version": (5, 0)}, 2),
        ({"version": (9, 9)}, {"version": (5, 0), "age_s": 3_600}, 1),
        # Copied, in any order.
        ({"version": (5, 1)}, {"version": (5, 2), "age_s": 4}, 2),
        ({"version": (6, 1), "age_s": 4}, {"version": (5, 2)}, 1),
        # Switched a moment ago.
        ({"age_s": 7}, {}, 2),
        ({}, {"age_s": 7}, 1),
        ({}, {}, 1),
    ],
)
def test_the_newer_file_is_read(
    plain: dict[str, object] | None, lmq: dict[str, object] | None, expected: int, tmp_path: Path
) -> None:
    for name, given, offset in ((OFFSETS_FILE, plain, 1), (LMQ_OFFSETS_FILE, lmq, 2)):
        if given is not None:
            write(tmp_path, name, offset, **given)  # type: ignore[arg-type]

    assert stands_at(tmp_path) == expected


def test_both_are_written_and_what_only_the_second_has_stays(tmp_path: Path) -> None:
    write(tmp_path, LMQ_OFFSETS_FILE, 2)
    path = tmp_path / "config" / LMQ_OFFSETS_FILE
    path.write_text(path.read_text().rstrip()[:-1] + ',"lmqOffsetTable":{"T@%LMQ%g":{0:5}}}')
    file = OffsetsFile(OsDisk(), str(tmp_path))
    assert file.load(parse_consumer_offsets).value is not None
    table = ConsumerOffsets(DataVersion(1, 0, 1), {"T@G": {0: 7}})

    for _ in range(2):
        file.save([render_consumer_offsets(table)])

    for name in (OFFSETS_FILE, LMQ_OFFSETS_FILE):
        text = (tmp_path / "config" / name).read_text()
        assert parse_consumer_offsets(text) == table
    document = parse(path.read_text())
    assert isinstance(document, dict)
    assert document["lmqOffsetTable"] == {"T@%LMQ%g": {0: 5}}
    assert stands_at(tmp_path) == 7


def test_without_the_second_file_none_is_made(tmp_path: Path) -> None:
    file = OffsetsFile(OsDisk(), str(tmp_path))
    assert file.load(parse_consumer_offsets).value is None

    file.save(render_consumer_offsets(ConsumerOffsets()))

    assert [one.name for one in (tmp_path / "config").iterdir()] == [OFFSETS_FILE]


def test_a_newer_file_that_cannot_be_read_is_no_reason_to_take_the_older(tmp_path: Path) -> None:
    write(tmp_path, OFFSETS_FILE, 1, age_s=3_600)
    (tmp_path / "config" / LMQ_OFFSETS_FILE).write_text("{")

    with pytest.raises(CorruptState, match="lmqConsumerOffset"):
        stands_at(tmp_path)


def test_an_older_file_that_cannot_be_read_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, OFFSETS_FILE, 1)
    (tmp_path / "config" / LMQ_OFFSETS_FILE).write_text("{")
    os.utime(tmp_path / "config" / LMQ_OFFSETS_FILE, (NOW_S - 3_600, NOW_S - 3_600))
    file = OffsetsFile(OsDisk(), str(tmp_path))

    loaded = file.load(parse_consumer_offsets)
    assert loaded.value is not None
    file.save(render_consumer_offsets(loaded.value))

    text = (tmp_path / "config" / LMQ_OFFSETS_FILE).read_text()
    assert parse_consumer_offsets(text).offsets == {"T@G": {0: 1}}


def test_a_store_of_apaches_broker_with_light_queues_keeps_its_offsets(tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(unpacked("lite-topics") / "lite-topics", root)

    assert offsets_file(OsDisk(), str(root)) == LMQ_OFFSETS_FILE
    loaded = OffsetsFile(OsDisk(), str(root)).load(parse_consumer_offsets)
    assert loaded.value is not None
    assert loaded.value.offsets["%LMQ%$LiteChat$bob@G_excl"] == {0: 12}
