"""What has a place in a queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.proto.errors import InvalidRecord
from pocketmq.proto.record import Record, encode_record
from pocketmq.proto.run import Run

from ..runs import open_store


def run_with(sys_flag: int) -> Run:
    run = Run.of("T", 0, [encode_record(Record(topic="T", body=b"a"))] * 3)
    run.columns.sys_flag[1] = sys_flag
    return run


@pytest.mark.parametrize("sys_flag", [0x4, 0xC, 0x20], ids=["prepared", "rollback", "store v6"])
def test_what_has_no_place_in_a_queue_is_refused_by_index(sys_flag: int, tmp_path: Path) -> None:
    store = open_store(tmp_path)

    with pytest.raises(InvalidRecord, match="record 1 of the run: sysFlag"):
        store.append(run_with(sys_flag))

    store.close()


def test_committed_and_plain_records_are_appendable(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    assert len(store.append(run_with(0x8))) == 3

    store.close()
