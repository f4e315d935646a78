"""Accounts of what groups did not read: each message counted once, told by filter, kept over a kill."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.broker import accounts as module
from pocketmq.broker.account import (
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
from pocketmq.broker.accounts import ConsumeStats, StatisticsTable, statistics_table
from pocketmq.broker.kept_tables import KeptTables
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
    accounts: ConsumeStats,
    begin: int,
    end: int,
    wanted: set[int],
    key: tuple[str, str, int] = KEY,
    filtering: Filtering = A,
    member: str | None = "m",
) -> None:
    accounts.look(
        key, looked(begin, end, wanted), queue_end=100, filtering=filtering, member=member
    )


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)),
    st.sets(st.integers(0, 30)),
)
def test_each_message_is_counted_once(ranges: list[list[int]], wanted: set[int]) -> None:
    accounts = ConsumeStats()
    up_to, counted = 0, set[int]()

    for begin, end in ranges:
        look(accounts, begin, end, wanted)
        counted |= {number for number in range(begin, end) if number >= up_to} - wanted
        up_to = max(up_to, end) if begin < end else up_to

    found = accounts.of_group("g")
    assert sum(one.count for one in found) == len(counted)
    assert accounts.skipped == len(counted)
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
    account, model = QueueStats(), Model()

    for (begin, end), filtering in looks:
        account.look(looked(begin, end, set()), filtering, "", 0)
        model.look(begin, end, filtering)

    assert [account.looked_through(one) for one in range(31)] == [
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
    account = QueueStats()
    for begin, filtering, member, kind in steps:
        if kind == "move":
            account.move(MovedBy(0, member, None, begin))
        elif kind == "all":
            account.look_at_all(begin, begin + 9)
        else:
            account.look(looked(begin, begin + 9, set()), filtering, member, begin)
        assert account.size == QueueStats.from_json(account.to_json()).size


def test_a_message_that_is_looked_at_again_after_a_move_back_is_told_by_the_later_filter() -> None:
    account = QueueStats()
    account.look(looked(0, 10, {3}), A, "old", 1)

    account.move(MovedBy(2, "somebody", 10, 5))
    account.look_at_all(5, 10)

    assert [account.looked_through(one) for one in (4, 5)] == [A, EVERY]
    assert account.skipped_count == 9


def test_moves_pass_messages_until_the_group_comes_to_them() -> None:
    account = QueueStats()
    ahead, back = MovedBy(1, "w", 5, 10), MovedBy(2, "w", 10, 7)
    account.move(MovedBy(0, "w", None, 2))
    account.move(ahead)

    assert account.passed_by(1) == MovedBy(0, "w", None, 2)
    assert account.passed_by(3) is None
    assert account.passed_by(9) == ahead
    account.move(back)
    assert account.passed_by(9) is None
    assert account.passed_by(6) == ahead


def test_an_account_has_bounds() -> None:
    account = QueueStats()
    for number in range(50):
        filtering = filtering_of("TAG", f"t{number}" * 400)
        account.look(looked(number, number + 1, set()), filtering, f"m{number}", number)
        account.move(MovedBy(number, "w", 0, 0))

    assert len(account.skipped) == FILTERS_MAX + 1
    assert account.skipped[OTHERS].count == 50 - FILTERS_MAX
    assert (account.skipped[OTHERS].first, account.skipped[OTHERS].last) == (0, 49 - FILTERS_MAX)
    assert len(account.skipped[OTHERS].members) == 4
    assert len(account.looks) <= LOOKS_MAX
    assert len(account.moves) == MOVES_MAX
    assert all(len(expression) <= 1_024 for _, expression in account.skipped)
    assert QueueStats.from_json(json.loads(json.dumps(account.to_json()))) == account


def test_counts_are_told_by_group_topic_and_queue() -> None:
    accounts = ConsumeStats()
    look(accounts, 0, 5, {1}, ("g", "T", 1))
    look(accounts, 0, 3, set(), ("g", "T", 0))
    look(accounts, 0, 3, {0, 1, 2}, ("g", "U", 0))
    look(accounts, 0, 9, set(), ("h", "T", 0))

    told = [(one.topic, one.queue, one.group, one.count) for one in accounts.of_group("g")]

    assert told == [("T", 0, "g", 3), ("T", 1, "g", 4)]
    assert accounts.of_group("nobody") == []
    assert accounts.skipped_by_topic() == {("g", "T"): 7, ("h", "T"): 9}


def test_who_holds_the_queue_is_told_where_the_look_does_not_say() -> None:
    accounts = ConsumeStats(holder=lambda group, topic, queue: f"{group}-{topic}-{queue}")

    look(accounts, 0, 1, set(), member=None)

    assert list(accounts.of_group("g")[0].skipped[0].members) == ["g-T-0"]


def test_a_queue_that_begins_anew_is_counted_anew() -> None:
    accounts = ConsumeStats()
    look(accounts, 0, 50, set())

    accounts.look(KEY, looked(0, 2, set()), queue_end=2, filtering=A, member="m")

    assert accounts.of_group("g")[0].count == 52


def fill(accounts: ConsumeStats, numbers: range) -> None:
    """Let each queue of NUMBERS have as many and as long filters as it may."""
    for number in numbers:
        for begin in range(LOOKS_MAX):
            filtering = filtering_of("TAG", chr(1 + begin) * 2_000)
            look(accounts, begin, begin + 1, set(), key=("g", "T", number), filtering=filtering)


def test_accounts_are_bounded_by_their_size_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIZE_MAX", 500_000)
    table = statistics_table()
    accounts = ConsumeStats(table=table)
    fill(accounts, range(20))

    kept = [queue for (_, _, queue), _ in accounts.items()]
    assert kept == list(range(kept[0], 20)), "the oldest go first"
    assert 5 < len(kept) < 15
    # A control character is six bytes of JSON.
    assert sum(len(table.codec.value(account)) for _, account in accounts.items()) < 6 * 500_000

    accounts.forget_group("g")
    fill(accounts, range(2))
    assert [queue for (_, _, queue), _ in accounts.items()] == [0, 1], "room is there again"


def test_accounts_of_a_store_that_are_too_large_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = statistics_table()
    fill(ConsumeStats(table=table), range(20))
    monkeypatch.setattr(module, "SIZE_MAX", 500_000)

    kept = [queue for (_, _, queue), _ in ConsumeStats(table=table).items()]

    assert kept == list(range(kept[0], 20))
    assert 5 < len(kept) < 15


def test_beyond_the_bound_the_one_looked_at_longest_ago_is_forgotten() -> None:
    accounts = ConsumeStats(limit=2)
    for group in ("a", "b", "a", "c"):
        look(accounts, 0, 5, set(), (group, "T", 0))

    assert [len(accounts.of_group(group)) for group in "abc"] == [1, 0, 1]


class TestTable:
    """What outlives a process."""

    def test_accounts_are_found_again(self, tmp_path: Path) -> None:
        accounts, journal = opened(tmp_path)
        look(accounts, 0, 5, {1})
        accounts.move(KEY, "me (127.0.0.1:1)", 5, 9)
        look(accounts, 0, 5, {1}, ("g", "T\u2028", 1))
        journal.close()

        assert opened(tmp_path)[0].of_group("g") == accounts.of_group("g")

    def test_a_kill_loses_what_came_within_the_last_second(self, tmp_path: Path) -> None:
        accounts, journal = opened(tmp_path)
        look(accounts, 0, 5, set())
        journal.write(lazy=True)
        look(accounts, 5, 9, set())

        (found,) = opened(tmp_path)[0].of_group("g")

        assert found.count == 5

    def test_a_move_that_is_waited_for_outlives_a_kill(self, tmp_path: Path) -> None:
        accounts, _ = opened(tmp_path)
        answers: list[object] = []
        accounts.move(KEY, "me", None, 9)
        accounts.when_durable(answers.append)

        (found,) = opened(tmp_path)[0].of_group("g")

        assert answers == [None]
        assert [one.after for one in found.moves] == [9]

    def test_messages_that_the_log_lost_are_forgotten(self, tmp_path: Path) -> None:
        """Others get their offsets: what became of the lost ones is not true of them."""
        whole, cut = tmp_path / "whole", tmp_path / "cut"
        for count in (4, 6):
            store = open_store(whole)
            store.append(make_run("T", 0, [b"m"] * count))
            tables = KeptTables.open(store, VirtualClock())
            accounts = ConsumeStats(table=tables.statistics)
            if count == 6:
                look(accounts, 0, 3, set())
                look(accounts, 3, 10, set(), filtering=B)
                look(accounts, 0, 10, set(), key=("h", "T", 0), filtering=EVERY)
                accounts.move(("i", "T", 0), "me", None, 2)
                accounts.move(("i", "T", 0), "you", 2, 8)
                look(accounts, 0, 3, set(), ("j", "T", 0))
            tables.journal.close()
            store.close()
            if count == 4:
                shutil.copytree(whole, cut)
        shutil.rmtree(cut / "pocketmq" / "tables")
        shutil.copytree(whole / "pocketmq" / "tables", cut / "pocketmq" / "tables")

        store = open_store(cut)
        tables = KeptTables.open(store, VirtualClock())
        accounts = ConsumeStats(table=tables.statistics)
        tables.journal.close()
        store.close()

        found = {key[0]: account for key, account in accounts.items()}
        assert (found["g"].counted_to, found["g"].looked_to) == (4, 4)
        assert [found["g"].looked_through(offset) for offset in (2, 3, 4, 9)] == [A, B, None, None]
        assert found["h"].looked_to == 4
        assert [one.who for one in found["i"].moves] == ["me"]
        assert (found["j"].counted_to, found["j"].skipped_count) == (3, 3)
        kept = {key: account for _, key, account in reread(cut).items()}
        assert kept == dict(accounts.items()), "and stays so"

    def test_what_is_forgotten_stays_so(self, tmp_path: Path) -> None:
        accounts, journal = opened(tmp_path)
        look(accounts, 0, 5, set())
        look(accounts, 0, 5, set(), ("h", "U", 0))
        journal.write(everything=True)
        accounts.forget_group("g")
        accounts.forget_topic("U")
        journal.write()  # Not `lazy`: what goes does not wait.

        again, _ = opened(tmp_path)

        assert again.of_group("g") == again.of_group("h") == []

    @pytest.mark.parametrize("has_snapshot", [False, True])
    def test_the_one_touched_longest_ago_goes_first_after_a_start_as_well(
        self, tmp_path: Path, *, has_snapshot: bool
    ) -> None:
        accounts, journal = opened(tmp_path, JournalSizes(snapshot=0) if has_snapshot else None)
        for queue in range(3):
            look(accounts, 0, 5, set(), ("g", "T", queue))
            journal.write(lazy=True)
        look(accounts, 5, 6, set(), ("g", "T", 0))
        journal.write(lazy=True)
        if has_snapshot:
            journal.tick()
            assert snapshots(tmp_path)

        again = ConsumeStats(table=reread(tmp_path), limit=3)
        assert [queue for (_, _, queue), _ in again.items()] == [1, 2, 0]
        look(again, 0, 5, set(), ("h", "T", 0))

        assert again.get(("g", "T", 1)) is None

    def test_an_entry_that_is_no_account_is_as_none(self, tmp_path: Path) -> None:
        accounts, journal = opened(tmp_path)
        look(accounts, 0, 5, set())
        look(accounts, 0, 5, set(), ("g", "T", 1))
        account = accounts.get(KEY)
        assert account is not None
        account.lost = 1 << 63  # More than a reply can carry.
        journal.close()

        assert [one.queue for one in opened(tmp_path)[0].of_group("g")] == [1]


def opened(store: Path, sizes: JournalSizes | None = None) -> tuple[ConsumeStats, TableJournal]:
    """Return the accounts that a process finds in STORE, and their journal."""
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
    accounts = ConsumeStats(lambda: 7)
    look(accounts, 2, 5, {3})
    accounts.move(KEY, "me", None, 9)

    assert accounts.of_group("g") == [
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
