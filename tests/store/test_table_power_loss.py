"""Power fails at any operation on tables: what was durable stays, and nothing is ahead of the log.

Each property is checked with the journal as it is, and with one of its rules taken away: then a check must fail.
POCKETMQ_SEEDS=n tries n seeds, from POCKETMQ_SEED on.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.errors import StoreError
from pocketmq.store import table_files

from ..fakes import Crash, RecordingDisk
from .table_worlds import FakeLog, JsonTable, World

FIRST = int(os.environ.get("POCKETMQ_SEED", "1"))
COUNT = int(os.environ.get("POCKETMQ_SEEDS", "2"))
Rows = dict[tuple[str, str], Any]


class History:
    """What a run did, and what may be found after it.

    Values of `offsets` and `progress` are (end of the log, CRC of all before it): true or not, whatever was cut.
    """

    def __init__(self) -> None:
        self.topics: dict[str, list[int | None]] = {}
        self.safe_topics: dict[str, int] = {}
        #: The states of the ordered table, in order; those up to `safe_state` are on the device.
        self.deliveries: list[Rows] = [{}]
        self.safe_state = 0

    def durable(self, topics: dict[str, int], state: int) -> None:
        for name, index in topics.items():
            self.safe_topics[name] = max(self.safe_topics.get(name, 0), index)
        self.safe_state = max(self.safe_state, state)


class Traffic:
    """Seeded changes of a world."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.history = History()
        self.number = 0

    def step(self, world: World) -> None:
        self.number += 1
        steps: list[tuple[int, Callable[[World], None]]] = [
            (20, lambda world: world.log.grow()),
            (20, self._topic),
            (15, lambda world: self._put_mark(world, world.offsets)),
            (10, lambda world: self._put_mark(world, world.progress)),
            (15, self._deliver),
            (8, lambda world: world.journal.write(everything=self.rng.random() < 0.5)),
            (5, lambda world: world.journal.tick()),
            (3, self._wait),
            (4, lambda world: world.turns.run()),
        ]
        (chosen,) = self.rng.choices([one for _, one in steps], [weight for weight, _ in steps])
        chosen(world)

    def _topic(self, world: World) -> None:
        name = f"T{self.rng.randrange(4)}"
        value = None if self.rng.random() < 0.3 else self.number
        # Before the call: a crash in it may leave that behind.
        self.history.topics.setdefault(name, [None]).append(value)
        if value is None:
            world.topics.drop("", name)
        else:
            world.topics.put("", name, value)

    def _put_mark(self, world: World, table: JsonTable) -> None:
        end = world.log.end
        table.put("s", f"{self.rng.randrange(4)}", [end, world.log.whole(end)])

    def _deliver(self, world: World) -> None:
        key = f"{self.rng.randrange(6)}"
        self.history.deliveries.append({**self.history.deliveries[-1], ("q", key): self.number})
        world.deliveries.put("q", key, self.number)

    def _wait(self, world: World) -> None:
        topics = {name: len(values) - 1 for name, values in self.history.topics.items()}
        state_number = len(self.history.deliveries) - 1

        def durable(error: StoreError | None) -> None:
            if error is None:
                self.history.durable(topics, state_number)

        world.journal.when_durable(durable)

    def adopt(self, world: World) -> None:
        """Go on from what WORLD has found."""
        self.history = History()
        for (_, name), value in world.rows()[0].items():
            self.history.topics[name] = [value]
        self.history.deliveries = [world.rows()[2]]

    def resume(self, world: World) -> None:
        """Go on with what WORLD, of the next process, has found: all of that may still be lost."""
        states = self.history.deliveries
        last = max(n for n, state in enumerate(states) if state == world.rows()[2])
        del states[last + 1 :]

    def check(self, world: World, *, same_boot: bool) -> None:
        topics, offsets, deliveries, progress = world.rows()
        for name, values in self.history.topics.items():
            allowed = values[self.history.safe_topics.get(name, 0) :]
            assert topics.get(("", name)) in allowed, "a topic"
        states = self.history.deliveries[self.history.safe_state :]
        assert deliveries in states, "deliveries are of no moment"
        for end, crc in [*offsets.values(), *progress.values()]:
            assert end <= world.log.end, "ahead of the log"
            assert world.log.whole(end) == crc, "about records that the log lost"
        assert same_boot or not progress, "of another run of the machine"


def run(traffic: Traffic, world: World, disk: RecordingDisk | None, steps: int) -> None:
    for _ in range(steps):
        if disk is not None and disk.crashed:
            return
        traffic.step(world)


