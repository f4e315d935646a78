"""Power fails while statistics of groups and offset metadata are kept, both of them lazy tables.

What a caller waited for is there afterwards, and so is what was written a second ago. Metadata is there only with the
offset that it was committed with. POCKETMQ_SEEDS=n tries n seeds, from POCKETMQ_SEED on.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pocketmq.broker.commit_texts import CommitTexts, commit_text_table
from pocketmq.broker.consume_stats import ConsumeStats, statistics_table
from pocketmq.broker.offsets import Offsets
from pocketmq.store.disk import Disk
from pocketmq.store.state_files import StateFile
from pocketmq.store.table_journal import LAZY_MS, TableJournal
from pocketmq.store.tables import Durability

from ..fakes import Crash, RecordingDisk
from ..store.table_worlds import FakeLog, opened_journal

FIRST = int(os.environ.get("POCKETMQ_SEED", "1"))
COUNT = int(os.environ.get("POCKETMQ_SEEDS", "25"))
QUEUES = 3
LIVES = 3


class Committed(NamedTuple):
    """An offset of a group, and the text that was committed with it; None: it has none."""

    offset: int | None = None
    text: str = ""


class HandClock:
    """Continues only when the test lets it."""

    instant_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.instant_ms

    unix_ms = now_ms


class Process:
    """Statistics, texts and offsets of a broker on the store at PATH."""

    def __init__(self, path: Path, log: FakeLog, clock: HandClock, disk: Disk) -> None:
        statistics, texts = statistics_table(), commit_text_table()
        self.log = log
        self.clock = clock
        self.journal = opened_journal(path, statistics, texts, disk=disk, log=log, clock=clock)
        self.journal.start(lambda function: function())
        self.consume_stats = ConsumeStats(clock.now_ms, statistics)
        file = StateFile(disk, str(path), "consumerOffset.json")
        self.offsets = Offsets(file, clock.now_ms, CommitTexts(texts))

    def moved_to(self, queue: int) -> int | None:
        """Return where an administrator moved the group last, as the statistics say."""
        stats = self.consume_stats.get(("g", "T", queue))
        return None if stats is None else stats.moves[-1].after

    def committed(self, queue: int) -> Committed:
        offset = self.offsets.committed("T", "g", queue)
        return Committed(offset, self.offsets.metadata("T", "g", queue))


class History:
    """The values that each queue had in turn. Those before `least` must not be found any more."""

    def __init__(self, first: list[Any]) -> None:
        self.values = [[value] for value in first]
        self.least = [0] * QUEUES
        #: By instant: how many values there were.
        self._counts: list[tuple[int, list[int]]] = []

    def add(self, queue: int, value: object) -> None:
        if value != self.values[queue][-1]:
            self.values[queue].append(value)

    def last(self) -> list[int]:
        return [len(values) - 1 for values in self.values]

    def note(self, now_ms: int) -> None:
        self._counts.append((now_ms, self.last()))

    def last_at(self, instant_ms: int) -> list[int]:
        """Return the last values that were noted up to INSTANT_MS."""
        return max((last for at, last in self._counts if at <= instant_ms), default=self.least)

    def durable(self, last: list[int]) -> None:
        self.least = list(map(max, self.least, last))

    def left(self, queue: int) -> list[Any]:
        return self.values[queue][self.least[queue] :]


class Traffic:
    """Seeded changes; remembers them, and what is on disk."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.number = 0
        self.begin([None] * QUEUES, [Committed()] * QUEUES)

    def begin(self, moves: list[Any], committed: list[Any]) -> None:
        self.moves, self.committed = History(moves), History(committed)

    def step(self, process: Process) -> None:
        steps = [self._move, self._commit, self._commit, self._forget, self._wait, self._save]
        (chosen,) = self.random.choices([*steps, self._tick], [6, 6, 3, 1, 2, 2, 5])
        self.number += 1
        if self.random.random() < 0.3:
            process.log.grow()
        chosen(process)

    # Values are noted before the call: a crash in it may leave them.

    def _move(self, process: Process) -> None:
        queue = self.random.randrange(QUEUES)
        self.moves.add(queue, self.number)
        process.consume_stats.move(("g", "T", queue), "me", 0, self.number)

    def _commit(self, process: Process) -> None:
        queue, offset = self.random.randrange(QUEUES), self.random.randrange(4)
        text = self.random.choice(["", f"text {self.number}"])
        self.committed.add(queue, Committed(offset, text))
        process.offsets.commit("T", "g", queue, offset, text)

    def _forget(self, process: Process) -> None:
        for queue in range(QUEUES):
            self.moves.add(queue, None)
            self.committed.add(queue, Committed())
        process.consume_stats.forget_group("g")
        process.offsets.forget_group("g")

    def _wait(self, process: Process) -> None:
        moves, committed = self.moves.last(), self.committed.last()
        answers: list[object] = []
        process.offsets.when_saved(answers.append)
        process.offsets.texts.when_durable(answers.append)
        process.consume_stats.when_durable(answers.append)
        assert answers == [None] * 3
        self.moves.durable(moves)
        self.committed.durable(committed)

    def _save(self, process: Process) -> None:
        """Save the offsets, as a broker does every 5 s; the next tick syncs their texts."""
        committed = self.committed.last()
        process.offsets.save_after_sync(
            lambda done: process.log.when_flushed(process.log.end, done)
        )
        process.journal.tick()
        self.committed.durable(committed)

    def _tick(self, process: Process) -> None:
        now_ms = process.clock.now_ms()
        self.moves.note(now_ms)
        process.clock.instant_ms += self.random.choice([100, 500, 1_500])
        process.journal.tick()
        self.moves.durable(self.moves.last_at(process.clock.now_ms() - LAZY_MS))

    def check(self, process: Process) -> None:
        for queue in range(QUEUES):
            assert process.moved_to(queue) in self.moves.left(queue), "a statistic"
            found, left = process.committed(queue), self.committed.left(queue)
            offsets = {one.offset for one in left}
            assert found.offset in offsets, "an offset"
            if found.text or len(left) == 1:
                assert found in left, "a text"


