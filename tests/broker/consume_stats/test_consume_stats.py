"""Statistics of what groups did not read: each message counted once, told by filter, kept over a kill."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.broker import consume_stats as module
from pocketmq.broker.broker_tables import BrokerTables
from pocketmq.broker.consume_stats import ConsumeStats, StatisticsTable, statistics_table
from pocketmq.broker.queue_stats import (
    EVERY,
    FILTERS_MAX,
    LOOKS_MAX,
    MOVES_MAX,
    OTHERS,
    Filtering,
    MovedBy,
    QueueStats,
    ScanResult,
    filtering_of,
)
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.table_files import read_tables
from pocketmq.store.table_journal import JournalSizes, TableJournal

from ...runs import make_run, open_store
from ...store.table_worlds import opened_journal

KEY = ("g", "T", 0)
A: Filtering = ("TAG", "a")
B: Filtering = ("TAG", "b")


def looked(begin: int, end: int, wanted: set[int]) -> ScanResult:
    """Return the look at the messages [BEGIN, END), of which WANTED are not stepped over."""
    inside = sorted(number for number in wanted if begin <= number < end)
    return ScanResult(begin, end, np.array(inside, np.int64), end - begin - len(inside), 0)


def look(
    consume_stats: ConsumeStats,
    begin: int,
    end: int,
    wanted: set[int],
    key: tuple[str, str, int] = KEY,
    filtering: Filtering = A,
    member: str | None = "m",
) -> None:
    consume_stats.look(
        key, looked(begin, end, wanted), queue_end=100, filtering=filtering, member=member
    )


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)),
    st.sets(st.integers(0, 30)),
)
def test_each_message_is_counted_once(ranges: list[list[int]], wanted: set[int]) -> None:
    consume_stats = ConsumeStats()
    up_to, counted = 0, set[int]()

    for begin, end in ranges:
        look(consume_stats, begin, end, wanted)
        counted |= {number for number in range(begin, end) if number >= up_to} - wanted
        up_to = max(up_to, end) if begin < end else up_to

    found = consume_stats.of_group("g")
    assert sum(one.count for one in found) == len(counted)
    assert consume_stats.skipped == len(counted)
    if counted:
        (by,) = found[0].skipped
        assert (by.first, by.last) == (min(counted), max(counted))
        assert (by.kind, by.expression, list(by.members)) == ("TAG", "a", ["m"])


@dataclass
class Model:
    """What a group did, message by message."""

    filters: dict[int, Filtering] = field(default_factory=dict)
    to: int = 0

    def look(self, begin: int, end: int, filtering: Filtering) -> None:
        seen = [self.filters.get(one) for one in range(begin, self.to)]
        if begin < end and begin < self.to and any(one != filtering for one in seen):
            self.filters = {one: name for one, name in self.filters.items() if one < begin}
            self.to = begin
        if begin < end:
            self.filters |= {one: filtering for one in range(max(begin, self.to), end)}
            self.to = max(self.to, end)


@given(
    st.lists(
        st.tuples(
            st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted),
            st.sampled_from([A, B, EVERY]),
        ),
        max_size=10,
    )
)
def test_which_filter_looked_at_a_message_last_is_known(
    looks: list[tuple[list[int], Filtering]],
) -> None:
    stats, model = QueueStats(), Model()

    for (begin, end), filtering in looks:
        stats.look(looked(begin, end, set()), filtering, "", 0)
        model.look(begin, end, filtering)

    assert [stats.looked_through(one) for one in range(31)] == [
        model.filters.get(one) for one in range(31)
    ]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 60),
            st.sampled_from([("TAG", "x" * length) for length in range(FILTERS_MAX + 3)]),
            st.sampled_from(["", "a", "member b", "member c!", "d", "e"]),
            st.sampled_from(["look", "look", "look", "all", "move"]),
        ),
        max_size=60,
    )
)
def test_the_size_follows_the_texts(steps: list[tuple[int, Filtering, str, str]]) -> None:
    stats = QueueStats()
    for begin, filtering, member, kind in steps:
        if kind == "move":
            stats.move(MovedBy(0, member, None, begin))
        elif kind == "all":
            stats.look_at_all(begin, begin + 9)
        else:
            stats.look(looked(begin, begin + 9, set()), filtering, member, begin)
        assert stats.size == QueueStats.from_json(stats.to_json()).size


def test_a_message_that_is_looked_at_again_after_a_move_back_is_told_by_the_later_filter() -> None:
    stats = QueueStats()
    stats.look(looked(0, 10, {3}), A, "old", 1)

    stats.move(MovedBy(2, "somebody", 10, 5))
    stats.look_at_all(5, 10)

    assert [stats.looked_through(one) for one in (4, 5)] == [A, EVERY]
    assert stats.skipped_count == 9


def test_moves_pass_messages_until_the_group_comes_to_them() -> None:
    stats = QueueStats()
    ahead, back = MovedBy(1, "w", 5, 10), MovedBy(2, "w", 10, 7)
    stats.move(MovedBy(0, "w", None, 2))
    stats.move(ahead)

    assert stats.passed_by(1) == MovedBy(0, "w", None, 2)
    assert stats.passed_by(3) is None
    assert stats.passed_by(9) == ahead
    stats.move(back)
    assert stats.passed_by(9) is None
    assert stats.passed_by(6) == ahead


def test_statistics_have_bounds() -> None:
    stats = QueueStats()
    for number in range(50):
        filtering = filtering_of("TAG", f"t{number}" * 400)
        stats.look(looked(number, number + 1, set()), filtering, f"m{number}", number)
        stats.move(MovedBy(number, "w", 0, 0))

    assert len(stats.skipped) == FILTERS_MAX + 1
    assert stats.skipped[OTHERS].count == 50 - FILTERS_MAX
    assert (stats.skipped[OTHERS].first, stats.skipped[OTHERS].last) == (0, 49 - FILTERS_MAX)
    assert len(stats.skipped[OTHERS].members) == 4
    assert len(stats.looks) <= LOOKS_MAX
    assert len(stats.moves) == MOVES_MAX
    assert all(len(expression) <= 1_024 for _, expression in stats.skipped)
    assert QueueStats.from_json(json.loads(json.dumps(stats.to_json()))) == stats


def test_counts_are_told_by_group_topic_and_queue() -> None:
    consume_stats = ConsumeStats()
    look(consume_stats, 0, 5, {1}, ("g", "T", 1))
    look(consume_stats, 0, 3, set(), ("g", "T", 0))
    look(consume_stats, 0, 3, {0, 1, 2}, ("g", "U", 0))
    look(consume_stats, 0, 9, set(), ("h", "T", 0))

    told = [(one.topic, one.queue, one.group, one.count) for one in consume_stats.of_group("g")]

    assert told == [("T", 0, "g", 3), ("T", 1, "g", 4)]
    assert consume_stats.of_group("nobody") == []
    assert consume_stats.skipped_by_topic() == {("g", "T"): 7, ("h", "T"): 9}


def test_who_holds_the_queue_is_told_where_the_look_does_not_say() -> None:
    consume_stats = ConsumeStats(holder=lambda group, topic, queue: f"{group}-{topic}-{queue}")

    look(consume_stats, 0, 1, set(), member=None)

    assert list(consume_stats.of_group("g")[0].skipped[0].members) == ["g-T-0"]


def test_a_queue_that_begins_anew_is_counted_anew() -> None:
    consume_stats = ConsumeStats()
    look(consume_stats, 0, 50, set())

    consume_stats.look(KEY, looked(0, 2, set()), queue_end=2, filtering=A, member="m")

    assert consume_stats.of_group("g")[0].count == 52


def fill(consume_stats: ConsumeStats, numbers: range) -> None:
    """Let each queue of NUMBERS have as many and as long filters as it may."""
    for number in numbers:
        for begin in range(LOOKS_MAX):
            filtering = filtering_of("TAG", chr(1 + begin) * 2_000)
            look(
                consume_stats, begin, begin + 1, set(), key=("g", "T", number), filtering=filtering
            )


def test_statistics_are_bounded_by_their_size_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIZE_MAX", 500_000)
    table = statistics_table()
    consume_stats = ConsumeStats(table=table)
    fill(consume_stats, range(20))

    kept = [queue for (_, _, queue), _ in consume_stats.items()]
    assert kept == list(range(kept[0], 20)), "the oldest go first"
    assert 5 < len(kept) < 15
    # A control character is six bytes of JSON.
    assert sum(len(table.codec.value(stats)) for _, stats in consume_stats.items()) < 6 * 500_000

    consume_stats.forget_group("g")
    fill(consume_stats, range(2))
    assert [queue for (_, _, queue), _ in consume_stats.items()] == [0, 1], "room is there again"


def test_statistics_of_a_store_that_are_too_large_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = statistics_table()
    fill(ConsumeStats(table=table), range(20))
    monkeypatch.setattr(module, "SIZE_MAX", 500_000)

    kept = [queue for (_, _, queue), _ in ConsumeStats(table=table).items()]

    assert kept == list(range(kept[0], 20))
    assert 5 < len(kept) < 15


def test_beyond_the_bound_the_one_looked_at_longest_ago_is_forgotten() -> None:
    consume_stats = ConsumeStats(limit=2)
    for group in ("a", "b", "a", "c"):
        look(consume_stats, 0, 5, set(), (group, "T", 0))

    assert [len(consume_stats.of_group(group)) for group in "abc"] == [1, 0, 1]


class TestTable:
    """What outlives a process."""

    def test_statistics_are_found_again(self, tmp_path: Path) -> None:
        consume_stats, journal = opened(tmp_path)
        look(consume_stats, 0, 5, {1})
        consume_stats.move(KEY, "me (127.0.0.1:1)", 5, 9)
        look(consume_stats, 0, 5, {1}, ("g", "T\u2028", 1))
        journal.close()

        assert opened(tmp_path)[0].of_group("g") == consume_stats.of_group("g")

    def test_a_kill_loses_what_came_within_the_last_second(self, tmp_path: Path) -> None:
        consume_stats, journal = opened(tmp_path)
        look(consume_stats, 0, 5, set())
        journal.write(lazy=True)
        look(consume_stats, 5, 9, set())

        (found,) = opened(tmp_path)[0].of_group("g")

        assert found.count == 5

    def test_a_move_that_is_waited_for_outlives_a_kill(self, tmp_path: Path) -> None:
        consume_stats, _ = opened(tmp_path)
        answers: list[object] = []
        consume_stats.move(KEY, "me", None, 9)
        consume_stats.when_durable(answers.append)

        (found,) = opened(tmp_path)[0].of_group("g")

        assert answers == [None]
        assert [one.after for one in found.moves] == [9]

    def test_messages_that_the_log_lost_are_forgotten(self, tmp_path: Path) -> None:
        """Others get their offsets: what became of the lost ones is not true of them."""
        whole, cut = tmp_path / "whole", tmp_path / "cut"
        for count in (4, 6):
            store = open_store(whole)
            store.append(make_run("T", 0, [b"m"] * count))
            tables = BrokerTables.open(store, VirtualClock())
            consume_stats = ConsumeStats(table=tables.statistics)
            if count == 6:
                look(consume_stats, 0, 3, set())
                look(consume_stats, 3, 10, set(), filtering=B)
                look(consume_stats, 0, 10, set(), key=("h", "T", 0), filtering=EVERY)
                consume_stats.move(("i", "T", 0), "me", None, 2)
                consume_stats.move(("i", "T", 0), "you", 2, 8)
                look(consume_stats, 0, 3, set(), ("j", "T", 0))
            tables.journal.close()
            store.close()
            if count == 4:
                shutil.copytree(whole, cut)
        shutil.rmtree(cut / "pocketmq" / "tables")
        shutil.copytree(whole / "pocketmq" / "tables", cut / "pocketmq" / "tables")

        store = open_store(cut)
        tables = BrokerTables.open(store, VirtualClock())
        consume_stats = ConsumeStats(table=tables.statistics)
        tables.journal.close()
        store.close()

        found = {key[0]: stats for key, stats in consume_stats.items()}
        assert (found["g"].counted_to, found["g"].looked_to) == (4, 4)
        assert [found["g"].looked_through(offset) for offset in (2, 3, 4, 9)] == [A, B, None, None]
        assert found["h"].looked_to == 4
        assert [one.who for one in found["i"].moves] == ["me"]
        assert (found["j"].counted_to, found["j"].skipped_count) == (3, 3)
        kept = {key: stats for _, key, stats in reread(cut).items()}
        assert kept == dict(consume_stats.items()), "and stays so"

    def test_what_is_forgotten_stays_so(self, tmp_path: Path) -> None:
        consume_stats, journal = opened(tmp_path)
        look(consume_stats, 0, 5, set())
        look(consume_stats, 0, 5, set(), ("h", "U", 0))
        journal.write(everything=True)
        consume_stats.forget_group("g")
        consume_stats.forget_topic("U")
        journal.write()  # Not `lazy`: what goes does not wait.

        again, _ = opened(tmp_path)

        assert again.of_group("g") == again.of_group("h") == []

    @pytest.mark.parametrize("has_snapshot", [False, True])
    def test_the_one_touched_longest_ago_goes_first_after_a_start_as_well(
        self, tmp_path: Path, *, has_snapshot: bool
    ) -> None:
        consume_stats, journal = opened(
            tmp_path, JournalSizes(snapshot=0) if has_snapshot else None
        )
        for queue in range(3):
            look(consume_stats, 0, 5, set(), ("g", "T", queue))
            journal.write(lazy=True)
        look(consume_stats, 5, 6, set(), ("g", "T", 0))
        journal.write(lazy=True)
        if has_snapshot:
            journal.tick()
            assert snapshots(tmp_path)

        again = ConsumeStats(table=reread(tmp_path), limit=3)
        assert [queue for (_, _, queue), _ in again.items()] == [1, 2, 0]
        look(again, 0, 5, set(), ("h", "T", 0))

        assert again.get(("g", "T", 1)) is None

    def test_an_entry_of_another_form_is_as_none(self, tmp_path: Path) -> None:
        consume_stats, journal = opened(tmp_path)
        look(consume_stats, 0, 5, set())
        look(consume_stats, 0, 5, set(), ("g", "T", 1))
        stats = consume_stats.get(KEY)
        assert stats is not None
        stats.lost = 1 << 63  # More than a reply can carry.
        journal.close()

        assert [one.queue for one in opened(tmp_path)[0].of_group("g")] == [1]


def opened(store: Path, sizes: JournalSizes | None = None) -> tuple[ConsumeStats, TableJournal]:
    """Return the statistics that a process finds in STORE, and their journal."""
    table = statistics_table()
    journal = opened_journal(store, table, sizes=sizes)
    journal.start(lambda function: function())
    return ConsumeStats(lambda: 7, table), journal


def reread(store: Path) -> StatisticsTable:
    table = statistics_table()
    read_tables(OsDisk(), str(store / "pocketmq/tables"), [table])
    return table


def snapshots(store: Path) -> list[Path]:
    return list(store.glob("pocketmq/tables/snapshot-4-*[0-9]"))


def test_what_is_told_names_filter_offsets_and_moves() -> None:
    consume_stats = ConsumeStats(lambda: 7)
    look(consume_stats, 2, 5, {3})
    consume_stats.move(KEY, "me", None, 9)

    assert consume_stats.of_group("g") == [
        pb.FilteredCount(
            topic="T",
            queue=0,
            group="g",
            count=2,
            skipped=[
                pb.SkippedBy(
                    kind="TAG", expression="a", count=2, first=2, last=4, members=["m"], at_ms=7
                )
            ],
            moves=[pb.MovedBy(at_ms=7, who="me", before=-1, after=9)],
        )
    ]
