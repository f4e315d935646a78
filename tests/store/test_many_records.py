"""Passing over sound records by the column is the record by record recovery of Apache's model, only quicker."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import Host, Record, encode_record
from pocketmq.proto.record_run import RunColumns
from pocketmq.store.apache import sound_runs
from pocketmq.store.apache.records import RecordCheck
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.apache.sound_runs import SoundRuns
from pocketmq.store.opened_store import OpenedStore
from pocketmq.store.overlay_disk import OverlayDisk

from ..recorded import recorded_store, settings

pytestmark = pytest.mark.slow

HOSTS = (Host.parse("127.0.0.1", 1), Host.parse("::1", 2))


def everything(_: object, columns: RunColumns) -> Any:
    return np.ones(len(columns), np.bool_)


def strict(data: bytes, at: int) -> bool:
    return RecordCheck(ApacheSettings()).check(memoryview(data), at, crc=True).is_record


records = st.builds(
    lambda topic, body, properties, born, stored, kind: encode_record(
        Record(topic=topic, body=body, born_host=born, store_host=stored, sys_flag=kind),
        property_string=encode_properties(properties),
    ),
    st.sampled_from(["T", "Topic", "SCHEDULE_TOPIC_XXXX", "t" * 127, "t" * 200]),
    st.binary(max_size=40),
    st.dictionaries(
        st.sampled_from(["TAGS", "KEYS", "DELAY", "INNER_NUM", "INNER_BASE"]),
        st.sampled_from(["1", "3", "x", "99999999999999999999"]),
    ),
    st.sampled_from(HOSTS),
    st.sampled_from(HOSTS),
    st.sampled_from([0, 4, 8, 12]),
)


@given(
    st.lists(records, max_size=30),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=4),
    st.sampled_from([50, 300, 4 << 20]),
)
def test_every_record_of_a_run_is_one_that_apache_accepts(
    row: list[bytes], flips: list[tuple[int, int]], window_bytes: int
) -> None:
    data = bytearray(b"".join(row) + bytes(100))
    for at, bits in flips:
        data[at % len(data)] ^= bits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sound_runs, "WINDOW_BYTES", window_bytes)
        runs = SoundRuns(memoryview(data), ApacheSettings(), everything)
        at = 0
        while at < len(data):
            passed = runs.run_from(at)
            stop = at + 1 if passed is None else passed.end
            last = None
            while passed is not None and at < stop:
                assert strict(bytes(data), at)
                last, at = at, at + int.from_bytes(data[at : at + 4])
            if passed is not None:
                assert (last, at) == passed
            elif strict(bytes(data), at):
                at += int.from_bytes(data[at : at + 4])
            else:
                break


def test_ordinary_records_are_one_run() -> None:
    one = encode_record(Record(topic="T", body=b"body", properties={"TAGS": "a"}))
    data = memoryview(one * 1000)

    passed = SoundRuns(data, ApacheSettings(), everything).run_from(0)

    assert passed == (999 * len(one), 1000 * len(one))


def test_nothing_is_passed_over_where_every_record_must_have_a_property_crc() -> None:
    one = encode_record(Record(topic="T", body=b"body"))
    must = ApacheSettings(property_crc_required=True)

    assert SoundRuns(memoryview(one * 9), must, everything).run_from(0) is None


def state_of(root: Path, given_settings: dict[str, str]) -> dict[str, Any]:
    """Return what the model makes of the store ROOT."""
    index = {"indexFileWriteEnable": "false"}
    chosen = ApacheSettings.of(given_settings | index)
    store = OpenedStore.as_java(OverlayDisk(), str(root), chosen, 1_795_000_000_000).reading
    return {
        "log": (store.log_begin, store.log_end),
        "checkpoint": store.checkpoint,
        "queues": {
            key: (queue.min_offset, queue.max_offset, queue.max_log_offset)
            for key, queue in store.queues.items()
        },
    }


def flip(root: Path, chance: random.Random) -> None:
    """Flip a bit in one of the newest log files, and cut a queue."""
    path = chance.choice(sorted((root / "commitlog").iterdir())[-3:])
    with open(path, "r+b") as file:
        at = chance.randrange(1, path.stat().st_size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes((byte ^ 1 << chance.randrange(8),)))


def empty_a_queue_file(root: Path, chance: random.Random) -> None:
    path = chance.choice(sorted((root / "consumequeue").glob("*/*/*")))
    size = path.stat().st_size
    os.truncate(path, chance.randrange(size // 20) * 20)
    os.truncate(path, size)


@pytest.mark.parametrize("name", ["rolled", "unclean", "encodings", "delays", "transactions"])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_recovery_comes_to_the_same_with_and_without(
    name: str, clean: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = recorded_store(name, tmp_path / "store")
    chance = random.Random(name)
    changes: list[Callable[[Path, random.Random], None]] = [
        lambda *_: None,
        flip,
        empty_a_queue_file,
    ]
    (root / "abort").unlink(missing_ok=True)
    if not clean:
        (root / "abort").touch()
    for change in changes:
        change(root, chance)

        quick = state_of(root, settings(name))
        with monkeypatch.context() as patch:
            patch.setattr(SoundRuns, "run_from", lambda *_: None)
            slow = state_of(root, settings(name))

        assert quick == slow


def test_entered_records_are_passed_over_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = recorded_store("unclean", tmp_path / "store")
    checks: list[int] = []
    check = RecordCheck.check

    def counted(self: RecordCheck, data: memoryview, at: int, *, crc: bool) -> Any:
        checks.append(at)
        return check(self, data, at, crc=crc)

    monkeypatch.setattr(RecordCheck, "check", counted)

    state_of(root, settings("unclean"))

    assert len(checks) < 100  # the log files that are walked hold 1,300 records