def lives(seed: int, folder: Path) -> None:
    """Use a store and lose power, some times."""
    traffic, log, clock = Traffic(seed), FakeLog(random.Random(seed)), HandClock()
    home = folder / "0"
    home.mkdir(parents=True)
    for life in range(LIVES):
        disk = RecordingDisk(str(home), seed + life)
        disk.crash_after = traffic.random.randint(15, 150)
        with suppress(Crash):
            process = Process(home, log, clock, disk)
            traffic.check(process)
            moves = [process.moved_to(queue) for queue in range(QUEUES)]
            traffic.begin(moves, [process.committed(queue) for queue in range(QUEUES)])
            for _ in range(400):
                traffic.step(process)
        assert disk.crashed
        log.lose_power()
        home = folder / f"{life + 1}"
        disk.rebuild(str(home))
    traffic.check(Process(home, log, clock, RecordingDisk(str(home), seed)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_what_is_durable_is_there_after_a_power_cut(seed: int, tmp_path: Path) -> None:
    lives(seed, tmp_path)


def _as_process(make: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        table = make()
        table.durability = Durability.PROCESS
        return table

    return made


def statistics_only_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the journal write what is lazy only for those who wait."""
    monkeypatch.setattr(TableJournal, "_write_lazy", lambda self: None)


def statistics_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _as_process(statistics_table)
    monkeypatch.setattr(f"{__name__}.statistics_table", made)


def texts_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _as_process(commit_text_table)
    monkeypatch.setattr(f"{__name__}.commit_text_table", made)


def texts_of_any_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitTexts, "offset_is", lambda self, key, offset: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("take_away", "what"),
    [
        (statistics_only_in_memory, "a statistic"),
        (statistics_of_the_process, "a statistic"),
        (texts_of_the_process, "a text"),
        (texts_of_any_offset, "a text"),
    ],
)
def test_without_a_rule_the_check_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    take_away: Callable[[pytest.MonkeyPatch], None],
    what: str,
) -> None:
    take_away(monkeypatch)
    with pytest.raises(AssertionError, match=what):
        many_lives(tmp_path)


def many_lives(folder: Path) -> None:
    for seed in range(1, 100):
        lives(seed, folder / f"{seed}")
