"""Progress is committed when it is safe, and stays bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.broker.messages.appender import Appender
from pocketmq.broker.offsets import Offsets
from pocketmq.broker.transactions import progress
from pocketmq.broker.transactions.progress import GROUP, Progress
from pocketmq.proto.topics import HALF_TOPIC, OP_HALF_TOPIC
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ...runs import Hand, make_run, open_store


class Stand:
    """Progress over a store of few messages."""

    def __init__(self, path: Path, halves: int, ops: int) -> None:
        self.store = open_store(path)
        for topic, count in ((HALF_TOPIC, halves), (OP_HALF_TOPIC, ops)):
            if count:
                self.store.append(make_run(topic, 0, [b"x"] * count))
        self.offsets = Offsets(StateFile(OsDisk(), str(path), "consumerOffset.json"), Hand())
        self.progress = Progress(self.store, self.offsets, Appender(self.store, lambda key: None))

    def committed(self) -> tuple[int | None, int | None]:
        return (
            self.offsets.committed(HALF_TOPIC, GROUP, 0),
            self.offsets.committed(OP_HALF_TOPIC, GROUP, 0),
        )


def test_it_begins_within_what_the_queues_hold(tmp_path: Path) -> None:
    stand = Stand(tmp_path, 5, 2)
    assert stand.progress.beginnings() == (0, 0)
    stand.offsets.commit(HALF_TOPIC, GROUP, 0, 3)
    stand.offsets.commit(OP_HALF_TOPIC, GROUP, 0, 9)
    assert stand.progress.beginnings() == (3, 2)
    stand.store.close()


def test_op_messages_are_done_when_all_they_tell_of_is(tmp_path: Path) -> None:
    stand = Stand(tmp_path, 6, 3)
    stand.progress.begin(0, 0)
    for number, halves in enumerate([[0, 1], [2, 5], [3]]):
        stand.progress.wrote_op(number, halves)
    seen = []
    for lowest in (1, 2, 5, 6):
        stand.progress.reached(lowest)
        stand.store.flush()
        stand.progress.close()
        seen.append(stand.committed())
    assert seen == [(1, None), (2, 1), (5, 1), (6, 3)]
    stand.store.close()


def test_nothing_is_committed_before_the_log_is_on_the_device(tmp_path: Path) -> None:
    stand = Stand(tmp_path, 2, 1)
    stand.progress.begin(0, 0)
    stand.progress.wrote_op(0, [0, 1])
    stand.progress.reached(1)
    stand.progress.reached(2)
    assert stand.committed() == (None, None)

    stand.progress._flushed(stand.store.max_log_offset - 1)
    assert stand.committed() == (None, None)
    stand.progress.close()
    assert stand.committed() == (2, 1)
    stand.store.close()


def test_the_number_of_op_messages_told_apart_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_OPS_MAX", 10)
    stand = Stand(tmp_path, 0, 0)
    for number in range(1_000):
        stand.progress.wrote_op(number, [number])
    ops = list(stand.progress._ops)
    assert len(ops) <= 11
    # Each stands for all up to the next one: it begins no later than the first op message that is needed.
    for lowest in range(1_000):
        needed = next((first for first, high in ops if high >= lowest), 1_000)
        assert needed <= lowest
    stand.store.close()