def life(seed: int, folder: Path, crash_after: int) -> bool:
    """Lose power after so many operations; then be killed, and lose it again. Return whether it was lost at first."""
    rng = random.Random(seed)
    traffic, log = Traffic(seed), FakeLog(rng)
    place = folder / "0"
    place.mkdir(parents=True)
    was_lost = False
    for round_ in range(3):
        boot_id = bytes([round_ + 1]) * 16
        disk = RecordingDisk(str(place), seed + round_)
        disk.crash_after = crash_after if round_ == 0 else rng.randrange(1, 120)
        with suppress(Crash):
            world = World(place, log, disk=disk, boot_id=boot_id, open_now=False)
            world.open()
            if round_:
                traffic.check(world, same_boot=False)
                traffic.adopt(world)
            run(traffic, world, disk, 60)
            if rng.random() < 0.3:  # Killed first, and lost later.
                for _ in range(rng.randrange(3)):
                    log.grow()
                world = World(place, log, disk=disk, boot_id=boot_id, open_now=False)
                world.open()
                traffic.check(world, same_boot=True)
                traffic.resume(world)
                run(traffic, world, disk, 60)
        was_lost = was_lost or disk.crashed
        log.lose_power()
        place = folder / f"{round_ + 1}"
        disk.rebuild(str(place))
        if rng.random() < 0.5:  # It grows before the next start of what keeps tables.
            log.flushed = log.end
    world = World(place, log, boot_id=b"Z" * 16)
    traffic.check(world, same_boot=False)
    return was_lost


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_power_fails_at_every_operation(tmp_path: Path, seed: int) -> None:
    for crash_after in range(1, 90, 2):
        life(seed * 1_000 + crash_after, tmp_path / f"{crash_after}", crash_after)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 20))
def test_a_snapshot_gets_its_name_after_the_changes_in_it_are_on_disk(
    tmp_path: Path, seed: int
) -> None:
    """Otherwise a start would replay older changes over it, and not the newer ones, which are lost."""
    home = tmp_path / "home"
    home.mkdir()
    disk, log = RecordingDisk(str(home), seed), FakeLog(random.Random(seed))
    world = World(home, log, disk=disk)
    world.journal._begin_snapshots({world.topics.number})
    world.topics.put("", "T", 1)
    world.topics.put("", "T", 2)
    world.topics.put("", "U", 3)
    world.turns.run_all()
    assert world.topics.number in world.journal._bases, "the snapshot is finished"

    disk.rebuild(str(tmp_path / "left"))

    assert World(tmp_path / "left", log).rows()[0] == {("", "T"): 2, ("", "U"): 3}


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 20))
def test_a_snapshot_is_on_disk_before_the_journals_that_it_replaces_are_deleted(
    tmp_path: Path, seed: int
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    disk, log = RecordingDisk(str(home), seed), FakeLog(random.Random(seed))
    world = World(home, log, disk=disk)
    world.topics.put("", "T", 1)
    world.journal._begin_snapshots({table.number for table in world.tables})
    world.turns.run_all()
    names = {path.name for path in (home / "tables").iterdir()}
    assert "journal-00000001" not in names

    disk.rebuild(str(tmp_path / "left"))

    assert World(tmp_path / "left", log).rows()[0] == {("", "T"): 1}


def without_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sections count whatever the log lost."""
    real = table_files._Reading._apply

    def apply(self: Any, table: Any, section: Any, limit: int, boot: set[bytes]) -> None:
        real(self, table, section, 1 << 63, boot)

    monkeypatch.setattr(table_files._Reading, "_apply", apply)


def without_lower_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sections count again once the log is long enough."""
    real = table_files._marks
    monkeypatch.setattr(
        table_files, "_marks", lambda notes: [one._replace(is_start=False) for one in real(notes)]
    )


def without_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ordered tables go on behind a gap."""
    real = World.open

    def open_(self: World) -> None:
        self.deliveries.ordered = False
        real(self)

    monkeypatch.setattr(World, "open", open_)


def with_later_boot_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tables of a process be of the run of the machine that reads them."""
    monkeypatch.setattr(table_files._Reading, "_is_of_this_boot", lambda self, table, boots: True)


@pytest.mark.parametrize(
    "take_away", [without_needs, without_lower_limit, without_stop, with_later_boot_id]
)
def test_without_a_rule_a_check_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    take_away: Callable[[pytest.MonkeyPatch], None],
) -> None:
    take_away(monkeypatch)
    with pytest.raises(AssertionError, match=r"of no moment|the log|the machine"):
        many_lives(tmp_path)


def many_lives(folder: Path) -> None:
    for seed in range(1, 400):
        life(seed, folder / f"{seed}", 20 + seed % 70)
