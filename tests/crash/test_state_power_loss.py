"""Power fails while a follower keeps what is next to the log: what was answered stays, no offset is above the log."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from pocketmq.broker.replication.file_stream import TOPICS_FILE
from pocketmq.proto.errors import PocketMQError
from pocketmq.store.offsets_file import OFFSETS_FILE

from ..broker.replication.state_pair import Follower, Link, Master, tables_at
from ..fakes import Crash, RecordingDisk
from ..runs import Hand, open_store


class Answered:
    """What a follower has reported to its master: topics with their queues, and how far group g is."""

    def __init__(self, master: Master) -> None:
        self.master = master
        self.topics: dict[str, int] = {}
        self.offset = 0

    def put_topic(self, name: str, queues: int) -> None:
        def told(error: PocketMQError | None) -> None:
            if error is None:
                self.topics[name] = max(self.topics.get(name, 0), queues)

        self.master.put_topic(name, queues)
        self.master.source.when_replicated(told, TOPICS_FILE)

    def commit(self, offset: int) -> None:
        def told(error: PocketMQError | None) -> None:
            if error is None:
                self.offset = max(self.offset, offset)

        self.master.offsets.commit("A", "g", 0, offset)
        self.master.source.when_replicated(told, OFFSETS_FILE)

    def check(self, folder: Path) -> None:
        """Check what is left in FOLDER."""
        found = tables_at(folder)
        queues = {name: topic.read_queues for name, topic in found["topics"].items()}
        assert all(queues.get(name, 0) >= least for name, least in self.topics.items())
        store = open_store(folder, replica=True)
        offset = found["offsets"]["offsetTable"].get("A@g", {}).get(0, 0)
        assert self.offset <= offset <= store.queue_bounds("A", 0)[1]
        store.close()


def live(link: Link, answered: Answered, rng: random.Random, steps: int) -> None:
    master = link.master
    for _ in range(steps):
        master.clock.now_ms += rng.choice([10, 150])
        match rng.randrange(6):
            case 0:
                answered.put_topic(f"T{rng.randrange(4)}", len(master.topics.entries) + steps)
            case 1:
                master.send(count=3)
            case 2:
                answered.commit(master.store.queue_bounds("A", 0)[1])
            case 3:
                link.change(master.clock.now_ms)
                link.deliver()
            case 4:
                link.feed(rng.randrange(1, 500))
            case 5:
                link.follower.sink.tick()
                link.follower.store.tick()
                link.acknowledge()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_what_was_answered_is_there_after_a_power_cut(seed: int, tmp_path: Path) -> None:
    rng, clock = random.Random(seed), Hand()
    master = Master(tmp_path / "master", clock)
    answered = Answered(master)
    home = tmp_path / "follower"
    home.mkdir()
    for life in range(4):
        disk = RecordingDisk(str(home), seed)
        disk.crash_after = rng.randint(20, 400)
        link: Link | None = None
        with contextlib.suppress(Crash):
            link = Link(master, Follower(home, clock, disk))
            live(link, answered, rng, 200)
            disk.crash_after = 0
            link.follower.sink.tick()
        if link is not None:
            link.cut()
        home = tmp_path / f"left by {life}"
        disk.rebuild(str(home))
        answered.check(home)
    link = Link(master, Follower(home, clock))
    link.settle()
    assert tables_at(home)["topics"] == master.topics.entries
    assert answered.topics
    link.follower.store.close()
