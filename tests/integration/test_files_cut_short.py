"""Any file of a broker's store may be empty or too short after a power cut or a copy: the broker starts anyway."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path
from typing import Final

import pytest

from pocketmq.client import Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from pocketmq.proto.errors import CorruptState
from pocketmq.tools.testing import LocalBroker
from pocketmq.tools.testing.servers import BrokerOptions

from .. import served

pytestmark = pytest.mark.long

SIZES = {
    "log_file_size_bytes": 1 << 16,
    "queue_file_size_bytes": 2_000,
    "index_slots": 500,
    "index_entries": 300,
    "timer_log_file_size_bytes": 1 << 14,
}
COUNT = 500
#: A seed decides which files are cut after a clean stop and which after a kill. `make campaign` cuts each after both.
CUT_AFTER_BOTH: Final = bool(os.environ.get("CUT_AFTER_BOTH"))


def options() -> BrokerOptions:
    return BrokerOptions(store=SIZES, broker={"grpc": served.chosen()})


def fill(broker: LocalBroker) -> None:
    """Leave files of every kind: log, queues, index, timers, levels, progress, deliveries, statistics."""
    broker.create_topic("T", queues=2)
    broker.create_topic("Later", queues=1)
    broker.create_group("G")
    with Producer(broker.nameserver) as producer:
        for number in range(COUNT):
            producer.send(Message("T", b"%d" % number * 30, keys=[f"k{number}"]))
        producer.send_many("Later", [b"%d" % number * 30 for number in range(150)], delay="10h")
        producer.send("Later", b"level", delay_level=18)
        producer.send("Failing", b"message")
    with PullConsumer("G", "T", broker.nameserver) as consumer:
        consumer.poll(50, 5_000)
        consumer.commit()
    failed = threading.Event()

    def fail(message: ReceivedMessage) -> None:
        failed.set()
        raise ValueError(message.message_id)

    with PushConsumer("P", "Failing", fail, broker.nameserver):
        assert failed.wait(60)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("good")
    with LocalBroker(home, options()) as broker:
        fill(broker)
    return home


def files_of(home: Path) -> list[Path]:
    return sorted(one.relative_to(home) for one in home.rglob("*") if one.is_file())


def is_chosen(name: Path, lost: str, was_killed: bool) -> bool:
    """Is the file NAME cut in this state of the broker? In one of the two states, unless all are cut in both."""
    return CUT_AFTER_BOTH or random.Random(f"{lost} {name}").choice((False, True)) == was_killed


@pytest.mark.parametrize("was_killed", [False, True])
@pytest.mark.parametrize("lost", ["all", "one byte", "one page"])
def test_a_broker_starts_with_any_file_cut_short(
    lost: str, was_killed: bool, good: Path, tmp_path: Path
) -> None:
    for number, name in enumerate(files_of(good)):
        if not is_chosen(name, lost, was_killed):
            continue
        home = tmp_path / str(number)
        shutil.copytree(good, home)
        size = (home / name).stat().st_size
        left = {"all": 0, "one byte": size - 1, "one page": size - 4096}[lost]
        if left < 0:
            continue
        os.truncate(home / name, left)
        if was_killed:
            (home / "store/abort").write_text("1")
        # A table of which a part is left, and no backup, is not guessed at.
        is_table = name.parent.name == "config" and left and not (good / f"{name}.bak").exists()
        for _ in range(2):
            try:
                with LocalBroker(home, options()) as broker:
                    found = len(broker.messages("T"))
                    assert found == COUNT or name.parts[1] == "commitlog", (name, left)
            except CorruptState:
                assert is_table, name
        shutil.rmtree(home)
