"""Power fails, or the process is killed, at any moment during atomic commits: each is whole or was never there.

A group reads queues that were written before, and commits what it read with a message for each. An administrator moves
it now and then. Which commits a crash may leave: those up to some moment, all that were answered among them. Then the
messages of these are there, each once, and no other; and the group is where these, and the administrator, have put
it. A seed decides everything; a failing case is replayed by its seed.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import OffsetMoved, PocketMQError
from pocketmq.store.disk import Disk
from pocketmq.store.os_disk import OsDisk

from ..broker.transactions.committing import GROUP, SOURCE, TARGET, Desk
from ..fake_calls import FakeCall
from ..fakes import Crash, RecordingDisk

QUEUES = 2
MESSAGES = 300


@dataclass
class Commit:
    """One that was asked for: what it says, who waits for the answer, whether its record was written."""

    name: str
    ends: dict[int, int]
    outputs: list[str]
    call: FakeCall
    is_decided: bool = False


@dataclass
class Reset:
    """An administrator's: where the group is to be; SAVED has its answer."""

    queue: int
    offset: int
    saved: list[PocketMQError | None]


class Traffic:
    """Seeded commits and resets, in the order in which they were asked for."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.events: list[Commit | Reset] = []
        self.number = 0
        #: Where the group was when the last crash was over.
        self.stood = dict.fromkeys(range(QUEUES), 0)

    def step(self, desk: Desk) -> None:
        choice = self.rng.random()
        if choice < 0.4:
            self.commit(desk)
        elif choice < 0.45:
            self.reset(desk)
        elif choice < 0.65:
            desk.flusher.do_next()
        elif choice < 0.8:
            desk.saver.do_next()
        elif choice < 0.9:
            desk.save()
        elif choice < 0.95:
            desk.send(["noise"] * self.rng.randint(1, 5), "noise")
        else:
            desk.store.request_sync(desk.store.max_log_offset, lambda error: None)

    def commit(self, desk: Desk) -> None:
        queues = self.rng.sample(range(QUEUES), self.rng.choice([1, 1, QUEUES]))
        name, self.number = f"c{self.number}", self.number + 1
        offsets, ends, outputs = {}, {}, []
        for queue in queues:
            stands_at = desk.committed(queue)
            begin = 0 if stands_at is None else stands_at
            ends[queue] = begin + self.rng.randint(1, 3)
            offsets[queue] = (-1 if stands_at is None else begin, ends[queue])
            outputs += [f"{name} {queue}.{offset}" for offset in range(begin, ends[queue])]
        by_queue: dict[tuple[str, int], list[str]] = {}
        for body in outputs:
            by_queue.setdefault((TARGET, self.rng.randrange(3)), []).append(body)
        commit = Commit(name, ends, outputs, FakeCall())
        # Before it is asked for: a crash inside the call may leave it all the same.
        self.events.append(commit)
        commit.call = desk.commit(name, offsets, by_queue)
        commit.is_decided = commit.name in {name for _, name in desk.commits._known}

    def reset(self, desk: Desk) -> None:
        queue = self.rng.randrange(QUEUES)
        reset = Reset(queue, self.rng.randint(0, 50), [])
        self.events.append(reset)
        desk.offsets.commit(SOURCE, GROUP, queue, reset.offset)
        desk.offsets.when_saved(reset.saved.append)

    # --- what a crash has left

    def check(self, desk: Desk, *, killed: bool) -> None:
        bodies = [body for queue in range(3) for body in self.bodies(desk, queue)]
        assert set(Counter(bodies).values()) <= {1}, "a message is there twice"
        names = {body.split()[0] for body in bodies}
        # While the first one of a run is prepared others may be asked for, which come too late.
        commits = [
            event
            for event in self.events
            if isinstance(event, Commit) and not isinstance(event.call.error, OffsetMoved)
        ]
        there = [commit for commit in commits if commit.name in names]
        for commit in there:
            assert set(commit.outputs) <= set(bodies), f"{commit.name} is not whole"
        assert there == commits[: len(there)], "one is missing between others"
        answered = [commit for commit in commits if commit.call.answers]
        assert len(there) >= len(answered), "one that was answered is missing"
        if killed:
            assert all(commit in there for commit in commits if commit.is_decided)
        for queue in range(QUEUES):
            assert (desk.committed(queue) or 0) in self.places(queue, there)

    def bodies(self, desk: Desk, queue: int) -> list[str]:
        low, high = desk.store.queue_bounds(TARGET, queue)
        return desk.bodies(TARGET, queue) if low < high else []

    def places(self, queue: int, there: list[Commit]) -> set[int]:
        """Return where the group may be in QUEUE after the commits that are THERE."""
        found = set()
        for event in reversed(self.events):
            if isinstance(event, Reset):
                if event.queue == queue:
                    found.add(event.offset)
                    if event.saved:
                        return found
            elif event in there and queue in event.ends:
                found.add(event.ends[queue])
                return found
        return found | {self.stood[queue]}

    def go_on(self, desk: Desk) -> None:
        """Take what is there now for what was there from the beginning."""
        bodies = {body for queue in range(3) for body in self.bodies(desk, queue)}
        for event in self.events:
            if isinstance(event, Commit) and event.outputs[0] in bodies:
                event.call.answers.append("seen")
        gone = [
            event
            for event in self.events
            if isinstance(event, Commit) and event.outputs[0] not in bodies
        ]
        self.events = [event for event in self.events if event not in gone]
        self.events += [Reset(queue, desk.committed(queue) or 0, [None]) for queue in range(QUEUES)]


def opened(path: Path, disk: Disk) -> Desk:
    made = Desk(path, disk, by_hand=True, clock=VirtualClock())
    made.start()
    return made


def prepared(home: Path) -> None:
    """Write what is read, and stop."""
    desk = Desk(home)
    desk.start()
    for topic in (SOURCE, TARGET, "noise"):
        desk.make_topic(topic)
    for queue in range(QUEUES):
        desk.send(["input"] * MESSAGES, queue=queue)
    desk.stop()


@pytest.mark.parametrize("seed", range(16))
def test_each_commit_is_whole_or_was_never_there(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    home = tmp_path / "0"
    home.mkdir()
    prepared(home)
    traffic = Traffic(seed)

    for number in range(1, 4):
        disk = RecordingDisk(str(home), seed * 100 + number)
        # The later ones may come while a start is at its work.
        disk.crash_after = traffic.rng.randint(5 if number > 1 else 40, 300)
        desk = None
        with suppress(Crash):
            desk = opened(home, disk)
            while not disk.crashed:
                traffic.step(desk)
        left = tmp_path / str(number)
        if killed := traffic.rng.random() < 0.4:
            shutil.copytree(home, left)
        else:
            disk.rebuild(str(left))
        home = left

        looked_at = tmp_path / f"{number} looked at"
        shutil.copytree(home, looked_at)
        desk = opened(looked_at, OsDisk())
        desk.sync()
        traffic.check(desk, killed=killed)
        stood = [desk.committed(queue) for queue in range(QUEUES)]
        desk.stop()
        desk = opened(looked_at, OsDisk())
        desk.sync()
        traffic.check(desk, killed=killed)
        assert stood == [desk.committed(queue) for queue in range(QUEUES)]
        traffic.go_on(desk)
        desk.stop()
